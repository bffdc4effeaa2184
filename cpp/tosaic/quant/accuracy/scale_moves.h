// scale_moves: moves scales of channels from the nodes that compute a tensor to the weights that read it.
//
//   conv(x, W, b) --> relu --> conv(., V)
//   conv(x, W / s, b / s) --> relu --> conv(., V * s)       the same result, but for the rounding of W / s
//                                                           and V * s
//
// All scales that move between two weights are multiplied in f64, and a weight is rounded once.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "tosaic/quant/accuracy/channel_paths.h"

namespace tosaic::quant {

// A node whose result is divided by a scale for each channel if constants of the node are divided: a
// contraction with a constant weight, a norm with constant parameters, or a product with a constant.
struct ScaleSource {
  NodeId node;
  ValueId value;
  std::size_t axis = 0;
  std::int64_t channels = 0;
  bool is_contraction = false;
  std::vector<ScaledConstant> constants;  // to divide, in addition to the weight of a contraction
};

[[nodiscard]] std::optional<ScaleSource> source_of(const Graph& graph, const Node& node);

class ScaleMoves {
 public:
  explicit ScaleMoves(const Graph& graph) : graph_(graph) {}

  // The largest magnitude of the weights of each channel: of the weights that compute the channel, if the
  // source is a contraction, or of the weights of all contractions that read the channel.
  [[nodiscard]] std::vector<double> source_ranges(const ScaleSource& source);
  [[nodiscard]] std::vector<double> reader_ranges(const ScaleSource& source, const ChannelPaths& paths);

  // Divides the source by these scales, and multiplies the weights of the readers by them.
  void move(const ScaleSource& source, const ChannelPaths& paths, const std::vector<double>& scales);

  // The graph with the weights and constants of all moves.
  [[nodiscard]] Graph finish() const;

 private:
  struct Weights {
    Contraction contraction;
    std::vector<double> values;
    std::vector<double> results, inputs;  // factors of channels
    [[nodiscard]] double value(std::int64_t group, std::int64_t channel, std::int64_t column) const;
    [[nodiscard]] std::size_t result_of(std::int64_t group, std::int64_t channel) const;
    [[nodiscard]] std::size_t input_of(std::int64_t group, std::int64_t column) const;
    template <class Visit>
    void for_each(Visit&& visit) const;
  };
  struct Divided {
    std::size_t rank = 1, axis = 0;
    std::vector<double> scales;  // by position
  };
  Weights& weights_of(NodeId node);
  void divide(const ScaledConstant& constant, const std::vector<double>& scales);
  [[nodiscard]] ConstantRef constant_at(NodeId node, std::size_t operand) const;

  const Graph& graph_;
  std::map<NodeId, Weights> weights_;
  std::map<std::pair<NodeId, std::size_t>, Divided> divided_;
};

}  // namespace tosaic::quant
