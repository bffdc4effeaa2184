#include "slotted.h"

#include <structmember.h>

#include "tosaic/base/error_text.h"

namespace tosaic::python {

Py_ssize_t slot_offset(const py::object& type, const char* name) {
  const py::object found = py::getattr(type, name, py::none());
  if (PyType_Check(type.ptr()) && Py_IS_TYPE(found.ptr(), &PyMemberDescr_Type)) {
    const auto* const slot = reinterpret_cast<PyMemberDescrObject*>(found.ptr());
    if (slot->d_member->type == T_OBJECT_EX) return slot->d_member->offset;
  }
  throw InternalError({.where = "bindings", .what = "the class has no slot " + quoted(name)});
}

}  // namespace tosaic::python
