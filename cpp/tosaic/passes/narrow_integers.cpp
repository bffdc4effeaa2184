// Which i64 values fit i32: interval arithmetic front to back over the integer values of a graph.
//
// Inputs of i64 are assumed to lie in [-2^k, 2^k) for the largest k <= 31 under which every i64 result provably fits
// i32; the executor checks them against that range at the border. Constants count with their actual extremes.

#include <algorithm>
#include <limits>

#include "tosaic/passes/legalizer.h"

namespace tosaic::passes {
namespace {

__extension__ using Wide = __int128;

constexpr std::int64_t kHuge = std::int64_t{1} << 62;  // stands for "anything beyond"

struct Interval {
  std::int64_t min = -kHuge, max = kHuge;
};

std::int64_t clipped(Wide value) {
  return static_cast<std::int64_t>(std::clamp<Wide>(value, -kHuge, kHuge));
}

Interval united(const Interval& a, const Interval& b) { return {std::min(a.min, b.min), std::max(a.max, b.max)}; }

Interval sum(const Interval& a, const Interval& b) {
  return {clipped(static_cast<Wide>(a.min) + b.min), clipped(static_cast<Wide>(a.max) + b.max)};
}

Interval product(const Interval& a, const Interval& b) {
  const Wide corners[] = {static_cast<Wide>(a.min) * b.min, static_cast<Wide>(a.min) * b.max,
                              static_cast<Wide>(a.max) * b.min, static_cast<Wide>(a.max) * b.max};
  return {clipped(*std::min_element(corners, corners + 4)), clipped(*std::max_element(corners, corners + 4))};
}

Interval negated(const Interval& a) { return {-a.max, -a.min}; }

Interval magnitude(const Interval& a) {
  const std::int64_t top = std::max(-a.min, a.max);
  return {a.min > 0 ? a.min : a.max < 0 ? -a.max : 0, top};
}

Interval of_dtype(DType dtype) {
  switch (dtype) {  // NOLINT: integers; floats have no interval
    case DType::kBool: return {0, 1};
    case DType::kI8: return {-128, 127};
    case DType::kU8: return {0, 255};
    case DType::kI16: return {-32768, 32767};
    case DType::kU16: return {0, 65535};
    case DType::kI32: return {std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max()};
    default: return {};
  }
}

bool fits_i32(const Interval& a) {
  return a.min >= std::numeric_limits<std::int32_t>::min() && a.max <= std::numeric_limits<std::int32_t>::max();
}

Interval of_constant(const Constant& constant) {
  if (!constant.storage.bound() || num_elements(constant.shape) == 0) return of_dtype(constant.dtype);
  Interval range{kHuge, -kHuge};
  for (std::size_t i = 0; i < static_cast<std::size_t>(num_elements(constant.shape)); ++i) {
    const std::int64_t value = element_as_int(constant, i);
    range = united(range, {value, value});
  }
  return range;
}

class Ranges {
 public:
  Ranges(const Graph& graph, const Interval& i64_inputs) : graph_(graph), ranges_(graph.values().size()) {
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      const Value& value = graph.values()[i];
      if (is_float(value.type.dtype)) continue;
      ranges_[i] = of_dtype(value.type.dtype);
      if (value.kind == ValueKind::kConstant) ranges_[i] = of_constant(*value.constant);
      if (value.kind == ValueKind::kInput && value.type.dtype == DType::kI64) ranges_[i] = i64_inputs;
    }
    for (const Node& node : graph.nodes()) {
      if (node.result_count != 1 || is_float(graph.type(graph.result(node)).dtype)) continue;
      Interval& range = ranges_[node.first_result];
      const Interval narrow = range, computed = of_node(node);
      // Values of narrower dtypes wrap in torch; only i64 is required to keep its exact value.
      const bool stays = computed.min >= narrow.min && computed.max <= narrow.max;
      if (stays) range = computed;
    }
  }

  // The first node whose i64 result may leave i32, or null.
  [[nodiscard]] std::vector<const Node*> overflowing() const {
    std::vector<const Node*> nodes;
    for (const Node& node : graph_.nodes())
      for (std::uint32_t r = 0; r < node.result_count; ++r)
        if (graph_.values()[node.first_result + r].type.dtype == DType::kI64 && !fits_i32(ranges_[node.first_result + r]))
          nodes.push_back(&node);
    return nodes;
  }

 private:
  [[nodiscard]] Interval at(const Node& node, std::size_t i) const {
    const ValueId operand = graph_.operands(node)[i];
    if (is_float(graph_.type(operand).dtype)) return of_dtype(DType::kI32);  // a cast saturates
    return ranges_[operand.index()];
  }

  [[nodiscard]] Interval all_operands(const Node& node) const {
    Interval range = at(node, 0);
    for (std::size_t i = 1; i < node.operand_count; ++i) range = united(range, at(node, i));
    return range;
  }

