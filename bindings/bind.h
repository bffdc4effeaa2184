// What the files of bindings/ share: one bind function per area, listed in module.cpp, and conversions that
// hold no logic.
#pragma once

#include <pybind11/pybind11.h>

#include <functional>
#include <memory>
#include <string>

#include "tosaic/base/error.h"
#include "tosaic/ir/graph.h"
#include "tosaic/layout/objective.h"
#include "tosaic/layout/plan.h"

namespace tosaic::python {

namespace py = pybind11;

void bind_errors(py::module_& m);
void bind_ir(py::module_& m);
void bind_graph_builder(py::module_& m);
void bind_exec(py::module_& m);
void bind_pipeline(py::module_& m);
void bind_layout(py::module_& m);
void bind_rewriter(py::module_& m);
void bind_tosa(py::module_& m);

// A Python object as an owner that any thread may drop: the reference is released under the GIL.
[[nodiscard]] std::shared_ptr<const void> owned(py::object object);
// A Python callable () -> str that any thread may call; an empty function for None.
[[nodiscard]] std::function<std::string()> callback(const py::object& callable);

// The elements of a constant without a copy: a read-only array that keeps the constant alive. bf16 and f8
// need ml_dtypes for their own dtype and are unsigned integers of their width without it.
[[nodiscard]] py::object array_of(const ConstantRef& constant);
[[nodiscard]] py::object numpy_dtype(DType dtype);

// Attributes of `op` from {field: value}; missing fields keep their defaults, unknown ones throw
// InvalidGraph.
[[nodiscard]] Attrs attrs_from(Op op, py::handle fields);
// {field: value}; dtypes and enums by name, dims as tuples.
[[nodiscard]] py::dict attrs_to_dict(const Attrs& attrs);

// The parts of an error by name, as `error.parts` has them.
[[nodiscard]] py::dict to_dict(const ErrorParts& parts);
[[nodiscard]] py::tuple to_tuple(const Dims& dims);
// Any sequence of Python integers; throws InvalidGraph for anything else (symbolic sizes).
[[nodiscard]] Dims to_dims(py::handle sequence);
// "bytes", "count" or a callable (name, shape, dtype, bytes) -> cost of transposing that value, which any
// thread may call; throws InvalidGraph for anything else.
[[nodiscard]] layout::Objective objective_of(const py::object& objective);
// A plan with the reasons of its transposes, what its certificate, which is checked, proves, and what other
// orders at the borders would save. `grids`, by input: its order is not the caller's to choose.
[[nodiscard]] py::dict plan_to_dict(const Graph& graph, const layout::LayoutPlan& plan,
                                    const layout::Objective& objective, const std::vector<bool>& grids);
// A name ("f32") or the position of the dtype in `DTYPES`.
[[nodiscard]] DType to_dtype(py::handle value);

}  // namespace tosaic::python
