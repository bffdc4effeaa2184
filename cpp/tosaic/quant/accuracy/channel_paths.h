// channel_paths: where a positive scale of each channel of a tensor can move to.
//
//   conv --> relu --> max_pool --> conv
//    1/s  =   1/s  ==    1/s   ==>  * s       the result of the second conv is as before
//
// The tensor may reach the contractions that read it through operators f with f(x * s) = f(x) * s for each
// channel with a scale s > 0: relu, leaky_relu, prelu, abs, neg, clamps at zero, products with other tensors,
// pools, resizes, means, sums and movement that do not mix channels, and sums and differences of two such
// tensors, or of one and a constant, which is then scaled, too. Upper bounds such as that of relu6 are not
// scaled, so scales do not move through them.
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
  // The constant is broadcast to a tensor of rank `rank`. `place`: its channels, as an axis of that tensor.
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

// Where the channels of operand `operand` of a node are in its results, if no other operand is scaled.
// Returns nothing if the operator mixes channels or is not homogeneous.
[[nodiscard]] std::optional<ChannelPlace> carried(const Graph& graph, const Node& node, std::size_t operand,
                                                  const ChannelPlace& place);

// The constant is broadcast to a tensor of this rank. Returns the constant divided by the scale of each
// position of an axis of the tensor; if it has one number for all positions, the result has one for each.
[[nodiscard]] ConstantRef divided_constant(const Constant& constant, std::size_t rank, std::size_t axis,
                                           const std::vector<double>& scales);

}  // namespace tosaic::quant
