// Which integer values fit i32: interval arithmetic front to back over the integer values of a graph.
//
// TOSA has no i64, and leaves the overflow of i32 sums undefined where torch wraps (products wrap in both).
// So each integer input is assumed to lie in [-2^k, 2^k), with the largest k <= 31 of its own under which
// nothing that depends on it overflows; the executor checks it against that range at the border. Constants
// count with their actual extremes, loops with ranges that hold before every turn, casts from float with what
// float_range knows, within i32, to which they saturate.

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "tosaic/base/work.h"
#include "tosaic/passes/float_range.h"
#include "tosaic/passes/legalizer.h"
#include "tosaic/passes/match.h"

namespace tosaic::passes {
namespace {

__extension__ using Wide = __int128;

constexpr std::int64_t kHuge = std::int64_t{1} << 62;  // stands for "anything beyond"

struct Interval {
  std::int64_t min = -kHuge, max = kHuge;
};

std::int64_t clipped(Wide value) { return static_cast<std::int64_t>(std::clamp<Wide>(value, -kHuge, kHuge)); }

Interval united(const Interval& a, const Interval& b) {
  return {std::min(a.min, b.min), std::max(a.max, b.max)};
}

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

// Truncated and floored quotients are monotone in either operand while the divisor keeps its sign.
Interval quotient(const Interval& a, const Interval& b) {
  if (b.min <= 0 && b.max >= 0) {
    const Interval top = magnitude(a);
    return sum(united(top, negated(top)), {-1, 0});
  }
  Interval range{kHuge, -kHuge};
  for (const std::int64_t x : {a.min, a.max})
    for (const std::int64_t y : {b.min, b.max}) {
      const std::int64_t truncated = x / y;
      const std::int64_t floored = truncated - (x % y != 0 && (x < 0) != (y < 0) ? 1 : 0);
      range = united(range, {floored, truncated});
    }
  return range;
}

// The bits of two's complement that hold all operands of a bitwise operator hold its result as well.
Interval same_bits(const Interval& a) {
  std::int64_t limit = 1;
  while (limit < kHuge && (a.min < -limit || a.max >= limit)) limit *= 2;
  return {-limit, limit - 1};
}

Interval of_dtype(DType dtype) {
  switch (dtype) {  // NOLINT: integers; floats have no interval
    case DType::kBool:
      return {0, 1};
    case DType::kI8:
      return {-128, 127};
    case DType::kU8:
      return {0, 255};
    case DType::kI16:
      return {-32768, 32767};
    case DType::kU16:
      return {0, 65535};
    case DType::kI32:
      return {std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max()};
    default:
      return {};
  }
}

bool fits(const Interval& a, int bits) {
  return a.min >= -(std::int64_t{1} << bits) && a.max < (std::int64_t{1} << bits);
}

Interval of_constant(const Constant& constant) {
  if (num_elements(constant.shape) == 0) return {0, 0};
  if (!constant.storage.bound()) return of_dtype(constant.dtype);
  const ValueRange found = extremes_of(constant);
  return {found.low, found.high};
}

bool has_i64(const Graph& graph, ValueId id) { return graph.type(id).dtype == DType::kI64; }
bool has_i32(const Graph& graph, ValueId id) { return graph.type(id).dtype == DType::kI32; }

// What a cast to an integer makes of a float: truncated, saturated, 0 for NaN.
Interval of_cast(const FloatRange& range) {
  const Interval limits = of_dtype(DType::kI32);
  const auto whole = [&](double bound) {
    return static_cast<std::int64_t>(
        std::clamp(std::trunc(bound), static_cast<double>(limits.min), static_cast<double>(limits.max)));
  };
  return united({whole(range.min), whole(range.max)}, {0, 0});
}

// The range of each constant and, by its dtype, of everything else. Of a float, that of its cast: computed
// where it is cast, enters a region or leaves one, and not of weights, which are only large.
std::vector<Interval> ranges_of_dtypes(const Graph& graph) {
  std::vector<Interval> ranges(graph.values().size());
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const Value& value = graph.values()[i];
    if (is_float(value.type.dtype)) continue;
    ranges[i] =
        value.kind == ValueKind::kConstant ? of_constant(*value.constant) : of_dtype(value.type.dtype);
  }
  std::optional<FloatRanges> floats;
  const auto count = [&](ValueId id) {
    if (!id.valid() || !is_float(graph.type(id).dtype)) return;
    if (!floats) floats.emplace(graph);
    ranges[id.index()] = of_cast(floats->of(id));
  };
  for (const Node& node : graph.nodes()) {
    if (node.op != Op::kCast && node.regions.empty()) continue;
    for (const ValueId operand : graph.operands(node)) count(operand);
  }
  for (const Output& output : graph.outputs()) count(output.value);
  return ranges;
}

class Ranges {
 public:
  // `ranges`: of inputs and constants, by dtype of results.
  Ranges(const Graph& graph, std::vector<Interval> ranges, int bits)
      : graph_(graph), ranges_(std::move(ranges)) {
    work::add(graph.nodes().size() + graph.values().size());
    for (const Node& node : graph.nodes()) {
      if (!node.regions.empty()) {
        add_regions(node, bits);
        continue;
      }
      if (node.op == Op::kOpaque) {  // refused by name: what may overflow because of it is no news
        for (std::uint32_t r = 0; r < node.result_count; ++r) ranges_[node.first_result + r] = {0, 0};
        continue;
      }
      for (std::uint32_t r = 1; r < node.result_count; ++r)
        if (has_i64(graph, graph.result(node, r))) overflowing_.push_back(&node);
      if (node.result_count == 0 || is_float(graph.type(graph.result(node)).dtype)) continue;
      Interval& range = ranges_[node.first_result];
      const Interval computed = node.result_count == 1 ? of_node(node) : range;
      const bool stays = computed.min >= range.min && computed.max <= range.max;
      // Narrower dtypes wrap, and so do products and shifts of i32.
      const bool wraps = !has_i32(graph, graph.result(node)) || node.op == Op::kMul || node.op == Op::kPow ||
                         node.op == Op::kLeftShift;
      if (stays) range = computed;
      const bool counted = has_i64(graph, graph.result(node)) || has_i32(graph, graph.result(node));
      if ((!stays && !wraps) || (counted && !fits(range, bits))) overflowing_.push_back(&node);
    }
  }

