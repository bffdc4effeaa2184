// split-attentions: computes an attention in parts, one after the other, if this needs less memory. An
// attention is everything from the MATMUL of the scores to the MATMUL with the values.
//
//   %s: i32[3,n,n] = matmul(%q, %k)              %q.0: i8[1,n,d] = slice(%q)   the same of %k and %v
//   %p: i8[3,n,n]  = softmax of %s               %s.0: i32[1,n,n] = matmul(%q.0, %k.0)
//   %a: i32[3,n,d] = matmul(%p, %v)       ->     %p.0: i8[1,n,n] = softmax of %s.0
//   %r: i8[3,n,d]  = rescale(%a)                 %r.0: i8[1,n,d] = rescale(matmul(%p.0, %v.0))
//                                                %r = concat(%r.0, %r.1, %r.2)
//
// An attention over n positions has n * n scores for each head, and a softmax in integers needs several
// tensors of this size at the same time. No head needs another head, and no row of scores needs another
// row. So the pass splits the heads or, if there is only one head, its rows. Slices and the
// concatenation cost Vela nothing: a part is read from the memory of the whole operand, and written to
// the memory of the whole result.
//
// The parts of what only the attention reads are made one by one as well. A linear layer in front has its own
// weights for each head, so that no transpose moves the heads in front of the rows:
//
//   %l: i8[1,1,n,3*d] = linear(%x, %w)           %l.0: i8[1,1,n,d] = linear(%x, %w.0)
//   %h: i8[n,3,d] = reshape(%l)           ->     %q.0: i8[1,n,d] = reshape(%l.0)
//   %q: i8[3,n,d] = transpose(%h)
#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "tosaic/analysis/liveness.h"
#include "tosaic/ir/op_table.h"
#include "tosaic/ir/recipe.h"
#include "tosaic/ir/rewriter.h"
#include "tosaic/passes/match.h"
#include "tosaic/passes/pass.h"
#include "tosaic/target/type_support.h"

