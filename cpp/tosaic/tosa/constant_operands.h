// constant_operands: which attributes of a TOSA operator are constant operands in a .tosa file.
//
//   tosa.conv2d(input, weight, bias) {input_zp=3}   <->   CONV2D(input, weight, bias, input_zp, weight_zp)
//
// In the file, constant operands follow the other operands, in the order of the visits below. The writer and
// the reader use the same description: the writer visits const attributes, the reader fills in mutable ones.
#pragma once

#include <span>
#include <type_traits>

#include "tosaic/ir/attributes.h"

namespace tosaic::tosa {

// Calls one of these functions for each constant operand, in operand order. `name` is the operand's name in
// the specification, and `dtype` is the dtype of the constant:
//   visit.zero_point(name, dtype, int64, is_unsigned)    a tensor of one element
//   visit.weight_zero_point(name, dtype, int64)          the same; some writers store one element per channel
//   visit.element(name, dtype, Scalar)                   a tensor of one element
//   visit.elements(name, dtype, vector<int64>)           a tensor of one axis
//   visit.shift(name, int64)                             a tensor of one i8
//   visit.dims(name, Dims)                               a shape value
//   visit.padding(name, before, after)                   a shape value: before, after of each axis in turn
// `dtypes` has the dtypes of the other operands.
template <class A, class Visit>
void visit_constant_operands(A& attrs, std::span<const DType> dtypes, Visit& visit) {
  using T = std::remove_const_t<A>;
  if constexpr (std::is_same_v<T, TosaConvAttrs> || std::is_same_v<T, TosaTransposeConvAttrs>) {
    visit.zero_point("input_zp", dtypes[0], attrs.input_zp, false);
    visit.weight_zero_point("weight_zp", dtypes[1], attrs.weight_zp);
  } else if constexpr (std::is_same_v<T, TosaAvgPoolAttrs>) {
    visit.zero_point("input_zp", dtypes[0], attrs.input_zp, false);
    visit.zero_point("output_zp", dtypes[0], attrs.output_zp, false);
  } else if constexpr (std::is_same_v<T, TosaZeroPointAttrs>) {
    visit.zero_point("input1_zp", dtypes[0], attrs.first_zp, false);
    visit.zero_point("output_zp", dtypes[0], attrs.second_zp, false);
  } else if constexpr (std::is_same_v<T, TosaMatmulAttrs>) {
    visit.zero_point("A_zp", dtypes[0], attrs.first_zp, false);
    visit.zero_point("B_zp", dtypes[1], attrs.second_zp, false);
  } else if constexpr (std::is_same_v<T, TosaRescaleAttrs>) {
    visit.elements("multiplier", attrs.scale32 ? DType::kI32 : DType::kI16, attrs.multiplier);
    visit.elements("shift", DType::kI8, attrs.shift);
    visit.zero_point("input_zp", dtypes[0], attrs.input_zp, attrs.input_unsigned);
    visit.zero_point("output_zp", attrs.dtype, attrs.output_zp, attrs.output_unsigned);
  } else if constexpr (std::is_same_v<T, TosaMulAttrs>) {
    visit.shift("shift", attrs.shift);
  } else if constexpr (std::is_same_v<T, TosaPadAttrs>) {
    visit.padding("padding", attrs.before, attrs.after);
    visit.element("pad_const", dtypes[0], attrs.value);
  } else if constexpr (std::is_same_v<T, ShapeAttrs>) {
    visit.dims("shape", attrs.shape);
  } else if constexpr (std::is_same_v<T, TosaSliceAttrs>) {
    visit.dims("start", attrs.start);
    visit.dims("size", attrs.size);
  } else if constexpr (std::is_same_v<T, TosaResizeAttrs>) {
    visit.dims("scale", attrs.scale);
    visit.dims("offset", attrs.offset);
    visit.dims("border", attrs.border);
  }
}

}  // namespace tosaic::tosa
