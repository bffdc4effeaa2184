#include "tosaic/quant/accuracy/equalize.h"

#include <cmath>

#include "tosaic/quant/accuracy/scale_moves.h"

namespace tosaic::quant {
namespace {

constexpr int kMostTurns = 50;
constexpr double kTolerance = 1e-3;

struct Pair {
  ScaleSource source;
  ChannelPaths paths;
};

std::vector<Pair> pairs_of(const Graph& graph) {
  std::vector<Pair> pairs;
  for (const Node& node : graph.nodes()) {
    std::optional<ScaleSource> source = source_of(graph, node);
    if (!source || !source->is_contraction) continue;
    ChannelPaths paths = channel_paths(graph, source->value, source->axis);
    if (paths.obstacle.empty()) pairs.push_back({*std::move(source), std::move(paths)});
  }
  return pairs;
}

EqualizedPair row_of(const Graph& graph, const Pair& pair) {
  EqualizedPair row;
  row.first = graph.node_name(graph.node(pair.source.node));
  for (const ScaledReader& reader : pair.paths.readers)
    row.readers.push_back(graph.node_name(graph.node(reader.node)));
  for (const NodeId node : pair.paths.between) row.between.push_back(graph.node_name(graph.node(node)));
  row.scales.assign(static_cast<std::size_t>(pair.source.channels), 1.0);
  return row;
}

}  // namespace

Equalized equalize(const Graph& graph) {
  const std::vector<Pair> pairs = pairs_of(graph);
  ScaleMoves moves(graph);
  Equalized out;
  for (const Pair& pair : pairs) {
    EqualizedPair& row = out.pairs.emplace_back(row_of(graph, pair));
    row.first_before = moves.source_ranges(pair.source);
    row.reader_before = moves.reader_ranges(pair.source, pair.paths);
  }
  double change = pairs.empty() ? 0 : 1;
  for (int turn = 0; turn < kMostTurns && change > kTolerance; ++turn) {
    change = 0;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const std::vector<double> first = moves.source_ranges(pairs[i].source);
      const std::vector<double> second = moves.reader_ranges(pairs[i].source, pairs[i].paths);
      std::vector<double> scales(first.size(), 1.0);
      for (std::size_t c = 0; c < scales.size(); ++c) {
        if (first[c] > 0 && second[c] > 0) scales[c] = std::sqrt(first[c] / second[c]);
        change = std::max(change, std::abs(scales[c] - 1));
        out.pairs[i].scales[c] *= scales[c];
      }
      moves.move(pairs[i].source, pairs[i].paths, scales);
    }
  }
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    out.pairs[i].first_after = moves.source_ranges(pairs[i].source);
    out.pairs[i].reader_after = moves.reader_ranges(pairs[i].source, pairs[i].paths);
  }
  out.graph = moves.finish();
  return out;
}

}  // namespace tosaic::quant
