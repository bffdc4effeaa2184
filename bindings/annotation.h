// annotation: annotation plans as Python objects.
#pragma once

#include <unordered_map>
#include <vector>

#include "bind.h"
#include "tosaic/quant/annotation/annotation.h"

namespace tosaic::python {

// A plan, and the Python objects that its specs refer to by id.
struct PlanObject {
  quant::AnnotationPlan plan;
  std::vector<py::object> objects = {};
  std::unordered_map<PyObject*, std::uint32_t> ids = {}, foreign_ids = {};

  py::dict observers = {};  // an observer that is a dataclass -> the equal one that the plan has

  // Returns the id of an object and keeps the object alive; returns an invalid id for None. Equal observers
  // that are dataclasses have one id.
  quant::ObjectId intern(const py::object& object);
  // None for an invalid id.
  [[nodiscard]] py::object object(quant::ObjectId id) const;
};

// An `Edge` or `Output` of tosaic.annotation.
[[nodiscard]] py::object slot_object(const PlanObject& plan, quant::Slot slot);

}  // namespace tosaic::python
