// Bindings of passes, pipelines and lowering.
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "bind.h"
#include "python_file.h"
#include "tosaic/base/error_text.h"
#include "tosaic/base/team.h"
#include "tosaic/passes/lower_to_integer/lower_to_integer.h"
#include "tosaic/passes/pass.h"
#include "tosaic/passes/qdq/qdq.h"
#include "tosaic/passes/samplers/samplers.h"
#include "tosaic/pipeline/lower.h"
#include "tosaic/pipeline/pipeline.h"
#include "tosaic/pipeline/plan_calls.h"
#include "tosaic/target/spec.h"

namespace tosaic::python {
namespace {

using SharedGraph = std::shared_ptr<Graph>;

// Graphs are immutable in Python, so it is safe to drop const here.
SharedGraph shared(const std::shared_ptr<const Graph>& graph) {
  return std::const_pointer_cast<Graph>(graph);
}

py::dict to_dict(const pipeline::PassTiming& timing) {
  return py::dict(py::arg("name") = timing.name, py::arg("section") = timing.section,
                  py::arg("seconds") = timing.seconds, py::arg("verify_seconds") = timing.verify_seconds,
                  py::arg("changed") = timing.changed, py::arg("nodes_before") = timing.nodes_before,
                  py::arg("nodes_after") = timing.nodes_after, py::arg("visits") = timing.visits);
}

std::optional<passes::FloatIoForm> boundary_of(const py::handle& form) {
  if (form.is_none()) return std::nullopt;
  const auto text = form.cast<std::string>();
  if (text == "float") return passes::FloatIoForm::kFloat;
  if (text == "converted") return passes::FloatIoForm::kConverted;
  if (text == "integer") return passes::FloatIoForm::kInteger;
  throw InvalidGraph({.where = "lower",
                      .what = "unknown form of a boundary",
                      .expected = "'float', 'converted' or 'integer'",
                      .got = quoted(text)});
}

// The forms of inputs or outputs: None, one form for all, or a pair (form or None for all, list by index with
// entries None or a form).
pipeline::IoForms forms_of(const py::object& forms) {
  if (!py::isinstance<py::tuple>(forms)) return {boundary_of(forms), {}};
  const auto pair = py::reinterpret_borrow<py::tuple>(forms);
  pipeline::IoForms out{boundary_of(pair[0]), {}};
  for (const py::handle each : pair[1]) out.by_index.push_back(boundary_of(each));
  return out;
}

// The declared orders of inputs or outputs: None, or a list by index with entries None or (axes, physical).
std::vector<std::optional<pipeline::BoundaryOrder>> orders_of(const py::object& orders) {
  std::vector<std::optional<pipeline::BoundaryOrder>> out;
  if (orders.is_none()) return out;
  for (const py::handle each : orders) {
    if (each.is_none()) {
      out.emplace_back();
      continue;
    }
    const auto pair = py::reinterpret_borrow<py::tuple>(each);
    out.push_back(pipeline::BoundaryOrder{DimOrder(to_dims(pair[0])), pair[1].cast<bool>()});
  }
  return out;
}

py::list to_list(const std::vector<passes::PortQuantization>& ports) {
  py::list out;
  for (const passes::PortQuantization& port : ports) {
    py::list found;
    for (const QParamsRef& each : port.found) found.append(qparams_to_python(each));
    out.append(py::make_tuple(py::tuple(found), port.obstacle));
  }
  return out;
}

// Entries by index: False (unchanged), True (extracted) or a tosaic.ports.QParams.
std::vector<passes::PortRequest> requests_of(const py::iterable& ports) {
  std::vector<passes::PortRequest> out;
  for (const py::handle each : ports) {
    if (py::isinstance<py::bool_>(each))
      out.push_back({.extract = each.cast<bool>()});
    else
      out.push_back({.requantize = qparams_from(each)});
  }
  return out;
}

// The plan, with orders by value id of the imported graph; None for a value that the plan does not contain.
py::dict to_dict(const Graph& imported, const pipeline::CallPlan& plan) {
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
  return py::dict(py::arg("plan") = plan_to_dict(*plan.graph, plan.plan, plan.review),
                  py::arg("names") = names, py::arg("orders") = orders, py::arg("reads") = reads,
                  py::arg("outputs") = outputs);
}

pipeline::BoundaryOrders orders_of(const py::object& inputs, const py::object& outputs) {
  return {orders_of(inputs), orders_of(outputs)};
}

pipeline::LowerOptions options_of(bool verify_each, const py::object& on_change, const py::object& inputs,
                                  const py::object& outputs, const py::object& objective = py::str("bytes"),
                                  const py::object& input_orders = py::none(),
                                  const py::object& output_orders = py::none(),
                                  const std::string& semantics = "tosa") {
  pipeline::LowerOptions options;
  options.semantics = target::semantics_named(semantics);
  options.orders = orders_of(input_orders, output_orders);
  options.objective = objective_of(objective);
  options.inputs = forms_of(inputs);
  options.outputs = forms_of(outputs);
  options.verify_each = verify_each;
  if (!on_change.is_none())
    options.on_change = [held = owned(on_change)](const pipeline::Step& step, const Graph& graph) {
      const py::gil_scoped_acquire gil;
      (*held)(step.pass.name, std::make_shared<Graph>(graph));
    };
  return options;
}

// The pipeline, or the default pipeline if the argument is a target.
pipeline::Pipeline pipeline_of(const py::object& pipeline_or_target) {
  if (py::isinstance<pipeline::Pipeline>(pipeline_or_target))
    return pipeline_or_target.cast<const pipeline::Pipeline&>();
  return pipeline::default_pipeline(target::parse_target(pipeline_or_target.cast<std::string>()));
}

pipeline::Trial tried(const SharedGraph& graph, const py::object& pipeline,
                      const pipeline::LowerOptions& options) {
  const pipeline::Pipeline steps = pipeline_of(pipeline);
  const py::gil_scoped_release release;
  return pipeline::try_to_lower(graph, steps, options);
}

py::list to_list(const std::vector<ErrorParts>& errors) {
  py::list out;
  for (const ErrorParts& parts : errors) out.append(error_parts_to_dict(parts));
  return out;
}

Stage stage_of(const std::string& text) {
  const std::optional<Stage> stage = parse_stage(text);
  if (!stage)
    throw InvalidGraph({.where = "pipeline",
                        .what = "unknown stage",
                        .expected = passes::to_string(passes::StageSet::all()),
                        .got = quoted(text)});
  return *stage;
}

// The function of a pass for a Python callable, which takes a Graph and returns a Graph or None. If it
// returns the graph with which it was called, nothing changed.
passes::Pass::Function function_of(const std::string& name, const py::object& callable) {
  return
      [name, held = owned(callable)](const Graph& graph, const passes::PassOptions&) -> std::optional<Graph> {
        const py::gil_scoped_acquire gil;
        const auto given = std::make_shared<Graph>(graph);
        const py::object result = (*held)(given);
        if (result.is_none()) return std::nullopt;
        if (!py::isinstance<Graph>(result))
          throw InvalidGraph({.where = "pipeline",
                              .what = "pass '" + name + "' failed: it does not return a graph",
                              .expected = "a tosaic.program.Graph, or None if it changes nothing",
                              .got = py::str(py::type::of(result).attr("__name__"))});
        const auto made = result.cast<SharedGraph>();
        return made == given ? std::nullopt : std::optional(*made);
      };
}

passes::Pass pass_from(std::string name, const py::object& run, std::string summary,
                       const std::vector<std::string>& takes, const std::optional<std::string>& makes,
                       std::vector<std::string> needs, bool always) {
  passes::Pass pass;
  pass.run = function_of(name, run);
  pass.name = std::move(name);
  pass.summary = std::move(summary);
  for (const std::string& stage : takes) pass.takes.add(stage_of(stage));
  if (makes) pass.makes = stage_of(*makes);
  pass.needs = std::move(needs);
  pass.always = always;
  return pass;
}

std::vector<std::string> names_of(const passes::StageSet& stages) {
  std::vector<std::string> names;
  for (const Stage stage : passes::stages_of(stages)) names.emplace_back(to_string(stage));
  return names;
}

// The graphs of a lowering, and the .tosa file of the last one, if the lowering made it.
struct LoweredGraphs : pipeline::Lowered {
  std::shared_ptr<const PythonFile> file;
  double file_seconds = 0;  // for the file without its constants
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Lowers a graph, and computes its constants in the .tosa file of the result. Called without the GIL.
LoweredGraphs lower_into_file(const SharedGraph& graph, const pipeline::Pipeline& pipeline,
                              pipeline::LowerOptions options) {
  std::shared_ptr<PythonFile> file;
  double seconds = 0;
  options.places = [&](const std::shared_ptr<const Graph>& tosa) {
    const auto start = std::chrono::steady_clock::now();
    try {
      file = std::make_shared<PythonFile>(lay_out(tosa, true, &pipeline.target()));
    } catch (const Error&) {
      return Places();  // who asks for the file will be told why there is none; the graph can be run
    }
    seconds += seconds_since(start);
    return file->places();
  };
  LoweredGraphs lowered{pipeline::lower(graph, pipeline, options), nullptr, 0};
  const auto start = std::chrono::steady_clock::now();
  if (file != nullptr) file->complete(nullptr);
  lowered.file = std::move(file);
  lowered.file_seconds = seconds + seconds_since(start);
  return lowered;
}

void bind_pass(py::module_& m) {
  py::class_<passes::Pass>(m, "Pass", "A named step of a pipeline.")
      .def(py::init(&pass_from), py::arg("name"), py::arg("run"), py::kw_only(), py::arg("summary"),
           py::arg("takes"), py::arg("makes"), py::arg("needs"), py::arg("always"))
      .def_readonly("name", &passes::Pass::name)
      .def_readonly("summary", &passes::Pass::summary)
      .def_property_readonly("takes",
                             [](const passes::Pass& p) { return py::tuple(py::cast(names_of(p.takes))); })
      .def_property_readonly("makes",
                             [](const passes::Pass& p) -> std::optional<std::string> {
                               if (!p.makes) return std::nullopt;
                               return std::string(to_string(*p.makes));
                             })
      .def_property_readonly("needs", [](const passes::Pass& p) { return py::tuple(py::cast(p.needs)); })
      .def_property_readonly("serves_as",
                             [](const passes::Pass& p) { return py::tuple(py::cast(p.serves_as)); })
      .def_readonly("always", &passes::Pass::always)
      .def(
          "run",
          [](const passes::Pass& pass, const SharedGraph& graph, const std::string& target) {
            const passes::PassOptions options{.target = target::parse_target(target)};
            const py::gil_scoped_release release;
            pipeline::require_stage_taken(pass, graph->stage);
            const std::shared_ptr<const Graph> out = pipeline::run_pass(pass, *graph, options);
            return out ? shared(out) : graph;
          },
          py::arg("graph").none(false), py::kw_only(), py::arg("target"));
}

void bind_pipeline_class(py::module_& m) {
  using pipeline::Pipeline;
  py::class_<Pipeline>(m, "Pipeline", "Passes in order, for a target.")
      .def(py::init([](const std::string& target) { return Pipeline(target::parse_target(target)); }),
           py::arg("target"))
      .def_static(
          "default",
          [](const std::string& target) { return pipeline::default_pipeline(target::parse_target(target)); },
          py::arg("target"))
      .def("copy", [](const Pipeline& self) { return self; })
      .def_property_readonly("target", [](const Pipeline& self) { return target::to_string(self.target()); })
      .def_property_readonly("steps",
                             [](const Pipeline& self) {
                               py::list out;
                               for (const pipeline::Step& step : self.steps())
                                 out.append(py::make_tuple(std::string(to_string(step.section)), step.pass));
                               return out;
                             })
      .def("at", [](const Pipeline& self, const std::string& anchor) { return self.at(anchor).pass; })
      .def("insert_before", &Pipeline::insert_before, py::arg("anchor"), py::arg("pass_"))
      .def("insert_after", &Pipeline::insert_after, py::arg("anchor"), py::arg("pass_"))
      .def("remove", &Pipeline::remove, py::arg("anchor"))
      .def("replace", &Pipeline::replace, py::arg("anchor"), py::arg("pass_"))
      .def("check", &Pipeline::check);
}

}  // namespace

void bind_pipeline(py::module_& m) {
  py::class_<LoweredGraphs>(m, "LoweredGraphs",
                            "The graphs of a lowering, one per stage, and how long each pass took.")
      .def_property_readonly("exported", [](const LoweredGraphs& l) { return shared(l.exported); })
      .def_property_readonly("decomposed", [](const LoweredGraphs& l) { return shared(l.decomposed); })
      .def_property_readonly("canonical", [](const LoweredGraphs& l) { return shared(l.canonical); })
      .def_property_readonly("tosa", [](const LoweredGraphs& l) { return shared(l.tosa); })
      .def_property_readonly("whole", [](const LoweredGraphs& l) { return shared(l.whole); })
      .def_property_readonly("timings",
                             [](const LoweredGraphs& l) {
                               py::list out;
                               for (const auto& timing : l.timings) out.append(to_dict(timing));
                               return out;
                             })
      .def_property_readonly("notes",
                             [](const LoweredGraphs& l) {
                               py::list notes;
                               for (const passes::ConstantNote& note : l.notes)
                                 notes.append(py::make_tuple(note.rule, note.message, note.name));
                               return notes;
                             })
      .def_readonly("constants_seconds", &LoweredGraphs::constants_seconds)
      .def_readonly("check_seconds", &LoweredGraphs::check_seconds)
      .def_readonly("file_seconds", &LoweredGraphs::file_seconds)
      .def_property_readonly(
          "file",
          [](const LoweredGraphs& l) -> py::object {
            return l.file != nullptr ? py::object(l.file->bytes()) : py::none();
          },
          "The bytes of the .tosa file, in which the constants of the graph are; None if it was not made.")
      .def_property_readonly("orders", [](const LoweredGraphs& l) {
        py::dict out;
        for (const Value& value : l.tosa->values())
          if (value.canonical_order && value.kind != ValueKind::kConstant)
            out[py::str(value.name)] = to_tuple(value.canonical_order->axes(value.type.rank()));
        return out;
      });

  m.def(
      "explain_qdq",
      [](const SharedGraph& graph) {
        py::list out;
        for (const ErrorParts& parts : passes::explain_qdq(*graph)) out.append(error_parts_to_dict(parts));
        return out;
      },
      py::arg("graph").none(false),
      "Why operators of a quantized graph compute in floats: a list of reasons, as problems().");
  m.def(
      "explain_integers",
      [](const SharedGraph& graph, const std::string& target) {
        const passes::IntegerRules rules = passes::integer_rules(target::parse_target(target));
        py::list out;
        for (const ErrorParts& parts : passes::lower_to_integer(*graph, rules).left)
          out.append(error_parts_to_dict(parts));
        return out;
      },
      py::arg("graph").none(false), py::arg("target") = "TOSA-1.0+INT+FP",
      "Why operators over quantized values of a graph are left to floats: a list of reasons, as problems().");
  bind_pass(m);
  bind_pipeline_class(m);
  m.def(
      "passes",
      [] {
        py::list out;
        for (const passes::Pass& pass : passes::all_passes()) out.append(pass);
        return out;
      },
      "All passes of tosaic.");
  m.def(
      "unfold_qdq",
      [](const SharedGraph& graph, bool keep_integers) {
        const auto keeps = [keep_integers](const Graph&, const Node& node) {
          return keep_integers && node.op == Op::kOpaque && Graph::attrs<OpaqueAttrs>(node).integers;
        };
        std::optional<Graph> found = passes::unfold_qdq(*graph, keeps);
        return found ? std::make_shared<Graph>(std::move(*found)) : graph;
      },
      py::arg("graph").none(false), py::kw_only(), py::arg("keep_integers") = false,
      "The graph at stage exported, with quantize and dequantize nodes in the place of qparams. With "
      "keep_integers, described operators that compute with integers keep theirs.");
  m.def(
      "fold_returned",
      [](const SharedGraph& graph) {
        std::optional<Graph> found = passes::fold_returned(*graph);
        return found ? std::make_shared<Graph>(std::move(*found)) : graph;
      },
      py::arg("graph").none(false),
      "The graph with constants in the place of outputs that are constants once it is simplified.");
  m.def(
      "with_float_weights",
      [](const SharedGraph& graph) {
        const auto is_weight = [](const Graph& part, const Node& node) {
          return node.op == Op::kDequantize && part.value(part.operands(node)[0]).constant != nullptr;
        };
        std::optional<Graph> found = passes::expand_composites(*graph, is_weight);
        return found ? std::make_shared<Graph>(std::move(*found)) : graph;
      },
      py::arg("graph").none(false),
      "The graph with arithmetic in the place of dequantize nodes over constants, which can then be folded.");
  m.def(
      "before_integers",
      [](const SharedGraph& graph) {
        const py::gil_scoped_release release;
        return shared(pipeline::before_integers(graph));
      },
      py::arg("graph").none(false),
      "The graph that lower-to-integer would take: simplified, its quantization on values.");
  m.def(
      "before_layout",
      [](const SharedGraph& graph, const py::object& pipeline) {
        const pipeline::Pipeline steps = pipeline_of(pipeline);
        const py::gil_scoped_release release;
        return shared(pipeline::before_layout(graph, steps));
      },
      py::arg("graph").none(false), py::kw_only(), py::arg("pipeline"),
      "The graph after the sections of the pipeline before section layout.");
  m.def(
      "rgba",
      [](const SharedGraph& graph, const std::vector<bool>& inputs, const std::vector<bool>& outputs) {
        const py::gil_scoped_release release;
        std::optional<Graph> found = passes::rgba(*graph, {inputs, outputs});
        return found ? std::make_shared<Graph>(std::move(*found)) : graph;
      },
      py::arg("graph").none(false), py::kw_only(), py::arg("inputs"), py::arg("outputs"),
      "The graph whose RGB images around samplers, and at chosen inputs and outputs, have four channels.");
  m.def(
      "custom_samplers",
      [](const SharedGraph& graph, const std::map<std::string, std::string>& shaders) {
        const py::gil_scoped_release release;
        std::optional<Graph> found = passes::custom_samplers(*graph, shaders);
        return found ? std::make_shared<Graph>(std::move(*found)) : graph;
      },
      py::arg("graph").none(false), py::kw_only(), py::arg("shaders"),
      "The graph whose samplers of four channels are custom operators with these shaders.");
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
      [](const SharedGraph& graph, const py::object& pipeline, bool verify_each, const py::object& on_change,
         const py::object& inputs, const py::object& outputs, const py::object& objective,
         const py::object& input_orders, const py::object& output_orders, const std::string& semantics,
         std::uint32_t threads, bool file) {
        pipeline::LowerOptions options = options_of(verify_each, on_change, inputs, outputs, objective,
                                                    input_orders, output_orders, semantics);
        options.threads = threads;
        const pipeline::Pipeline steps = pipeline_of(pipeline);
        const py::gil_scoped_release release;
        return file ? lower_into_file(graph, steps, std::move(options))
                    : LoweredGraphs{pipeline::lower(graph, steps, options), nullptr, 0};
      },
      py::arg("graph").none(false), py::kw_only(), py::arg("pipeline") = "TOSA-1.0+FP",
      py::arg("verify_each") = true, py::arg("on_change") = py::none(), py::arg("inputs") = py::none(),
      py::arg("outputs") = py::none(), py::arg("objective") = "bytes", py::arg("input_orders") = py::none(),
      py::arg("output_orders") = py::none(), py::arg("semantics") = "tosa", py::arg("threads") = 1,
      py::arg("file") = false,
      "Lowers a graph to TOSA; raises UnsupportedOp or SpecViolation with all reasons. Floats at the "
      "boundary "
      "that are quantized or dequantized there are 'float', 'converted' or 'integer'. `semantics`: 'tosa' or "
      "'cmsis-nn', the integer forms of operators. `threads` compute the constants, with `file` in the .tosa "
      "file.");
  m.def(
      "io_quantization",
      [](const SharedGraph& graph) {
        const passes::IoQuantization found = passes::io_quantization(*graph);
        return py::make_tuple(to_list(found.inputs), to_list(found.outputs));
      },
      py::arg("graph").none(false),
      "The parameters with which inputs are quantized and outputs are dequantized: for either side a list by "
      "index of pairs (parameters, why it has to stay a float).");
  m.def(
      "extract_io",
      [](const SharedGraph& graph, const py::iterable& inputs, const py::iterable& outputs) {
        const std::vector<passes::PortRequest> of_inputs = requests_of(inputs),
                                               of_outputs = requests_of(outputs);
        const py::gil_scoped_release release;
        return std::make_shared<Graph>(passes::extract_io(*graph, of_inputs, of_outputs));
      },
      py::arg("graph").none(false), py::kw_only(), py::arg("inputs"), py::arg("outputs"),
      "The graph with integers at inputs and outputs. Entries by index: False, True or QParams.");
  m.def(
      "plan_calls",
      [](const SharedGraph& graph, const py::object& objective, const py::object& input_orders,
         const py::object& output_orders) {
        const layout::Objective measure = objective_of(objective);
        const pipeline::BoundaryOrders orders = orders_of(input_orders, output_orders);
        pipeline::CallPlan plan;
        {
          const py::gil_scoped_release release;
          plan = pipeline::plan_calls(graph, orders, measure);
        }
        return to_dict(*graph, plan);
      },
      py::arg("graph").none(false), py::kw_only(), py::arg("objective") = "bytes",
      py::arg("input_orders") = py::none(), py::arg("output_orders") = py::none(),
      "The layout plan of an imported graph with its composites taken apart, by values and calls of the "
      "imported one.");
  m.def(
      "with_boundary_orders",
      [](const SharedGraph& graph, const py::object& input_orders, const py::object& output_orders) {
        return std::const_pointer_cast<Graph>(
            pipeline::with_boundary_orders(graph, orders_of(input_orders, output_orders)));
      },
      py::arg("graph").none(false), py::kw_only(), py::arg("input_orders") = py::none(),
      py::arg("output_orders") = py::none(), "The graph with these orders at its inputs and outputs.");
  m.def(
      "carries_grid", [](const SharedGraph& graph) { return pipeline::carries_grid(*graph); },
      py::arg("graph").none(false), "By input: whether its elements are the coordinates of a grid_sample.");
  m.def(
      "problems",
      [](const SharedGraph& graph, const py::object& pipeline, const py::object& inputs,
         const py::object& outputs) {
        return to_list(tried(graph, pipeline, options_of(true, py::none(), inputs, outputs)).problems);
      },
      py::arg("graph").none(false), py::kw_only(), py::arg("pipeline") = "TOSA-1.0+FP",
      py::arg("inputs") = py::none(), py::arg("outputs") = py::none(),
      "Everything that keeps a graph from the target, as error parts.");
  m.def(
      "try_to_lower",
      [](const SharedGraph& graph, const py::object& pipeline) {
        const pipeline::Trial trial =
            tried(graph, pipeline, options_of(true, py::none(), py::none(), py::none()));
        return py::make_tuple(to_list(trial.problems), std::const_pointer_cast<Graph>(trial.tosa));
      },
      py::arg("graph").none(false), py::kw_only(), py::arg("pipeline") = "TOSA-1.0+FP",
      "A pair: what problems() returns, and the TOSA graph, or None if there are problems. A constant of the "
      "TOSA "
      "graph may be computed when it is read, from the memory of the given graph.");
}

}  // namespace tosaic::python
