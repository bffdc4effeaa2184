// A small graph for every TOSA operator, in several dtypes: material for round trips, fuzzing and target
// checks.
#pragma once

#include <string>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::testing {

struct TosaCase {
  std::string name;
  Graph graph;
};

// Every tosa.* operator of ops.def at least once.
[[nodiscard]] std::vector<TosaCase> every_tosa_op();

// A few operators in a row, with constants, origins, shared zero points and an output that is an input.
[[nodiscard]] Graph small_tosa_network();

// A constant of `dtype` with the elements 0, 1, 2, ... modulo 7, minus 3 (bool: modulo 2).
[[nodiscard]] ConstantRef counting_constant(std::string name, DType dtype, const Shape& shape);

}  // namespace tosaic::testing
