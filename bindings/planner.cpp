// Bindings of quant/planner.
#include "tosaic/quant/planner/planner.h"

#include <pybind11/stl.h>

#include "annotation.h"
#include "tosaic/passes/pass.h"

namespace tosaic::python {
namespace {

// From the fields (dtype, qmin, qmax, scheme, observer).
quant::ObservedSpec observed_from(PlanObject& plan, const py::tuple& fields) {
  return {.dtype = fields[0].cast<std::string>(),
          .qmin = fields[1].cast<std::optional<std::int64_t>>(),
          .qmax = fields[2].cast<std::optional<std::int64_t>>(),
          .scheme = fields[3].cast<std::string>(),
          .observer = plan.intern(fields[4])};
}

std::optional<quant::StreamRounding> stream_from(const py::handle& name) {
  if (name.is_none()) return {};
  const auto text = name.cast<std::string>();
  return text == "int16"        ? quant::StreamRounding::kInt16
         : text == "activation" ? quant::StreamRounding::kActivation
                                : quant::StreamRounding::kNone;
}

// From the fields (activation, weight, function that derives a bias or None, fixed ranges, stream, wide
// functions, (size of the groups of weights, their observer) or None, observer of weights without an axis,
// observer of masks).
quant::Precision precision_from(PlanObject& plan, const py::tuple& fields) {
  quant::Precision precision{.activation = observed_from(plan, fields[0]),
                             .weight = observed_from(plan, fields[1]),
                             .fixed_ranges = fields[3].cast<bool>(),
                             .stream = stream_from(fields[4]),
                             .wide_functions = fields[5].cast<bool>()};
  if (!fields[2].is_none()) {
    precision.bias.emplace();
    precision.bias->function = plan.intern(py::reinterpret_borrow<py::object>(fields[2]));
    precision.bias->qmin = -(std::int64_t{1} << 31) + 1;
    precision.bias->qmax = (std::int64_t{1} << 31) - 1;
  }
  if (!fields[6].is_none()) {
    const auto [size, observer] = fields[6].cast<std::pair<std::int64_t, py::object>>();
    precision.grouped_weight = precision.weight;
    precision.grouped_weight->group_size = size;
    precision.grouped_weight->observer = plan.intern(observer);
  }
  precision.observer_without_axis = plan.intern(py::reinterpret_borrow<py::object>(fields[7]));
  precision.mask_observer = plan.intern(py::reinterpret_borrow<py::object>(fields[8]));
  return precision;
}

py::tuple plan_specs(PlanObject& plan, const Graph& graph, const std::vector<std::int64_t>& values,
                     const std::vector<std::int64_t>& precision, const py::list& precisions,
                     bool every_operator, const std::vector<std::uint32_t>& call_of_node, bool for_arm) {
  // Units are recognised in a copy: the plan is about the calls of the graph itself.
  const std::optional<Graph> simple = passes::simplify(graph);
  const std::optional<Graph> fused = passes::fuse_composites(simple ? *simple : graph);
  const Graph& recognized = fused ? *fused : simple ? *simple : graph;
  quant::PlannerInput input{
      .graph = graph, .recognized = recognized, .every_operator = every_operator, .for_arm = for_arm};
  for (const std::uint32_t call : call_of_node) input.call_of_node.emplace_back(call);
  for (const std::int64_t value : values)
    input.values.push_back(value < 0 ? ValueId() : ValueId(static_cast<std::uint32_t>(value)));
  for (const std::int64_t index : precision)
    input.precision.push_back(index < 0 ? std::nullopt : std::optional(static_cast<std::uint32_t>(index)));
  for (const py::handle each : precisions)
    input.precisions.push_back(precision_from(plan, py::reinterpret_borrow<py::tuple>(each)));
  const quant::PlannedSpecs planned = quant::plan_specs(input, plan.plan);
  py::list left, joined, scaled;
  for (const quant::LeftFloat& each : planned.left_float)
    left.append(py::make_tuple(plan.plan.graph().node(each.call).name, each.reason, each.is_float));
  for (const quant::JoinedOperand& each : planned.joined)
    joined.append(py::make_tuple(slot_object(plan, each.operand), slot_object(plan, each.result)));
  for (const quant::ScaledResult& each : planned.scaled)
    scaled.append(
        py::make_tuple(slot_object(plan, each.operand), slot_object(plan, each.result), each.factor));
  return py::make_tuple(left, joined, scaled);
}

}  // namespace

void bind_planner(py::module_& m) {
  m.attr("BEFORE_FUNCTION") = quant::kBeforeFunction;
  m.attr("STREAM") = quant::kStream;
  m.attr("WHOLE_NUMBERS") = quant::kWholeNumbers;
  m.attr("COUNTS") = quant::kCounts;
  m.attr("UNGROUPED_WEIGHT") = quant::kUngroupedWeight;
  m.def("plan_specs", &plan_specs, py::arg("plan"), py::arg("graph"), py::arg("values"), py::arg("precision"),
        py::arg("precisions"), py::arg("every_operator") = false,
        py::arg("call_of_node") = std::vector<std::uint32_t>(), py::arg("for_arm") = false);
}

}  // namespace tosaic::python
