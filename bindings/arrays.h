// arrays: conversions between numpy arrays and the views, arrays and constants of the C++ library.
#pragma once

#include <pybind11/numpy.h>

#include <optional>
#include <span>
#include <vector>

#include "bind.h"
#include "tosaic/exec/array.h"

namespace tosaic::python {

// The elements of a constant as a read-only array, without a copy: the array keeps the constant alive. If the
// constant is a view of memory that somebody may write, the array is a copy.
[[nodiscard]] py::object array_of(const ConstantRef& constant);

[[nodiscard]] py::array to_array(py::handle object);
// Returns the arrays of a call's arguments, without a copy. Each argument has to be an array of numpy, or a
// tensor of torch whose method numpy() returns one, and no subclass of these. The dtype has to be one of
// numpy's own that graphs have, too. If an argument is anything else, returns nothing.
[[nodiscard]] std::optional<py::tuple> plain_arrays(const py::tuple& arguments);
// Throws LayoutMismatch if the array's dtype has no counterpart.
[[nodiscard]] exec::ArrayView view_of(const py::array& array);

// Views of arrays, and the arrays that own their memory.
struct GivenArrays {
  std::vector<py::array> owners;
  std::vector<exec::ArrayView> views;
  void add(py::handle object);
};

// Arrays for these inputs of a graph. There may be too many or too few arrays: the run reports that.
[[nodiscard]] GivenArrays given_arrays(const Graph& graph, std::span<const std::uint32_t> inputs,
                                       const py::sequence& objects);

// The array as a numpy array, which keeps its memory alive.
[[nodiscard]] py::array to_numpy(const exec::Array& array);
[[nodiscard]] py::list to_list(const std::vector<exec::Array>& arrays);
// A copy of a dense view whose memory is valid only during a call; None if the view has no data.
[[nodiscard]] py::object copied(const exec::ArrayView& view);

// Dense f32: other dtypes are converted, and arrays with gaps are copied.
using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;
[[nodiscard]] std::span<const float> values_of(const Floats& array);

}  // namespace tosaic::python