  // The nodes whose i64 result may leave i32, or whose i32 result may overflow.
  [[nodiscard]] const std::vector<const Node*>& overflowing() const { return overflowing_; }
  [[nodiscard]] const Interval& of(ValueId value) const { return ranges_[value.index()]; }

 private:
  // Ranges inside a region that takes `inputs`.
  [[nodiscard]] static Ranges inside(const Graph& region, const std::vector<Interval>& inputs, int bits) {
    std::vector<Interval> known = ranges_of_dtypes(region);
    for (std::size_t i = 0; i < inputs.size(); ++i) known[region.inputs()[i].value.index()] = inputs[i];
    return Ranges(region, std::move(known), bits);
  }

  [[nodiscard]] static std::vector<Interval> given(const Graph& region, const Ranges& ranges) {
    std::vector<Interval> out;
    for (const Output& output : region.outputs()) out.push_back(ranges.of(output.value));
    return out;
  }

  // A node with regions overflows where something inside may, and where a result may.
  void add_regions(const Node& node, int bits) {
    const bool loop = node.op == Op::kWhileLoop;
    std::vector<Interval> operands;
    for (std::size_t i = loop ? 0 : 1; i < node.operand_count; ++i)
      operands.push_back(ranges_[graph_.operands(node)[i].index()]);
    if (loop) operands = loop_invariant(node, operands, bits);
    bool sound = true;
    for (std::size_t i = 0; i < node.regions.size(); ++i) {
      const Graph& region = *node.regions[i];
      const bool body = loop && i == 1;
      const Ranges ranges = inside(region, body ? entered(*node.regions[0], operands) : operands, bits);
      sound = sound && ranges.overflowing().empty();
      const std::vector<Interval> results = given(region, ranges);
      for (std::uint32_t r = 0; r < node.result_count && !loop; ++r) {
        Interval& range = ranges_[node.first_result + r];
        range = i == 0 ? results[r] : united(range, results[r]);
      }
    }
    for (std::uint32_t r = 0; r < node.result_count; ++r) {
      Interval& range = ranges_[node.first_result + r];
      if (loop) range = operands[r];
      const ValueId result = graph_.result(node, r);
      const bool counted = has_i64(graph_, result) || has_i32(graph_, result);
      sound = sound && (!counted || fits(range, bits));
    }
    if (!sound) overflowing_.push_back(&node);
  }

