// slotted: objects of classes of Python that have __slots__, made without a call of Python.
#pragma once

#include <array>
#include <utility>

#include "bind.h"

namespace tosaic::python {

// The offset of a slot in the objects of a class. Throws InternalError if it has no such slot.
[[nodiscard]] Py_ssize_t slot_offset(const py::object& type, const char* name);

// Makes objects of a class by its slots, without a call of its __init__.
template <std::size_t N>
class SlottedClass {
 public:
  // `names` are the slots in the order of the values. Throws InternalError if the class has no such slot.
  SlottedClass(const py::object& type, const std::array<const char*, N>& names) : type_(type) {
    for (std::size_t i = 0; i < N; ++i) offsets_[i] = slot_offset(type, names[i]);
  }

  template <class... Values>
  [[nodiscard]] py::object operator()(Values&&... values) const {
    static_assert(sizeof...(Values) == N);
    auto* const type = reinterpret_cast<PyTypeObject*>(type_.ptr());
    const auto made = py::reinterpret_steal<py::object>(type->tp_alloc(type, 0));
    if (!made) throw py::error_already_set();
    std::size_t i = 0;
    (set(made, offsets_[i++], std::forward<Values>(values)), ...);
    return made;
  }

 private:
  static void set(const py::object& made, Py_ssize_t offset, py::object value) {
    *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(made.ptr()) + offset) = value.release().ptr();
  }

  py::object type_;
  std::array<Py_ssize_t, N> offsets_;
};

}  // namespace tosaic::python
