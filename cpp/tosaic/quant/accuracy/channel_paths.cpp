#include "tosaic/quant/accuracy/channel_paths.h"

#include <algorithm>
#include <set>

#include "tosaic/ir/constant_value.h"
#include "tosaic/ir/op_table.h"

namespace tosaic::quant {
namespace {

std::int64_t product(std::span<const std::int64_t> extents) {
  std::int64_t out = 1;
  for (const std::int64_t extent : extents) out *= extent;
  return out;
}

// For a result with the operand's axes: the place of the channels if `holds`, otherwise nothing.
std::optional<ChannelPlace> kept(bool holds, const ChannelPlace& place) {
  return holds ? std::optional(place) : std::nullopt;
}

// The place of the channels after a reduction over `axes`; nothing if `axes` has the axis of the channels.
std::optional<ChannelPlace> without_axes(const Dims& axes, bool keepdim, ChannelPlace place) {
  const auto axis = static_cast<std::int64_t>(place.axis);
  if (axes.contains(axis)) return std::nullopt;
  if (!keepdim)
    place.axis -=
        static_cast<std::size_t>(std::count_if(axes.begin(), axes.end(), [&](auto a) { return a < axis; }));
  return place;
}

std::optional<ChannelPlace> through_permute(const Dims& perm, ChannelPlace place) {
  for (std::size_t i = 0; i < perm.size(); ++i)
    if (perm[i] == static_cast<std::int64_t>(place.axis)) return ChannelPlace{i, place.run};
  return std::nullopt;
}

// A reshape may join the axis of the channels with axes after it, or split it between channels.
std::optional<ChannelPlace> through_reshape(const Shape& from, const Shape& to, const ChannelPlace& place) {
  const std::span<const std::int64_t> before = from.span(), after = to.span();
  const std::int64_t outer = product(before.first(place.axis)), extent = from[place.axis];
  const std::int64_t behind = product(before.subspan(place.axis + 1));
  if (outer == 0 || extent == 0 || behind == 0) return std::nullopt;
  for (std::size_t axis = 0; axis < to.size(); ++axis) {
    if (product(after.first(axis)) != outer || (to[axis] == 1 && extent != 1)) continue;
    if (to[axis] % extent == 0 && behind % (to[axis] / extent) == 0)
      return ChannelPlace{axis, place.run * (to[axis] / extent)};
    if (extent % to[axis] == 0 && place.run % (extent / to[axis]) == 0)
      return ChannelPlace{axis, place.run / (extent / to[axis])};
    return std::nullopt;
  }
  return std::nullopt;
}

// Where the channels of an operand are in the result of an operator that broadcasts its operands.
std::optional<ChannelPlace> through_broadcast(const Graph& graph, const Node& node, std::size_t operand,
                                              ChannelPlace place) {
  const Shape& from = graph.type(graph.operands(node)[operand]).shape;
  const Shape& to = graph.type(graph.result(node)).shape;
  const std::size_t axis = place.axis + to.size() - from.size();
  return to[axis] == from[place.axis] ? std::optional(ChannelPlace{axis, place.run}) : std::nullopt;
}

bool clamps_at_zero(const ClampAttrs& clamp) {
  const bool at_zero = clamp.min ? as_double(*clamp.min) == 0 : clamp.max && as_double(*clamp.max) == 0;
  return at_zero && !(clamp.min && clamp.max);
}

bool pads_with_zeros(const PadAttrs& pad, const ChannelPlace& place) {
  return pad.before[place.axis] == 0 && pad.after[place.axis] == 0 &&
         (pad.mode != PadMode::kConstant || as_double(pad.value) == 0);
}

bool is_axis(std::int64_t axis, const ChannelPlace& place) {
  return axis == static_cast<std::int64_t>(place.axis);
}

// ---- rules: where the channels of an operand are in the results; nothing if the operator mixes them ----

struct Carry {
  const Graph& graph;
  const Node& node;
  std::size_t operand;
  ChannelPlace place;

