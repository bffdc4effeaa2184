#include "tosaic/quant/calibrate/calibration.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "tosaic/base/error_text.h"
#include "tosaic/exec/steps.h"

namespace tosaic::quant {
namespace {

std::unordered_map<std::string_view, std::uint32_t> values_by_name(const Graph& graph) {
  std::unordered_map<std::string_view, std::uint32_t> found;
  for (std::uint32_t v = 0; v < graph.values().size(); ++v) found.emplace(graph.values()[v].name, v);
  return found;
}

InvalidGraph not_finite(const Graph& graph, ValueId value, const NotFinite& found, std::size_t count) {
  const Node* const producer = graph.producer(value);
  std::string floats;  // the calls around the tensor, as elements of a list
  if (producer != nullptr) {
    std::vector<std::string> names{graph.node_name(*producer)};
    for (const NodeId user : graph.users(value))
      if (const std::string name = graph.node_name(graph.node(user));
          std::ranges::find(names, name) == names.end())
        names.push_back(name);
    for (const std::string& name : names) floats += (floats.empty() ? "'" : ", '") + name + "'";
  }
  const bool may_hide = producer == nullptr && found.infinities > 0 && found.nans == 0;
  ErrorParts parts{
      .where = "calibrate",
      .what = "tensor '" + graph.value(value).name + "' has numbers that are not finite",
      .expected = "finite numbers, from which a scale follows",
      .got = std::to_string(found.infinities) + " infinities and " + std::to_string(found.nans) +
             " NaN among " + std::to_string(count),
      .hint = may_hide ? "If it hides scores, pass a mask of bools, or hide with a number such as -1e4"
              : floats.empty()
                  ? ""
                  : "Leave it out of the samples, or leave floats around it: config.set(None, nodes=[" +
                        floats + "])"};
  if (producer == nullptr) return InvalidGraph(parts);
  return InvalidGraph(located(std::move(parts), producer->origin, graph.node_name(*producer)));
}

// True if the result has each element of operand 0 equally often and, for a pad, a constant in addition.
bool repeats_operand(const Graph& graph, const Node& node) {
  const auto is_of = [&](std::initializer_list<Op> ops) {
    return std::ranges::find(ops, node.op) != ops.end();
  };
  if (is_of({Op::kReshape, Op::kClone, Op::kPermute, Op::kFlip, Op::kExpand, Op::kRepeat}))
    return num_elements(graph.type(graph.operands(node)[0]).shape) != 0 &&
           graph.type(graph.operands(node)[0]).dtype == graph.type(graph.result(node)).dtype;
  if (node.op != Op::kPad || graph.type(graph.result(node)).dtype != DType::kF32) return false;
  const auto& attrs = Graph::attrs<PadAttrs>(node);
  const auto is_negative = [](std::int64_t extent) { return extent < 0; };
  return attrs.mode == PadMode::kConstant && std::isfinite(static_cast<float>(as_double(attrs.value))) &&
         std::ranges::none_of(attrs.before, is_negative) && std::ranges::none_of(attrs.after, is_negative);
}

// Prefix of the paths of outputs that with_watched_outputs() adds. The rest is the name of the watched value.
constexpr std::string_view kWatched = "watched.";

// Returns the values by name. An expansion renames some values that with_watched_outputs() made outputs.
// These values are in the map by both names.
std::unordered_map<std::string_view, std::uint32_t> watched_by_name(const Graph& graph) {
  auto by_name = values_by_name(graph);
  for (const Output& output : graph.outputs())
    if (output.path.starts_with(kWatched))
      by_name.try_emplace(std::string_view(output.path).substr(kWatched.size()), output.value.index());
  return by_name;
}

}  // namespace

std::shared_ptr<const Graph> with_watched_outputs(std::shared_ptr<const Graph> graph,
                                                  const std::vector<Watch>& watches, const Graph* runs) {
  const auto by_name = values_by_name(*graph);
  const auto run = runs == nullptr ? by_name : watched_by_name(*runs);
  std::vector<ValueId> found;
  for (const Watch& watch : watches) {
    const auto named = by_name.find(watch.value);
    if (named == by_name.end()) continue;
    const ValueId value(named->second);
    if (graph->value(value).kind != ValueKind::kResult) continue;
    const bool is_unread = graph->users(value).empty() && !graph->is_output(value);
    const bool is_expanded = info(graph->producer(value)->op).runs_as_expansion();
    const bool is_lost = !run.contains(watch.value);
    if ((is_unread || is_expanded || is_lost) && std::ranges::find(found, value) == found.end())
      found.push_back(value);
  }
  if (found.empty()) return graph;
  auto made = std::make_shared<Graph>(*graph);
  for (const ValueId value : found)
    made->add_output({value, OutputKind::kUser, std::string(kWatched) + graph->value(value).name, 0, {}});
  return made;
}

bool has_all(const Graph& runs, const std::vector<Watch>& watches) {
  const auto by_name = watched_by_name(runs);
  return std::ranges::all_of(watches, [&](const Watch& watch) { return by_name.contains(watch.value); });
}

Calibration::Calibration(const exec::Prepared& prepared, const std::vector<Watch>& watches,
                         std::vector<Statistic> statistics)
    : session_(prepared) {
  for (Statistic& each : statistics) observing_.emplace_back(std::move(each));
  const Graph& graph = prepared.graph();
  const auto by_name = watched_by_name(graph);
  watched_.assign(graph.values().size(), false);
  finite_.assign(graph.values().size(), false);
  for (const Watch& watch : watches) {
    const auto found = by_name.find(watch.value);
    if (found == by_name.end() || !is_float(graph.values()[found->second].type.dtype))
      throw InvalidGraph(
          {.where = "calibrate", .what = "the graph has no tensor of floats " + quoted(watch.value)});
    if (watch.statistic >= observing_.size())
      throw InternalError({.where = "calibrate", .what = "a watch has no statistic"});
    const auto [feed, is_first] = fed_[found->second].try_emplace(watch.statistic);
    const bool is_operand = graph.values()[found->second].name != watch.value;
    if (!is_first && is_operand) ++feed->second.times;
    if (watch.finite) finite_[found->second] = true;
  }
  fold_repetitions();
  for (const auto& [value, feeds] : fed_) watched_[value] = true;
  const auto is_state = [](const Input& input) { return input.kind == InputKind::kState; };
  if (std::ranges::any_of(graph.inputs(), is_state)) stream_.emplace(prepared);
}

std::vector<Statistic> Calibration::take() {
  std::vector<Statistic> taken;
  for (Observing& each : observing_) taken.push_back(each.take());
  return taken;
}

// ---- repetitions ----

// Visits the steps backwards, so that the repetitions of a value are known before it is folded itself.
void Calibration::fold_repetitions() {
  const Graph& graph = session_.prepared().graph();
  const std::span<const exec::Step> steps = session_.prepared().steps();
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const Node& node = graph.node(step->node);
    if (step->kind != exec::StepKind::kOverride && repeats_operand(graph, node)) fold_into_operand(node);
  }
  std::erase_if(fed_, [](const auto& each) { return each.second.empty(); });
}

