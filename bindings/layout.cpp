// Bindings of layout/, which return a plan as plain data.
#include "tosaic/layout/plan.h"

#include <pybind11/stl.h>

#include <memory>
#include <string>

#include "bind.h"
#include "tosaic/layout/review.h"

namespace tosaic::python {
namespace {

using SharedGraph = std::shared_ptr<Graph>;

py::tuple axes_of(const Graph& graph, ValueId value, const DimOrder& order) {
  return to_tuple(order.axes(graph.type(value).rank()));
}

// A layout option as (orders of the operands, orders of the results), with None for an absent operand.
py::tuple to_python(const Graph& graph, const Node& node, const layout::LayoutOption& option) {
  py::list operands, results;
  for (std::size_t i = 0; i < node.operand_count; ++i) {
    const ValueId id = graph.operands(node)[i];
    operands.append(id.valid() ? py::object(axes_of(graph, id, option.operands[i])) : py::none());
  }
  for (std::uint32_t r = 0; r < node.result_count; ++r)
    results.append(axes_of(graph, graph.result(node, r), option.results[r]));
  return py::make_tuple(py::tuple(operands), py::tuple(results));
}

py::list choices_of(const SharedGraph& graph) {
  py::list out;
  const layout::Choices choices = layout::choices_of(*graph);
  for (std::size_t n = 0; n < choices.size(); ++n) {
    py::list options;
    for (const layout::LayoutOption& option : choices[n])
      options.append(to_python(*graph, graph->nodes()[n], option));
    out.append(options);
  }
  return out;
}

py::list to_python(const std::vector<layout::Demand>& demands) {
  py::list out;
  for (const layout::Demand& demand : demands) {
    out.append(py::dict(py::arg("who") = demand.who, py::arg("rule") = demand.rule,
                        py::arg("module_path") = demand.module_path, py::arg("source") = demand.source,
                        py::arg("remedy") = demand.remedy));
  }
  return out;
}

}  // namespace

py::dict plan_to_dict(const Graph& graph, const layout::LayoutPlan& plan, const layout::PlanReview& review) {
  py::list options, orders, transposes;
  for (std::size_t n = 0; n < plan.options.size(); ++n)
    options.append(to_python(graph, graph.nodes()[n], plan.options[n]));
  for (std::uint32_t v = 0; v < plan.order.size(); ++v)
    orders.append(axes_of(graph, ValueId(v), plan.order[v]));
  for (std::size_t i = 0; i < plan.transposes.size(); ++i) {
    const layout::Transpose& each = plan.transposes[i];
    transposes.append(py::dict(py::arg("value") = graph.value(each.value).name,
                               py::arg("from") = axes_of(graph, each.value, each.from),
                               py::arg("to") = axes_of(graph, each.value, each.to),
                               py::arg("bytes") = each.bytes, py::arg("cost") = each.cost,
                               py::arg("made_by") = to_python(review.explanations[i].made),
                               py::arg("read_by") = to_python(review.explanations[i].read)));
  }
  return py::dict(
      py::arg("ways") = options, py::arg("orders") = orders, py::arg("transposes") = transposes,
      py::arg("bytes") = plan.bytes, py::arg("cost") = plan.cost, py::arg("bound") = review.bound,
      py::arg("seconds") = py::make_tuple(plan.seconds.state, plan.seconds.solve, review.check_seconds),
      py::arg("visits") = review.visits);
}

layout::Objective objective_of(const py::object& objective) {
  if (py::isinstance<py::str>(objective)) {
    const auto name = objective.cast<std::string>();
    if (name == "bytes") return layout::Measure::kBytes;
    if (name == "count") return layout::Measure::kCount;
  }
  if (PyCallable_Check(objective.ptr()) == 0)
    throw InvalidGraph({.where = "layout",
                        .what = "unknown objective",
                        .expected = "'bytes', 'count' or a function that gives the cost of a transpose",
                        .got = py::repr(objective).cast<std::string>()});
  return [held = owned(objective)](const Graph& graph, ValueId value) {
    const py::gil_scoped_acquire gil;
    const TensorType& type = graph.type(value);
    const py::object cost = (*held)(graph.value(value).name, to_tuple(type.shape),
                                    std::string(to_string(type.dtype)), layout::bytes_of(type));
    return cost.cast<std::int64_t>();
  };
}

void bind_layout(py::module_& m) {
  m.def("layout_choices", &choices_of, py::arg("graph").none(false),
        "The layout options of each node: (orders of its operands, orders of its results).");
  m.def(
      "plan_layout",
      [](const SharedGraph& graph, const py::object& objective, const std::vector<bool>& grids) {
        const layout::Objective what = objective_of(objective);
        layout::LayoutPlan plan;
        layout::PlanReview review;
        {
          const py::gil_scoped_release release;
          plan = layout::plan_layout(*graph, what);
          review = layout::review_plan(*graph, plan, what, grids);
        }
        return plan_to_dict(*graph, plan, review);
      },
      py::arg("graph").none(false), py::kw_only(), py::arg("objective") = "bytes",
      py::arg("grids") = std::vector<bool>(),
      "The layout option of each node, the order of each value, the transposes between them and the proven "
      "bound.");
}

}  // namespace tosaic::python
