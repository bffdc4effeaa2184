// Python objects that C++ objects own.
#include "bind.h"

namespace tosaic::python {

std::shared_ptr<const py::object> owned(py::object object) {
  const auto release = [](const py::object* held) {
    if (Py_IsInitialized() == 0) return;  // the interpreter has shut down, and its objects are gone
    const py::gil_scoped_acquire gil;
    delete held;
  };
  return std::shared_ptr<const py::object>(new py::object(std::move(object)), release);
}

std::function<std::string()> callback(const py::object& callable) {
  if (callable.is_none()) return {};
  return [held = owned(callable)] {
    const py::gil_scoped_acquire gil;
    return (*held)().cast<std::string>();
  };
}

py::object reduced(const py::object& self, const char* function) {
  return py::module_::import("tosaic.program.pickling").attr(function)(self);
}

}  // namespace tosaic::python
