// order: finds the order in which the operators of a block become nodes.
//
//   file    b = RELU(a)   a = ADD(x, x)   c = SUB(a, x)
//   graph   a, b, c       of the operators that are ready, the first of the file comes first
//
// Operators that touch variables, themselves or in their regions, stay in the order of the file. Constants
// are not in the list.
#pragma once

#include <cstdint>
#include <vector>

#include "tosaic/tosa/reader/state.h"

namespace tosaic::tosa {

// The indices of the operators in this order. Throws if nothing defines an operand, if an operand is of the
// wrong kind, and if there is a cycle.
[[nodiscard]] std::vector<std::uint32_t> execution_order(BlockState& state);

}  // namespace tosaic::tosa
