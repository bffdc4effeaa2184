// Bindings of layout/: a plan as plain data.
#include "tosaic/layout/plan.h"

#include <pybind11/stl.h>

#include <chrono>
#include <memory>
#include <string>

#include "bind.h"
#include "tosaic/base/work.h"
#include "tosaic/layout/explain.h"

namespace tosaic::python {
namespace {

using SharedGraph = std::shared_ptr<Graph>;

py::tuple axes_of(const Graph& graph, ValueId value, const DimOrder& order) {
  return to_tuple(order.axes(graph.type(value).rank()));
}

// (orders of the operands, orders of the results); None for an absent operand.
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
    py::list ways;
    for (const layout::LayoutOption& option : choices[n])
      ways.append(to_python(*graph, graph->nodes()[n], option));
    out.append(ways);
  }
  return out;
}

// The bound that the certificate proves, and how long the check of the certificate took.
struct Checked {
  layout::Cost bound = 0;
  double seconds = 0;
};

Checked check(const layout::LayoutPlan& plan) {
  const auto start = std::chrono::steady_clock::now();
  const layout::Cost bound = layout::proven_bound(plan.problem, plan.certificate);
  return {bound, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
}

py::list to_python(const std::vector<layout::Demand>& demands) {
  py::list out;
  for (const layout::Demand& demand : demands) {
    py::dict row;
    row["who"] = demand.who;
    row["rule"] = demand.rule;
    row["module_path"] = demand.module_path;
    row["source"] = demand.source;
    row["remedy"] = demand.remedy;
    out.append(row);
  }
  return out;
}

// The inputs and outputs of the graph for which a caller may declare another order.
layout::FreeBorders free_borders(const Graph& graph, const std::vector<bool>& grids) {
  layout::FreeBorders free;
  for (std::size_t i = 0; i < graph.inputs().size(); ++i) {
    const Input& input = graph.inputs()[i];
    const bool is_grid = i < grids.size() && grids[i];
    free.inputs.push_back(input.kind == InputKind::kUser && !input.border.physical && !is_grid);
  }
  for (const Output& output : graph.outputs())
    free.outputs.push_back(output.kind == OutputKind::kUser && !output.border.physical);
  return free;
}

py::dict to_python(const Graph& graph, const layout::LayoutPlan& plan, const Checked& checked,
                   const std::vector<layout::Explanation>& explained, std::uint64_t visits) {
  py::list ways, orders, transposes;
  for (std::size_t n = 0; n < plan.options.size(); ++n)
    ways.append(to_python(graph, graph.nodes()[n], plan.options[n]));
  for (std::uint32_t v = 0; v < plan.order.size(); ++v)
    orders.append(axes_of(graph, ValueId(v), plan.order[v]));
  for (const layout::Transpose& each : plan.transposes) {
    py::dict row;
    row["value"] = graph.value(each.value).name;
    row["from"] = axes_of(graph, each.value, each.from);
    row["to"] = axes_of(graph, each.value, each.to);
    row["bytes"] = each.bytes;
    row["cost"] = each.cost;
    const layout::Explanation& why = explained[static_cast<std::size_t>(&each - plan.transposes.data())];
    row["made_by"] = to_python(why.made);
    row["read_by"] = to_python(why.read);
    transposes.append(row);
  }
  py::dict out;
  out["ways"] = ways;
  out["orders"] = orders;
  out["transposes"] = transposes;
  out["bytes"] = plan.bytes;
  out["cost"] = plan.cost;
  out["bound"] = checked.bound;
  out["seconds"] = py::make_tuple(plan.seconds.state, plan.seconds.solve, checked.seconds);
  out["visits"] = visits;
  return out;
}

}  // namespace

py::dict plan_to_dict(const Graph& graph, const layout::LayoutPlan& plan, const layout::Objective& objective,
                      const std::vector<bool>& grids) {
  Checked checked;
  std::vector<layout::Explanation> explained;
  std::uint64_t visits = 0;  // work of the explanation, as counted by base/work.h
  {
    const py::gil_scoped_release release;
    checked = check(plan);
    visits = work::total();
    explained =
        layout::explain(graph, plan, layout::remedies_of(graph, plan, objective, free_borders(graph, grids)));
    visits = work::total() - visits;
  }
  return to_python(graph, plan, checked, explained, visits);
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
  const std::shared_ptr<const void> held = owned(objective);
  return [held](const Graph& graph, ValueId value) {
    const py::gil_scoped_acquire gil;
    const TensorType& type = graph.type(value);
    const py::object cost = (*static_cast<const py::object*>(held.get()))(
        graph.value(value).name, to_tuple(type.shape), std::string(to_string(type.dtype)),
        layout::bytes_of(type));
    return cost.cast<std::int64_t>();
  };
}

void bind_layout(py::module_& m) {
  m.def("layout_choices", &choices_of, py::arg("graph").none(false),
        "The ways that each node may compute in: (orders of its operands, orders of its results).");
  m.def(
      "plan_layout",
      [](const SharedGraph& graph, const py::object& objective, const std::vector<bool>& grids) {
        const layout::Objective what = objective_of(objective);
        layout::LayoutPlan plan;
        {
          const py::gil_scoped_release release;
          plan = layout::plan_layout(*graph, what);
        }
        return plan_to_dict(*graph, plan, what, grids);
      },
      py::arg("graph").none(false), py::kw_only(), py::arg("objective") = "bytes",
      py::arg("grids") = std::vector<bool>(),
      "The way of each node, the order of each value, the transposes between them and the proven bound.");
}

}  // namespace tosaic::python