  // Ranges that hold before every turn of a loop: what it starts with, and what the body makes of them.
  // Bounds that still move after a few turns are dropped, and won back where the condition bounds the value.
  [[nodiscard]] static std::vector<Interval> loop_invariant(const Node& node,
                                                            const std::vector<Interval>& start, int bits) {
    constexpr int kTurns = 3;
    const Graph& condition = *node.regions[0];
    const Graph& body = *node.regions[1];
    const auto turned = [&](const std::vector<Interval>& ranges) {
      std::vector<Interval> next = given(body, inside(body, entered(condition, ranges), bits));
      next.insert(next.end(), start.begin() + node.result_count, start.end());  // only read
      for (std::size_t i = 0; i < next.size(); ++i) next[i] = united(next[i], start[i]);
      return next;
    };
    std::vector<Interval> ranges = start;
    for (std::size_t turn = 0;; ++turn) {
      const std::vector<Interval> next = turned(ranges);
      bool stable = true;
      for (std::size_t i = 0; i < next.size(); ++i) {
        const bool low = next[i].min<ranges[i].min, high = next[i].max> ranges[i].max;
        stable = stable && !low && !high;
        ranges[i] = united(ranges[i], next[i]);
        if (turn >= kTurns && low) ranges[i].min = -kHuge;
        if (turn >= kTurns && high) ranges[i].max = kHuge;
      }
      if (stable) break;
    }
    for (int turn = 0; turn < kTurns; ++turn) ranges = turned(ranges);  // each is an invariant again
    return ranges;
  }

  // The ranges with which the body is entered: those of the values that the condition compares are cut.
  [[nodiscard]] static std::vector<Interval> entered(const Graph& condition, std::vector<Interval> ranges) {
    cut(condition, condition.outputs()[0].value, ranges);
    return ranges;
  }

  // `truth` holds: input < n, input <= n, n > input ... with a number n, through and, views and casts of
  // bool.
  static void cut(const Graph& graph, ValueId truth, std::vector<Interval>& ranges) {
    const Node* node = graph.producer(truth);
    if (node == nullptr) return;
    const std::span<const ValueId> operands = graph.operands(*node);
    if (node->op == Op::kLogicalAnd || node->op == Op::kBitwiseAnd) {
      cut(graph, operands[0], ranges);
      cut(graph, operands[1], ranges);
      return;
    }
    if (info(node->op).has(kView) && graph.type(operands[0]).dtype == DType::kBool)
      return cut(graph, operands[0], ranges);
    const bool below = node->op == Op::kLt || node->op == Op::kLe;
    const bool above = node->op == Op::kGt || node->op == Op::kGe;
    if (!below && !above) return;
    const std::int64_t step = node->op == Op::kLt || node->op == Op::kGt ? 1 : 0;
    for (std::size_t side = 0; side < 2; ++side) {
      const Value& value = graph.value(viewed(graph, operands[side]));
      const Value& other = graph.value(viewed(graph, operands[1 - side]));
      if (value.kind != ValueKind::kInput || is_float(value.type.dtype) || is_float(other.type.dtype))
        continue;
      Interval bound;
      if (other.kind == ValueKind::kConstant)
        bound = of_constant(*other.constant);
      else if (other.kind == ValueKind::kInput)
        bound = ranges[other.result_index];
      else
        continue;
      Interval& range = ranges[value.result_index];
      if (below == (side == 0))
        range.max = std::max(range.min, std::min(range.max, bound.max - step));
      else
        range.min = std::min(range.max, std::max(range.min, bound.min + step));
    }
  }

  // What a value is a view of.
  [[nodiscard]] static ValueId viewed(const Graph& graph, ValueId id) {
    const Node* node = graph.producer(id);
    while (node != nullptr && info(node->op).has(kView)) {
      id = graph.operands(*node)[0];
      node = graph.producer(id);
    }
    return id;
  }

