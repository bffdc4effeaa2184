#include "arrays.h"

#include <cstring>
#include <memory>

#include "tosaic/base/error.h"
#include "tosaic/exec/boundary.h"
#include "tosaic/ir/stored_type.h"

namespace tosaic::python {
namespace {

using exec::Array;
using exec::ArrayView;

std::optional<DType> named_dtype(const std::string& name) {
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float8_e4m3fn") return DType::kF8E4M3;
  if (name == "float8_e5m2") return DType::kF8E5M2;
  if (name == "int4") return DType::kI4;
  return std::nullopt;
}

std::optional<DType> builtin_dtype(char kind, py::ssize_t size) {
  if (kind == 'b') return DType::kBool;
  if (kind == 'i' && size <= 8)
    return size == 1 ? DType::kI8 : size == 2 ? DType::kI16 : size == 4 ? DType::kI32 : DType::kI64;
  if (kind == 'u' && size == 1) return DType::kU8;
  if (kind == 'u' && size == 2) return DType::kU16;
  if (kind == 'f' && (size == 2 || size == 4 || size == 8))
    return size == 2 ? DType::kF16 : size == 4 ? DType::kF32 : DType::kF64;
  return std::nullopt;
}

constexpr int kFirstUserType = 256;  // numpy's first type number for user types, as ml_dtypes has them

DType array_dtype(const py::dtype& dtype) {
  const std::optional<DType> known = dtype.num() < kFirstUserType
                                         ? builtin_dtype(dtype.kind(), dtype.itemsize())
                                         : named_dtype(dtype.attr("name").cast<std::string>());
  if (!known || dtype.byteorder() == '>')
    throw LayoutMismatch({.where = "run",
                          .what = "an array's dtype has no counterpart",
                          .got = py::str(dtype).cast<std::string>()});
  return *known;
}

// True if the class is torch.Tensor. False for all classes if the program has not imported torch.
bool is_tensor_class(PyTypeObject* type) {
  if (std::strcmp(type->tp_name, "Tensor") != 0) return false;
  PyObject* torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
  if (torch == nullptr) return false;
  const py::object known = py::getattr(torch, "Tensor", py::none());
  return reinterpret_cast<PyObject*>(type) == known.ptr();
}

// The argument as an array, without a copy; null if plain_arrays() does not allow the argument.
py::object plain_array(py::handle argument) {
  PyTypeObject* const array_class = py::detail::npy_api::get().PyArray_Type_;
  py::object array = py::reinterpret_borrow<py::object>(argument);
  if (is_tensor_class(Py_TYPE(argument.ptr()))) {
    array = py::reinterpret_steal<py::object>(PyObject_CallMethod(argument.ptr(), "numpy", nullptr));
    if (!array)
      PyErr_Clear();  // the tensor requires gradients, has another dtype or layout, is on another device, ...
  }
  if (!array || Py_TYPE(array.ptr()) != array_class) return {};
  const py::dtype dtype = py::reinterpret_borrow<py::array>(array).dtype();
  const bool is_plain = dtype.num() < kFirstUserType && dtype.byteorder() != '>' &&
                        builtin_dtype(dtype.kind(), dtype.itemsize()).has_value();
  return is_plain ? array : py::object();
}

std::vector<py::ssize_t> sizes(const Dims& dims) { return {dims.begin(), dims.end()}; }

// The dtype of a numpy array with elements of this dtype. Without package ml_dtypes, bf16 and f8 are unsigned
// integers of the same width.
py::object numpy_dtype(DType dtype) {
  if (dtype == DType::kBool) return py::dtype::of<bool>();
  if (dtype == DType::kF16) return py::dtype("float16");
  return with_stored_type(dtype, [&](auto stored) -> py::object {
    if constexpr (std::is_same_v<decltype(stored), NarrowFloat>) {
      const char* name = dtype == DType::kBF16     ? "bfloat16"
                         : dtype == DType::kF8E4M3 ? "float8_e4m3fn"
                                                   : "float8_e5m2";
      try {
        return py::dtype::from_args(py::module_::import("ml_dtypes").attr(name));
      } catch (const py::error_already_set& error) {
        if (!error.matches(PyExc_ImportError)) throw;
      }
      return dtype == DType::kBF16 ? py::dtype::of<std::uint16_t>() : py::dtype::of<std::uint8_t>();
    } else {
      return py::dtype::of<decltype(stored)>();
    }
  });
}

}  // namespace

py::object array_of(const ConstantRef& constant) {
  const std::span<const std::byte> bytes = constant->bytes();
  const std::vector<py::ssize_t> shape(constant->shape.begin(), constant->shape.end());
  const py::object base =  // without a base, py::array copies the elements
      constant->storage.is_view() ? py::object() : py::cast(std::const_pointer_cast<Constant>(constant));
  py::array array(py::reinterpret_borrow<py::dtype>(numpy_dtype(constant->dtype)), shape, bytes.data(), base);
  array.attr("setflags")(py::arg("write") = false);
  return array;
}

std::optional<py::tuple> plain_arrays(const py::tuple& arguments) {
  py::tuple arrays(arguments.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const py::object array = plain_array(arguments[i]);
    if (!array) return std::nullopt;
    arrays[i] = array;
  }
  return arrays;
}

py::array to_array(py::handle object) {
  py::array array = py::array::ensure(object);
  if (!array) throw py::error_already_set();
  return array;
}

ArrayView view_of(const py::array& array) {
  ArrayView view;
  view.data = static_cast<const std::byte*>(array.data());
  view.dtype = array_dtype(array.dtype());
  for (py::ssize_t i = 0; i < array.ndim(); ++i) {
    view.shape.push_back(array.shape(i));
    view.strides.push_back(array.strides(i));
  }
  return view;
}

void GivenArrays::add(py::handle object) {
  owners.push_back(to_array(object));
  views.push_back(view_of(owners.back()));
}

GivenArrays given_arrays(const Graph& graph, std::span<const std::uint32_t> inputs,
                         const py::sequence& objects) {
  GivenArrays out;
  for (std::size_t i = 0; i < py::len(objects); ++i) {
    out.add(objects[i]);
    if (i < inputs.size())
      out.views[i] = exec::as_declared(out.views[i], exec::array_dtype(graph, graph.inputs()[inputs[i]]));
  }
  return out;
}

py::array to_numpy(const Array& array) {
  auto storage = std::make_unique<Storage>(array.storage);
  const void* data = storage->bytes().data();
  const py::capsule owner(storage.release(), [](void* held) { delete static_cast<Storage*>(held); });
  return py::array(py::reinterpret_borrow<py::dtype>(numpy_dtype(array.dtype)), sizes(array.shape),
                   sizes(array.strides), data, owner);
}

py::object copied(const ArrayView& view) {
  if (view.data == nullptr) return py::none();
  Array array = Array::allocate(view.dtype, view.shape);
  if (array.storage.size() != 0) std::memcpy(array.storage.writable(), view.data, array.storage.size());
  return to_numpy(array);
}

py::list to_list(const std::vector<Array>& arrays) {
  py::list out;
  for (const Array& array : arrays) out.append(to_numpy(array));
  return out;
}

std::span<const float> values_of(const Floats& array) {
  return {array.data(), static_cast<std::size_t>(array.size())};
}

}  // namespace tosaic::python