  [[nodiscard]] const TensorType& type() const { return graph.type(graph.operands(node)[operand]); }
  template <class A>
  [[nodiscard]] const A& attrs() const {
    return Graph::attrs<A>(node);
  }
};

using Carried = std::optional<ChannelPlace>;

Carried same(const Carry& c) { return c.place; }
Carried broadcast(const Carry& c) { return through_broadcast(c.graph, c.node, c.operand, c.place); }
Carried prelu(const Carry& c) { return kept(c.operand == 0, c.place); }
Carried clamp(const Carry& c) { return kept(clamps_at_zero(c.attrs<ClampAttrs>()), c.place); }

Carried quotient(const Carry& c) {
  if (c.operand != 0 || c.attrs<DivAttrs>().rounding != DivRounding::kNone) return std::nullopt;
  return broadcast(c);
}

// A product of two tensors does not mix the rows of the first one or the columns of the second one.
Carried matmul(const Carry& c) {
  const std::size_t rank = c.type().rank();
  const std::size_t other = c.graph.type(c.graph.operands(c.node)[1 - c.operand]).rank();
  const std::size_t result = c.graph.type(c.graph.result(c.node)).rank();
  if (rank < 2 || other < 2 || c.place.axis != (c.operand == 0 ? rank - 2 : rank - 1)) return std::nullopt;
  return ChannelPlace{c.operand == 0 ? result - 2 : result - 1, c.place.run};
}

// The operator mixes positions of the last `axes` axes.
Carried before_last(const Carry& c, std::size_t axes) {
  return kept(c.place.axis + axes < c.type().rank(), c.place);
}

Carried pool(const Carry& c) { return before_last(c, c.attrs<PoolAttrs>().kernel.size()); }
Carried adaptive_pool(const Carry& c) { return before_last(c, c.attrs<ShapeAttrs>().shape.size()); }
Carried resize(const Carry& c) { return before_last(c, c.attrs<ResizeAttrs>().size.size()); }

Carried reduction(const Carry& c) {
  const auto& reduce = c.attrs<ReduceAttrs>();
  return without_axes(reduce.axes, reduce.keepdim, c.place);
}

Carried reshape(const Carry& c) {
  return through_reshape(c.type().shape, c.attrs<ShapeAttrs>().shape, c.place);
}

Carried permute(const Carry& c) { return through_permute(c.attrs<PermuteAttrs>().perm, c.place); }
Carried slice(const Carry& c) { return kept(!is_axis(c.attrs<SliceAttrs>().axis, c.place), c.place); }
Carried split(const Carry& c) { return kept(!is_axis(c.attrs<SplitAttrs>().axis, c.place), c.place); }
Carried select(const Carry& c) { return without_axes({c.attrs<SelectAttrs>().axis}, false, c.place); }
Carried unbind(const Carry& c) { return without_axes({c.attrs<AxisAttrs>().axis}, false, c.place); }
Carried pad(const Carry& c) { return kept(pads_with_zeros(c.attrs<PadAttrs>(), c.place), c.place); }

Carried flip(const Carry& c) {
  return kept(!c.attrs<AxesAttrs>().axes.contains(static_cast<std::int64_t>(c.place.axis)), c.place);
}

constexpr OpTable<Carried (*)(const Carry&)> kRules = {
    {Op::kRelu, same},
    {Op::kAbs, same},
    {Op::kNeg, same},
    {Op::kLeakyRelu, same},
    {Op::kClone, same},
    {Op::kPrelu, prelu},
    {Op::kClamp, clamp},
    {Op::kMul, broadcast},
    {Op::kDiv, quotient},
    {Op::kMatmul, matmul},
    {Op::kMaxPool, pool},
    {Op::kAvgPool, pool},
    {Op::kAdaptiveAvgPool, adaptive_pool},
    {Op::kAdaptiveMaxPool, adaptive_pool},
    {Op::kResize, resize},
    {Op::kMean, reduction},
    {Op::kSum, reduction},
    {Op::kAmax, reduction},
    {Op::kAmin, reduction},
    {Op::kReshape, reshape},
    {Op::kPermute, permute},
    {Op::kExpand, broadcast},
    {Op::kSlice, slice},
    {Op::kSelect, select},
    {Op::kFlip, flip},
    {Op::kSplit, split},
    {Op::kUnbind, unbind},
    {Op::kPad, pad},
};

}  // namespace

std::optional<ChannelPlace> carried(const Graph& graph, const Node& node, std::size_t operand,
                                    const ChannelPlace& place) {
  const Carry carry{graph, node, operand, place};
  for (std::size_t i = 0; i < node.result_count; ++i)
    if (graph.type(graph.result(node, i)).dtype != carry.type().dtype) return std::nullopt;
  const auto* const rule = kRules.find(node.op);
  return rule != nullptr ? (*rule)(carry) : std::nullopt;
}

namespace {

class Following {
 public:
  Following(const Graph& graph, ValueId value, std::size_t axis) : graph_(graph) { add(value, {axis, 1}); }