namespace tosaic::passes {
namespace {

constexpr std::int64_t kLeastBytes = 16 << 10;  // less memory than this is not worth further operators
constexpr std::int64_t kMostParts = 16;
constexpr std::int64_t kChannels = 16;   // Ethos-U stores a multiple of them
constexpr std::size_t kMostNodes = 512;  // between two MATMULs
constexpr int kNoAxis = -1;

// The axis of the result that is split into `extent` parts if axis `axis` of operand `operand` is; kNoAxis if
// the operator does not compute each part from the same part of the operand.
using AxisRule = int (*)(const Graph&, const Node&, std::size_t operand, int axis, std::int64_t extent);

int same_axis(const Graph& graph, const Node& node, std::size_t operand, int axis, std::int64_t) {
  if (info(node.op).is_table(operand)) return kNoAxis;
  const TensorType& type = graph.type(graph.result(node));
  const bool is_last = axis + 1 == static_cast<int>(type.rank());
  if (node.op == Op::kTosaRescale && is_last && Graph::attrs<TosaRescaleAttrs>(node).per_channel)
    return kNoAxis;
  return axis;
}

template <class T>
int other_axis(const Graph&, const Node& node, std::size_t, int axis, std::int64_t) {
  return Graph::attrs<T>(node).axis == axis ? kNoAxis : axis;
}

int moved_axis(const Graph&, const Node& node, std::size_t, int axis, std::int64_t) {
  const Dims& perm = Graph::attrs<PermuteAttrs>(node).perm;
  return static_cast<int>(std::ranges::find(perm, axis) - perm.begin());
}

// The axis of `to` that has the same parts as an axis of `from`, another shape of the same elements: as many
// elements are in front of both, and both are a multiple of the number of parts.
int axis_with_same_parts(const Shape& from, int axis, const Shape& to, std::int64_t extent) {
  const auto outer = [](const Shape& shape, int end) {
    return std::accumulate(shape.begin(), shape.begin() + end, std::int64_t{1}, std::multiplies<>());
  };
  for (int k = 0; k < static_cast<int>(to.size()); ++k)
    if (to[k] % extent == 0 && outer(to, k) == outer(from, axis)) return k;
  return kNoAxis;
}

int reshaped_axis(const Graph& graph, const Node& node, std::size_t, int axis, std::int64_t extent) {
  return axis_with_same_parts(graph.type(graph.operands(node)[0]).shape, axis,
                              graph.type(graph.result(node)).shape, extent);
}

int axis_of_matmul(const Graph&, const Node&, std::size_t operand, int axis, std::int64_t) {
  if (axis == 0) return 0;
  const int free = operand == 0 ? 1 : 2;  // the other one is summed over
  return axis == free ? free : kNoAxis;
}

// A lookup: the indices are split, not the values.
int axis_of_gather(const Graph&, const Node&, std::size_t operand, int axis, std::int64_t) {
  return operand == 1 && axis == 1 ? 1 : kNoAxis;
}

constexpr OpTable<AxisRule> kAxisRules = {{Op::kTosaReduceAll, other_axis<AxisAttrs>},
                                          {Op::kTosaReduceAny, other_axis<AxisAttrs>},
                                          {Op::kTosaReduceProduct, other_axis<AxisAttrs>},
                                          {Op::kTosaReduceSum, other_axis<AxisAttrs>},
                                          {Op::kTosaReduceMax, other_axis<TosaAxisNanAttrs>},
                                          {Op::kTosaReduceMin, other_axis<TosaAxisNanAttrs>},
                                          {Op::kTosaTranspose, moved_axis},
                                          {Op::kTosaReshape, reshaped_axis},
                                          {Op::kTosaMatmul, axis_of_matmul},
                                          {Op::kTosaGather, axis_of_gather}};

AxisRule rule_of(Op op) {
  if (const AxisRule* rule = kAxisRules.find(op)) return *rule;
  return info(op).has(kElementwise) ? same_axis : nullptr;
}

// The nodes from a MATMUL to the next one, and the RESCALE behind that, in the order of the graph. They
// compute each part of their results, along an axis of each, from the same part of their operands.
struct Region {
  std::vector<NodeId> nodes;
  std::int64_t extent = 1;  // of the axis
  bool is_of_heads = false;
  std::int64_t parts = 1;
};

class SplitAttentions {
 public:
  SplitAttentions(const Graph& graph, const target::TargetSpec& target)
      : graph_(graph),
        joined_(target::dtypes_of(target, Op::kTosaConcat, 1)),
        axis_(graph.values().size(), kNoAxis),
        owner_(graph.values().size(), kNone),
        region_(graph.nodes().size(), kNone),
        rewriter_(graph),
        part_(graph.values().size()) {}

  std::optional<Graph> run() && {
    for (const Node& node : graph_.nodes())
      if (node.op == Op::kTosaMatmul && region_[graph_.id(node).index()] == kNone) find_region(node);
    if (regions_.empty() || !choose_parts()) return std::nullopt;
    for (const Node& node : graph_.nodes()) {
      const std::size_t at = region_[graph_.id(node).index()];
      if (at != kNone && regions_[at].parts > 1 && regions_[at].nodes.back() == graph_.id(node))
        emit(regions_[at], node);
      else
        rewriter_.copy(node);
    }
    return without_dead_code(std::move(rewriter_).finish());
  }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  [[nodiscard]] ValueId result(NodeId id) const { return graph_.result(graph_.node(id)); }
  // The axis along which a result of the region at hand is split; kNoAxis for all other values.
  [[nodiscard]] int axis_of(ValueId value) const {
    return owner_[value.index()] == current_ ? axis_[value.index()] : kNoAxis;
  }
  void set_axis(ValueId value, int axis) {
    owner_[value.index()] = axis == kNoAxis ? kNone : current_;
    axis_[value.index()] = axis;
  }

