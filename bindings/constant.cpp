// Bindings of constants. The elements of a constant are the memory of a Python object, and Python reads them
// as an array without a copy.
#include <pybind11/stl.h>

#include "arrays.h"
#include "bind.h"
#include "tosaic/base/error.h"
#include "tosaic/ir/print.h"

namespace tosaic::python {
namespace {

ConstantKind constant_kind(const std::string& name) {
  if (const std::optional<ConstantKind> kind = parse_constant_kind(name)) return *kind;
  throw InvalidGraph({.where = "constant",
                      .what = "unknown kind",
                      .expected = "parameter, buffer, lifted or folded",
                      .got = name});
}

std::shared_ptr<Constant> make_python_constant(std::string name, const std::string& kind, py::handle dtype,
                                               py::handle shape, std::uintptr_t data, std::size_t nbytes,
                                               py::object owner, const py::object& changed) {
  // An empty tensor may have a null address, but its storage has to be bound.
  static constexpr std::byte kNoBytes{};
  const auto* bytes = nbytes == 0 ? &kNoBytes : reinterpret_cast<const std::byte*>(data);
  return constant_over(std::move(name), constant_kind(kind), to_dtype(dtype), to_dims(shape),
                       Storage(owned(std::move(owner)), bytes, nbytes, callback(changed)));
}

template <class T>
py::array numbers_as(const Constant& constant, T (Elements::*read)(std::size_t) const) {
  const Elements elements(constant);
  py::array_t<T> out(std::vector<py::ssize_t>(constant.shape.begin(), constant.shape.end()));
  T* to = out.mutable_data();
  for (std::size_t i = 0; i < elements.size(); ++i) to[i] = (elements.*read)(i);
  return out;
}

py::array numbers_of(const Constant& constant) {
  return is_float(constant.dtype) ? numbers_as<double>(constant, &Elements::as_double)
                                  : numbers_as<std::int64_t>(constant, &Elements::as_int);
}

}  // namespace

void bind_constant(py::module_& m) {
  py::class_<Constant, std::shared_ptr<Constant>>(m, "Constant",
                                                  "A named immutable tensor, dense and row-major.")
      .def(py::init(&make_python_constant), py::arg("name"), py::arg("kind"), py::arg("dtype"),
           py::arg("shape"), py::arg("data_ptr"), py::arg("nbytes"), py::arg("owner"),
           py::arg("changed") = py::none(),
           "Bytes at `data_ptr`, kept alive by `owner`. With `changed` they are a view of memory that "
           "others may write or free: `changed()` returns a message once they are no longer valid.")
      .def_readonly("name", &Constant::name, "The name in torch's program, or the name of a folded value.")
      .def_property_readonly(
          "kind", [](const Constant& c) { return std::string(to_string(c.kind)); }, "Where it came from.")
      .def_property_readonly(
          "dtype", [](const Constant& c) { return std::string(to_string(c.dtype)); }, "``f32``, ``i8`` ...")
      .def_property_readonly(
          "shape", [](const Constant& c) { return to_tuple(c.shape); }, "Extents.")
      .def_property_readonly(
          "bound", [](const Constant& c) { return c.storage.bound(); }, "False if the elements are missing.")
      .def_property_readonly(
          "data_ptr",
          [](const Constant& c) { return reinterpret_cast<std::uintptr_t>(c.storage.bytes().data()); },
          "Address of the first element.")
      .def_property_readonly(
          "array", [](const std::shared_ptr<Constant>& c) { return array_of(c); },
          "The elements as a read-only array: a copy if they are a view of memory that others own. Raises "
          "InvalidGraph if they were changed since import.")
      .def("numbers", &numbers_of,
           "A copy of the elements: floats as float64, all others as int64. Raises InvalidGraph if they "
           "were changed since import.")
      .def_property_readonly(
          "is_view", [](const Constant& c) { return c.storage.is_view(); },
          "True if the elements are in memory that others own and may write or free.")
      .def(
          "__reduce__", [](const py::object& self) { return reduced(self, "reduce_constant"); },
          "Pickles the constant by value, with a copy of its elements.")
      .def("__repr__", [](const Constant& c) {
        return "<Constant '" + c.name + "' " + std::string(to_string(c.dtype)) + to_string(c.shape) + ">";
      });
}

}  // namespace tosaic::python
