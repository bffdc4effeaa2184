// definitions: finds the operator of the file that produces each tensor.
//
// An operator whose number of operands or results differs from ops.def is refused.
//
//   y = CONV2D(x, w, b, zp, zp)     5 operands, 1 result: y has producer CONV2D
//
// VARIABLE and VARIABLE_WRITE list the variable as a result, VARIABLE_READ as an operand; a variable has no
// producer.
#pragma once

#include <optional>

#include "tosaic/ir/attributes.h"
#include "tosaic/tosa/reader/state.h"

namespace tosaic::tosa {

// True for CONST and CONST_SHAPE.
[[nodiscard]] bool is_constant(const schema::TosaOperator& op);
// The operator of ops.def. Returns nothing for constants and for operators that ops.def lacks.
[[nodiscard]] std::optional<Op> op_of(const schema::TosaOperator& op);
// The number of operands that become operands of the node. The others are constant operands, which become
// attributes. Throws if the number of all operands is wrong.
[[nodiscard]] std::size_t node_operands(const Place& place, Op op, const Attrs& attrs);

// Sets the producer of each result. Throws if an operator is not supported, if a list has the wrong length,
// or if a tensor has two definitions or is of the wrong kind.
void define_results(BlockState& state);

}  // namespace tosaic::tosa