  // Finds what can be split into the most parts: batches of MATMULs, or rows if there is one batch only.
  void find_region(const Node& first) {
    const TensorType& type = graph_.type(graph_.result(first));
    if (is_float(type.dtype)) return;
    const int axis = type.shape[0] > 1 ? 0 : 1;
    for (extent_ = type.shape[axis]; extent_ > 1; --extent_)
      if (type.shape[axis] % extent_ == 0 && try_region(first, axis)) return;
  }

  bool try_region(const Node& first, int axis) {
    std::vector<NodeId> reached = reach(first, axis);
    if (reached.empty() || !is_closed(reached)) {
      for (const NodeId id : reached) set_axis(result(id), kNoAxis);
      return false;
    }
    for (const NodeId id : reached) region_[id.index()] = regions_.size();
    regions_.push_back({std::move(reached), extent_, axis == 0 && extent_ <= kMostParts});
    return true;
  }

  // The nodes behind `first` that can be split, up to the next MATMUL, or several that read the same numbers
  // in bytes, and what rescales their result. Returns nothing if there is none.
  std::vector<NodeId> reach(const Node& first, int axis) {
    current_ = regions_.size();
    std::vector<NodeId> reached = {graph_.id(first)};
    set_axis(graph_.result(first), axis);
    std::set<NodeId> next = users_of(reached[0]);
    bool found = false, is_done = false;
    while (!next.empty() && !is_done && reached.size() < kMostNodes) {
      const NodeId id = *next.begin();
      next.erase(next.begin());
      const Node& node = graph_.node(id);
      const bool is_free = node.result_count == 1 && region_[id.index()] == kNone;
      const int own = is_free ? axis_behind(node) : kNoAxis;
      if (own == kNoAxis) break;
      set_axis(graph_.result(node), own);
      reached.push_back(id);
      found |= node.op == Op::kTosaMatmul;
      next.merge(users_of(id));
      is_done = found && std::ranges::all_of(next, [&](NodeId user) { return reads_only(user, reached); });
    }
    if (!is_done) {
      for (const NodeId id : reached) set_axis(result(id), kNoAxis);
      return {};
    }
    while (const Node* tail = only_unary_user(reached.back())) {
      const int own = region_[graph_.id(*tail).index()] == kNone ? axis_behind(*tail) : kNoAxis;
      if (own == kNoAxis) break;
      set_axis(graph_.result(*tail), own);
      reached.push_back(graph_.id(*tail));
    }
    return reached;
  }

  // True if a node reads the result of the last of the nodes that were reached, and of no other one.
  bool reads_only(NodeId reader, const std::vector<NodeId>& reached) {
    return std::ranges::all_of(graph_.operands(graph_.node(reader)), [&](ValueId operand) {
      return !operand.valid() || axis_of(operand) == kNoAxis || operand == result(reached.back());
    });
  }

  [[nodiscard]] std::set<NodeId> users_of(NodeId id) const {
    const auto users = graph_.users(result(id));
    return {users.begin(), users.end()};
  }

  // The only reader of the result, if it is a reshape, a transpose, or an elementwise operator whose other
  // operands are constants. Null if not.
  [[nodiscard]] const Node* only_unary_user(NodeId id) const {
    const ValueId value = result(id);
    const auto users = graph_.users(value);
    if (users.size() != 1 || graph_.is_output(value)) return nullptr;
    const Node& user = graph_.node(users.front());
    const auto operands = graph_.operands(user);
    const bool is_unary = std::ranges::all_of(operands, [&](ValueId each) {
      return each == value || !each.valid() || graph_.value(each).kind == ValueKind::kConstant;
    });
    const bool moves = user.op == Op::kTosaReshape || user.op == Op::kTosaTranspose;
    return (info(user.op).has(kElementwise) && is_unary) || moves ? &user : nullptr;
  }

