#include "tosaic/quant/calibrate/calibration.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "tosaic/base/error_text.h"

namespace tosaic::quant {
namespace {

std::unordered_map<std::string_view, std::uint32_t> values_by_name(const Graph& graph) {
  std::unordered_map<std::string_view, std::uint32_t> found;
  for (std::uint32_t v = 0; v < graph.values().size(); ++v) found.emplace(graph.values()[v].name, v);
  return found;
}

InvalidGraph not_finite(const Graph& graph, ValueId value, const NotFinite& found, std::size_t count) {
  const Node* const producer = graph.producer(value);
  ErrorParts parts{.where = "calibrate",
                   .what = "tensor '" + graph.value(value).name + "' has numbers that are not finite",
                   .expected = "finite numbers, from which a scale follows",
                   .got = std::to_string(found.infinities) + " infinities and " + std::to_string(found.nans) +
                          " NaN among " + std::to_string(count)};
  if (producer == nullptr) return InvalidGraph(parts);
  return InvalidGraph(located(std::move(parts), producer->origin, graph.node_name(*producer)));
}

}  // namespace

Calibration::Calibration(const exec::Prepared& prepared, const std::vector<Watch>& watches,
                         std::vector<Statistic> statistics)
    : session_(prepared), statistics_(std::move(statistics)) {
  const Graph& graph = prepared.graph();
  const auto by_name = values_by_name(graph);
  watched_.assign(graph.values().size(), false);
  for (const Watch& watch : watches) {
    const auto found = by_name.find(watch.value);
    if (found == by_name.end() || !is_float(graph.values()[found->second].type.dtype))
      throw InvalidGraph(
          {.where = "calibrate", .what = "the graph has no tensor of floats " + quoted(watch.value)});
    if (watch.statistic >= statistics_.size())
      throw InternalError({.where = "calibrate", .what = "a watch has no statistic"});
    fed_[found->second].push_back(watch.statistic);
    watched_[found->second] = true;
  }
}

void Calibration::run(std::span<const exec::ArrayView> inputs, const std::function<void()>& between_steps) {
  const Graph& graph = session_.prepared().graph();
  session_.reset_state();
  observe_inputs(inputs);
  exec::RunOptions options;
  options.watched = &watched_;
  options.between_steps = between_steps;
  options.observer = [&](const exec::NodeCall& call) {
    for (std::uint32_t i = 0; i < call.node.result_count; ++i) {
      const ValueId value = graph.result(call.node, i);
      if (watched_[value.index()]) observe(value, call.results[i].read());
    }
  };
  static_cast<void>(session_.run(inputs, options));
}

void Calibration::observe_inputs(std::span<const exec::ArrayView> inputs) {
  const Graph& graph = session_.prepared().graph();
  std::size_t user = 0;
  for (std::uint32_t i = 0; i < graph.inputs().size(); ++i) {
    const Input& input = graph.inputs()[i];
    const bool is_user = input.kind == InputKind::kUser;
    const std::size_t at = user;
    user += is_user ? 1 : 0;
    if (!watched_[input.value.index()] || (is_user && at >= inputs.size())) continue;
    const exec::Array array = is_user ? session_.imported(i, inputs[at]) : session_.state(input.path);
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
  for (const std::uint32_t i : fed_.at(value.index())) {
    const NotFinite found = quant::observe(statistics_[i], values, array.shape);
    if (found.any()) throw not_finite(session_.prepared().graph(), value, found, count);
  }
}

}  // namespace tosaic::quant
