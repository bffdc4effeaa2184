// Bindings of comparisons: metrics of arrays, comparisons of graphs, and the tolerances of operators.
#include "tosaic/exec/compare/compare.h"

#include <pybind11/stl.h>

#include "arrays.h"
#include "bind.h"
#include "callables.h"
#include "tosaic/base/error.h"
#include "tosaic/exec/metrics.h"
#include "tosaic/kernels/kernel.h"
#include "tosaic/pipeline/compare_programs.h"

namespace tosaic::python {
namespace {

using exec::ArrayView;
using SharedGraph = std::shared_ptr<Graph>;

py::dict to_dict(const exec::Metrics& metrics) {
  return py::dict(py::arg("count") = metrics.count, py::arg("mismatches") = metrics.mismatches,
                  py::arg("nonfinite") = metrics.nonfinite, py::arg("sqnr_db") = metrics.sqnr_db,
                  py::arg("cosine") = metrics.cosine, py::arg("max_abs") = metrics.max_abs,
                  py::arg("relative") = metrics.relative, py::arg("max_ulp") = metrics.max_ulp,
                  py::arg("p99_ulp") = metrics.p99_ulp);
}

py::object to_dict(const std::optional<exec::Metrics>& metrics) {
  return metrics ? to_dict(*metrics) : py::none().cast<py::object>();
}

py::dict to_dict(const exec::CompareRow& row) {
  return py::dict(py::arg("fx_name") = row.fx_name, py::arg("op_a") = row.op_a, py::arg("op_b") = row.op_b,
                  py::arg("value_a") = row.value_a, py::arg("value_b") = row.value_b,
                  py::arg("module_path") = row.module_path, py::arg("source") = row.source,
                  py::arg("total") = to_dict(row.total), py::arg("local") = to_dict(row.local),
                  py::arg("inherited") = to_dict(row.inherited), py::arg("local_share") = row.local_share);
}

py::dict to_dict(const exec::Comparison& comparison) {
  py::list rows, unmatched;
  for (const exec::CompareRow& row : comparison.rows) rows.append(to_dict(row));
  for (const exec::UnmatchedValue& value : comparison.unmatched) {
    unmatched.append(py::dict(py::arg("fx_name") = value.fx_name, py::arg("reason") = value.reason));
  }
  return py::dict(py::arg("rows") = rows, py::arg("unmatched") = unmatched,
                  py::arg("threshold_db") = comparison.threshold_db,
                  py::arg("first_divergence") = comparison.first_divergence);
}

py::dict metrics(const py::object& reference, const py::object& value, std::optional<double> unit) {
  const py::array a = to_array(reference), b = to_array(value);
  const ArrayView view_a = view_of(a), view_b = view_of(b);
  exec::Metrics out;
  {
    const py::gil_scoped_release release;
    out = exec::compute_metrics(view_a, view_b, {unit});
  }
  return to_dict(out);
}

GivenArrays given_to_user_inputs(const Graph& graph, const py::sequence& objects) {
  std::vector<std::uint32_t> inputs;
  for (std::uint32_t i = 0; i < graph.inputs().size(); ++i)
    if (graph.inputs()[i].kind == InputKind::kUser) inputs.push_back(i);
  return given_arrays(graph, inputs, objects);
}

exec::CompareOptions compare_options(double threshold_db, const py::dict& override_nodes,
                                     const py::dict& override_ops) {
  exec::CompareOptions options;
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

// Converts a list of {a, b, qparams, orders, variable, expected}: see the docstring of `compare`.
std::vector<exec::CompareOptions::OutputPair> output_pairs(const py::sequence& pairs,
                                                           std::vector<py::array>& owners) {
  std::vector<exec::CompareOptions::OutputPair> out;
  for (const py::handle& object : pairs) {
    const auto pair = py::reinterpret_borrow<py::dict>(object);
    exec::CompareOptions::OutputPair& made = out.emplace_back();
    made.a = pair["a"].cast<std::uint32_t>();
    made.b = pair["b"].cast<std::uint32_t>();
    made.qparams = qparams_from(pair["qparams"]);
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
    outputs.append(py::dict(
        py::arg("a") = to_numpy(output.a),
        py::arg("b") = output.b.storage.bound() ? py::object(to_numpy(output.b)) : py::none(),
        py::arg("local_share") = output.local_share, py::arg("carried_share") = output.carried_share));
  }
  out["outputs"] = outputs;
  out["other_qparams"] = runs.other_qparams;
  return out;
}

py::dict compare(const SharedGraph& a, const SharedGraph& b, const py::sequence& inputs,
                 const py::object& inputs_b, double threshold_db, bool local, bool reference,
                 const py::dict& override_nodes, const py::dict& override_ops,
                 const py::dict& override_nodes_a, const py::object& override_ops_a, const py::object& traces,
                 const py::sequence& outputs, bool bounds, const SharedGraph& canonical_a,
                 const SharedGraph& canonical_b, const SharedGraph& quantized_b,
                 const std::set<std::string>& left_out, const py::sequence& models) {
  exec::CompareOptions options = compare_options(threshold_db, override_nodes, override_ops);
  options.local = local;
  options.bounds = bounds;
  options.canonical_a = canonical_a;
  options.canonical_b = canonical_b;
  options.quantized_b = quantized_b;
  options.left_out = left_out;
  std::vector<py::array> owners;
  options.outputs = output_pairs(outputs, owners);
  options.b.overrides.models = models_of(models);
  options.a.kernels.reference = reference;
  options.a.overrides.nodes = overrides_of(override_nodes_a);
  options.a.overrides.ops =
      override_ops_a.is_none() ? options.b.overrides.ops : overrides_of(override_ops_a.cast<py::dict>());
  const GivenArrays given_a = given_to_user_inputs(*a, inputs);
  const GivenArrays given_b =
      given_to_user_inputs(*b, inputs_b.is_none() ? inputs : inputs_b.cast<py::sequence>());
  const std::vector<exec::NamedArray> named =
      traces.is_none() ? std::vector<exec::NamedArray>{} : named_arrays(traces.cast<py::dict>(), owners);
  exec::ComparedRuns out;
  {
    const py::gil_scoped_release release;
    out = pipeline::compare_programs(a, b, given_a.views, given_b.views, std::move(options), named);
  }
  return to_dict(out);
}

py::dict compare_traces(const py::dict& reference, const SharedGraph& graph, const py::sequence& inputs,
                        double threshold_db, const py::dict& override_nodes, const py::dict& override_ops) {
  const exec::CompareOptions options = compare_options(threshold_db, override_nodes, override_ops);
  std::vector<py::array> owners;
  const std::vector<exec::NamedArray> named = named_arrays(reference, owners);
  const GivenArrays given = given_to_user_inputs(*graph, inputs);
  exec::Comparison out;
  {
    const py::gil_scoped_release release;
    out = pipeline::compare_traces(named, graph, given.views, options);
  }
  return to_dict(out);
}

}  // namespace

void bind_compare(py::module_& m) {
  m.def(
      "metrics", &metrics, py::arg("reference"), py::arg("value"), py::kw_only(),
      py::arg("unit") = py::none(),
      "{count, mismatches, nonfinite, sqnr_db, cosine, max_abs, relative, max_ulp, p99_ulp} of two arrays.");
  m.def(
      "compare", &compare, py::arg("a"), py::arg("b"), py::arg("inputs"), py::kw_only(),
      py::arg("inputs_b") = py::none(), py::arg("threshold_db") = 30.0, py::arg("local") = true,
      py::arg("reference") = false, py::arg("override_nodes") = py::dict(),
      py::arg("override_ops") = py::dict(), py::arg("override_nodes_a") = py::dict(),
      py::arg("override_ops_a") = py::none(), py::arg("traces") = py::none(), py::arg("outputs") = py::list(),
      py::arg("bounds") = true, py::arg("canonical_a") = SharedGraph(),
      py::arg("canonical_b") = SharedGraph(), py::arg("quantized_b") = SharedGraph(),
      py::arg("left_out") = std::set<std::string>(), py::arg("models") = py::list(),
      "Runs the reference `a` and `b`, from the initial values of their states, and compares values by "
      "origin. Overrides are b's; "
      "`models` are b's, as in a Session; overrides of a are `override_nodes_a` and `override_ops_a`, "
      "None: of operators as b's. `traces`, as "
      "compare_traces() takes them, stand for a's own values. `outputs`: pairs to compare, {a, b: indices; "
      "qparams: of b's integers or None; orders: how b's axes may lie, [] where it is known; variable: of b, "
      "in the place of an output, or ''; expected: a's array as computed elsewhere, or None}; their arrays "
      "come as real numbers in a's logical axes. `bounds`: False measures local errors without judging them. "
      "`canonical_a`, `canonical_b`: the graphs at stage integer that a and b were legalized from, which "
      "know "
      "the qparams of values. `quantized_b`: the graph at stage quantized that b was lowered from. "
      "`left_out`: FX nodes that quantize or dequantize, and that one program lacks.");
  m.def("compare_traces", &compare_traces, py::arg("reference").none(false), py::arg("graph").none(false),
        py::arg("inputs"), py::kw_only(), py::arg("threshold_db") = 30.0,
        py::arg("override_nodes") = py::dict(), py::arg("override_ops") = py::dict(),
        "Compares a run with arrays computed elsewhere: {FX name or (FX name, result): array}, in order of "
        "execution.");
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