  // The axis of the result that is split, given those of the operands.
  int axis_behind(const Node& node) {
    const AxisRule rule = rule_of(node.op);
    if (rule == nullptr) return kNoAxis;
    const auto operands = graph_.operands(node);
    int found = kNoAxis;
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if (!operands[i].valid() || axis_of(operands[i]) == kNoAxis) continue;
      const int own = rule(graph_, node, i, axis_of(operands[i]), extent_);
      if (own == kNoAxis || (found != kNoAxis && found != own)) return kNoAxis;
      found = own;
    }
    return found;
  }

  // True if no output is a result other than the last, and the last result can be concatenated and is not yet
  // a part of a concatenation.
  [[nodiscard]] bool is_closed(const std::vector<NodeId>& reached) const {
    const ValueId last = result(reached.back());
    const auto users = graph_.users(last);
    return std::ranges::find(joined_, graph_.type(last).dtype) != joined_.end() &&
           std::ranges::none_of(users,
                                [&](NodeId user) { return graph_.node(user).op == Op::kTosaConcat; }) &&
           std::ranges::none_of(
               reached, [&](NodeId id) { return id != reached.back() && graph_.is_output(result(id)); });
  }

  // ---- how many parts ----

  // The bytes of a tensor while the program runs. A reshape has none of its own. Neither have 32-bit integers
  // that one operator reads: a device computes both operators together.
  [[nodiscard]] std::int64_t bytes_of(ValueId id) const {
    const Value& value = graph_.value(id);
    if (value.kind == ValueKind::kConstant) return 0;
    const Node* const producer = graph_.producer(id);
    if (producer != nullptr && producer->op == Op::kTosaReshape) return 0;
    const bool is_wide = value.type.dtype == DType::kI32 || value.type.dtype == DType::kI48;
    if (is_wide && graph_.users(id).size() == 1 && !graph_.is_output(id)) return 0;
    const std::int64_t last = value.type.rank() == 0 ? 1 : value.type.shape[value.type.rank() - 1];
    const auto bytes = static_cast<std::int64_t>(value.type.bytes());
    return last == 0 ? 0 : bytes / last * ((last + kChannels - 1) / kChannels * kChannels);
  }

  // For each node: the bytes that are needed at the same time, in all and those of its region.
  struct Needed {
    std::vector<std::int64_t> all, own;
  };

  [[nodiscard]] Needed bytes_needed() const {
    std::vector<analysis::Lifetime> lifetimes = analysis::liveness(graph_);
    for (std::size_t n = graph_.nodes().size(); n-- > 0;) {  // a reshape needs its operand as long as itself
      const Node& node = graph_.nodes()[n];
      if (node.op != Op::kTosaReshape) continue;
      std::uint32_t& last = lifetimes[graph_.operands(node)[0].index()].last;
      last = std::max(last, lifetimes[node.first_result].last);
    }
    const std::size_t count = graph_.nodes().size();
    Needed needed{std::vector<std::int64_t>(count + 1), std::vector<std::int64_t>(count + 1)};
    for (std::uint32_t v = 0; v < lifetimes.size(); ++v) {
      const std::int64_t bytes = bytes_of(ValueId(v));
      const auto [first, last] = lifetimes[v];
      needed.all[first] += bytes;
      if (last < count) needed.all[last + 1] -= bytes;
      const Node* const producer = graph_.producer(ValueId(v));
      const std::size_t at = producer == nullptr ? kNone : region_[graph_.id(*producer).index()];
      if (at == kNone || regions_[at].nodes.back() == graph_.id(*producer)) continue;
      needed.own[first] += bytes;
      if (last < count) needed.own[last + 1] -= bytes;
    }
    std::partial_sum(needed.all.begin(), needed.all.end(), needed.all.begin());
    std::partial_sum(needed.own.begin(), needed.own.end(), needed.own.begin());
    return needed;
  }

