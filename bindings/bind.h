// bind: shared by the files of bindings/. Each area has one bind function, which module.cpp calls. The
// bindings only convert objects; all other logic is in the C++ library.
#pragma once

#include <pybind11/pybind11.h>

#include <functional>
#include <memory>
#include <string>

#include "tosaic/base/error.h"
#include "tosaic/ir/graph.h"
#include "tosaic/layout/objective.h"
#include "tosaic/layout/plan.h"
#include "tosaic/layout/review.h"

namespace tosaic::python {

namespace py = pybind11;

void bind_errors(py::module_& m);
void bind_ir(py::module_& m);
void bind_constant(py::module_& m);
void bind_graph_builder(py::module_& m);
void bind_call_arguments(py::module_& m);
void bind_exec(py::module_& m);
void bind_memory(py::module_& m);
void bind_compare(py::module_& m);
void bind_pipeline(py::module_& m);
void bind_devices(py::module_& m);
void bind_groups(py::module_& m);
void bind_layout(py::module_& m);
void bind_observe(py::module_& m);
void bind_accuracy(py::module_& m);
void bind_rewriter(py::module_& m);
void bind_planner(py::module_& m);
void bind_tosa(py::module_& m);
void bind_annotation(py::module_& m);
void bind_calibrate(py::module_& m);
void bind_boundary(py::module_& m);
void bind_claimants(py::module_& m);
void bind_cost(py::module_& m);
void bind_pte(py::module_& m);
void bind_pt2(py::module_& m);

// A Python object that any thread may release: its deleter acquires the GIL.
[[nodiscard]] std::shared_ptr<const py::object> owned(py::object object);
// A Python callable () -> str as a function that any thread may call. Returns an empty function for None.
[[nodiscard]] std::function<std::string()> callback(const py::object& callable);
// The __reduce__ of an object, for pickle and copy. `function` is the name of the function of
// tosaic.program.pickling that computes it.
[[nodiscard]] py::object reduced(const py::object& self, const char* function);

// Attributes of `op` from {field: value}. Missing fields have their defaults. Throws InvalidGraph for unknown
// fields and for values of a wrong type.
[[nodiscard]] Attrs attrs_from(Op op, py::handle fields);
// The attributes as {field: value}, with dtypes and enums by name, and dims as tuples.
[[nodiscard]] py::dict attrs_to_dict(const Attrs& attrs);

// A tosaic.ports.QParams; None for null.
[[nodiscard]] py::object qparams_to_python(const QParamsRef& qparams);
// From a tosaic.ports.QParams or a dict of its fields. Returns null for None. Throws InvalidGraph for
// anything else.
[[nodiscard]] QParamsRef qparams_from(py::handle object);

// The Python string of a literal. It is made once for each literal and never freed, like the literal.
[[nodiscard]] PyObject* interned(const char* literal);

// The parts of an error by name: the dict `error.parts`.
[[nodiscard]] py::dict error_parts_to_dict(const ErrorParts& parts);
[[nodiscard]] py::tuple to_tuple(const Dims& dims);
// Any sequence of Python integers; throws InvalidGraph for anything else (symbolic sizes).
[[nodiscard]] Dims to_dims(py::handle sequence);
// The objective for "bytes", "count" or a callable (name, shape, dtype, bytes) -> cost of transposing that
// value. Any thread may call the objective. Throws InvalidGraph for anything else.
[[nodiscard]] layout::Objective objective_of(const py::object& objective);
// A plan and its review as one dict, the form that tosaic.lowering.layout reads.
[[nodiscard]] py::dict plan_to_dict(const Graph& graph, const layout::LayoutPlan& plan,
                                    const layout::PlanReview& review);
// A name ("f32") or the position of the dtype in `DTYPES`.
[[nodiscard]] DType to_dtype(py::handle value);

}  // namespace tosaic::python
