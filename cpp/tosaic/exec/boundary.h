// boundary: the relation between the caller's array and the value of a graph input or output.
//
//   stage    boundary             the caller's array has           graph axis i is array axis
//   tosa     physical             the value's shape, row-major     i
//   tosa     order o              the logical shape, any strides   o[i]    (the value has the logical axes
//                                                                           in order o)
//   others   physical, order o    the physical shape, row-major    the k with o[k] == i
//   others   order o              the value's shape, any strides   i
//
// The columns are: the graph's stage; the fields of the `BoundaryFormat` of the input or output; the shape
// and strides of the array; and the array axis for each axis of the graph's value. An output that the
// executor allocates is stored in the dim order that its `BoundaryFormat` declares.
#pragma once

#include <string>

#include "tosaic/base/team.h"
#include "tosaic/exec/array.h"
#include "tosaic/ir/graph.h"

namespace tosaic::exec {

struct ArrayFormat {
  DType dtype = DType::kF32;  // the dtype of the caller's array
  Shape shape;                // the shape of the caller's array
  Dims axes;                  // graph axis i is array axis axes[i]
  Dims memory;                // array axes, outermost first, in which an allocated array is stored
  bool converts = false;      // array elements are converted to the value's dtype, or their range is checked
  QParamsRef qparams;         // null, or: floats of the caller are quantized with these qparams
};

// The dtype of the caller's array for an input: the dtype of the input's value, unless a run converts the
// array.
[[nodiscard]] DType array_dtype(const Graph& graph, const Input& input);
[[nodiscard]] ArrayFormat array_format(Stage stage, const TensorType& type, const BoundaryFormat& boundary);

// Throws LayoutMismatch unless the array has the dtype and the shape of `form`. An integer input may have
// another integer width; import_array checks its values. A quantized input may already have the storage dtype
// of `form.qparams`; its elements are copied. If `boundary` is physical and has an order, an output must be
// row-major. An input with such a boundary is refused if it is not row-major and its logical view has the
// strides of a memory format (row-major or channels last), because then the caller forgot to permute it.
// `role` ("input") and `name` ("x") appear in the message.
void verify_array(const ArrayFormat& form, const BoundaryFormat& boundary, const ArrayView& array,
                  const std::string& role, const std::string& name);
// Throws LayoutMismatch if the strides of an input of rank 3 or more contradict the dim order `form.memory`.
// If that order is row-major, only channels-last strides contradict it. If it is a declared order, any
// strides of another order do. Axes of extent 1 are ignored. An array with any other strides is accepted and
// copied.
void verify_order(const ArrayFormat& form, const ArrayView& array, const std::string& name);

// The caller's array with its axes permuted into the order of the graph value's axes.
[[nodiscard]] ArrayView in_graph_axes(const ArrayFormat& form, const ArrayView& array);
[[nodiscard]] MutableArrayView in_graph_axes(const ArrayFormat& form, const MutableArrayView& array);

// Writes an input into dense memory in the graph's dtype and axes. `team` quantizes floats; null: the calling
// thread. Throws InvalidGraph if an integer is out of range.
void import_array(const ArrayFormat& form, const TensorType& type, const BoundaryFormat& boundary,
                  const ArrayView& array, std::byte* to, const std::string& name, Team* team);
// Writes a dense graph value into the caller's array.
void export_array(const ArrayFormat& form, const TensorType& type, const std::byte* from,
                  const MutableArrayView& to);

// A new array with the form's dtype, shape and memory order.
[[nodiscard]] Array allocate_array(const ArrayFormat& form);

}  // namespace tosaic::exec