  // The most bytes that a region needs if it is computed in parts.
  [[nodiscard]] std::int64_t most_bytes(const Region& region, const Needed& needed,
                                        std::int64_t parts) const {
    const std::int64_t joined = parts > 1 ? bytes_of(result(region.nodes.back())) : 0;
    std::int64_t most = 0;
    for (const NodeId id : region.nodes) {
      const std::int64_t all = needed.all[id.index()], own = needed.own[id.index()];
      const bool is_counted = id == region.nodes.back();  // its result is among `all`
      most = std::max(most, all - own + (own + parts - 1) / parts + (is_counted ? 0 : joined));
    }
    return most;
  }

  // Sets the parts of each region: all heads, one by one; or the fewest rows or windows with which the region
  // does not need more than the rest of the program, or than it needs in the most parts. Returns false if all
  // regions stay whole.
  bool choose_parts() {
    const Needed needed = bytes_needed();
    std::int64_t rest = kLeastBytes;
    for (std::size_t n = 0; n < graph_.nodes().size(); ++n)
      if (region_[n] == kNone) rest = std::max(rest, needed.all[n]);
    for (const Region& region : regions_) rest = std::max(rest, least_bytes(region, needed));
    bool found = false;
    for (Region& region : regions_) {
      if (region.is_of_heads && splits_heads(region, needed, rest)) region.parts = region.extent;
      while (region.parts < most_parts(region) && most_bytes(region, needed, region.parts) > rest)
        ++region.parts;
      found |= region.parts > 1;
    }
    return found;
  }

  // True if a region needs much memory, or if the operands of its heads are made by linear layers, which then
  // need no transposes.
  [[nodiscard]] bool splits_heads(Region& region, const Needed& needed, std::int64_t rest) {
    const std::int64_t own = own_bytes(region, needed);
    if (own >= region.extent * kLeastBytes || most_bytes(region, needed, 1) > rest) return true;
    region.parts = region.extent;
    extent_ = region.extent;
    current_ = index_of(region);
    const bool is_free = own >= kLeastBytes && std::ranges::all_of(region.nodes, [&](NodeId id) {
                           const Node& node = graph_.node(id);
                           for (std::size_t i = 0; i < node.operand_count; ++i)
                             if (const int axis = axis_of_operand(node, i);
                                 axis != kNoAxis && !is_from_channels(graph_.operands(node)[i], axis))
                               return false;
                           return true;
                         });
    region.parts = 1;
    return is_free;
  }

  // True if the parts of a value are constants, or are made by parts of a linear layer.
  [[nodiscard]] bool is_from_channels(ValueId value, int axis) const {
    const Node* const producer = graph_.producer(value);
    if (producer == nullptr) return axis == 0 && constant_of(graph_, value) != nullptr;
    if (is_conv_of_channels(*producer, axis)) return true;
    const int before = axis_before(*producer, axis);
    return before != kNoAxis && is_from_channels(graph_.operands(*producer)[0], before);
  }

  [[nodiscard]] static std::int64_t own_bytes(const Region& region, const Needed& needed) {
    std::int64_t most = 0;
    for (const NodeId id : region.nodes) most = std::max(most, needed.own[id.index()]);
    return most;
  }

  static std::int64_t most_parts(const Region& region) { return std::min(region.extent, kMostParts); }

  // What a region needs in the most parts, or whole if that is hardly more.
  [[nodiscard]] std::int64_t least_bytes(const Region& region, const Needed& needed) const {
    const std::int64_t whole = most_bytes(region, needed, 1);
    const std::int64_t least = most_bytes(region, needed, most_parts(region));
    return whole - least < whole / 8 ? whole : least + least / 16;
  }

  // ---- the parts ----

  // Parts start to end - 1 of those that an axis has.
  struct Range {
    std::int64_t start = 0, end = 0;
  };

  struct Slice {
    ValueId of;
    int axis = 0;
    ValueId value;
  };

  [[nodiscard]] std::size_t index_of(const Region& region) const {
    return static_cast<std::size_t>(&region - regions_.data());
  }

