// Bindings of runs: sessions, traces and memory plans.
//
// Input arrays are read in place, and outputs are new arrays. The GIL is released while a graph runs.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "arrays.h"
#include "bind.h"
#include "callables.h"
#include "signals.h"
#include "tosaic/exec/profile.h"
#include "tosaic/exec/session.h"
#include "tosaic/exec/stand_in.h"
#include "tosaic/exec/steps.h"
#include "tosaic/kernels/gemm/gemm.h"
#include "tosaic/kernels/peak.h"
#include "tosaic/pipeline/executable.h"
#include "views.h"

namespace tosaic::python {
namespace {

using SharedGraph = std::shared_ptr<Graph>;

exec::PrepareOptions prepare_options(bool reference, const std::optional<std::string>& isa, bool share_memory,
                                     const py::dict& override_nodes, const py::dict& override_ops,
                                     const py::sequence& models, const kernels::Threads& threads,
                                     const std::optional<std::size_t>& least_group_bytes,
                                     const std::vector<std::string>& left_out) {
  exec::PrepareOptions options;
  options.kernels.left_out = kernels::rows_named(left_out);
  if (least_group_bytes) options.least_group_bytes = *least_group_bytes;
  options.kernels.threads = threads;
  options.kernels.reference = reference;
  if (isa) options.kernels.isa = kernels::parse_isa(*isa);
  options.memory.share = share_memory;
  options.overrides.nodes = overrides_of(override_nodes);
  options.overrides.ops = overrides_of(override_ops);
  options.overrides.models = models_of(models);
  return options;
}

py::dict memory_plan_to_dict(const Graph& graph, const memory::MemoryPlan& plan) {
  py::list values;
  for (std::uint32_t i = 0; i < graph.values().size(); ++i) {
    if (graph.values()[i].kind == ValueKind::kConstant) continue;
    values.append(py::dict(
        py::arg("name") = graph.values()[i].name, py::arg("bytes") = graph.values()[i].type.bytes(),
        py::arg("area") = std::string(to_string(plan.values[i].area)),
        py::arg("offset") = plan.values[i].offset, py::arg("alias") = std::string(to_string(plan.alias[i])),
        py::arg("alias_of") =
            plan.alias_of[i].valid() ? py::object(py::str(graph.value(plan.alias_of[i]).name)) : py::none()));
  }
  return py::dict(py::arg("arena_bytes") = plan.arena_bytes, py::arg("lower_bound") = plan.lower_bound,
                  py::arg("gap") = plan.gap(), py::arg("hidden_bytes") = plan.hidden_bytes,
                  py::arg("unshared_bytes") = plan.unshared_bytes, py::arg("live_bytes") = plan.live_bytes,
                  py::arg("values") = values);
}

py::list steps_to_list(const exec::Prepared& prepared) {
  const Graph& graph = prepared.graph();
  py::list out;
  for (const exec::Step& step : prepared.steps()) {
    const Node& node = graph.node(step.node);
    std::size_t bytes = 0;
    for (std::uint32_t i = 0; i < node.result_count; ++i) bytes += graph.type(graph.result(node, i)).bytes();
    out.append(py::dict(py::arg("name") = step.name, py::arg("op") = std::string(info(node.op).name),
                        py::arg("kernel") = step.kernel, py::arg("result_bytes") = bytes,
                        py::arg("scratch_bytes") = step.scratch_bytes));
  }
  return out;
}

std::unique_ptr<exec::Session> make_session(const SharedGraph& graph, bool reference,
                                            const std::optional<std::string>& isa, bool share_memory,
                                            const py::dict& override_nodes, const py::dict& override_ops,
                                            const py::sequence& models, std::uint32_t threads, bool share_all,
                                            const std::optional<std::size_t>& least_group_bytes,
                                            const std::vector<std::string>& left_out) {
  const exec::PrepareOptions options =
      prepare_options(reference, isa, share_memory, override_nodes, override_ops, models,
                      {threads, share_all}, least_group_bytes, left_out);
  const py::gil_scoped_release release;
  return std::make_unique<exec::Session>(pipeline::make_session(graph, options));
}

// A run holds the lock of the state while its functions in Python wait for the GIL, so a thread that waits
// for the lock must not hold the GIL.
exec::Array state_released(const exec::Session& session, const std::string& path) {
  const py::gil_scoped_release release;
  return session.state(path);
}

exec::RunResult run_released(exec::Session& session, const py::sequence& objects, exec::RunOptions options) {
  const GivenArrays inputs = given_arrays(session.prepared().graph(), session.inputs(), objects);
  options.between_steps = signal_check();
  const py::gil_scoped_release release;
  return session.run(inputs.views, options);
}

py::list run(exec::Session& session, const py::sequence& inputs) {
  return to_list(run_released(session, inputs, {}).outputs);
}

// The outputs, or None if an argument is not a plain array, or if there are more or fewer arguments than
// inputs.
py::object run_plain(exec::Session& session, const py::tuple& arguments) {
  const std::optional<py::tuple> arrays = plain_arrays(arguments);
  if (!arrays || arrays->size() != session.inputs().size()) return py::none();
  return run(session, *arrays);
}

py::dict trace(exec::Session& session, const py::sequence& inputs,
               const std::optional<std::vector<std::string>>& nodes, const py::object& observer) {
  exec::RunOptions options;
  options.trace.all = !nodes;
  if (nodes) options.trace.nodes = *nodes;
  if (!observer.is_none()) options.observer = observer_of(observer);
  const exec::RunResult result = run_released(session, inputs, std::move(options));
  py::dict values, out;
  for (const exec::TracedValue& traced : result.trace)
    values[py::str(session.prepared().graph().value(traced.value).name)] = to_numpy(traced.array);
  out["outputs"] = to_list(result.outputs);
  out["values"] = values;
  return out;
}

// Identifies a step of a session.
std::int64_t key_of(const exec::Step& step) { return reinterpret_cast<std::intptr_t>(&step); }

// The events of a run as an array of shape [events, 3]: key of the step, begin, end.
py::array events_of(const exec::RunTimes& times) {
  py::array_t<std::int64_t> events({times.events().size(), std::size_t{3}});
  std::int64_t* to = events.mutable_data();
  for (const exec::StepEvent& event : times.events()) {
    *to++ = key_of(*event.step);
    *to++ = event.begin;
    *to++ = event.end;
  }
  return events;
}

py::dict profile(exec::Session& session, const py::sequence& inputs) {
  exec::RunTimes times;
  exec::RunOptions options;
  options.times = &times;
  const exec::RunResult result = run_released(session, inputs, std::move(options));
  return py::dict(py::arg("outputs") = to_list(result.outputs), py::arg("events") = events_of(times),
                  py::arg("nanoseconds") = times.last());
}

py::list places_to_list(const exec::Session& session) {
  py::list out;
  for (const exec::StepPlace& place : exec::profiled_steps(session.prepared())) {
    py::list nodes;
    for (const NodeId node : place.nodes) nodes.append(NodeView{place.graph, node});
    out.append(py::dict(
        py::arg("key") = key_of(*place.step), py::arg("nodes") = nodes, py::arg("kernel") = place.kernel,
        py::arg("factors") =
            place.factors ? py::object(py::str(std::string(to_string(*place.factors)))) : py::none(),
        py::arg("parent") = place.parent ? py::object(py::int_(*place.parent)) : py::none(),
        py::arg("region") = place.region, py::arg("multiply_adds") = place.work.multiply_adds,
        py::arg("bytes_read") = place.work.bytes_read, py::arg("bytes_written") = place.work.bytes_written));
  }
  return out;
}

}  // namespace

void bind_exec(py::module_& m) {
  py::class_<exec::Session>(m, "Session", "A graph made ready to run, with its state. Any thread may run it.")
      .def(py::init(&make_session), py::arg("graph").none(false), py::kw_only(), py::arg("reference") = false,
           py::arg("isa") = py::none(), py::arg("share_memory") = true,
           py::arg("override_nodes") = py::dict(), py::arg("override_ops") = py::dict(),
           py::arg("models") = py::list(), py::arg("threads") = 1, py::arg("share_all") = false,
           py::arg("least_group_bytes") = py::none(), py::arg("left_out") = std::vector<std::string>{},
           "`override_nodes`, `override_ops`: {name: callable(*operands) -> array or arrays}; operators by "
           "name, foreign "
           "ones by target. `models`: [(node, callable)], called with the integers of quantized values. "
           "`threads`: "
           "the most of one run; with `share_all` they share loops of any cost. `least_group_bytes`: steps "
           "are "
           "computed together, some rows at a time, if the values between them have at least this size. "
           "`left_out`: names of `contraction_forms` that are not used.")
      .def("run", &run, py::arg("inputs"), "Outputs, as new arrays. Dense row-major inputs are not copied.")
      .def(
          "run_plain", &run_plain, py::arg("arguments"),
          "As `run`, for a tuple of arrays and tensors. None if one of them has to be converted first: it is "
          "a subclass, requires gradients, is on another device, or numpy does not have its dtype.")
      .def("trace", &trace, py::arg("inputs"), py::kw_only(), py::arg("nodes") = py::none(),
           py::arg("observer") = py::none(),
           "{outputs, values: {name: array}}. `nodes`: names to keep, all by default. `observer(name, "
           "results)` is called after each node.")
      .def("profile", &profile, py::arg("inputs"),
           "{outputs, events, nanoseconds}: an event is (key of a step, begin, end), in nanoseconds "
           "since the start of the run, which takes `nanoseconds`.")
      .def(
          "state",
          [](const exec::Session& s, const std::string& path) { return to_numpy(state_released(s, path)); },
          py::arg("path"))
      .def(
          "set_state",
          [](exec::Session& s, const std::string& path, const py::object& value) {
            const py::array array = to_array(value);
            const exec::ArrayView view = exec::as_declared(view_of(array), state_released(s, path).dtype);
            const py::gil_scoped_release release;
            s.set_state(path, view);
          },
          py::arg("path"), py::arg("value"))
      .def("reset_state", &exec::Session::reset_state, py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("input_names", &exec::Session::input_names)
      .def_property_readonly("output_names", &exec::Session::output_names)
      .def_property_readonly(
          "steps", [](const exec::Session& s) { return steps_to_list(s.prepared()); },
          "Per node: name, op, kernel, result_bytes, scratch_bytes.")
      .def_property_readonly(
          "profiled_steps", &places_to_list,
          "Per step that runs something, also in regions: key, nodes, kernel, factors (a dtype or "
          "None), parent (an index or None), region, multiply_adds, bytes_read, bytes_written.")
      .def_property_readonly(
          "memory",
          [](const exec::Session& s) {
            return memory_plan_to_dict(s.prepared().graph(), s.prepared().memory());
          },
          "The arena: arena_bytes, lower_bound, gap, unshared_bytes, live_bytes per step, values. After it "
          "are hidden_bytes, for values that only traces and observers see.");
  m.def(
      "node_alone",
      [](const NodeView& node, const std::vector<bool>& as_input) {
        if (as_input.size() != node.node().operand_count)
          throw InvalidGraph({.where = "node_alone", .what = "as_input has not one entry for each operand"});
        return std::make_shared<Graph>(exec::node_alone(*node.graph, node.node(), as_input));
      },
      py::arg("node"), py::arg("as_input"),
      "A graph of this node alone. Its operands are inputs, but for constants where `as_input` is False.");
  m.def(
      "as_one_node",
      [](const SharedGraph& graph) { return std::make_shared<Graph>(exec::as_one_node(*graph)); },
      py::arg("graph").none(false),
      "A graph with the same inputs and outputs, and one foreign node between them, for a model to compute.");
  m.def(
      "with_plain_boundary",
      [](const SharedGraph& graph) { return std::make_shared<Graph>(exec::with_plain_boundary(*graph)); },
      py::arg("graph").none(false),
      "The same nodes; inputs and outputs are the values themselves, states among them.");
  m.def(
      "multiply_adds", [](const NodeView& node) { return exec::multiply_adds(*node.graph, node.node()); },
      py::arg("node"), "The products that a contraction or an attention adds up; 0 for all other operators.");
  m.def(
      "contraction_forms",
      [] {
        py::list rows;
        for (const kernels::FormRow& row : kernels::form_rows())
          rows.append(py::dict(py::arg("name") = row.name, py::arg("kind") = row.kind,
                               py::arg("form") = row.form, py::arg("isa") = std::string(to_string(row.set)),
                               py::arg("rule") = row.rule, py::arg("saves") = row.saves,
                               py::arg("measured") = row.measured));
        return rows;
      },
      "The rows of the table of forms, first choice first.");
  m.def(
      "peak_multiply_adds",
      [](const std::string& isa, const std::string& factors, std::size_t threads) {
        const kernels::Isa set = kernels::parse_isa(isa);
        const DType dtype = to_dtype(py::str(factors));
        const py::gil_scoped_release release;
        return kernels::peak_multiply_adds(set, dtype, threads);
      },
      py::arg("isa"), py::arg("factors"), py::arg("threads") = 1,
      "Multiply-adds per second of factors of this dtype, measured; None if no fast path multiplies them.");
  m.def(
      "peak_bandwidth",
      [](const std::string& isa, std::size_t threads) {
        return kernels::peak_bandwidth(kernels::parse_isa(isa), threads);
      },
      py::arg("isa"), py::arg("threads") = 1, py::call_guard<py::gil_scoped_release>(),
      "Bytes per second that are read and written in memory, measured.");
  m.def("usable_cores", &usable_cores, "The number of cores that this process may use, at least 1.");
  m.def("usable_isas", [] {
    std::vector<std::string> out;
    for (const kernels::Isa isa : kernels::usable_isas()) out.emplace_back(kernels::to_string(isa));
    return out;
  });
}

}  // namespace tosaic::python
