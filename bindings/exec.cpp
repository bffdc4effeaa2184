// Running graphs from Python: sessions, traces, memory plans, metrics and comparisons.
//
// Input arrays are read in place; outputs are new arrays. The GIL is released while a graph runs. Observers
// and overrides receive copies of arrays, so they may store them.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cstring>

#include "bind.h"
#include "tosaic/base/error.h"
#include "tosaic/exec/compare.h"
#include "tosaic/exec/local_error.h"
#include "tosaic/exec/metrics.h"
#include "tosaic/exec/session.h"
#include "tosaic/exec/steps.h"
#include "tosaic/pipeline/executable.h"

namespace tosaic::python {
namespace {

using exec::Array;
using exec::ArrayView;
using SharedGraph = std::shared_ptr<Graph>;

// ---- arrays ----

std::optional<DType> named_dtype(const std::string& name) {
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float8_e4m3fn") return DType::kF8E4M3;
  if (name == "float8_e5m2") return DType::kF8E5M2;
  if (name == "int4") return DType::kI4;
  return std::nullopt;
}

std::optional<DType> builtin_dtype(char kind, py::ssize_t size) {
  if (kind == 'b') return DType::kBool;
  if (kind == 'i' && size <= 8)
    return size == 1 ? DType::kI8 : size == 2 ? DType::kI16 : size == 4 ? DType::kI32 : DType::kI64;
  if (kind == 'u' && size == 1) return DType::kU8;
  if (kind == 'u' && size == 2) return DType::kU16;
  if (kind == 'f' && (size == 2 || size == 4 || size == 8))
    return size == 2 ? DType::kF16 : size == 4 ? DType::kF32 : DType::kF64;
  return std::nullopt;
}

constexpr int kFirstUserType = 256;  // numpy's first type number for user types, such as those of ml_dtypes

DType array_dtype(const py::dtype& dtype) {
  const std::optional<DType> known = dtype.num() < kFirstUserType
                                         ? builtin_dtype(dtype.kind(), dtype.itemsize())
                                         : named_dtype(dtype.attr("name").cast<std::string>());
  if (!known || dtype.byteorder() == '>')
    throw LayoutMismatch({.where = "run",
                          .what = "an array's dtype has no counterpart",
                          .got = py::str(dtype).cast<std::string>()});
  return *known;
}

py::array to_array(py::handle object) {
  py::array array = py::array::ensure(object);
  if (!array) throw py::error_already_set();
  return array;
}

// `declared`: the expected dtype. bf16 and f8 may come as unsigned integers of the same width.
ArrayView view_of(const py::array& array, std::optional<DType> declared = std::nullopt) {
  ArrayView view;
  view.data = static_cast<const std::byte*>(array.data());
  view.dtype = array_dtype(array.dtype());
  const bool raw = view.dtype == DType::kU16 || view.dtype == DType::kU8;
  if (declared && raw && is_float(*declared) && *declared != DType::kF16 &&
      byte_size(*declared) == byte_size(view.dtype))
    view.dtype = *declared;
  for (py::ssize_t i = 0; i < array.ndim(); ++i) {
    view.shape.push_back(array.shape(i));
    view.strides.push_back(array.strides(i));
  }
  return view;
}

// Views of input arrays, and the arrays that own their memory.
struct GivenArrays {
  std::vector<py::array> owners;
  std::vector<ArrayView> views;
};

GivenArrays given_inputs(const exec::Session& session, const py::sequence& objects) {
  GivenArrays out;
  const Graph& graph = session.prepared().graph();
  for (std::size_t i = 0; i < py::len(objects); ++i) {
    std::optional<DType> declared;
    if (i < session.inputs().size()) {
      const Input& input = graph.inputs()[session.inputs()[i]];
      declared = input.border.source_dtype.value_or(graph.type(input.value).dtype);
    }
    out.owners.push_back(to_array(objects[i]));
    out.views.push_back(view_of(out.owners.back(), declared));
  }
  return out;
}

std::vector<py::ssize_t> sizes(const Dims& dims) { return {dims.begin(), dims.end()}; }

py::array to_numpy(const Array& array) {
  auto keep = std::make_unique<Storage>(array.storage);
  const void* data = keep->bytes().data();
  const py::capsule owner(keep.release(), [](void* storage) { delete static_cast<Storage*>(storage); });
  return py::array(py::reinterpret_borrow<py::dtype>(numpy_dtype(array.dtype)), sizes(array.shape),
                   sizes(array.strides), data, owner);
}

// A copy of a dense view whose memory is valid only during a call; None if the operand is absent.
py::object copied(const ArrayView& view) {
  if (view.data == nullptr) return py::none();
  Array array = Array::allocate(view.dtype, view.shape);
  if (array.storage.size() != 0) std::memcpy(array.storage.writable(), view.data, array.storage.size());
  return to_numpy(array);
}

py::list to_list(const std::vector<Array>& arrays) {
  py::list out;
  for (const Array& array : arrays) out.append(to_numpy(array));
  return out;
}

// ---- callables ----

// A Python object that any thread may release: its deleter acquires the GIL.
std::shared_ptr<py::object> shared_callable(py::object object) {
  return {new py::object(std::move(object)), [](py::object* held) {
            const py::gil_scoped_acquire gil;
            delete held;
          }};
}

void store_result(const py::handle& object, const exec::MutableArrayView& result, const std::string& name) {
  const py::array array = to_array(object);
  const ArrayView view = view_of(array, result.dtype);
  if (view.shape != result.shape || exec::container(result.dtype) != exec::container(view.dtype))
    throw LayoutMismatch({.where = "override",
                          .what = "the override of '" + name + "' returned the wrong array",
                          .expected = std::string(to_string(result.dtype)) + to_string(result.shape),
                          .got = std::string(to_string(view.dtype)) + to_string(view.shape)});
  exec::copy(view, result);
}

// The arguments of a foreign node that are not tensors.
std::string arguments_of(const Node& node) {
  if (node.op == Op::kOpaque) return Graph::attrs<OpaqueAttrs>(node).arguments;
  if (node.op == Op::kTosaCustom) return Graph::attrs<TosaCustomAttrs>(node).implementation_attrs;
  return {};
}

// callable(*operands) -> array, or a sequence of arrays if the node has several results. A callable with the
// attribute `takes_arguments` is called with (arguments, operands, [(dtype, shape) of each result]).
exec::NodeFunction override_of(py::object callable) {
  const bool takes_arguments = py::hasattr(callable, "takes_arguments");
  return [takes_arguments, held = shared_callable(std::move(callable))](const exec::NodeCall& call) {
    const py::gil_scoped_acquire gil;
    py::list operands;
    for (const ArrayView& operand : call.operands) operands.append(copied(operand));
    py::object made;
    if (takes_arguments) {
      py::list types;
      for (const exec::MutableArrayView& result : call.results)
        types.append(py::make_tuple(std::string(to_string(result.dtype)), to_tuple(result.shape)));
      made = (*held)(arguments_of(call.node), operands, types);
    } else {
      made = (*held)(*py::tuple(operands));
    }
    if (call.results.size() == 1 && !py::isinstance<py::tuple>(made) && !py::isinstance<py::list>(made)) {
      store_result(made, call.results[0], call.name);
      return;
    }
    const auto results = made.cast<py::sequence>();
    if (py::len(results) != call.results.size())
      throw InvalidGraph({.where = "override",
                          .what = "the override of '" + call.name + "' returned the wrong number of arrays",
                          .expected = std::to_string(call.results.size()),
                          .got = std::to_string(py::len(results))});
    for (std::size_t i = 0; i < call.results.size(); ++i) {
      const py::object result = results[i];
      store_result(result, call.results[i], call.name);
    }
  };
}

// callable(name, results)
exec::NodeFunction observer_of(py::object callable) {
  return [held = shared_callable(std::move(callable))](const exec::NodeCall& call) {
    const py::gil_scoped_acquire gil;
    py::list results;
    for (const exec::MutableArrayView& result : call.results) results.append(copied(result.read()));
    (*held)(call.name, results);
  };
}

std::map<std::string, exec::NodeFunction> overrides_of(const py::dict& table) {
  std::map<std::string, exec::NodeFunction> out;
  for (const auto& [name, callable] : table)
    out[name.cast<std::string>()] = override_of(py::reinterpret_borrow<py::object>(callable));
  return out;
}

// Throws KeyboardInterrupt after Ctrl-C; checks for it at most ten times a second.
std::function<void()> signal_check() {
  using Clock = std::chrono::steady_clock;
  return [last = Clock::now()]() mutable {
    if (Clock::now() - last < std::chrono::milliseconds(100)) return;
    last = Clock::now();
    const py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  };
}

kernels::Isa parse_isa(const std::string& name) {
  for (const kernels::Isa isa : kernels::usable_isas())
    if (kernels::to_string(isa) == name) return isa;
  throw InvalidGraph(
      {.where = "prepare", .what = "this machine cannot run the instruction set", .got = "'" + name + "'"});
}

exec::PrepareOptions prepare_options(bool reference, const std::optional<std::string>& isa, bool share_memory,
                                     const py::dict& override_nodes, const py::dict& override_ops) {
  exec::PrepareOptions options;
  options.kernels.reference = reference;
  if (isa) options.kernels.isa = parse_isa(*isa);
  options.memory.share = share_memory;
  options.overrides.nodes = overrides_of(override_nodes);
  options.overrides.ops = overrides_of(override_ops);
  return options;
}

// ---- results as dicts ----

py::dict to_dict(const report::Metrics& metrics) {
  py::dict out;
  out["count"] = metrics.count;
  out["mismatches"] = metrics.mismatches;
  out["nonfinite"] = metrics.nonfinite;
  out["sqnr_db"] = metrics.sqnr_db;
  out["cosine"] = metrics.cosine;
  out["max_abs"] = metrics.max_abs;
  out["relative"] = metrics.relative;
  out["max_ulp"] = metrics.max_ulp;
  out["p99_ulp"] = metrics.p99_ulp;
  return out;
}

py::object to_dict(const std::optional<report::Metrics>& metrics) {
  return metrics ? to_dict(*metrics) : py::none().cast<py::object>();
}

py::dict to_dict(const report::CompareRow& row) {
  py::dict out;
  out["fx_name"] = row.fx_name;
  out["op_a"] = row.op_a;
  out["op_b"] = row.op_b;
  out["value_a"] = row.value_a;
  out["value_b"] = row.value_b;
  out["module_path"] = row.module_path;
  out["source"] = row.source;
  out["total"] = to_dict(row.total);
  out["local"] = to_dict(row.local);
  out["inherited"] = to_dict(row.inherited);
  out["local_share"] = row.local_share;
  return out;
}

py::dict to_dict(const report::Comparison& comparison) {
  py::list rows, unmatched;
  for (const report::CompareRow& row : comparison.rows) rows.append(to_dict(row));
  for (const report::UnmatchedValue& value : comparison.unmatched) {
    py::dict entry;
    entry["fx_name"] = value.fx_name;
    entry["reason"] = value.reason;
    unmatched.append(entry);
  }
  py::dict out;
  out["rows"] = rows;
  out["unmatched"] = unmatched;
  out["threshold_db"] = comparison.threshold_db;
  out["first_divergence"] = comparison.first_divergence;
  return out;
}

const char* area_name(memory::Area area) {
  switch (area) {
    case memory::Area::kNone:
      return "none";
    case memory::Area::kArena:
      return "arena";
    case memory::Area::kInput:
      return "input";
    case memory::Area::kOutput:
      return "output";
    case memory::Area::kConstant:
      return "constant";
  }
  return "";
}

const char* alias_name(memory::AliasKind kind) {
  switch (kind) {
    case memory::AliasKind::kNone:
      return "none";
    case memory::AliasKind::kView:
      return "view";
    case memory::AliasKind::kInPlace:
      return "in_place";
  }
  return "";
}

py::dict plan_to_dict(const Graph& graph, const memory::MemoryPlan& plan) {
  py::list values;
  for (std::uint32_t i = 0; i < graph.values().size(); ++i) {
    if (graph.values()[i].kind == ValueKind::kConstant) continue;
    py::dict entry;
    entry["name"] = graph.values()[i].name;
    entry["bytes"] = graph.values()[i].type.bytes();
    entry["area"] = area_name(plan.values[i].area);
    entry["offset"] = plan.values[i].offset;
    entry["alias"] = alias_name(plan.alias[i]);
    entry["alias_of"] =
        plan.alias_of[i].valid() ? py::object(py::str(graph.value(plan.alias_of[i]).name)) : py::none();
    values.append(entry);
  }
  py::dict out;
  out["arena_bytes"] = plan.arena_bytes;
  out["lower_bound"] = plan.lower_bound;
  out["gap"] = plan.gap();
  out["unshared_bytes"] = plan.unshared_bytes;
  out["live_bytes"] = plan.live_bytes;
  out["values"] = values;
  return out;
}

py::list steps_to_list(const exec::Prepared& prepared) {
  const Graph& graph = prepared.graph();
  py::list out;
  for (const exec::Step& step : prepared.steps()) {
    const Node& node = graph.node(step.node);
    std::size_t bytes = 0;
    for (std::uint32_t i = 0; i < node.result_count; ++i) bytes += graph.type(graph.result(node, i)).bytes();
    py::dict entry;
    entry["name"] = step.name;
    entry["op"] = std::string(info(node.op).name);
    entry["kernel"] = step.kernel;
    entry["result_bytes"] = bytes;
    entry["scratch_bytes"] = step.scratch_bytes;
    out.append(entry);
  }
  return out;
}

// ---- sessions ----

std::unique_ptr<exec::Session> make_session(const SharedGraph& graph, bool reference,
                                            const std::optional<std::string>& isa, bool share_memory,
                                            const py::dict& override_nodes, const py::dict& override_ops) {
  const exec::PrepareOptions options =
      prepare_options(reference, isa, share_memory, override_nodes, override_ops);
  const py::gil_scoped_release release;
  return std::make_unique<exec::Session>(
      exec::prepare(pipeline::executable(graph, options.overrides), options));
}

exec::RunResult run_released(exec::Session& session, const GivenArrays& inputs, exec::RunOptions options) {
  options.between_steps = signal_check();
  const py::gil_scoped_release release;
  return session.run(inputs.views, options);
}

py::list run(exec::Session& session, const py::sequence& inputs) {
  return to_list(run_released(session, given_inputs(session, inputs), {}).outputs);
}

py::dict trace(exec::Session& session, const py::sequence& inputs,
               const std::optional<std::vector<std::string>>& nodes, const py::object& observer,
               bool profile) {
  exec::RunOptions options;
  options.trace.all = !nodes;
  if (nodes) options.trace.nodes = *nodes;
  if (!observer.is_none()) options.observer = observer_of(observer);
  options.profile = profile;
  const exec::RunResult result = run_released(session, given_inputs(session, inputs), std::move(options));
  py::dict values, out;
  for (const exec::TracedValue& traced : result.trace)
    values[py::str(session.prepared().graph().value(traced.value).name)] = to_numpy(traced.array);
  out["outputs"] = to_list(result.outputs);
  out["values"] = values;
  out["nanoseconds"] = result.nanoseconds;
  return out;
}

std::vector<std::string> input_names(const exec::Session& session) {
  std::vector<std::string> out;
  const Graph& graph = session.prepared().graph();
  for (const std::uint32_t i : session.inputs())
    out.push_back(exec::border_name(graph, graph.inputs()[i].value, graph.inputs()[i].path));
  return out;
}

std::vector<std::string> output_names(const exec::Session& session) {
  std::vector<std::string> out;
  const Graph& graph = session.prepared().graph();
  for (const std::uint32_t i : session.outputs())
    out.push_back(exec::border_name(graph, graph.outputs()[i].value, graph.outputs()[i].path));
  return out;
}

void bind_session(py::module_& m) {
  py::class_<exec::Session>(m, "Session", "A graph made ready to run, with its state. Any thread may run it.")
      .def(py::init(&make_session), py::arg("graph").none(false), py::kw_only(), py::arg("reference") = false,
           py::arg("isa") = py::none(), py::arg("share_memory") = true,
           py::arg("override_nodes") = py::dict(), py::arg("override_ops") = py::dict(),
           "`override_nodes`, `override_ops`: {name: callable(*operands) -> array or arrays}; operators by "
           "name, foreign "
           "ones by target.")
      .def("run", &run, py::arg("inputs"), "Outputs, as new arrays. Dense row-major inputs are not copied.")
      .def("trace", &trace, py::arg("inputs"), py::kw_only(), py::arg("nodes") = py::none(),
           py::arg("observer") = py::none(), py::arg("profile") = false,
           "{outputs, values: {name: array}, nanoseconds: per step}. `nodes`: names to keep, all by default. "
           "`observer(name, results)` is called after each node.")
      .def(
          "state", [](const exec::Session& s, const std::string& path) { return to_numpy(s.state(path)); },
          py::arg("path"))
      .def(
          "set_state",
          [](exec::Session& s, const std::string& path, const py::object& value) {
            const py::array array = to_array(value);
            s.set_state(path, view_of(array, s.state(path).dtype));
          },
          py::arg("path"), py::arg("value"))
      .def("reset_state", &exec::Session::reset_state)
      .def_property_readonly("input_names", &input_names)
      .def_property_readonly("output_names", &output_names)
      .def_property_readonly(
          "steps", [](const exec::Session& s) { return steps_to_list(s.prepared()); },
          "Per node: name, op, kernel, result_bytes, scratch_bytes.")
      .def_property_readonly(
          "memory",
          [](const exec::Session& s) { return plan_to_dict(s.prepared().graph(), s.prepared().memory()); },
          "The arena: arena_bytes, lower_bound, gap, unshared_bytes, live_bytes per step, values.");
}

// ---- comparisons ----

py::dict metrics(const py::object& reference, const py::object& value, std::optional<double> unit) {
  const py::array a = to_array(reference), b = to_array(value);
  const ArrayView view_a = view_of(a), view_b = view_of(b);
  report::Metrics out;
  {
    const py::gil_scoped_release release;
    out = exec::compute_metrics(view_a, view_b, {unit});
  }
  return to_dict(out);
}

// The user inputs of a graph. bf16 and f8 inputs may be unsigned integers, as for a session.
GivenArrays given_for(const Graph& graph, const py::sequence& objects) {
  GivenArrays out;
  std::size_t k = 0;
  for (const Input& input : graph.inputs()) {
    if (input.kind != InputKind::kUser || k >= py::len(objects)) continue;
    out.owners.push_back(to_array(objects[k++]));
    out.views.push_back(
        view_of(out.owners.back(), input.border.source_dtype.value_or(graph.type(input.value).dtype)));
  }
  for (; k < py::len(objects); ++k) {  // too many inputs: the run reports it
    out.owners.push_back(to_array(objects[k]));
    out.views.push_back(view_of(out.owners.back()));
  }
  return out;
}

exec::CompareOptions compare_options(const py::dict& permutations, double threshold_db,
                                     const py::dict& override_nodes, const py::dict& override_ops) {
  exec::CompareOptions options;
  for (const auto& [name, permutation] : permutations)
    options.permutations[name.cast<std::string>()] = to_dims(permutation);
  options.threshold_db = threshold_db;
  options.b.overrides.nodes = overrides_of(override_nodes);
  options.b.overrides.ops = overrides_of(override_ops);
  return options;
}

// Arrays by key: an FX name, or (FX name, index of the result).
std::vector<exec::NamedArray> named_arrays(const py::dict& arrays, std::vector<py::array>& owners) {
  std::vector<exec::NamedArray> out;
  for (const auto& [key, object] : arrays) {
    const bool plain = py::isinstance<py::str>(key);
    owners.push_back(to_array(object));
    out.push_back({(plain ? key : key[py::int_(0)]).cast<std::string>(),
                   plain ? 0u : key[py::int_(1)].cast<std::uint32_t>(), view_of(owners.back())});
  }
  return out;
}

// From {storage, qmin, qmax, axis, scales, zero_points}, the form of Input.qparams; null for None.
QParamsRef qparams_of(const py::object& object) {
  if (object.is_none()) return nullptr;
  const auto from = object.cast<py::dict>();
  auto out = std::make_shared<QParams>();
  out->storage = to_dtype(from["storage"]);
  out->qmin = from["qmin"].cast<std::int64_t>();
  out->qmax = from["qmax"].cast<std::int64_t>();
  out->axis = from["axis"].cast<std::optional<std::int64_t>>();
  out->scales = from["scales"].cast<std::vector<double>>();
  out->zero_points = from["zero_points"].cast<std::vector<std::int64_t>>();
  return out;
}

// From a list of {a, b, qparams, orders, variable, expected}: see the docstring of `compare`.
std::vector<exec::CompareOptions::OutputPair> output_pairs(const py::sequence& pairs,
                                                           std::vector<py::array>& owners) {
  std::vector<exec::CompareOptions::OutputPair> out;
  for (const py::handle& object : pairs) {
    const auto pair = py::reinterpret_borrow<py::dict>(object);
    exec::CompareOptions::OutputPair& made = out.emplace_back();
    made.a = pair["a"].cast<std::uint32_t>();
    made.b = pair["b"].cast<std::uint32_t>();
    made.qparams = qparams_of(pair["qparams"]);
    for (const py::handle& order : pair["orders"]) made.orders.push_back(to_dims(order));
    made.variable = pair["variable"].cast<std::string>();
    if (pair["expected"].is_none()) continue;
    owners.push_back(to_array(pair["expected"]));
    made.expected = view_of(owners.back());
  }
  return out;
}

py::dict to_dict(const exec::ComparedRuns& runs) {
  py::dict out = to_dict(runs.report);
  py::list outputs;
  for (const exec::ComparedOutput& output : runs.outputs) {
    py::dict entry;
    entry["a"] = to_numpy(output.a);
    entry["b"] = output.b.storage.bound() ? py::object(to_numpy(output.b)) : py::none();
    entry["local_share"] = output.local_share;
    entry["carried_share"] = output.carried_share;
    outputs.append(entry);
  }
  out["outputs"] = outputs;
  return out;
}

py::dict compare(const SharedGraph& a, const SharedGraph& b, const py::sequence& inputs,
                 const py::object& inputs_b, const py::dict& permutations, double threshold_db, bool local,
                 bool reference, const py::dict& override_nodes, const py::dict& override_ops,
                 const py::dict& override_nodes_a, const py::object& override_ops_a, const py::object& traces,
                 const py::sequence& outputs) {
  exec::CompareOptions options = compare_options(permutations, threshold_db, override_nodes, override_ops);
  options.local = local;
  std::vector<py::array> owners;
  options.outputs = output_pairs(outputs, owners);
  options.a.kernels.reference = reference;
  options.a.overrides.nodes = overrides_of(override_nodes_a);
  options.a.overrides.ops =
      override_ops_a.is_none() ? options.b.overrides.ops : overrides_of(override_ops_a.cast<py::dict>());
  options.a.overrides = exec::with_quantizers(std::move(options.a.overrides));
  const GivenArrays given_a = given_for(*a, inputs);
  const GivenArrays given_b = given_for(*b, inputs_b.is_none() ? inputs : inputs_b.cast<py::sequence>());
  const std::vector<exec::NamedArray> named =
      traces.is_none() ? std::vector<exec::NamedArray>{} : named_arrays(traces.cast<py::dict>(), owners);
  exec::ComparedRuns out;
  {
    const py::gil_scoped_release release;
    out = exec::compare_runs(pipeline::executable(a, options.a.overrides),
                             pipeline::executable(b, options.b.overrides), given_a.views, given_b.views,
                             options, named);
  }
  return to_dict(out);
}

py::dict compare_traces(const py::dict& reference, const SharedGraph& graph, const py::sequence& inputs,
                        const py::dict& permutations, double threshold_db, const py::dict& override_nodes,
                        const py::dict& override_ops) {
  const exec::CompareOptions options =
      compare_options(permutations, threshold_db, override_nodes, override_ops);
  std::vector<py::array> owners;
  const std::vector<exec::NamedArray> named = named_arrays(reference, owners);
  const GivenArrays given = given_for(*graph, inputs);
  report::Comparison out;
  {
    const py::gil_scoped_release release;
    out = exec::compare_traces(named, pipeline::executable(graph, options.b.overrides), given.views, options);
  }
  return to_dict(out);
}

void bind_compare(py::module_& m) {
  m.def(
      "metrics", &metrics, py::arg("reference"), py::arg("value"), py::kw_only(),
      py::arg("unit") = py::none(),
      "{count, mismatches, nonfinite, sqnr_db, cosine, max_abs, relative, max_ulp, p99_ulp} of two arrays.");
  m.def(
      "compare", &compare, py::arg("a"), py::arg("b"), py::arg("inputs"), py::kw_only(),
      py::arg("inputs_b") = py::none(), py::arg("permutations") = py::dict(), py::arg("threshold_db") = 30.0,
      py::arg("local") = true, py::arg("reference") = false, py::arg("override_nodes") = py::dict(),
      py::arg("override_ops") = py::dict(), py::arg("override_nodes_a") = py::dict(),
      py::arg("override_ops_a") = py::none(), py::arg("traces") = py::none(), py::arg("outputs") = py::list(),
      "Runs the reference `a` and `b`, from the initial values of their states, and compares values by "
      "origin. `permutations`: {value of b: axis i of it is axis permutation[i] of a's}. Overrides are b's; "
      "those of a are `override_nodes_a` and `override_ops_a`, None: of operators as b's. `traces`, as "
      "compare_traces() takes them, stand for a's own values. `outputs`: pairs to compare, {a, b: indices; "
      "qparams: of b's integers or None; orders: how b's axes may lie, [] where it is known; variable: of b, "
      "in the place of an output, or ''; expected: a's array as computed elsewhere, or None}; their arrays "
      "come as real numbers in a's logical axes.");
  m.def("compare_traces", &compare_traces, py::arg("reference").none(false), py::arg("graph").none(false),
        py::arg("inputs"), py::kw_only(), py::arg("permutations") = py::dict(),
        py::arg("threshold_db") = 30.0, py::arg("override_nodes") = py::dict(),
        py::arg("override_ops") = py::dict(),
        "Compares a run with arrays computed elsewhere: {FX name or (FX name, result): array}, in order of "
        "execution.");
}

}  // namespace

void bind_exec(py::module_& m) {
  bind_session(m);
  bind_compare(m);
  m.def("usable_isas", [] {
    std::vector<std::string> out;
    for (const kernels::Isa isa : kernels::usable_isas()) out.emplace_back(kernels::to_string(isa));
    return out;
  });
  m.def(
      "tolerance",
      [](const std::string& name, py::handle dtype) {
        const std::optional<Op> op = parse_op(name);
        if (!op)
          throw InvalidGraph({.where = "tolerance", .what = "unknown operator", .expected = {}, .got = name});
        const kernels::Tolerance found = kernels::tolerance(*op, to_dtype(dtype));
        return py::make_tuple(found.ulp, found.relative);
      },
      py::arg("op"), py::arg("dtype"),
      "(ulp, relative): how far results of the operator may lie from torch eager's on the same inputs, |a - "
      "b| <= ulp * spacing(|reference|) + "
      "relative * scale; scale is the sum of the absolute values of the terms where terms are summed up.");
  m.def(
      "lowered_tolerance",
      [](double ulp, double relative) {
        const kernels::LoweredTolerance found = kernels::lowered_tolerance({ulp, relative});
        return py::make_tuple(found.result.ulp, found.result.relative, found.operand_units);
      },
      py::arg("ulp"), py::arg("relative"),
      "(ulp, relative, operand units): how far results of a program may lie from torch eager's once it is "
      "lowered, from the sums of its operators' tolerances; to |a - b| comes the effect of so many units in "
      "the last place of the operands.");
}

}  // namespace tosaic::python