  void emit(const Region& region, const Node& last) {
    extent_ = region.extent;
    current_ = index_of(region);
    at_ = &last;
    std::vector<ValueId> parts;
    for (std::int64_t p = 0; p < region.parts; ++p) {
      range_ = {region.extent * p / region.parts, region.extent * (p + 1) / region.parts};
      slices_.clear();
      for (const NodeId id : region.nodes) emit_part(graph_.node(id));
      parts.push_back(part_[last.first_result]);
    }
    const ValueId old = graph_.result(last);
    const ValueId joined = rewriter_.emit(last, Op::kTosaConcat, AxisAttrs{axis_of(old)}, parts);
    rewriter_.begin_output(last).set_qparams(joined, graph_.type(old).qparams);
    rewriter_.replace(last, joined);
  }

  void emit_part(const Node& node) {
    std::vector<ValueId> operands;
    for (std::size_t i = 0; i < node.operand_count; ++i) operands.push_back(part_of_operand(node, i));
    const ValueId old = graph_.result(node);
    part_[old.index()] = add_part(node, operands, axis_of(old));
  }

  // The number of elements that the parts of range_ have along an axis.
  [[nodiscard]] std::int64_t size_along(const Shape& shape, int axis) const {
    return shape[axis] / extent_ * (range_.end - range_.start);
  }

  [[nodiscard]] std::int64_t start_along(const Shape& shape, int axis) const {
    return shape[axis] / extent_ * range_.start;
  }

  // The node over parts of its operands. A transpose that moves only axes of extent 1 becomes a reshape.
  ValueId add_part(const Node& node, const std::vector<ValueId>& operands, int axis) {
    const ValueId old = graph_.result(node);
    Graph& out = rewriter_.begin_output(*at_);
    const Shape& whole = graph_.type(old).shape;
    Shape shape = whole;
    shape[axis] = size_along(whole, axis);
    Op op = node.op;
    Attrs attrs = *node.attrs;
    if (op == Op::kTosaTranspose && moves_unit_axes(out.type(operands[0]).shape, get<PermuteAttrs>(attrs)))
      op = Op::kTosaReshape;
    if (op == Op::kTosaReshape) attrs = ShapeAttrs{shape};
    if (op == Op::kTosaSlice) get<TosaSliceAttrs>(attrs).size[axis] = shape[axis];
    if (op == Op::kTosaRescale && axis + 1 == static_cast<int>(whole.size()))
      keep_channels(get<TosaRescaleAttrs>(attrs), start_along(whole, axis), shape[axis]);
    return with_qparams(out.add(op, std::move(attrs), operands, node.origin, part_name(old)), old, axis);
  }

  static void keep_channels(TosaRescaleAttrs& attrs, std::int64_t start, std::int64_t size) {
    if (!attrs.per_channel) return;
    keep_part(attrs.multiplier, start, size);
    keep_part(attrs.shift, start, size);
  }

  template <class T>
  static void keep_part(std::vector<T>& all, std::int64_t start, std::int64_t size) {
    all = {all.begin() + start, all.begin() + start + size};
  }

  static bool moves_unit_axes(const Shape& shape, const PermuteAttrs& attrs) {
    std::int64_t last = -1;
    for (const std::int64_t axis : attrs.perm) {
      if (shape[axis] == 1) continue;
      if (axis < last) return false;
      last = axis;
    }
    return true;
  }

  [[nodiscard]] std::string part_name(ValueId old) const { return graph_.value(old).name + ".part"; }

  ValueId with_qparams(ValueId part, ValueId old, int axis) {
    rewriter_.begin_output(*at_).set_qparams(part, qparams_of_part(graph_.type(old), axis));
    return part;
  }

  [[nodiscard]] QParamsRef qparams_of_part(const TensorType& type, int axis) const {
    if (!type.qparams || type.qparams->axis != axis) return type.qparams;
    if (type.qparams->groups) return nullptr;  // they only say what the integers represent
    auto part = std::make_shared<QParams>(*type.qparams);
    keep_part(part->scales, start_along(type.shape, axis), size_along(type.shape, axis));
    keep_part(part->zero_points, start_along(type.shape, axis), size_along(type.shape, axis));
    return part;
  }

