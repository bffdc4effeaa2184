// parse: reads the text form that print.h describes, and verifies what it read.
#pragma once

#include <functional>
#include <string_view>

#include "tosaic/ir/graph.h"

namespace tosaic {

// Gives the constant for data that the text only refers to: same dtype, shape and size as `wanted`, whose
// storage is unbound. Null leaves it unbound.
using ConstantSource = std::function<ConstantRef(const Constant& wanted)>;

// Throws InvalidGraph naming line and column, with what was expected and found; what verify() throws, if the
// text is well-formed but the graph is not. Time and memory are bounded by the length of the text, whatever
// it says.
[[nodiscard]] Graph parse(std::string_view text, const ConstantSource& constants = {});

}  // namespace tosaic
