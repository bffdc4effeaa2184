#include "tosaic/quant/accuracy/smooth.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "tosaic/base/error.h"
#include "tosaic/quant/accuracy/scale_moves.h"

namespace tosaic::quant {
namespace {

constexpr double kLeastScale = 1e-5, kGreatestScale = 1e5;

class Smoothing {
 public:
  Smoothing(const Graph& graph, const std::map<std::string, ChannelAbsMax>& magnitudes, double alpha)
      : graph_(graph), alpha_(alpha), moves_(graph) {
    for (const auto& [name, state] : magnitudes) {
      const ValueId value = graph.find_value(name);
      if (!value.valid())
        throw InvalidGraph({.where = "smooth", .what = "the graph has no value of this name", .got = name});
      magnitudes_.emplace(value, &state);
    }
  }

  Smoothed run() && {
    // The sources are visited from the last one on, so that each reader is scaled by its nearest source.
    for (std::size_t i = graph_.nodes().size(); i-- > 0;) {
      const Node& node = graph_.nodes()[i];
      if (const std::optional<ScaleSource> source = source_of(graph_, node)) visit(*source);
    }
    std::reverse(out_.inputs.begin(), out_.inputs.end());
    for (const Node& node : graph_.nodes()) note_skipped(node);
    out_.graph = moves_.finish();
    return std::move(out_);
  }

 private:
  void visit(const ScaleSource& source) {
    const ChannelPaths paths = channel_paths(graph_, source.value, source.axis);
    const bool is_new = std::ranges::none_of(
        paths.readers, [&](const ScaledReader& reader) { return smoothed_.contains(reader.node); });
    const bool is_known = std::ranges::any_of(
        paths.readers, [&](const ScaledReader& reader) { return magnitudes_.contains(reader.input); });
    if (!paths.obstacle.empty() || !is_new || !is_known) return;
    SmoothedInput row;
    row.source = graph_.node_name(graph_.node(source.node));
    for (const ScaledReader& reader : paths.readers) {
      smoothed_.insert(reader.node);
      row.readers.push_back(graph_.node_name(graph_.node(reader.node)));
    }
    row.input_before = input_ranges(source, paths);
    row.weight_before = moves_.reader_ranges(source, paths);
    row.scales = scales_of(row);
    moves_.move(source, paths, row.scales);
    row.weight_after = moves_.reader_ranges(source, paths);
    for (std::size_t c = 0; c < row.scales.size(); ++c)
      row.input_after.push_back(row.input_before[c] / row.scales[c]);
    out_.inputs.push_back(std::move(row));
  }

  [[nodiscard]] std::vector<double> input_ranges(const ScaleSource& source, const ChannelPaths& paths) const {
    std::vector<double> out(static_cast<std::size_t>(source.channels));
    for (const ScaledReader& reader : paths.readers) {
      const auto found = magnitudes_.find(reader.input);
      if (found == magnitudes_.end()) continue;
      const std::span<const float> most = found->second->most();
      require_channels(reader, most.size());
      for (std::size_t i = 0; i < most.size(); ++i) {
        double& channel = out[i / static_cast<std::size_t>(reader.run)];
        channel = std::max(channel, static_cast<double>(most[i]));
      }
    }
    return out;
  }

  void require_channels(const ScaledReader& reader, std::size_t channels) const {
    const std::int64_t expected = reader.contraction.matrix.inputs();
    if (expected == static_cast<std::int64_t>(channels)) return;
    const Node& node = graph_.node(reader.node);
    throw LayoutMismatch(located({.where = "smooth",
                                  .what = "the magnitudes of '" + graph_.value(reader.input).name + "'",
                                  .expected = std::to_string(expected) + " channels",
                                  .got = std::to_string(channels)},
                                 node.origin, graph_.node_name(node)));
  }

  [[nodiscard]] std::vector<double> scales_of(const SmoothedInput& row) const {
    std::vector<double> out(row.input_before.size(), 1.0);
    for (std::size_t c = 0; c < out.size(); ++c) {
      const double input = row.input_before[c], weight = row.weight_before[c];
      if (input > 0 && weight > 0)
        out[c] =
            std::clamp(std::pow(input, alpha_) / std::pow(weight, 1 - alpha_), kLeastScale, kGreatestScale);
    }
    return out;
  }

  void note_skipped(const Node& node) {
    const std::optional<Contraction> contraction = contraction_of(graph_, node);
    if (!contraction || smoothed_.contains(graph_.id(node))) return;
    const ValueId input = graph_.operands(node)[contraction->input];
    if (!magnitudes_.contains(input)) return;
    out_.inputs.push_back({.source = "",
                           .readers = {graph_.node_name(node)},
                           .scales = {},
                           .input_before = {},
                           .input_after = {},
                           .weight_before = {},
                           .weight_after = {},
                           .skipped = reason(*contraction, input)});
  }

  // Why nothing moves: goes back from `value` to the first node through which scales cannot move.
  [[nodiscard]] std::string reason(const Contraction& contraction, ValueId value) const {
    std::size_t axis = input_axis(contraction, graph_.type(value).shape);
    while (const Node* node = graph_.producer(value)) {
      const std::string name = "'" + graph_.node_name(*node) + "' (" + std::string(info(node->op).name) + ")";
      if (const std::optional<ScaleSource> source = source_of(graph_, *node))
        return source->axis == axis ? name + " could be scaled, but " +
                                          channel_paths(graph_, source->value, source->axis).obstacle
                                    : name + " has its channels on another axis";
      const std::optional<ValueId> before = unscaled_operand(*node, axis);
      if (!before) return "scales cannot move through " + name;
      value = *before;
    }
    return "'" + graph_.value(value).name + "' is an input of the program";
  }

  // The operand through which scales reach `axis` of the result. Sets `axis` to the axis of the operand.
  [[nodiscard]] std::optional<ValueId> unscaled_operand(const Node& node, std::size_t& axis) const {
    const std::span<const ValueId> operands = graph_.operands(node);
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if (!operands[i].valid() || graph_.value(operands[i]).kind == ValueKind::kConstant) continue;
      for (std::size_t from = 0; from < graph_.type(operands[i]).rank(); ++from) {
        const std::optional<ChannelPlace> place = carried(graph_, node, i, {from, 1});
        if (!place || place->axis != axis || graph_.type(operands[i]).shape[from] == 1) continue;
        axis = from;
        return operands[i];
      }
    }
    return std::nullopt;
  }

  const Graph& graph_;
  double alpha_;
  ScaleMoves moves_;
  std::map<ValueId, const ChannelAbsMax*> magnitudes_;
  std::set<NodeId> smoothed_;
  Smoothed out_;
};

}  // namespace

Smoothed smooth(const Graph& graph, const std::map<std::string, ChannelAbsMax>& magnitudes, double alpha) {
  if (!(alpha >= 0 && alpha <= 1))
    throw QuantMismatch(
        {.where = "smooth", .what = "alpha", .expected = "0 to 1", .got = std::to_string(alpha)});
  return Smoothing(graph, magnitudes, alpha).run();
}

}  // namespace tosaic::quant