  // The axis along which an operand from outside of the region is split; kNoAxis if it is not. It has the
  // elements of all parts, unless it is broadcast along the axis, is the other operand of a MATMUL whose rows
  // are split, or has the values of a lookup.
  [[nodiscard]] int axis_of_operand(const Node& node, std::size_t i) {
    const ValueId operand = graph_.operands(node)[i];
    if (!operand.valid() || axis_of(operand) != kNoAxis || info(node.op).is_table(i)) return kNoAxis;
    const int axis = axis_of(graph_.result(node));
    const bool is_shared =
        (node.op == Op::kTosaMatmul && axis == (i == 0 ? 2 : 1)) || (node.op == Op::kTosaGather && i == 0);
    return is_shared || graph_.type(operand).shape[axis] == 1 ? kNoAxis : axis;
  }

  ValueId part_of_operand(const Node& node, std::size_t i) {
    const ValueId old = graph_.operands(node)[i];
    if (!old.valid()) return old;
    if (axis_of(old) != kNoAxis) return part_[old.index()];
    const int axis = axis_of_operand(node, i);
    return axis == kNoAxis ? rewriter_.map(old) : slice_of(node, old, axis);
  }

  // The part of a value from outside of the region. What only makes that part is made in parts as well: nodes
  // that move elements, and a linear layer, of which each part has its own weights.
  ValueId slice_of(const Node& reader, ValueId old, int axis) {
    for (const Slice& each : slices_)
      if (each.of == old && each.axis == axis) return each.value;
    const Node* const producer = graph_.producer(old);
    ValueId value;
    if (axis == 0 && constant_of(graph_, old) != nullptr)
      value = constant_part(old);
    else if (producer != nullptr && is_conv_of_channels(*producer, axis))
      value = conv_part(*producer, axis);
    else if (const int before = producer == nullptr ? kNoAxis : axis_before(*producer, axis);
             before != kNoAxis) {
      std::vector<ValueId> operands = {slice_of(*producer, graph_.operands(*producer)[0], before)};
      for (const ValueId other : graph_.operands(*producer).subspan(1))
        operands.push_back(rewriter_.map(other));
      value = add_part(*producer, operands, axis);
    } else
      value = add_slice(reader, old, axis);
    slices_.push_back({old, axis, value});
    return value;
  }

  [[nodiscard]] bool has_one_reader(ValueId value) const {
    return graph_.users(value).size() == 1 && !graph_.is_output(value);
  }

  // True if nothing reads the value but regions that are computed in parts, and what moves elements for them.
  [[nodiscard]] bool is_for_parts(ValueId value) const {
    const auto users = graph_.users(value);
    return !graph_.is_output(value) && std::ranges::all_of(users, [&](NodeId user) {
      const std::size_t at = region_[user.index()];
      if (at != kNone) return regions_[at].parts > 1;
      const Node& node = graph_.node(user);
      return moves_elements(node.op) && is_for_parts(graph_.result(node));
    });
  }

  static bool moves_elements(Op op) {
    return op == Op::kTosaReshape || op == Op::kTosaTranspose || op == Op::kTosaSlice;
  }

