// operands: reads the operands of an operator in the file as operands and attributes of its node.
//
//   CONV2D(x, w, b, izp, wzp)   ->   tosa.conv2d(%x, %w, %b) {input_zp=..., weight_zp=...}
//
// tosa/constant_operands.h says which operands are constants.
#pragma once

#include <span>

#include "tosaic/ir/attributes.h"
#include "tosaic/tosa/reader/state.h"

namespace tosaic::tosa {

// The value of a tensor that is an operand of a node, or an output. A constant is added to the graph at its
// first use. Throws for shape values, variables, and tensors that nothing defines.
[[nodiscard]] ValueId value_of(const Place& place, BlockState& state, std::string_view name);

// Returns `attributes` with the values of the attributes that are constant operands in the file. The
// constant operands are the operands from `first` on; `operands` are the dtypes of the others. Throws if an
// operand is not a constant of the right kind, type and range.
[[nodiscard]] Attrs read_constant_operands(const Place& place, BlockState& state, Attrs attributes,
                                           std::span<const DType> operands, std::size_t first);

}  // namespace tosaic::tosa
