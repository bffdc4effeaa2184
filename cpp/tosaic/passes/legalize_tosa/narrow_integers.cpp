// narrow_integers: a range analysis that finds out under which inputs the integers of a graph fit i32.
//
// TOSA has no i64, and leaves the overflow of i32 sums undefined where torch wraps (products wrap in both).
// The analysis assumes a range for each integer input, and computes the interval of every integer value from
// inputs to outputs. The input ranges shrink until nothing overflows, then grow again as far as possible. The
// executor checks each input against its range in every run. The interval of a constant is that of its
// elements. The interval of a value that a loop updates holds before every iteration. The interval of a cast
// from float comes from float_range, clamped to i32, since the cast saturates.
//
// A target without profile INT represents integers in f32, which is exact up to 24 bits. There the same
// intervals show which values are too large for f32 and have to be i32 instead (IntegerPlan).

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "tosaic/base/work.h"
#include "tosaic/passes/legalize_tosa/float_range.h"
#include "tosaic/passes/legalize_tosa/legalizer.h"
#include "tosaic/passes/match.h"

namespace tosaic::passes {
namespace {

__extension__ using Wide = __int128;

constexpr std::int64_t kHuge = std::int64_t{1} << 62;  // represents every larger magnitude, too

// Both bounds are inclusive. Sums and products are clipped to [-kHuge, kHuge].
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

// Contains both the truncated and the floored quotient. Both are monotone in either operand as long as the
// divisor does not change sign.
Interval quotient(const Interval& a, const Interval& b) {
  if (b.min <= 0 && b.max >= 0) {
    const Interval top = magnitude(a);
    return united(top, negated(top));
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

// A width of two's complement that holds all operands of a bitwise operator holds its result, too.
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

// True if the interval is within [-2^bits, 2^bits - 1].
bool fits(const Interval& a, int bits) {
  return a.min >= -(std::int64_t{1} << bits) && a.max < (std::int64_t{1} << bits);
}

Interval of_constant(const Constant& constant) {
  if (num_elements(constant.shape) == 0) return {0, 0};
  if (!constant.storage.bound()) return of_dtype(constant.dtype);
  const ValueRange found = extremes_of(constant);
  return {found.low, found.high};
}

// All integers from -2^bits to 2^bits - 1.
Interval of_bits(int bits) { return {-(std::int64_t{1} << bits), (std::int64_t{1} << bits) - 1}; }

bool contains(const Interval& a, const Interval& b) { return a.min <= b.min && a.max >= b.max; }

// is_counted_exactly: f32 represents all integers of the interval. is_rounded_to_alone: in addition, no other
// i32 rounds to one of them. (2^24 + 1 rounds to 2^24, so 2^24 is excluded.)
constexpr int kCountedBits = 24;
bool is_counted_exactly(const Interval& a) { return fits(a, kCountedBits); }
bool is_rounded_to_alone(const Interval& a) {
  return contains({-(std::int64_t{1} << kCountedBits) + 1, (std::int64_t{1} << kCountedBits) - 1}, a);
}

bool has_i64(const Graph& graph, ValueId id) { return graph.type(id).dtype == DType::kI64; }
bool has_i32(const Graph& graph, ValueId id) { return graph.type(id).dtype == DType::kI32; }

// The result of a cast of floats to integers: truncated, saturated to i32, 0 for NaN.
Interval of_cast(const FloatRange& range) {
  const Interval limits = of_dtype(DType::kI32);
  const auto whole = [&](double bound) {
    return static_cast<std::int64_t>(
        std::clamp(std::trunc(bound), static_cast<double>(limits.min), static_cast<double>(limits.max)));
  };
  return united({whole(range.min), whole(range.max)}, {0, 0});
}

// Initial intervals by value: of a constant that of its elements, of another integer that of its dtype. A
// float has the interval of its cast to an integer, which is computed only if the float is cast, is an
// operand of a node with regions, or is an output: other floats, such as weights, would only cost time.
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

// The results of a foreign operator that its user described are what TOSA gives for their dtypes: i32 for
// i64. A foreign operator without description is refused by name, and what overflows because of it is not
// reported.
Interval foreign_range(const Node& node, DType dtype) {
  if (Graph::attrs<OpaqueAttrs>(node).name.empty()) return {0, 0};
  return of_dtype(dtype == DType::kI64 ? DType::kI32 : dtype);
}

// Operators that become INTDIV, which has no quotient of the lowest i32 and -1.
bool divides(Op op) { return op == Op::kDiv || op == Op::kRemainder || op == Op::kFmod; }

// The intervals of all integer values of a graph, and the nodes that may overflow.
class Ranges {
 public:
  // `ranges`: initial intervals by value, of inputs those to assume. `bits`: an i64 or i32 result overflows
  // unless it is within [-2^bits, 2^bits - 1]. `region_bits`: the same for operands and results of nodes with
  // regions and for everything inside the regions.
  Ranges(const Graph& graph, std::vector<Interval> ranges, int bits, int region_bits)
      : graph_(graph), ranges_(std::move(ranges)), computed_(graph.nodes().size()) {
    work::add(graph.nodes().size() + graph.values().size());
    for (const Node& node : graph.nodes()) {
      if (!node.regions.empty()) {
        add_regions(node, region_bits);
        continue;
      }
      if (node.op == Op::kOpaque) {
        for (std::uint32_t r = 0; r < node.result_count; ++r)
          ranges_[node.first_result + r] = foreign_range(node, graph.type(graph.result(node, r)).dtype);
        continue;
      }
      for (std::uint32_t r = 1; r < node.result_count; ++r)
        if (has_i64(graph, graph.result(node, r))) overflowing_.push_back(&node);
      if (node.result_count == 0 || is_float(graph.type(graph.result(node)).dtype)) continue;
      Interval& range = ranges_[node.first_result];
      const Interval computed = node.result_count == 1 ? of_node(node) : range;
      computed_[graph.id(node).index()] = computed;
      const bool stays = contains(range, computed);
      // Results that wrap in torch and in the legalized program alike: narrower dtypes, products and left
      // shifts of i32, and the lowest i32 when its sign changes. (i64 has no bounds here; the test of `bits`
      // covers it.)
      const bool wraps = !has_i32(graph, graph.result(node)) || node.op == Op::kMul || node.op == Op::kPow ||
                         node.op == Op::kLeftShift || node.op == Op::kNeg || node.op == Op::kAbs;
      if (stays) range = computed;
      const bool counted = has_i64(graph, graph.result(node)) || has_i32(graph, graph.result(node));
      if ((!stays && !wraps) || (counted && !fits(range, bits)) || has_no_quotient(node))
        overflowing_.push_back(&node);
    }
  }

  // The nodes whose i64 or i32 result may overflow i32 (or `bits`), and divisions without a quotient.
  [[nodiscard]] const std::vector<const Node*>& overflowing() const { return overflowing_; }
  [[nodiscard]] const Interval& of(ValueId value) const { return ranges_[value.index()]; }
  // The interval of the node's result before it wraps to its dtype.
  [[nodiscard]] const Interval& computed(const Node& node) const {
    return computed_[graph_.id(node).index()];
  }

 private:
  [[nodiscard]] bool has_no_quotient(const Node& node) const {
    if (!divides(node.op) || !(has_i32(graph_, graph_.result(node)) || has_i64(graph_, graph_.result(node))))
      return false;
    return at(node, 0).min <= of_bits(31).min && contains(at(node, 1), {-1, -1});
  }

  // The intervals inside a region whose inputs have the intervals `inputs`.
  [[nodiscard]] static Ranges inside(const Graph& region, const std::vector<Interval>& inputs, int bits) {
    std::vector<Interval> known = ranges_of_dtypes(region);
    for (std::size_t i = 0; i < inputs.size(); ++i) known[region.inputs()[i].value.index()] = inputs[i];
    return Ranges(region, std::move(known), bits, bits);
  }

  // The intervals of the outputs of a region.
  [[nodiscard]] static std::vector<Interval> given(const Graph& region, const Ranges& ranges) {
    std::vector<Interval> out;
    for (const Output& output : region.outputs()) out.push_back(ranges.of(output.value));
    return out;
  }

  // A node with regions overflows if an operand, a result or anything inside its regions may overflow `bits`.
  void add_regions(const Node& node, int bits) {
    const bool loop = node.op == Op::kWhileLoop;
    std::vector<Interval> operands;
    for (std::size_t i = loop ? 0 : 1; i < node.operand_count; ++i)
      operands.push_back(ranges_[graph_.operands(node)[i].index()]);
    bool sound = true;
    for (const ValueId operand : graph_.operands(node))
      sound = sound && (!is_integer(graph_.type(operand).dtype) || fits(ranges_[operand.index()], bits));
    if (loop) operands = loop_invariant(node, operands, bits);
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

  // Intervals that hold before every iteration of a loop: a fixed point of "the start values, united with
  // what the body returns". A bound that still moves after kTurns iterations becomes infinite. The last
  // iterations make it finite again if the condition bounds the value.
  [[nodiscard]] static std::vector<Interval> loop_invariant(const Node& node,
                                                            const std::vector<Interval>& start, int bits) {
    constexpr int kTurns = 3;
    const Graph& condition = *node.regions[0];
    const Graph& body = *node.regions[1];
    const auto turned = [&](const std::vector<Interval>& ranges) {
      std::vector<Interval> next = given(body, inside(body, entered(condition, ranges), bits));
      next.insert(next.end(), start.begin() + node.result_count, start.end());  // operands that are only read
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
    for (int turn = 0; turn < kTurns; ++turn) ranges = turned(ranges);  // each is an invariant, too
    return ranges;
  }

  // The intervals at the start of the body: those before the iteration, narrowed by the condition.
  [[nodiscard]] static std::vector<Interval> entered(const Graph& condition, std::vector<Interval> ranges) {
    cut(condition, condition.outputs()[0].value, ranges);
    return ranges;
  }

  // Narrows the intervals of inputs, given that `truth` is true. `truth` may be an order comparison (kLt,
  // kLe, kGt, kGe) of an input with a constant or another input, a conjunction of such comparisons, or a view
  // of these.
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

  // The value that `id` is a view of, through any number of views; `id` if it is none.
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

  // In magnitude smaller than the divisor, with the sign of `like`.
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

  // After a shift by a count that is negative, or at least the width of the dtype, only the sign remains.
  [[nodiscard]] Interval right_shift(const Node& node) const {
    const Interval value = at(node, 0), count = at(node, 1);
    const auto shifted = [](std::int64_t x, std::int64_t bits) {
      return bits < 0 || bits > 62 ? (x < 0 ? -1 : 0) : x >> bits;
    };
    Interval range{shifted(value.min, count.min), shifted(value.max, count.min)};
    range = united(range, {shifted(value.min, count.max), shifted(value.max, count.max)});
    if (count.min < 0 && count.max >= 0) range = united(range, value);
    return range;
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
        return right_shift(node);
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
        return has_elements_of_input(node.op) ? at(node, 0)
                                              : of_dtype(graph_.type(graph_.result(node)).dtype);
    }
  }

  const Graph& graph_;
  std::vector<Interval> ranges_;    // by value
  std::vector<Interval> computed_;  // by node
  std::vector<const Node*> overflowing_;
};

// ---- the dtypes of integers on a target without profile INT: f32, or i32 ("wide") ----

bool is_carried(DType dtype) {
  return dtype == DType::kI8 || dtype == DType::kI16 || dtype == DType::kI32 || dtype == DType::kI64;
}

// What a node needs of an integer operand.
enum class Reading : std::uint8_t {
  kExact,     // its exact value
  kRounded,   // its value rounded to f32
  kAsResult,  // what the readers of the result need: rounding the operand is the same as rounding the result
};

bool is_comparison(Op op) {
  return op == Op::kEq || op == Op::kNe || op == Op::kLt || op == Op::kLe || op == Op::kGt || op == Op::kGe;
}

// These read every bit of their operands, so they compute in i32 whenever the result is an integer.
bool is_bitwise(Op op) {
  return op == Op::kBitwiseNot || op == Op::kBitwiseAnd || op == Op::kBitwiseOr || op == Op::kBitwiseXor;
}

// Every element of the result is an element of an operand, or a monotone function of it that commutes with
// rounding to f32.
bool passes_rounding_on(Op op) {
  switch (op) {  // NOLINT: the operators that do
    case Op::kWhere:
    case Op::kClamp:
    case Op::kRelu:
    case Op::kMaximum:
    case Op::kMinimum:
    case Op::kCeil:
    case Op::kFloor:
    case Op::kRound:
    case Op::kTrunc:
    case Op::kCat:
    case Op::kPad:
    case Op::kEmbedding:
    case Op::kIndexPut:
      return true;
    default:
      return has_elements_of_input(op) && op != Op::kMaxPool;
  }
}

bool computes_exactly(Op op) {
  switch (op) {  // NOLINT: the operators that are composed of i32 arithmetic
    case Op::kSum:
    case Op::kArgmax:
    case Op::kAdd:
    case Op::kSub:
    case Op::kMul:
    case Op::kDiv:
    case Op::kRemainder:
    case Op::kFmod:
    case Op::kPow:
    case Op::kNeg:
    case Op::kAbs:
    case Op::kLeftShift:
    case Op::kRightShift:
      return true;
    default:
      return is_bitwise(op);
  }
}

// Decides, for a target without profile INT, which values are i32 instead of f32 and which nodes compute in
// i32. A value is i32 if it may be beyond 24 bits and one of its readers needs it exactly; outputs are read
// exactly.
class Carriage {
 public:
  // `part`: in a region all integers are proven to fit 24 bits, even if their interval in `ranges` is wider.
  Carriage(const Graph& graph, const Ranges& ranges, Legalizer::Part part)
      : graph_(graph), ranges_(ranges), region_(part == Legalizer::Part::kRegion) {
    plan_.wide_values.assign(graph.values().size(), false);
    plan_.wide_nodes.assign(graph.nodes().size(), false);
    for (const Output& output : graph.outputs()) need_exactly(output.value);
    for (std::size_t n = graph.nodes().size(); n-- > 0;) {
      const Node& node = graph.nodes()[n];
      for (std::size_t i = 0; i < node.operand_count; ++i) {
        const ValueId operand = graph.operands(node)[i];
        if (operand.valid() && reads_exactly(node, i)) need_exactly(operand);
      }
    }
    for (std::size_t n = 0; n < graph.nodes().size(); ++n)
      plan_.wide_nodes[n] = computes_wide(graph.nodes()[n]);
  }

  [[nodiscard]] IntegerPlan plan() && { return std::move(plan_); }

  // Nodes that read or produce integers beyond 24 bits and have no rule for them.
  [[nodiscard]] std::vector<const Node*> refused() const {
    std::vector<const Node*> nodes;
    for (const Node& node : graph_.nodes()) {
      if (!node.regions.empty() || node.op == Op::kOpaque) continue;
      bool wide = node.result_count != 0 && is_wide(graph_.result(node));
      for (std::size_t i = 0; i < node.operand_count; ++i) {
        const ValueId operand = graph_.operands(node)[i];
        wide = wide || (operand.valid() && is_wide(operand) && reads_exactly(node, i));
      }
      if (wide && !has_wide_rule(node.op)) nodes.push_back(&node);
    }
    return nodes;
  }

 private:
  [[nodiscard]] bool is_wide(ValueId id) const { return plan_.wide_values[id.index()]; }

  [[nodiscard]] bool is_large(ValueId id) const {
    const DType dtype = graph_.type(id).dtype;
    return !region_ && is_carried(dtype) && !is_counted_exactly(ranges_.of(id));
  }

  void need_exactly(ValueId id) {
    if (is_large(id)) plan_.wide_values[id.index()] = true;
  }

  static bool has_wide_rule(Op op) {
    if (op == Op::kIndex) return false;
    return passes_rounding_on(op) || computes_exactly(op) || is_comparison(op);
  }

  [[nodiscard]] bool reads_exactly(const Node& node, std::size_t i) const {
    const Reading needed = reading(node, i);
    if (needed != Reading::kAsResult) return needed == Reading::kExact;
    return is_wide(graph_.result(node));
  }

  // True if a comparison has the same result once both integers are rounded to f32.
  [[nodiscard]] bool compares_roundings(const Node& node) const {
    for (const ValueId operand : graph_.operands(node))
      if (is_float(graph_.type(operand).dtype)) return true;  // torch compares them as floats
    const Interval& a = ranges_.of(graph_.operands(node)[0]);
    const Interval& b = ranges_.of(graph_.operands(node)[1]);
    return is_rounded_to_alone(a) || is_rounded_to_alone(b) ||
           (is_counted_exactly(a) && is_counted_exactly(b));
  }

  // f32 is enough for an index into a table of at most 2^24 rows: if the rounded index is within the table,
  // the rounding was exact.
  [[nodiscard]] Reading index_reading(const Node& node) const {
    for (const std::int64_t extent : graph_.type(graph_.operands(node)[0]).shape)
      if (extent > std::int64_t{1} << kCountedBits) return Reading::kExact;
    return Reading::kRounded;
  }

  [[nodiscard]] Reading reading(const Node& node, std::size_t i) const {
    if (node.result_count == 0 || !node.regions.empty()) return Reading::kExact;
    const DType result = graph_.type(graph_.result(node)).dtype;
    if (is_comparison(node.op)) return compares_roundings(node) ? Reading::kRounded : Reading::kExact;
    switch (node.op) {  // NOLINT: operators with a rule of their own
      case Op::kCast:
        if (!is_carried(result)) return Reading::kRounded;
        return byte_size(result) < 4 ? Reading::kExact : Reading::kAsResult;
      case Op::kSign:
      case Op::kLogicalNot:
      case Op::kLogicalAnd:
      case Op::kLogicalOr:
      case Op::kLogicalXor:
      case Op::kAny:
      case Op::kAll:
        return Reading::kRounded;
      case Op::kWhere:
        return i == 0 ? Reading::kRounded : Reading::kAsResult;
      case Op::kEmbedding:
      case Op::kIndexSelect:
      case Op::kGather:
        return i == 1 ? index_reading(node) : Reading::kAsResult;
      case Op::kIndexPut:
        return i == 2 ? index_reading(node) : Reading::kAsResult;
      default:
        if (passes_rounding_on(node.op)) return Reading::kAsResult;
        return is_float(result) ? Reading::kRounded : Reading::kExact;
    }
  }

  // True if the node computes in i32.
  [[nodiscard]] bool computes_wide(const Node& node) const {
    if (node.result_count != 1 || !node.regions.empty()) return false;
    const ValueId result = graph_.result(node);
    const std::span<const ValueId> operands = graph_.operands(node);
    if (is_comparison(node.op))
      return !region_ && is_carried(graph_.type(operands[0]).dtype) && !compares_roundings(node);
    if (!is_carried(graph_.type(result).dtype)) return false;
    if (is_bitwise(node.op)) return true;
    const bool shifts = node.op == Op::kLeftShift || node.op == Op::kRightShift;
    if (shifts && !splat_of(graph_, operands[1])) return true;
    if (node.op == Op::kCast) return is_large(operands[0]) ? reads_exactly(node, 0) : is_large(result);
    if (!computes_exactly(node.op)) return has_wide_rule(node.op) && is_wide(result);
    bool large = is_large(result);
    for (const ValueId operand : operands) large = large || is_large(operand);
    return large || !is_within_counting(node);
  }

  // True if the result before it wraps is within the 24 bits that f32 represents exactly, or within 23 bits
  // if it does wrap, since wrap_integers adds to it. In a region, results of i32 and i64 are proven to be.
  [[nodiscard]] bool is_within_counting(const Node& node) const {
    const Interval& computed = ranges_.computed(node);
    const DType dtype = graph_.type(graph_.result(node)).dtype;
    if (region_ && byte_size(dtype) >= 4) return true;
    const bool wraps = byte_size(dtype) < 4 && !contains(of_dtype(dtype), computed);
    return fits(computed, wraps ? kCountedBits - 1 : kCountedBits);
  }

  const Graph& graph_;
  const Ranges& ranges_;
  bool region_;
  IntegerPlan plan_;
};

// By value: true if one of the given nodes depends on it. Of the operands of a given division only the
// dividend counts, since a smaller range of the divisor does not prevent an overflow.
std::vector<bool> behind(const Graph& graph, const std::vector<const Node*>& nodes) {
  std::vector<bool> seen(graph.values().size(), false);
  const auto see = [&](const Node& node, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i)
      if (const ValueId operand = graph.operands(node)[i]; operand.valid()) seen[operand.index()] = true;
  };
  for (const Node* node : nodes) see(*node, divides(node->op) ? 1 : node->operand_count);
  for (std::size_t n = graph.nodes().size(); n-- > 0;) {
    const Node& node = graph.nodes()[n];
    bool needed = false;
    for (std::uint32_t r = 0; r < node.result_count; ++r) needed = needed || seen[node.first_result + r];
    if (needed) see(node, node.operand_count);
  }
  return seen;
}

struct Overflow {
  std::vector<const Node*> of_i32;       // an i64 or i32 result may not fit i32
  std::vector<const Node*> of_counting;  // without profile INT: beyond 24 bits, and no rule for i32

  [[nodiscard]] bool empty() const { return of_i32.empty() && of_counting.empty(); }
  [[nodiscard]] std::vector<const Node*> all() const {
    std::vector<const Node*> nodes = of_i32;
    nodes.insert(nodes.end(), of_counting.begin(), of_counting.end());
    return nodes;
  }
};

void report(const Graph& graph, const Overflow& overflow, std::vector<ErrorParts>& problems) {
  for (const Node* node : overflow.of_counting)
    problems.push_back(located(
        {.where = "legalize-tosa",
         .what = "an integer result may leave the 24 bits that f32 counts exactly, and the target has no "
                 "integer arithmetic",
         .hint = "Bound the operands, e.g. with clamp, or lower for TOSA-1.0+INT+FP"},
        node->origin, graph.node_name(*node)));
  for (const Node* node : overflow.of_i32) {
    const bool wide = has_i64(graph, graph.result(*node));
    problems.push_back(located({.where = "legalize-tosa",
                                .what = wide ? "an i64 result may not fit i32, and TOSA has no i64"
                                             : "an i32 result may overflow, which TOSA leaves undefined",
                                .hint = "Bound the operands, e.g. with clamp"},
                               node->origin, graph.node_name(*node)));
  }
}

// The search for input ranges under which nothing overflows ("the proof holds").
class Proof {
 public:
  Proof(const Graph& graph, bool integer_arithmetic)
      : graph_(graph),
        counts_(!integer_arithmetic),
        known_(ranges_of_dtypes(graph)),
        inputs_(graph.inputs().size(), of_bits(31)) {}

  // Shrinks the ranges of all inputs that an overflowing node depends on, step by step, until the proof
  // holds. Returns what may still overflow when no range can shrink further; empty if the proof holds.
  Overflow shrink() {
    std::vector<int> steps(inputs_.size(), 0);
    for (;;) {
      const Overflow overflow = overflowing();
      if (overflow.empty()) return overflow;
      const std::vector<bool> seen = behind(graph_, overflow.all());
      bool narrowed = false;
      for (std::size_t i = 0; i < inputs_.size(); ++i) {
        if (!is_free(i) || !seen[graph_.inputs()[i].value.index()] || steps[i] == kMostSteps) continue;
        inputs_[i] = after(++steps[i]);
        narrowed = true;
      }
      if (!narrowed) return overflow;
    }
  }

  // Moves each bound outward again as far as the proof still holds, one bound after the other.
  void grow() {
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (!is_free(i)) continue;
      inputs_[i].max = furthest(inputs_[i].max, of_bits(31).max,
                                [&](std::int64_t bound) { return holds_with(i, {inputs_[i].min, bound}); });
      inputs_[i].min = furthest(inputs_[i].min, of_bits(31).min,
                                [&](std::int64_t bound) { return holds_with(i, {bound, inputs_[i].max}); });
    }
  }

  [[nodiscard]] IntegerPlan plan() {
    const Ranges ranges = found();
    IntegerPlan plan;
    if (counts_) plan = Carriage(graph_, ranges, Legalizer::Part::kProgram).plan();
    plan.wraps = wrapping(graph_, ranges);
    for (const Interval& input : inputs_) plan.inputs.push_back({input.min, input.max});
    return plan;
  }

  // By node: true if the result may exceed its dtype, and then wraps.
  static std::vector<bool> wrapping(const Graph& graph, const Ranges& ranges) {
    std::vector<bool> wraps;
    for (const Node& node : graph.nodes()) {
      const bool counted = node.result_count == 1 && is_carried(graph.type(graph.result(node)).dtype);
      wraps.push_back(counted &&
                      !contains(of_dtype(graph.type(graph.result(node)).dtype), ranges.computed(node)));
    }
    return wraps;
  }

 private:
  static constexpr int kMostSteps = 24;

  // Step 1 only drops the lowest i32, which has no negative; every further step drops one bit.
  static Interval after(int step) {
    if (step == 1) return {of_bits(31).min + 1, of_bits(31).max};
    return of_bits(32 - step);
  }

  [[nodiscard]] bool is_free(std::size_t i) const {
    const ValueId value = graph_.inputs()[i].value;
    return has_i64(graph_, value) || has_i32(graph_, value);
  }

  [[nodiscard]] Ranges found() {
    for (std::size_t i = 0; i < inputs_.size(); ++i)
      if (is_free(i)) known_[graph_.inputs()[i].value.index()] = inputs_[i];
    return {graph_, known_, 31, counts_ ? kCountedBits : 31};
  }

  [[nodiscard]] Overflow overflowing() {
    const Ranges ranges = found();
    Overflow overflow;
    for (const Node* node : ranges.overflowing())
      (counts_ && !node->regions.empty() ? overflow.of_counting : overflow.of_i32).push_back(node);
    if (counts_) {
      const std::vector<const Node*> refused = Carriage(graph_, ranges, Legalizer::Part::kProgram).refused();
      overflow.of_counting.insert(overflow.of_counting.end(), refused.begin(), refused.end());
    }
    return overflow;
  }

  bool holds_with(std::size_t i, Interval range) {
    std::swap(inputs_[i], range);
    const bool holds = overflowing().empty();
    std::swap(inputs_[i], range);
    return holds;
  }

  // The bound nearest to `limit` for which `holds` is true, by bisection; it is true for `bound`.
  template <class F>
  static std::int64_t furthest(std::int64_t bound, std::int64_t limit, F holds) {
    if (bound == limit || holds(limit)) return limit;
    while (std::abs(limit - bound) > 1) {
      const std::int64_t middle = bound + (limit - bound) / 2;
      (holds(middle) ? bound : limit) = middle;
    }
    return bound;
  }

  const Graph& graph_;
  bool counts_;
  std::vector<Interval> known_;   // initial intervals by value
  std::vector<Interval> inputs_;  // assumed ranges by input
};

bool has_integers(const Graph& graph) {
  return std::any_of(graph.values().begin(), graph.values().end(), [](const Value& value) {
    return value.kind != ValueKind::kConstant && is_carried(value.type.dtype);
  });
}

}  // namespace

IntegerPlan narrow_integers(const Graph& graph, bool integer_arithmetic, std::vector<ErrorParts>& problems) {
  if (!has_integers(graph)) {
    IntegerPlan plan;
    plan.inputs.resize(graph.inputs().size(), {of_bits(31).min, of_bits(31).max});
    return plan;
  }
  Proof proof(graph, integer_arithmetic);
  const Overflow overflow = proof.shrink();
  if (overflow.empty())
    proof.grow();
  else
    report(graph, overflow, problems);
  return proof.plan();
}

IntegerPlan narrow_region_integers(const Graph& region, bool integer_arithmetic) {
  std::vector<Interval> known = ranges_of_dtypes(region);
  const int bits = integer_arithmetic ? 31 : kCountedBits;
  for (const Input& input : region.inputs())
    if (has_i64(region, input.value) || has_i32(region, input.value))
      known[input.value.index()] = of_bits(bits);
  const Ranges ranges(region, std::move(known), bits, bits);
  IntegerPlan plan;
  if (!integer_arithmetic) plan = Carriage(region, ranges, Legalizer::Part::kRegion).plan();
  plan.wraps = Proof::wrapping(region, ranges);
  return plan;
}

}  // namespace tosaic::passes
