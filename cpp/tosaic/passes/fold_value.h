// fold_value: the elements of one value that depends on no input, as fold-constants computes them.
#pragma once

#include "tosaic/ir/graph.h"

namespace tosaic::passes {

// Returns the constant that the value is or that its nodes compute from constants. Returns null if it depends
// on an input, a state or a node that cannot be run, if a value that it depends on has more than 2^24
// elements, or if it depends on more than 256 nodes. Without the last limit, a caller that asks for every
// value of a long chain would compute the chain again for each value.
[[nodiscard]] ConstantRef fold_value(const Graph& graph, ValueId value);

}  // namespace tosaic::passes
