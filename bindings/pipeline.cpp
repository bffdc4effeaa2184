// Bindings of passes, lowering and .tosa files.
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <unordered_map>

#include "bind.h"
#include "tosaic/passes/explain_qdq.h"
#include "tosaic/passes/lower_to_integer.h"
#include "tosaic/passes/pass.h"
#include "tosaic/pipeline/lower.h"
#include "tosaic/pipeline/plan_calls.h"
#include "tosaic/target/spec.h"
#include "tosaic/target/type_support.h"
#include "tosaic/tosa/deserialize.h"
#include "tosaic/tosa/serialize.h"

namespace tosaic::python {
namespace {

using SharedGraph = std::shared_ptr<Graph>;

// Graphs are immutable in Python, so it is safe to drop const here.
SharedGraph shared(const std::shared_ptr<const Graph>& graph) {
  return std::const_pointer_cast<Graph>(graph);
}

py::dict to_dict(const pipeline::PassTiming& timing) {
  py::dict out;
  out["name"] = timing.name;
  out["seconds"] = timing.seconds;
  out["verify_seconds"] = timing.verify_seconds;
  out["changed"] = timing.changed;
  out["nodes_before"] = timing.nodes_before;
  out["nodes_after"] = timing.nodes_after;
  out["visits"] = timing.visits;
  return out;
}

std::optional<passes::FloatBorder> border_of(const py::object& form) {
  if (form.is_none()) return std::nullopt;
  const auto text = form.cast<std::string>();
  if (text == "float") return passes::FloatBorder::kFloat;
  if (text == "converted") return passes::FloatBorder::kConverted;
  if (text == "integer") return passes::FloatBorder::kInteger;
  throw InvalidGraph({.where = "lower",
                      .what = "unknown form of a border",
                      .expected = "'float', 'converted' or 'integer'",
                      .got = "'" + text + "'"});
}

// The declared orders of inputs or outputs: None, or by index None or (axes, physical).
std::vector<std::optional<pipeline::BorderOrder>> orders_of(const py::object& orders) {
  std::vector<std::optional<pipeline::BorderOrder>> out;
  if (orders.is_none()) return out;
  for (const py::handle each : orders) {
    if (each.is_none()) {
      out.emplace_back();
      continue;
    }
    const auto pair = py::reinterpret_borrow<py::tuple>(each);
    out.push_back(pipeline::BorderOrder{DimOrder(to_dims(pair[0])), pair[1].cast<bool>()});
  }
  return out;
}

// The plan, with orders by value id of the imported graph; None for a value that the plan does not contain.
py::dict to_dict(const Graph& imported, const pipeline::CallPlan& plan, const layout::Objective& objective) {
  const auto axes_of = [&imported](ValueId value, const DimOrder& order) {
    return to_tuple(order.axes(imported.type(value).rank()));
  };
  py::list orders, reads, outputs, names;
  for (std::uint32_t v = 0; v < plan.orders.size(); ++v)
    orders.append(plan.orders[v] ? py::object(axes_of(ValueId(v), *plan.orders[v])) : py::none());
  for (const pipeline::CallRead& read : plan.reads)
    reads.append(py::make_tuple(read.call, read.value.index(), axes_of(read.value, read.order)));
  for (std::size_t i = 0; i < plan.outputs.size(); ++i)
    outputs.append(axes_of(imported.outputs()[i].value, plan.outputs[i]));
  for (const Value& value : plan.graph->values()) names.append(value.name);
  py::dict out;
  out["plan"] = plan_to_dict(*plan.graph, plan.plan, objective, pipeline::carries_grid(imported));
  out["names"] = names;  // of the values of the planned graph
  out["orders"] = orders;
  out["reads"] = reads;
  out["outputs"] = outputs;
  return out;
}

pipeline::LowerOptions options_of(const std::string& target, bool verify_each, const py::object& on_change,
                                  const py::object& inputs, const py::object& outputs,
                                  const py::object& objective = py::str("bytes"),
                                  const py::object& input_orders = py::none(),
                                  const py::object& output_orders = py::none()) {
  pipeline::LowerOptions options;
  options.input_orders = orders_of(input_orders);
  options.output_orders = orders_of(output_orders);
  options.objective = objective_of(objective);
  options.inputs = border_of(inputs);
  options.outputs = border_of(outputs);
  options.target = target;
  options.verify_each = verify_each;
  if (!on_change.is_none())
    options.on_change = [on_change](std::string_view pass, const Graph& graph) {
      const py::gil_scoped_acquire gil;
      on_change(pass, std::make_shared<Graph>(graph));
    };
  return options;
}

py::list list_passes() {
  py::list out;
  for (const passes::Pass& pass : passes::all_passes()) {
    py::dict row;
    row["name"] = pass.name;
    row["summary"] = pass.summary;
    row["from"] = to_string(pass.from);
    row["to"] = to_string(pass.to);
    out.append(row);
  }
  return out;
}

// The file; its large constants are not copied, but refer to the memory of the graph.
tosa::FileImage lay_out(const SharedGraph& graph, bool locations, const std::optional<std::string>& target) {
  const py::gil_scoped_release release;
  const std::shared_ptr<const Graph> written = target ? pipeline::file_graph(graph, *target) : graph;
  return tosa::lay_out(*written, {.locations = locations});
}

std::size_t serialized_size(const SharedGraph& graph, bool locations,
                            const std::optional<std::string>& target) {
  return lay_out(graph, locations, target).size();
}

py::bytes serialize(const SharedGraph& graph, bool locations, const std::optional<std::string>& target) {
  const tosa::FileImage image = lay_out(graph, locations, target);
  py::bytes file = py::reinterpret_steal<py::bytes>(
      PyBytes_FromStringAndSize(nullptr, static_cast<py::ssize_t>(image.size())));
  if (!file) throw py::error_already_set();
  {
    const py::gil_scoped_release release;  // no other thread can see these bytes yet
    image.copy(reinterpret_cast<std::byte*>(PyBytes_AS_STRING(file.ptr())));
  }
  return file;
}

tosa::Read read_file(const py::bytes& data) {
  const std::string_view view = data;
  const Storage file(owned(data), reinterpret_cast<const std::byte*>(view.data()), view.size());
  const py::gil_scoped_release release;
  return tosa::read(file);
}

SharedGraph deserialize(const py::bytes& data) { return std::make_shared<Graph>(read_file(data).graph); }

py::tuple deserialize_with_notes(const py::bytes& data) {
  tosa::Read read = read_file(data);
  py::list notes;
  for (const tosa::Note& note : read.notes) notes.append(py::make_tuple(note.rule, note.message, note.name));
  return py::make_tuple(std::make_shared<Graph>(std::move(read.graph)), notes);
}

py::list type_modes(const std::string& name, std::size_t operand_count) {
  const std::optional<Op> op = parse_op(name);
  if (!op) throw InvalidGraph({.where = "type modes", .what = "unknown operator", .got = name});
  py::list out;
  for (const target::TypeMode& mode : target::type_modes(*op, operand_count)) {
    py::list dtypes;
    for (const DType dtype : mode.dtypes) dtypes.append(std::string(to_string(dtype)));
    out.append(py::make_tuple(py::tuple(dtypes), target::to_string(mode.need)));
  }
  return out;
}

}  // namespace

void bind_pipeline(py::module_& m) {
  py::class_<pipeline::Lowered>(m, "LoweredGraphs",
                                "The graphs of a lowering, one per stage, and how long each pass took.")
      .def_property_readonly("exported", [](const pipeline::Lowered& l) { return shared(l.exported); })
      .def_property_readonly("decomposed", [](const pipeline::Lowered& l) { return shared(l.decomposed); })
      .def_property_readonly("canonical", [](const pipeline::Lowered& l) { return shared(l.canonical); })
      .def_property_readonly("tosa", [](const pipeline::Lowered& l) { return shared(l.tosa); })
      .def_property_readonly("timings",
                             [](const pipeline::Lowered& l) {
                               py::list out;
                               for (const auto& timing : l.timings) out.append(to_dict(timing));
                               return out;
                             })
      .def_property_readonly("orders", [](const pipeline::Lowered& l) {
        std::unordered_map<std::string_view, std::size_t> ranks;
        for (const Value& value : l.tosa->values()) ranks.emplace(value.name, value.type.rank());
        py::dict out;
        for (const auto& [name, order] : l.orders) out[py::str(name)] = to_tuple(order.axes(ranks.at(name)));
        return out;
      });

  m.def(
      "explain_qdq",
      [](const SharedGraph& graph) {
        py::list out;
        for (const ErrorParts& parts : passes::explain_qdq(*graph)) out.append(to_dict(parts));
        return out;
      },
      py::arg("graph").none(false),
      "Why operators of a quantized graph compute in floats: a list of reasons, as problems().");
  m.def(
      "explain_integers",
      [](const SharedGraph& graph) {
        py::list out;
        for (const ErrorParts& parts : passes::lower_to_integer(*graph, {}).left) out.append(to_dict(parts));
        return out;
      },
      py::arg("graph").none(false),
      "Why operators over quantized values of a graph are left to floats: a list of reasons, as problems().");
  m.def("passes", &list_passes, "Names, summaries and stages of all passes.");
  m.def(
      "run_pass",
      [](const std::string& name, const SharedGraph& graph) {
        const std::shared_ptr<const Graph> out = pipeline::run_pass(name, *graph);
        return out ? shared(out) : graph;
      },
      py::arg("name"), py::arg("graph").none(false),
      "The graph after one pass; the same object if nothing changed.");
  m.def(
      "lower",
      [](const SharedGraph& graph, const std::string& target, bool verify_each, const py::object& on_change,
         const py::object& inputs, const py::object& outputs, const py::object& objective,
         const py::object& input_orders, const py::object& output_orders) {
        const pipeline::LowerOptions options = options_of(target, verify_each, on_change, inputs, outputs,
                                                          objective, input_orders, output_orders);
        const py::gil_scoped_release release;
        return pipeline::lower(graph, options);
      },
      py::arg("graph").none(false), py::kw_only(), py::arg("target") = "TOSA-1.0+FP",
      py::arg("verify_each") = true, py::arg("on_change") = py::none(), py::arg("inputs") = py::none(),
      py::arg("outputs") = py::none(), py::arg("objective") = "bytes", py::arg("input_orders") = py::none(),
      py::arg("output_orders") = py::none(),
      "Lowers a graph to TOSA; raises UnsupportedOp or SpecViolation with all reasons. Floats at the border "
      "that are quantized or dequantized there are 'float', 'converted' or 'integer'.");
  m.def(
      "plan_calls",
      [](const SharedGraph& graph, const py::object& objective, const py::object& input_orders,
         const py::object& output_orders) {
        pipeline::LowerOptions options;
        options.objective = objective_of(objective);
        options.input_orders = orders_of(input_orders);
        options.output_orders = orders_of(output_orders);
        pipeline::CallPlan plan;
        {
          const py::gil_scoped_release release;
          plan = pipeline::plan_calls(graph, options);
        }
        return to_dict(*graph, plan, options.objective);
      },
      py::arg("graph").none(false), py::kw_only(), py::arg("objective") = "bytes",
      py::arg("input_orders") = py::none(), py::arg("output_orders") = py::none(),
      "The layout plan of an imported graph with its composites taken apart, by values and calls of the "
      "imported one.");
  m.def(
      "carries_grid", [](const SharedGraph& graph) { return pipeline::carries_grid(*graph); },
      py::arg("graph").none(false), "By input: whether its elements are the coordinates of a grid_sample.");
  m.def(
      "problems",
      [](const SharedGraph& graph, const std::string& target, const py::object& inputs,
         const py::object& outputs) {
        py::list out;
        for (const ErrorParts& parts :
             pipeline::problems(graph, options_of(target, true, py::none(), inputs, outputs)))
          out.append(to_dict(parts));
        return out;
      },
      py::arg("graph").none(false), py::kw_only(), py::arg("target") = "TOSA-1.0+FP",
      py::arg("inputs") = py::none(), py::arg("outputs") = py::none(),
      "Everything that keeps a graph from the target, as error parts.");
  m.def(
      "type_modes", &type_modes, py::arg("op"), py::arg("operand_count"),
      "Combinations of dtypes that TOSA's tables give a tosa operator, operands first, and what each needs: "
      "[((\"i8\", \"i8\", \"i32\"), \"PRO-INT\")].");
  m.def(
      "serialize", &serialize, py::arg("graph").none(false), py::kw_only(), py::arg("locations") = true,
      py::arg("target") = py::none(),
      "The bytes of a .tosa file. State becomes variables where `target` has them, else inputs and outputs.");
  m.def("serialized_size", &serialized_size, py::arg("graph").none(false), py::kw_only(),
        py::arg("locations") = true, py::arg("target") = py::none(),
        "How many bytes serialize would return; none of the large constants is copied.");
  m.def("deserialize", &deserialize, py::arg("data"), "A graph from the bytes of a .tosa file.");
  m.def("deserialize_with_notes", &deserialize_with_notes, py::arg("data"),
        "The same, and what the reader noticed: (rule, message, name) each.");
}

}  // namespace tosaic::python