void Calibration::fold_into_operand(const Node& node) {
  const Graph& graph = session_.prepared().graph();
  const ValueId from = graph.operands(node)[0], value = graph.result(node);
  const auto of_value = fed_.find(value.index()), of_operand = fed_.find(from.index());
  if (of_value == fed_.end() || of_operand == fed_.end()) return;
  if (finite_[value.index()] && !finite_[from.index()]) return;
  const auto elements = [&](ValueId id) {
    return static_cast<std::uint64_t>(num_elements(graph.type(id).shape));
  };
  std::erase_if(of_value->second, [&](const auto& each) {
    const auto& [statistic, feed] = each;
    const auto into = of_operand->second.find(statistic);
    if (into == of_operand->second.end() || observing_[statistic].is_of_tensors()) return false;
    Feed& sum = into->second;
    for (const auto& [constant, times] : feed.constants) sum.constants[constant] += times;
    if (node.op == Op::kPad) {
      const auto padding = static_cast<float>(as_double(Graph::attrs<PadAttrs>(node).value));
      sum.constants[padding] += feed.times * (elements(value) - elements(from));
      sum.times += feed.times;
    } else {
      sum.times += feed.times * (elements(value) / elements(from));
    }
    return true;
  });
}

// ---- runs ----

void Calibration::run(std::span<const exec::ArrayView> inputs, const std::function<void()>& between_steps) {
  if (stream_) run_on(*stream_, inputs, between_steps);
  // The first sample runs once only: the stream begins with the initial values, too.
  if (!stream_ || has_run_) {
    session_.reset_state();
    run_on(session_, inputs, between_steps);
  }
  has_run_ = true;
}

void Calibration::run_on(exec::Session& session, std::span<const exec::ArrayView> inputs,
                         const std::function<void()>& between_steps) {
  const Graph& graph = session.prepared().graph();
  observe_inputs(session, inputs);
  exec::RunOptions options;
  options.watched = &watched_;
  options.between_steps = between_steps;
  options.observer = [&](const exec::NodeCall& call) {
    for (std::uint32_t i = 0; i < call.node.result_count; ++i) {
      const ValueId value = graph.result(call.node, i);
      if (watched_[value.index()]) observe(value, call.results[i].read());
    }
  };
  static_cast<void>(session.run(inputs, options));
}

void Calibration::observe_inputs(const exec::Session& session, std::span<const exec::ArrayView> inputs) {
  const Graph& graph = session.prepared().graph();
  std::size_t user = 0;
  for (std::uint32_t i = 0; i < graph.inputs().size(); ++i) {
    const Input& input = graph.inputs()[i];
    const bool is_user = input.kind == InputKind::kUser;
    const std::size_t at = user;
    user += is_user ? 1 : 0;
    if (!watched_[input.value.index()] || (is_user && at >= inputs.size())) continue;
    const exec::Array array = is_user ? session.imported(i, inputs[at]) : session.state(input.path);
    observe(input.value, array.view());
  }
  for (const auto& [value, statistics] : fed_)
    if (const ConstantRef& constant = graph.values()[value].constant)
      observe(ValueId(value),
              exec::ArrayView::dense(constant->bytes().data(), constant->dtype, constant->shape));
}

// The view is dense.
void Calibration::observe(ValueId value, const exec::ArrayView& array) {
  const auto count = static_cast<std::size_t>(num_elements(array.shape));
  std::span<const float> values;
  if (array.dtype == DType::kF32) {
    values = {reinterpret_cast<const float*>(array.data), count};
  } else {
    std::vector<double> wide(count);
    exec::read_doubles(array, 0, wide);
    converted_.resize(count);
    std::ranges::transform(wide, converted_.begin(), [](double x) { return static_cast<float>(x); });
    values = converted_;
  }
  for (const auto& [statistic, feed] : fed_.at(value.index())) {
    const NotFinite found = observing_[statistic].observe(values, array.shape, feed.times);
    if (found.any() && finite_[value.index()])
      throw not_finite(session_.prepared().graph(), value, found, count);
    for (const auto& [constant, times] : feed.constants) observing_[statistic].observe(constant, times);
  }
}

}  // namespace tosaic::quant
