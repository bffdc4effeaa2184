// Border: how a caller's array relates to the graph's value.
//
//   stage      border             the array carries                     graph axis i is array axis
//   tosa       physical           the value's shape, row-major          i
//   tosa       order o            the logical shape, any strides        o[i]      (value = logical axes in
//   order o) others     physical, order o  the physical shape, row-major         where o holds i others order
//   o            the value's shape, any strides        i
//
// Outputs that are allocated lie in memory as the border's order says.
#pragma once

#include <string>

#include "tosaic/exec/array.h"
#include "tosaic/ir/graph.h"

namespace tosaic::exec {

struct BorderForm {
  DType dtype = DType::kF32;  // of the caller's array
  Shape shape;                // of the caller's array
  Dims axes;                  // graph axis i is array axis axes[i]
  Dims memory;                // array axes, outermost first, as an allocated array lies in memory
  bool converts = false;      // to the value's dtype, or looks at the range of the same
  QParamsRef qparams;         // by which f32 arrays are quantized; arrays of its storage dtype are taken, too
};

[[nodiscard]] BorderForm border_form(Stage stage, const TensorType& type, const Border& border);

// Throws LayoutMismatch unless dtype and shape are those of `form`. Integers of an input may have another
// width: import_array looks whether they fit. A physical border refuses strides that show another memory
// format. `role` and `name` make the message: "input", "x".
void verify_array(const BorderForm& form, const Border& border, const ArrayView& array,
                  const std::string& role, const std::string& name);
// Throws LayoutMismatch if the strides of an input of rank 3 and more show another order than the border's:
// where that is row-major, channels last; where an order was declared, any other. Axes of extent 1 show
// nothing. What is not refused is copied, whatever its strides.
void verify_order(const BorderForm& form, const ArrayView& array, const std::string& name);

// The array of the caller in the graph's axes.
[[nodiscard]] ArrayView in_graph_axes(const BorderForm& form, const ArrayView& array);
[[nodiscard]] MutableArrayView in_graph_axes(const BorderForm& form, const MutableArrayView& array);

// Writes an input into dense memory of the graph's dtype and axes. Throws InvalidGraph for integers out of
// range.
void import_array(const BorderForm& form, const TensorType& type, const Border& border,
                  const ArrayView& array, std::byte* to, const std::string& name);
// Writes a dense value into the caller's array.
void export_array(const BorderForm& form, const TensorType& type, const std::byte* from,
                  const MutableArrayView& to);

// A new array of the border's form, laid out as the border says.
[[nodiscard]] Array allocate_array(const BorderForm& form);

}  // namespace tosaic::exec
