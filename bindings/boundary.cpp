// Bindings of the boundary of a graph: what its inputs and outputs are for the caller, as data.
#include <pybind11/stl.h>

#include "bind.h"
#include "tosaic/ir/graph.h"
#include "tosaic/ir/verify.h"
#include "tosaic/passes/copy_node.h"
#include "tosaic/pipeline/lower.h"
#include "tosaic/target/spec.h"

namespace tosaic::python {
namespace {

using SharedGraph = std::shared_ptr<Graph>;

py::dict to_dict(const BoundaryFormat& boundary, std::size_t rank) {
  return py::dict(
      py::arg("source") = boundary.source_dtype
                              ? py::object(py::str(std::string(to_string(*boundary.source_dtype))))
                              : py::none(),
      py::arg("range") = py::make_tuple(boundary.range_min, boundary.range_max),
      py::arg("order") = to_tuple(boundary.order.axes(rank)), py::arg("physical") = boundary.physical,
      py::arg("qparams") = qparams_to_python(boundary.qparams));
}

BoundaryFormat boundary_from(const py::dict& fields) {
  BoundaryFormat out;
  if (!fields["source"].is_none()) out.source_dtype = to_dtype(fields["source"]);
  const auto range = fields["range"].cast<std::pair<std::int64_t, std::int64_t>>();
  out.range_min = range.first;
  out.range_max = range.second;
  out.order = DimOrder(to_dims(fields["order"]));
  out.physical = fields["physical"].cast<bool>();
  out.qparams = qparams_from(fields["qparams"]);
  return out;
}

py::tuple boundary_formats(const SharedGraph& graph) {
  py::list inputs, outputs;
  for (const Input& input : graph->inputs())
    inputs.append(to_dict(input.boundary, graph->type(input.value).rank()));
  for (const Output& output : graph->outputs())
    outputs.append(to_dict(output.boundary, graph->type(output.value).rank()));
  return py::make_tuple(inputs, outputs);
}

// Entries have the fields of boundary_formats() and, for inputs, "path" and "initial" (a Constant: the input
// is a state), for outputs "path" and "mutated_input" (an index or None).
SharedGraph with_boundaries(const SharedGraph& graph, const std::vector<py::dict>& inputs,
                            const std::vector<py::dict>& outputs) {
  if (inputs.size() != graph->inputs().size() || outputs.size() != graph->outputs().size())
    throw InvalidGraph({.where = "boundary", .what = "the graph has another number of inputs or outputs"});
  auto out = std::make_shared<Graph>();
  out->name = graph->name;
  out->stage = graph->stage;
  std::vector<ValueId> made(graph->values().size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Value& value = graph->value(graph->inputs()[i].value);
    const bool is_state = !inputs[i]["initial"].is_none();
    made[graph->inputs()[i].value.index()] =
        out->add_input(is_state ? InputKind::kState : InputKind::kUser, value.name, value.type,
                       inputs[i]["path"].cast<std::string>(), boundary_from(inputs[i]),
                       is_state ? inputs[i]["initial"].cast<std::shared_ptr<Constant>>() : nullptr);
  }
  const auto copied = [&](ValueId id) {
    if (!id.valid()) return id;
    ValueId& to = made[id.index()];
    if (!to.valid()) to = out->add_constant(graph->value(id).constant);
    return to;
  };
  for (const Node& node : graph->nodes()) passes::copy_node(*graph, node, *out, made, copied);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    Output output;
    output.value = copied(graph->outputs()[i].value);
    output.path = outputs[i]["path"].cast<std::string>();
    output.boundary = boundary_from(outputs[i]);
    if (!outputs[i]["mutated_input"].is_none()) {
      output.kind = OutputKind::kMutation;
      output.mutated_input = outputs[i]["mutated_input"].cast<std::uint32_t>();
    }
    out->add_output(std::move(output));
  }
  verify(*out);
  return out;
}

}  // namespace

void bind_boundary(py::module_& m) {
  m.def("boundary_formats", &boundary_formats, py::arg("graph").none(false),
        "What a run converts at inputs and outputs: for either side a list of dicts, by index.");
  m.def("with_boundaries", &with_boundaries, py::arg("graph").none(false), py::kw_only(), py::arg("inputs"),
        py::arg("outputs"),
        "The graph with other paths, states and boundary formats. The result is verified.");
  m.def(
      "file_graph",
      [](const SharedGraph& graph, const std::string& target) {
        const std::shared_ptr<const Graph> made = pipeline::file_graph(graph, target::parse_target(target));
        return std::const_pointer_cast<Graph>(made);
      },
      py::arg("graph").none(false), py::kw_only(), py::arg("target"),
      "The graph that serialize writes: states are variables where the target has them.");
}

}  // namespace tosaic::python
