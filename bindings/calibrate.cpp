// Bindings of quant/calibrate: the calls of a graph, calibration, and the insertion of quantization.
#include "tosaic/quant/calibrate/calibrate.h"

#include <pybind11/stl.h>

#include <set>

#include "annotation.h"
#include "arrays.h"
#include "bind.h"
#include "callables.h"
#include "signals.h"
#include "tosaic/analysis/ranges/ranges.h"
#include "tosaic/pipeline/executable.h"
#include "tosaic/quant/accuracy/accuracy.h"
#include "tosaic/quant/graph_calls.h"

namespace tosaic::python {
namespace {

using SharedGraph = std::shared_ptr<Graph>;
using quant::Calibration;
using quant::Statistic;

// From ("range",), ("histogram",), ("mask_range",), ("moving_range", weight), ("second_moments", name of a
// contraction, scale, zero point, qmin, qmax), ("channel_abs_max", axis, channels) or ("channel_sums", axis,
// channels, exponent).
quant::Statistic statistic_from(const Graph& graph, const py::tuple& kind) {
  const auto name = kind[0].cast<std::string>();
  if (name == "second_moments") {
    const auto contraction = std::make_shared<const quant::Contraction>(
        quant::contraction_named(graph, kind[1].cast<std::string>()));
    const quant::InputGrid grid{kind[2].cast<double>(), kind[3].cast<std::int64_t>(),
                                kind[4].cast<std::int64_t>(), kind[5].cast<std::int64_t>()};
    return quant::ContractionMoments{contraction, quant::SecondMoments(*contraction, grid)};
  }
  if (name == "channel_abs_max")
    return quant::AxisAbsMax{kind[1].cast<std::int64_t>(),
                             quant::ChannelAbsMax(kind[2].cast<std::int64_t>())};
  if (name == "channel_sums")
    return quant::AxisSums{kind[1].cast<std::int64_t>(),
                           quant::ChannelSums(kind[2].cast<std::int64_t>(), kind[3].cast<int>())};
  if (name == "range") return quant::Range();
  if (name == "histogram") return quant::Histogram();
  if (name == "mask_range") return quant::MaskRange();
  if (name == "moving_range") return quant::MovingRange(kind[1].cast<float>());
  throw InternalError({.where = "calibrate", .what = "unknown statistic", .got = name});
}

py::object statistic_to_python(const Statistic& statistic) {
  if (const auto* histogram = std::get_if<quant::Histogram>(&statistic)) return py::cast(*histogram);
  if (const auto* mask = std::get_if<quant::MaskRange>(&statistic)) return py::cast(*mask);
  if (const auto* of = std::get_if<quant::ContractionMoments>(&statistic)) return py::cast(of->moments);
  if (const auto* of = std::get_if<quant::AxisAbsMax>(&statistic)) return py::cast(of->channels);
  if (const auto* of = std::get_if<quant::AxisSums>(&statistic)) return py::cast(of->channels);
  return py::cast(quant::bounds_of(statistic));
}

std::vector<Statistic> statistics_from(const Graph& graph, const py::sequence& kinds) {
  std::vector<Statistic> statistics;
  for (const py::handle each : kinds)
    statistics.push_back(statistic_from(graph, py::reinterpret_borrow<py::tuple>(each)));
  return statistics;
}

std::vector<quant::Watch> watches_from(const std::vector<std::pair<std::string, std::uint32_t>>& pairs,
                                       const std::set<std::string>& infinite) {
  std::vector<quant::Watch> watches;
  for (const auto& [value, statistic] : pairs)
    watches.push_back({value, statistic, !infinite.contains(value)});
  return watches;
}

py::bytes bytes_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Statistics that states of calibrations are merged into.
struct Statistics {
  std::vector<Statistic> each;

