// channel_paths: where a positive scale of each channel of a tensor can move to.
//
//   conv --> relu --> max_pool --> conv
//    1/s  =   1/s  ==    1/s   ==>  * s       the result of the second conv is as before
//
// Between the tensor and the contractions that read it may be operators f with f(x * s) = f(x) * s for each
// channel with a scale s > 0: relu, leaky_relu, prelu, abs, neg, clamps at zero, products with other tensors,
// pools, resizes, means and sums that do not mix channels, movement that does not mix channels, and sums and
// differences of two such tensors, or with a constant that is scaled, too. Upper bounds as that of relu6 are
// not scaled, so scales do not move through them.
#pragma once

#include <string>
#include <vector>

#include "tosaic/quant/accuracy/contraction.h"
#include "tosaic/quant/accuracy/operand_edits.h"

namespace tosaic::quant {

// The channels of a tensor: position p of `axis` has channel p / run.
struct ChannelPlace {
  std::size_t axis = 0;
  std::int64_t run = 1;
  bool operator==(const ChannelPlace&) const = default;
};

// A contraction that reads scaled channels.
struct ScaledReader {
  NodeId node;
  Contraction contraction;
  ValueId input;
  std::int64_t run = 1;  // position p of the input's channels has channel p / run
};

// A constant that has to be divided by the scales, as the tensor is.
struct ScaledConstant {
  NodeId node;
  std::size_t operand = 0;
  // The constant is broadcast to a tensor of this rank, whose channels are there.
  std::size_t rank = 1;
  ChannelPlace place = {};
};

struct ChannelPaths {
  std::vector<ScaledReader> readers;
  std::vector<ScaledConstant> constants;
  std::vector<NodeId> between;
  std::string obstacle;  // why the scales cannot move; empty if they can
};

// Follows a tensor, whose channels are on `axis`, to all of its readers.
[[nodiscard]] ChannelPaths channel_paths(const Graph& graph, ValueId value, std::size_t axis);

// Where the channels of operand `operand` of a node are in its results, or nothing if the operator mixes
// channels or is not homogeneous. The operand may be the only scaled one.
[[nodiscard]] std::optional<ChannelPlace> carried(const Graph& graph, const Node& node, std::size_t operand,
                                                  const ChannelPlace& place);

// The constant, divided by the scale of each position of an axis of a tensor of this rank, to which the
// constant is broadcast. If it has one number for all positions, it gets one for each.
[[nodiscard]] ConstantRef divided_constant(const Constant& constant, std::size_t rank, std::size_t axis,
                                           const std::vector<double>& scales);

}  // namespace tosaic::quant