  [[nodiscard]] Interval scaled_operand(const Node& node) const {
    const std::int64_t alpha = as_int(Graph::attrs<AlphaAttrs>(node).alpha);
    return product(at(node, 1), {alpha, alpha});
  }

  [[nodiscard]] std::int64_t reduced_count(const Node& node) const {
    const std::int64_t out = std::max<std::int64_t>(1, num_elements(graph_.type(graph_.result(node)).shape));
    return std::max<std::int64_t>(1, num_elements(graph_.type(graph_.operands(node)[0]).shape) / out);
  }

  [[nodiscard]] Interval of_node(const Node& node) const {
    switch (node.op) {  // NOLINT: operators with a tighter rule than their dtype's range
      case Op::kAdd: return sum(at(node, 0), scaled_operand(node));
      case Op::kSub: return sum(at(node, 0), negated(scaled_operand(node)));
      case Op::kMul: return product(at(node, 0), at(node, 1));
      case Op::kDiv: return sum(united(magnitude(at(node, 0)), negated(magnitude(at(node, 0)))), {-1, 0});
      case Op::kNeg: return negated(at(node, 0));
      case Op::kAbs: return magnitude(at(node, 0));
      case Op::kSign: return {-1, 1};
      case Op::kMaximum: {
        const Interval a = at(node, 0), b = at(node, 1);
        return {std::max(a.min, b.min), std::max(a.max, b.max)};
      }
      case Op::kMinimum: {
        const Interval a = at(node, 0), b = at(node, 1);
        return {std::min(a.min, b.min), std::min(a.max, b.max)};
      }
      case Op::kRelu: return {std::max<std::int64_t>(at(node, 0).min, 0), std::max<std::int64_t>(at(node, 0).max, 0)};
      case Op::kClamp: {
        const auto& attrs = Graph::attrs<ClampAttrs>(node);
        Interval range = at(node, 0);
        if (attrs.min) range = {std::max(range.min, as_int(*attrs.min)), std::max(range.max, as_int(*attrs.min))};
        if (attrs.max) range = {std::min(range.min, as_int(*attrs.max)), std::min(range.max, as_int(*attrs.max))};
        return range;
      }
      case Op::kBitwiseAnd:
      case Op::kBitwiseOr:
      case Op::kBitwiseXor:
      case Op::kBitwiseNot:
        return fits_i32(all_operands(node)) ? of_dtype(DType::kI32) : Interval{};
      case Op::kWhere: return united(at(node, 1), at(node, 2));
      case Op::kSum: {
        const std::int64_t count = reduced_count(node);
        return product(united(at(node, 0), {0, 0}), {count, count});
      }
      case Op::kAmax:
      case Op::kAmin:
      case Op::kCast:
      case Op::kCeil:
      case Op::kFloor:
      case Op::kRound:
      case Op::kTrunc:
      case Op::kReshape:
      case Op::kClone:
      case Op::kPermute:
      case Op::kExpand:
      case Op::kRepeat:
      case Op::kSlice:
      case Op::kFlip:
      case Op::kGather:
      case Op::kIndexSelect:
      case Op::kIndex:
      case Op::kEmbedding:
        return at(node, 0);
      case Op::kCat: return all_operands(node);
      case Op::kPad: {
        const std::int64_t value = as_int(Graph::attrs<PadAttrs>(node).value);
        return united(at(node, 0), {value, value});
      }
      case Op::kMaxPool: return at(node, 0);
      case Op::kArgmax: return {0, std::max<std::int64_t>(0, num_elements(graph_.type(graph_.operands(node)[0]).shape) - 1)};
      default: return of_dtype(graph_.type(graph_.result(node)).dtype);
    }
  }

  const Graph& graph_;
  std::vector<Interval> ranges_;
};

bool has_i64_arithmetic(const Graph& graph) {
  for (const Value& value : graph.values())
    if (value.kind != ValueKind::kConstant && value.type.dtype == DType::kI64) return true;
  return false;
}

}  // namespace

IntegerRange narrow_integers(const Graph& graph, std::vector<ErrorParts>& problems) {
  const Interval widest = of_dtype(DType::kI32);
  if (!has_i64_arithmetic(graph)) return {widest.min, widest.max};
  std::vector<const Node*> bad;
  for (int bits = 31; bits >= 8; --bits) {
    const std::int64_t limit = std::int64_t{1} << bits;
    bad = Ranges(graph, {-limit, limit - 1}).overflowing();
    if (bad.empty()) return {-limit, limit - 1};
  }
  for (const Node* node : bad)
    problems.push_back(located({.where = "legalize-tosa",
                                .what = "an i64 result may not fit i32, and TOSA has no i64",
                                .hint = "Bound the operands, e.g. with clamp, or compute in int32"},
                               node->origin, graph.node_name(*node)));
  return {widest.min, widest.max};
}

}  // namespace tosaic::passes