  ChannelPaths run() && {
    while (!nodes_.empty() && out_.obstacle.empty()) {
      const NodeId node = *nodes_.begin();  // in the order of the graph, so its scaled operands are known
      nodes_.erase(nodes_.begin());
      follow(graph_.node(node));
    }
    if (out_.obstacle.empty() && out_.readers.empty())
      out_.obstacle = "no contraction with a constant weight reads it";
    return std::move(out_);
  }

 private:
  void add(ValueId value, const ChannelPlace& place) {
    places_.emplace(value, place);
    if (graph_.is_output(value)) {
      out_.obstacle = "'" + graph_.value(value).name + "' is an output of the program";
      return;
    }
    for (const NodeId user : graph_.users(value)) nodes_.insert(user);
  }

  void follow(const Node& node) {
    const std::span<const ValueId> operands = graph_.operands(node);
    std::vector<std::size_t> scaled;
    for (std::size_t i = 0; i < operands.size(); ++i)
      if (operands[i].valid() && places_.contains(operands[i])) scaled.push_back(i);
    const ChannelPlace& place = places_.at(operands[scaled.front()]);
    if (scaled.size() == 1 && reads(node, scaled.front(), place)) return;
    const std::optional<ChannelPlace> next =
        node.op == Op::kAdd || node.op == Op::kSub ? through_sum(node, scaled)
        : scaled.size() == 1                       ? carried(graph_, node, scaled.front(), place)
                                                   : std::nullopt;
    if (!next || !node.regions.empty()) {
      out_.obstacle = "'" + graph_.node_name(node) + "' (" + std::string(info(node.op).name) + ") reads it";
      return;
    }
    out_.between.push_back(graph_.id(node));
    for (std::size_t i = 0; i < node.result_count; ++i) add(graph_.result(node, i), *next);
  }

  bool reads(const Node& node, std::size_t operand, const ChannelPlace& place) {
    const std::optional<Contraction> contraction = contraction_of(graph_, node);
    const ValueId input = graph_.operands(node)[operand];
    if (!contraction || contraction->input != operand ||
        input_axis(*contraction, graph_.type(input).shape) != place.axis)
      return false;
    out_.readers.push_back({graph_.id(node), *contraction, input, place.run});
    return true;
  }

  // A sum of two scaled tensors, or of one and a constant, which is then divided by the scales, too.
  std::optional<ChannelPlace> through_sum(const Node& node, const std::vector<std::size_t>& scaled) {
    const std::span<const ValueId> operands = graph_.operands(node);
    std::optional<ChannelPlace> found;
    for (const std::size_t operand : scaled) {
      const std::optional<ChannelPlace> place =
          through_broadcast(graph_, node, operand, places_.at(operands[operand]));
      if (!place || (found && !(*found == *place))) return std::nullopt;
      found = place;
    }
    if (scaled.size() == 2) return found;
    const std::size_t other = 1 - scaled.front();
    const Constant* constant = constant_of(graph_, operands[other]);
    if (constant == nullptr || !constant->storage.bound() || !is_float(constant->dtype)) return std::nullopt;
    out_.constants.push_back({graph_.id(node), other, graph_.type(graph_.result(node)).rank(), *found});
    return found;
  }

  const Graph& graph_;
  ChannelPaths out_;
  std::map<ValueId, ChannelPlace> places_;
  std::set<NodeId> nodes_;
};

}  // namespace

ChannelPaths channel_paths(const Graph& graph, ValueId value, std::size_t axis) {
  return Following(graph, value, axis).run();
}

ConstantRef divided_constant(const Constant& constant, std::size_t rank, std::size_t axis,
                             const std::vector<double>& scales) {
  Shape shape = constant.shape;  // with axes of 1 in front, up to the axis of the scales
  while (shape.size() < rank - axis) shape.insert(0, 1);
  const std::size_t at = axis + shape.size() - rank;
  std::size_t outer = 1, inner = 1;
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (i != at) (i < at ? outer : inner) *= static_cast<std::size_t>(shape[i]);
  const std::size_t extent = scales.size();
  const bool repeats = shape[at] == 1;  // one number for all positions
  shape[at] = static_cast<std::int64_t>(extent);
  const std::vector<double> values = elements_of(constant);
  std::vector<double> out;
  out.reserve(outer * extent * inner);
  for (std::size_t o = 0; o < outer; ++o)
    for (std::size_t c = 0; c < extent; ++c)
      for (std::size_t i = 0; i < inner; ++i)
        out.push_back(values[repeats ? o * inner + i : (o * extent + c) * inner + i] / scales[c]);
  return edited_constant(constant, shape, out);
}

}  // namespace tosaic::quant
