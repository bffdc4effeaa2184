// every_op: a small graph for every TOSA operator, in several dtypes, for the tests of round trips, fuzzing
// and target checks.
#pragma once

#include <string>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::testing {

struct TosaCase {
  std::string name;
  Graph graph;
};

// Graphs with every tosa.* operator of ops.def at least once.
[[nodiscard]] std::vector<TosaCase> every_tosa_op();

// A chain of a few operators with constants, zero points, merged origins, and outputs that are an input, a
// constant, or the same value as another output.
[[nodiscard]] Graph small_tosa_network();

// A constant of `dtype` with the elements 0, 1, 2, ... modulo 7, minus 3 (bool: modulo 2).
[[nodiscard]] ConstantRef counting_constant(std::string name, DType dtype, const Shape& shape);

}  // namespace tosaic::testing