  [[nodiscard]] Interval at(const Node& node, std::size_t i) const {
    return ranges_[graph_.operands(node)[i].index()];
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

  [[nodiscard]] Interval power(const Node& node) const {
    const std::optional<double> exponent = splat_of(graph_, graph_.operands(node)[1]);
    if (!exponent || *exponent < 0.0 || *exponent > 64.0)
      return of_dtype(graph_.type(graph_.result(node)).dtype);
    Interval range{1, 1};
    for (int i = 0; i < static_cast<int>(*exponent); ++i) range = product(range, at(node, 0));
    return range;
  }

  // Smaller than the divisor, and of the sign of `like`.
  [[nodiscard]] Interval remainder(const Interval& like, const Node& node) const {
    const std::int64_t top = std::max<std::int64_t>(0, magnitude(at(node, 1)).max - 1);
    return {like.min < 0 ? -top : 0, like.max > 0 ? top : 0};
  }

  [[nodiscard]] Interval left_shift(const Node& node) const {
    const Interval count = at(node, 1);
    const auto power = [](std::int64_t bits) {
      return std::int64_t{1} << std::clamp<std::int64_t>(bits, 0, 62);
    };
    return united(product(at(node, 0), {power(count.min), power(count.max)}), {0, 0});
  }

  [[nodiscard]] std::int64_t reduced_count(const Node& node) const {
    const std::int64_t out = std::max<std::int64_t>(1, num_elements(graph_.type(graph_.result(node)).shape));
    return std::max<std::int64_t>(1, num_elements(graph_.type(graph_.operands(node)[0]).shape) / out);
  }

  [[nodiscard]] Interval of_node(const Node& node) const {
    switch (node.op) {  // NOLINT: operators with a tighter rule than their dtype's range
      case Op::kAdd:
        return sum(at(node, 0), scaled_operand(node));
      case Op::kSub:
        return sum(at(node, 0), negated(scaled_operand(node)));
      case Op::kMul:
        return product(at(node, 0), at(node, 1));
      case Op::kPow:
        return power(node);
      case Op::kDiv:
        return quotient(at(node, 0), at(node, 1));
      case Op::kRemainder:
      case Op::kFmod:
        return remainder(node.op == Op::kFmod ? at(node, 0) : at(node, 1), node);
      case Op::kLeftShift:
        return left_shift(node);
      case Op::kRightShift:
        return {std::min<std::int64_t>(at(node, 0).min, 0), std::max<std::int64_t>(at(node, 0).max, 0)};
      case Op::kNeg:
        return negated(at(node, 0));
      case Op::kAbs:
        return magnitude(at(node, 0));
      case Op::kSign:
        return {-1, 1};
      case Op::kMaximum: {
        const Interval a = at(node, 0), b = at(node, 1);
        return {std::max(a.min, b.min), std::max(a.max, b.max)};
      }
      case Op::kMinimum: {
        const Interval a = at(node, 0), b = at(node, 1);
        return {std::min(a.min, b.min), std::min(a.max, b.max)};
      }
      case Op::kRelu:
        return {std::max<std::int64_t>(at(node, 0).min, 0), std::max<std::int64_t>(at(node, 0).max, 0)};
      case Op::kClamp: {
        const auto& attrs = Graph::attrs<ClampAttrs>(node);
        Interval range = at(node, 0);
        if (attrs.min)
          range = {std::max(range.min, as_int(*attrs.min)), std::max(range.max, as_int(*attrs.min))};
        if (attrs.max)
          range = {std::min(range.min, as_int(*attrs.max)), std::min(range.max, as_int(*attrs.max))};
        return range;
      }
      case Op::kBitwiseAnd:
      case Op::kBitwiseOr:
      case Op::kBitwiseXor:
      case Op::kBitwiseNot:
        return same_bits(all_operands(node));
      case Op::kWhere:
        return united(at(node, 1), at(node, 2));
      case Op::kIndexPut:
        return united(at(node, 0), at(node, 1));
      case Op::kSum: {
        const std::int64_t count = reduced_count(node);
        return product(united(at(node, 0), {0, 0}), {count, count});
      }
      case Op::kCeil:
      case Op::kFloor:
      case Op::kRound:
      case Op::kTrunc:
      case Op::kEmbedding:
        return at(node, 0);
      case Op::kCat:
        return all_operands(node);
      case Op::kPad: {
        const std::int64_t value = as_int(Graph::attrs<PadAttrs>(node).value);
        return united(at(node, 0), {value, value});
      }
      case Op::kArgmax:
        return {0, std::max<std::int64_t>(0, num_elements(graph_.type(graph_.operands(node)[0]).shape) - 1)};
      default:
        return takes_elements(node.op) ? at(node, 0) : of_dtype(graph_.type(graph_.result(node)).dtype);
    }
  }

  const Graph& graph_;
  std::vector<Interval> ranges_;
  std::vector<const Node*> overflowing_;
};

bool has_integer_arithmetic(const Graph& graph) {
  return std::any_of(graph.values().begin(), graph.values().end(), [](const Value& value) {
    return value.kind != ValueKind::kConstant &&
           (value.type.dtype == DType::kI64 || value.type.dtype == DType::kI32);
  });
}

// By value: what the given nodes depend on.
std::vector<bool> behind(const Graph& graph, const std::vector<const Node*>& nodes) {
  std::vector<bool> seen(graph.values().size(), false);
  for (const Node* node : nodes) seen[node->first_result] = true;
  for (std::size_t n = graph.nodes().size(); n-- > 0;) {
    const Node& node = graph.nodes()[n];
    bool needed = false;
    for (std::uint32_t r = 0; r < node.result_count; ++r) needed = needed || seen[node.first_result + r];
    for (const ValueId operand : graph.operands(node))
      if (needed && operand.valid()) seen[operand.index()] = true;
  }
  return seen;
}

void report(const Graph& graph, const std::vector<const Node*>& nodes, int bits,
            std::vector<ErrorParts>& problems) {
  for (const Node* node : nodes) {
    if (bits < 31) {
      problems.push_back(located(
          {.where = "legalize-tosa",
           .what = "an integer result may leave the 24 bits that f32 counts exactly, and the target has no "
                   "integer arithmetic",
           .hint = "Bound the operands, e.g. with clamp, or lower for TOSA-1.0+INT+FP"},
          node->origin, graph.node_name(*node)));
      continue;
    }
    const bool wide = has_i64(graph, graph.result(*node));
    problems.push_back(located({.where = "legalize-tosa",
                                .what = wide ? "an i64 result may not fit i32, and TOSA has no i64"
                                             : "an i32 result may overflow, which TOSA leaves undefined",
                                .hint = "Bound the operands, e.g. with clamp"},
                               node->origin, graph.node_name(*node)));
  }
}

}  // namespace

std::vector<IntegerRange> narrow_integers(const Graph& graph, int max_bits,
                                          std::vector<ErrorParts>& problems) {
  constexpr int kMinBits = 8;
  const std::span<const Input> inputs = graph.inputs();
  std::vector<int> bits(inputs.size(), max_bits);
  const auto range_of = [&bits](std::size_t i) {
    const std::int64_t limit = std::int64_t{1} << bits[i];
    return IntegerRange{-limit, limit - 1};
  };
  std::vector<Interval> known;
  if (has_integer_arithmetic(graph)) known = ranges_of_dtypes(graph);
  for (bool narrowed = !known.empty(); narrowed;) {
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (has_i64(graph, inputs[i].value) || has_i32(graph, inputs[i].value))
        known[inputs[i].value.index()] = {range_of(i).min, range_of(i).max};
    const Ranges ranges(graph, known, max_bits);
    if (ranges.overflowing().empty()) break;
    const std::vector<bool> seen = behind(graph, ranges.overflowing());
    narrowed = false;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const ValueId value = inputs[i].value;
      if (!seen[value.index()] || bits[i] == kMinBits || !(has_i64(graph, value) || has_i32(graph, value)))
        continue;
      --bits[i];
      narrowed = true;
    }
    if (!narrowed) report(graph, ranges.overflowing(), max_bits, problems);
  }
  std::vector<IntegerRange> out;
  for (std::size_t i = 0; i < inputs.size(); ++i) out.push_back(range_of(i));
  return out;
}

}  // namespace tosaic::passes