  void merge(const std::vector<Statistic>& later) {
    if (later.size() != each.size())
      throw InternalError({.where = "calibrate", .what = "states of different calibrations are merged"});
    for (std::size_t i = 0; i < each.size(); ++i) quant::merge(each[i], later[i]);
  }
};

// A graph made ready for calibrations: each has its own statistics and states.
struct CalibrationProgram {
  exec::Prepared prepared;
  std::vector<quant::Watch> watches;
};

std::unique_ptr<CalibrationProgram> make_program(
    const SharedGraph& graph, const std::vector<std::pair<std::string, std::uint32_t>>& watches,
    const py::dict& override_nodes, const py::dict& override_ops, const std::set<std::string>& infinite,
    std::uint32_t threads) {
  exec::PrepareOptions options;
  options.kernels.threads.count = threads;
  options.overrides.nodes = overrides_of(override_nodes);
  options.overrides.ops = overrides_of(override_ops);
  const py::gil_scoped_release release;
  std::vector<quant::Watch> found = watches_from(watches, infinite);
  auto executable = pipeline::executable(quant::with_watched_outputs(graph, found), options.overrides);
  if (!quant::has_all(*executable, found))
    executable =
        pipeline::executable(quant::with_watched_outputs(graph, found, executable.get()), options.overrides);
  return std::make_unique<CalibrationProgram>(
      CalibrationProgram{exec::prepare(executable, options), std::move(found)});
}

void run_sample(Calibration& calibration, const py::sequence& arrays) {
  const exec::Session& session = calibration.session();
  const GivenArrays inputs = given_arrays(session.prepared().graph(), session.inputs(), arrays);
  const std::function<void()> check = signal_check();
  const py::gil_scoped_release release;
  calibration.run(inputs.views, check);
}

std::unique_ptr<Calibration> start(const CalibrationProgram& program, const Statistics& like) {
  std::vector<Statistic> empty;
  for (const Statistic& each : like.each) empty.push_back(quant::empty_like(each));
  return std::make_unique<Calibration>(program.prepared, program.watches, std::move(empty));
}

void bind_statistics(py::module_& m) {
  py::class_<Statistics>(m, "Statistics", "Summaries of samples, one for each group of tensors.")
      .def(py::init([](const Graph& graph, const py::sequence& kinds) {
             return Statistics{statistics_from(graph, kinds)};
           }),
           py::arg("graph"), py::arg("kinds"),
           "`kinds`: for each ('range',), ('histogram',), ('mask_range',), ('moving_range', weight), "
           "('second_moments', "
           "contraction, "
           "scale, zero_point, qmin, qmax), ('channel_abs_max', axis, channels) or ('channel_sums', axis, "
           "channels, "
           "exponent).")
      .def("__len__", [](const Statistics& self) { return self.each.size(); })
      .def(
          "__getitem__",
          [](const Statistics& self, std::size_t i) {
            if (i >= self.each.size()) throw py::index_error();
            return statistic_to_python(self.each[i]);
          },
          py::arg("index"),
          "A Histogram, ObservedRange, ObservedMask, SecondMoments, ChannelAbsMax or ChannelSums.")
      .def(
          "merge",
          [](Statistics& self, const py::bytes& state) {
            const auto text = static_cast<std::string_view>(state);
            self.merge(quant::statistics_from_bytes(std::as_bytes(std::span(text))));
          },
          py::arg("state"), "Adds the samples of a state, which follow those that were added before.")
      .def("to_bytes", [](const Statistics& self) { return bytes_of(quant::to_bytes(self.each)); });
}

py::tuple calls_of(const Graph& graph, const std::map<std::string, std::string>& module_types) {
  quant::GraphCalls found = quant::graph_calls(graph, module_types);
  py::list values;
  for (const ValueId value : found.values)
    values.append(value.valid() ? static_cast<int>(value.index()) : -1);
  py::list of_node, nodes;
  for (const quant::NodeIndex each : found.of_node) of_node.append(each.index());
  for (const auto& each : found.nodes) {
    py::list ids;
    for (const NodeId id : each) ids.append(id.index());
    nodes.append(py::tuple(ids));
  }
  return py::make_tuple(found.calls, values, of_node, nodes);
}

// Each placement is a tuple: the value; its qparams; the nodes that read it quantized, or None for all;
// whether outputs read it quantized, too; a constant with other elements, or None; and the number up to which
// dequantized numbers become minus infinity, or None.
py::tuple insert(const Graph& graph, const py::sequence& placements) {
  std::vector<quant::Placement> made;
  for (const py::handle each : placements) {
    const auto fields = py::reinterpret_borrow<py::tuple>(each);
    quant::Placement placement{.value = ValueId(fields[0].cast<std::uint32_t>()),
                               .qparams = qparams_from(fields[1]),
                               .elements = fields[4].cast<std::shared_ptr<Constant>>(),
                               .for_outputs = fields[3].cast<bool>(),
                               .for_all = fields[2].is_none(),
                               .infinite_below = fields[5].cast<std::optional<double>>()};
    if (!placement.for_all)
      for (const std::uint32_t node : fields[2].cast<std::vector<std::uint32_t>>())
        placement.users.emplace_back(node);
    made.push_back(std::move(placement));
  }
  quant::InsertedQuantization inserted = [&] {
    const py::gil_scoped_release release;
    return quant::insert_quantization(graph, made);
  }();
  py::list saturated;
  for (const quant::Saturation& each : inserted.saturated)
    saturated.append(py::make_tuple(each.constant, each.counts.saturated, each.counts.nans));
  return py::make_tuple(std::make_shared<Graph>(std::move(inserted.graph)), saturated);
}

using Bounds = std::optional<std::pair<double, double>>;

// Returns for each value the bounds of the numbers that matter to its readers. Values that nothing reads have
// no bounds. Nor have constants without levels: to compute the bounds of a bias, the weight would be read.
std::vector<Bounds> relevant_numbers(const Graph& graph, const std::vector<Bounds>& observed,
                                     const std::vector<double>& levels) {
  std::vector<std::optional<Interval<double>>> bounds;
  for (const Bounds& each : observed)
    bounds.push_back(each ? std::optional(Interval<double>{each->first, each->second}) : std::nullopt);
  const analysis::FloatRanges ranges(graph, bounds);
  const analysis::Relevance relevance(graph, ranges, levels);
  std::vector<Bounds> out;
  for (std::uint32_t i = 0; i < graph.values().size(); ++i) {
    const bool is_number = is_float(graph.values()[i].type.dtype) &&
                           (graph.values()[i].kind != ValueKind::kConstant || levels.at(i) > 0);
    const Interval<double> wanted =
        is_number ? relevance.of_value(ValueId(i)).bounds : Interval<double>{1, 0};
    out.push_back(wanted.low <= wanted.high ? Bounds({wanted.low, wanted.high}) : std::nullopt);
  }
  return out;
}

}  // namespace

void bind_calibrate(py::module_& m) {
  bind_statistics(m);
  py::class_<CalibrationProgram>(m, "CalibrationProgram", "A graph and the tensors to observe, ready to run.")
      .def(py::init(&make_program), py::arg("graph"), py::arg("watches"), py::kw_only(),
           py::arg("override_nodes") = py::dict(), py::arg("override_ops") = py::dict(),
           py::arg("infinite") = std::set<std::string>(), py::arg("threads") = 1,
           "`watches`: (name of a value, index of a statistic). `infinite`: values whose infinities and NaN "
           "are left out, not refused. `threads`: of a run. Any thread may start calibrations.");
  py::class_<Calibration>(m, "Calibration", "Runs samples and observes them.")
      .def(py::init(&start), py::arg("program"), py::arg("like"))
      .def("run", &run_sample, py::arg("arrays"),
           "Runs one sample: an array for each input of the graph that the caller passes.")
      .def(
          "merge_into", [](Calibration& self, Statistics& statistics) { statistics.merge(self.take()); },
          py::arg("statistics"),
          "Moves the samples there. They follow those that were added before. The calibration is empty then.")
      .def("to_bytes", [](Calibration& self) { return bytes_of(quant::to_bytes(self.take())); });
  m.def("relevant_numbers", &relevant_numbers, py::arg("graph"), py::arg("observed"), py::arg("levels"),
        "By value: the bounds of the numbers that its readers notice, or None. `observed`: the bounds that "
        "samples had, or None. `levels`: how many integers the value will have, or 0.");
  m.def("graph_calls", &calls_of, py::arg("graph"), py::arg("module_types"),
        "(CallGraph, value of each call or -1, call of each node, nodes of each call).");
  m.def(
      "insert_quantization", &insert, py::arg("graph"), py::arg("placements"),
      "The graph with quantize and dequantize nodes, and (constant, saturated, NaN) of constants that do not "
      "fit.");
}

}  // namespace tosaic::python