  // The result is split along `axis`. Returns the axis along which operand 0 has to be split, so that part k
  // of the result needs part k of operand 0 only. Returns kNoAxis if the node is not split.
  [[nodiscard]] int axis_before(const Node& node, int axis) const {
    if (node.result_count != 1) return kNoAxis;
    const ValueId result = graph_.result(node);
    const Shape& shape = graph_.type(result).shape;
    if (info(node.op).has(kElementwise)) {
      const auto operands = graph_.operands(node);
      for (std::size_t i = 1; i < operands.size(); ++i)
        if (operands[i].valid() && !info(node.op).is_table(i)) return kNoAxis;
      return has_one_reader(result) && is_from_conv_or_constant(graph_.operands(node)[0]) ? axis : kNoAxis;
    }
    if (!moves_elements(node.op) || !is_for_parts(result)) return kNoAxis;
    const Shape& before = graph_.type(graph_.operands(node)[0]).shape;
    if (node.op == Op::kTosaTranspose) return static_cast<int>(Graph::attrs<PermuteAttrs>(node).perm[axis]);
    if (node.op == Op::kTosaReshape) return axis_with_same_parts(shape, axis, before, extent_);
    return shape[axis] == before[axis] ? axis : kNoAxis;
  }

  [[nodiscard]] bool is_from_conv_or_constant(ValueId value) const {
    const Node* const producer = graph_.producer(value);
    return constant_of(graph_, value) != nullptr ||
           (producer != nullptr && is_conv_of_channels(*producer, 3));
  }

  // True for a convolution of which the axis has the channels, and which one node alone reads.
  [[nodiscard]] bool is_conv_of_channels(const Node& node, int axis) const {
    return node.op == Op::kTosaConv2d && axis == 3 && has_one_reader(graph_.result(node)) &&
           constant_of(graph_, graph_.operands(node)[1]) && constant_of(graph_, graph_.operands(node)[2]);
  }

  ValueId conv_part(const Node& node, int axis) {
    const auto operands = graph_.operands(node);
    return add_part(
        node, {rewriter_.map(operands[0]), constant_part(operands[1]), constant_part(operands[2])}, axis);
  }

  // The part of a constant along axis 0. A bias may have one element for all channels.
  ValueId constant_part(ValueId old) {
    const Constant& whole = *graph_.value(old).constant;
    if (whole.shape[0] == 1) return rewriter_.map(old);
    auto part = std::make_shared<Constant>(whole);
    part->name = whole.name + ".part";
    part->kind = ConstantKind::kFolded;
    part->shape[0] = size_along(whole.shape, 0);
    part->storage = part_of_rows(whole.storage, static_cast<std::size_t>(whole.shape[0]),
                                 static_cast<std::size_t>(start_along(whole.shape, 0)),
                                 static_cast<std::size_t>(part->shape[0]));
    const ValueId made = rewriter_.constant(*at_, std::move(part));
    return with_qparams(made, old, 0);
  }

  ValueId add_slice(const Node& reader, ValueId old, int axis) {
    const Shape& shape = graph_.type(old).shape;
    TosaSliceAttrs attrs;
    for (const std::int64_t extent : shape) {
      attrs.start.push_back(0);
      attrs.size.push_back(extent);
    }
    attrs.start[axis] = start_along(shape, axis);
    attrs.size[axis] = size_along(shape, axis);
    const ValueId made = rewriter_.begin_output(*at_).add(
        Op::kTosaSlice, std::move(attrs), std::vector{rewriter_.map(old)}, reader.origin, part_name(old));
    return with_qparams(made, old, axis);
  }

  const Graph& graph_;
  std::vector<DType> joined_;        // of the tensors that the target can concatenate
  std::vector<int> axis_;            // by value: the axis of a result that is split
  std::vector<std::size_t> owner_;   // by value: its region
  std::vector<std::size_t> region_;  // by node
  std::vector<Region> regions_;
  std::int64_t extent_ = 1;      // of the region at hand
  std::size_t current_ = kNone;  // the index of the region at hand
  Rewriter rewriter_;
  const Node* at_ = nullptr;   // in whose place parts are emitted
  Range range_;                // the parts that are emitted
  std::vector<ValueId> part_;  // by old value: of the part that is emitted
  std::vector<Slice> slices_;  // of that part: of values from outside
};

}  // namespace

std::optional<Graph> split_attentions(const Graph& graph, const PassOptions& options) {
  return SplitAttentions(graph, options.target).run();
}

}  // namespace tosaic::passes
