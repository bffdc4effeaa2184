// The rules for ranges of integers, and the search for nodes whose results may overflow.
#include <algorithm>
#include <array>
#include <cmath>

#include "tosaic/analysis/ranges/ranges.h"
#include "tosaic/analysis/ranges/rule_table.h"
#include "tosaic/base/work.h"
#include "tosaic/ir/constant_value.h"

namespace tosaic::analysis {
namespace {

// True if the range is within [-2^bits, 2^bits - 1].
bool fits(const ValueRange& range, int bits) { return integers_of_bits(bits).contains(range); }

// The dtypes whose overflow is a problem: results of narrower dtypes wrap.
bool can_overflow(const Graph& graph, ValueId id) {
  const DType dtype = graph.type(id).dtype;
  return dtype == DType::kI64 || dtype == DType::kI32;
}

ValueRange of_constant(const Constant& constant) {
  if (num_elements(constant.shape) == 0) return {0, 0};
  if (!constant.storage.bound()) return range_of_dtype(constant.dtype);
  return extremes_of(constant);
}

// The range of a cast of floats to integers: numbers are truncated and saturate to i32, and NaN becomes 0.
ValueRange of_cast(const FloatRange& range) {
  const ValueRange limits = range_of_dtype(DType::kI32);
  const auto whole = [&](double bound) {
    return static_cast<std::int64_t>(
        std::clamp(std::trunc(bound), static_cast<double>(limits.low), static_cast<double>(limits.high)));
  };
  return united({whole(range.bounds.low), whole(range.bounds.high)}, ValueRange::only(0));
}

// The results of a foreign operator that its user described have the range of the TOSA dtype: i32 for i64. A
// foreign operator without description is refused by name, and overflows that its results cause are not
// reported.
ValueRange foreign_range(const Node& node, DType dtype) {
  if (Graph::attrs<OpaqueAttrs>(node).name.empty()) return {0, 0};
  return range_of_dtype(dtype == DType::kI64 ? DType::kI32 : dtype);
}

// ---- the rules: the range of a node's result before it wraps to its dtype ----

// A node, and the ranges of the values before it.
struct Site {
  const Graph& graph;
  const std::vector<ValueRange>& ranges;  // by value
  const Node& node;

  [[nodiscard]] ValueId operand(std::size_t i) const { return graph.operands(node)[i]; }
  // Integers with qparams represent other numbers than themselves; nothing is known about those numbers.
  [[nodiscard]] ValueRange at(std::size_t i) const {
    const bool represents = graph.stage == Stage::kQuantized && graph.type(operand(i)).qparams;
    return represents ? ValueRange::all() : ranges[operand(i).index()];
  }
  [[nodiscard]] ValueRange all() const {
    ValueRange range = at(0);
    for (std::size_t i = 1; i < node.operand_count; ++i) range = united(range, at(i));
    return range;
  }
  [[nodiscard]] DType result_dtype() const { return graph.type(graph.result(node)).dtype; }
  template <class A>
  [[nodiscard]] const A& attrs() const {
    return Graph::attrs<A>(node);
  }
};
using Rule = ValueRange (*)(const Site&);

ValueRange first_operand(const Site& s) { return s.at(0); }
ValueRange first_two(const Site& s) { return united(s.at(0), s.at(1)); }
ValueRange all_operands(const Site& s) { return s.all(); }
ValueRange first_operand_or_zero(const Site& s) { return united(s.at(0), ValueRange::only(0)); }

ValueRange scaled_operand(const Site& s) {
  return product(s.at(1), ValueRange::only(as_int(s.attrs<AlphaAttrs>().alpha)));
}

ValueRange power(const Site& s) {
  const std::optional<double> exponent = splat_of(s.graph, s.operand(1));
  if (!exponent || *exponent < 0.0 || *exponent > 64.0) return range_of_dtype(s.result_dtype());
  ValueRange range{1, 1};
  for (int i = 0; i < static_cast<int>(*exponent); ++i) range = product(range, s.at(0));
  return range;
}

// The range of a remainder: its magnitude is smaller than that of the divisor, and it has the sign of `like`.
ValueRange remainder_like(const ValueRange& like, const ValueRange& divisor) {
  const std::int64_t largest = std::max<std::int64_t>(0, magnitude(divisor).high - 1);
  return {like.low < 0 ? -largest : 0, like.high > 0 ? largest : 0};
}

// A dividend that is nearer to 0 than the divisor, and on the same side, is its own remainder.
ValueRange remainder(const Site& s) {
  const ValueRange value = s.at(0), divisor = s.at(1);
  ValueRange range = remainder_like(divisor, divisor);
  if (value.low >= 0 && divisor.low >= 0) range.high = std::min(range.high, value.high);
  if (value.high <= 0 && divisor.high <= 0) range.low = std::max(range.low, value.low);
  return range;
}

ValueRange truncated_remainder(const Site& s) {
  const ValueRange value = s.at(0), range = remainder_like(value, s.at(1));
  return {std::max(range.low, std::min<std::int64_t>(value.low, 0)),
          std::min(range.high, std::max<std::int64_t>(value.high, 0))};
}

ValueRange left_shift(const Site& s) {
  const ValueRange count = s.at(1);
  const auto power_of_two = [](std::int64_t bits) {
    return std::int64_t{1} << std::clamp<std::int64_t>(bits, 0, 62);
  };
  return united(product(s.at(0), {power_of_two(count.low), power_of_two(count.high)}), ValueRange::only(0));
}

// The range of a right shift. A count that is negative, or at least the width of the dtype, shifts out all
// bits but the sign.
ValueRange right_shift(const Site& s) {
  const ValueRange value = s.at(0), count = s.at(1);
  const auto shifted = [](std::int64_t x, std::int64_t bits) {
    return bits < 0 || bits > 62 ? (x < 0 ? -1 : 0) : x >> bits;
  };
  ValueRange range{shifted(value.low, count.low), shifted(value.high, count.low)};
  range = united(range, {shifted(value.low, count.high), shifted(value.high, count.high)});
  if (count.low < 0 && count.high >= 0) range = united(range, value);
  return range;
}

ValueRange clamp(const Site& s) {
  const auto& attrs = s.attrs<ClampAttrs>();
  ValueRange range = s.at(0);
  if (attrs.min) range = larger_of(range, ValueRange::only(as_int(*attrs.min)));
  if (attrs.max) range = smaller_of(range, ValueRange::only(as_int(*attrs.max)));
  return range;
}

// The integers of as many bits of two's complement as both operands need: they hold every bitwise result.
ValueRange common_bits(const Site& s) {
  const ValueRange operands = united(s.at(0), s.at(1));
  for (int bits = 0; bits < 63; ++bits)
    if (fits(operands, bits)) return integers_of_bits(bits);
  return ValueRange::all();
}

// The result has no bit that an operand lacks. So it is from 0 to any operand that is not negative, whatever
// the other operand is: x & 0xff is from 0 to 255.
ValueRange bitwise_and(const Site& s) {
  const ValueRange a = s.at(0), b = s.at(1);
  if (a.low >= 0 && b.low >= 0) return {0, std::min(a.high, b.high)};
  if (a.low >= 0) return {0, a.high};
  if (b.low >= 0) return {0, b.high};
  return {common_bits(s).low, std::max(a.high, b.high)};
}

// The result has all bits of both operands. So it is from any negative operand to -1, and no less than
// operands that are not negative.
ValueRange bitwise_or(const Site& s) {
  const ValueRange a = s.at(0), b = s.at(1), bits = common_bits(s);
  if (a.low >= 0 && b.low >= 0) return {std::max(a.low, b.low), bits.high};
  if (a.high < 0 && b.high < 0) return {std::max(a.low, b.low), -1};
  if (a.high < 0) return {a.low, -1};
  if (b.high < 0) return {b.low, -1};
  return {std::min(a.low, b.low), bits.high};
}

// The result is negative if one operand is.
ValueRange bitwise_xor(const Site& s) {
  const ValueRange a = s.at(0), b = s.at(1), bits = common_bits(s);
  if ((a.low >= 0 && b.low >= 0) || (a.high < 0 && b.high < 0)) return {0, bits.high};
  if ((a.low >= 0 && b.high < 0) || (a.high < 0 && b.low >= 0)) return {bits.low, -1};
  return bits;
}

// ~x is -1 - x.
ValueRange bitwise_not(const Site& s) { return sum(ValueRange::only(-1), negated(s.at(0))); }

ValueRange sum_over_axes(const Site& s) {
  const std::int64_t results =
      std::max<std::int64_t>(1, num_elements(s.graph.type(s.graph.result(s.node)).shape));
  const std::int64_t count =
      std::max<std::int64_t>(1, num_elements(s.graph.type(s.operand(0)).shape) / results);
  return product(united(s.at(0), ValueRange::only(0)), ValueRange::only(count));
}

ValueRange cumulative_sum(const Site& s) {
  const Shape& shape = s.graph.type(s.operand(0)).shape;
  const auto axis = static_cast<std::size_t>(s.attrs<AxisDtypeAttrs>().axis);
  const std::int64_t count = axis < shape.size() ? std::max<std::int64_t>(1, shape[axis]) : 1;
  return united(s.at(0), product(s.at(0), ValueRange::only(count)));
}

ValueRange sum_of_products(const Site& s) {
  const Shape& shape = s.graph.type(s.operand(0)).shape;
  const ValueRange each = united(product(s.at(0), s.at(1)), ValueRange::only(0));
  return product(each, ValueRange::only(std::max<std::int64_t>(1, shape.empty() ? 1 : shape.back())));
}

ValueRange position(const Site& s) {
  const Shape& shape = s.graph.type(s.operand(0)).shape;
  const std::optional<std::int64_t> axis = s.attrs<ArgAttrs>().axis;
  const std::int64_t places =
      axis && !shape.empty() ? shape[static_cast<std::size_t>(*axis)] : num_elements(shape);
  return {0, std::max<std::int64_t>(0, places - 1)};
}

ValueRange position_on_axis(const Site& s) {
  const Shape& shape = s.graph.type(s.operand(0)).shape;
  const auto* sorted = get_if<SortAttrs>(s.node.attrs.get());
  const auto axis = static_cast<std::size_t>(sorted != nullptr ? sorted->axis : s.attrs<AxisAttrs>().axis);
  return {0, axis < shape.size() ? std::max<std::int64_t>(0, shape[axis] - 1) : 0};
}

ValueRange common_divisor(const Site& s) {
  return {0, std::max(magnitude(s.at(0)).high, magnitude(s.at(1)).high)};
}

const RuleTable<Rule>& rules() {
  static constexpr RuleTable<Rule>::Row kRows[] = {
      {Op::kAdd, [](const Site& s) { return sum(s.at(0), scaled_operand(s)); }},
      {Op::kSub, [](const Site& s) { return sum(s.at(0), negated(scaled_operand(s))); }},
      {Op::kMul, [](const Site& s) { return product(s.at(0), s.at(1)); }},
      {Op::kPow, power},
      {Op::kDiv, [](const Site& s) { return quotient(s.at(0), s.at(1)); }},
      {Op::kRemainder, remainder},
      {Op::kFmod, truncated_remainder},
      {Op::kLeftShift, left_shift},
      {Op::kRightShift, right_shift},
      {Op::kNeg, [](const Site& s) { return negated(s.at(0)); }},
      {Op::kAbs, [](const Site& s) { return magnitude(s.at(0)); }},
      {Op::kSign, [](const Site&) { return ValueRange{-1, 1}; }},
      {Op::kMaximum, [](const Site& s) { return larger_of(s.at(0), s.at(1)); }},
      {Op::kMinimum, [](const Site& s) { return smaller_of(s.at(0), s.at(1)); }},
      {Op::kRelu, [](const Site& s) { return larger_of(s.at(0), ValueRange::only(0)); }},
      {Op::kClamp, clamp},
      {Op::kBitwiseAnd, bitwise_and},
      {Op::kBitwiseOr, bitwise_or},
      {Op::kBitwiseXor, bitwise_xor},
      {Op::kBitwiseNot, bitwise_not},
      {Op::kWhere, [](const Site& s) { return united(s.at(1), s.at(2)); }},
      {Op::kIndexPut,
       [](const Site& s) {
         return s.attrs<IndexPutAttrs>().accumulate ? range_of_dtype(s.result_dtype()) : first_two(s);
       }},
      {Op::kSliceScatter, first_two},
      {Op::kScatter, [](const Site& s) { return united(s.at(0), s.at(2)); }},
      {Op::kTril, first_operand_or_zero},
      {Op::kTriu, first_operand_or_zero},
      {Op::kSelect, first_operand},
      {Op::kSplit, first_operand},
      {Op::kUnbind, first_operand},
      {Op::kStack, all_operands},
      {Op::kCumsum, cumulative_sum},
      {Op::kSum, sum_over_axes},
      {Op::kMatmul, sum_of_products},
      {Op::kCeil, first_operand},
      {Op::kFloor, first_operand},
      {Op::kRound, first_operand},
      {Op::kTrunc, first_operand},
      {Op::kEmbedding, first_operand},
      {Op::kCat, all_operands},
      {Op::kPad,
       [](const Site& s) { return united(s.at(0), ValueRange::only(as_int(s.attrs<PadAttrs>().value))); }},
      {Op::kGcd, common_divisor},
      {Op::kArgmax, position},
      {Op::kArgmin, position},
      {Op::kArgsort, position_on_axis},
      {Op::kCumargmax, position_on_axis},
      {Op::kCumargmin, position_on_axis},
  };
  static const RuleTable<Rule> table(first_operand, kRows);
  return table;
}

ValueRange computed_by(const Site& site) {
  const Rule rule = rules()[site.node.op];
  return rule != nullptr ? rule(site) : range_of_dtype(site.result_dtype());
}

// True if torch and the legalized program wrap a result beyond its dtype in the same way: results of narrower
// dtypes, products and left shifts of i32, and the negation (or absolute value) of the lowest i32. i64 is not
// considered here, because IntegerWidth bounds its values.
bool wraps_alike(Op op, DType result) {
  constexpr std::array kOfI32 = {Op::kMul, Op::kPow, Op::kLeftShift, Op::kNeg, Op::kAbs};
  return result != DType::kI32 || std::find(kOfI32.begin(), kOfI32.end(), op) != kOfI32.end();
}

// ---- conditions of loops ----

// The value of which `id` is a view, through any number of views. Returns `id` if it is not a view.
ValueId viewed(const Graph& graph, ValueId id) {
  const Node* node = graph.producer(id);
  while (node != nullptr && info(node->op).has(kView)) {
    id = graph.operands(*node)[0];
    node = graph.producer(id);
  }
  return id;
}

// Narrows the range of `value`, if that is an input, given that it is `below` (or above) `other` by at least
// `step`.
void narrow(const Value& value, const Value& other, bool below, std::int64_t step,
            std::vector<ValueRange>& inputs) {
  if (value.kind != ValueKind::kInput || is_float(value.type.dtype) || is_float(other.type.dtype)) return;
  ValueRange bound;
  if (other.kind == ValueKind::kConstant)
    bound = of_constant(*other.constant);
  else if (other.kind == ValueKind::kInput)
    bound = inputs[other.result_index];
  else
    return;
  ValueRange& range = inputs[value.result_index];
  if (below)
    range.high = std::max(range.low, std::min(range.high, bounds::sum(bound.high, -step)));
  else
    range.low = std::min(range.high, std::max(range.low, bounds::sum(bound.low, step)));
}

// Narrows the ranges of inputs, given that `truth` is true. `truth` may be an order comparison (kLt, kLe,
// kGt, kGe) of an input with a constant or another input, a conjunction of such comparisons, or a view of
// these.
void narrow_by(const Graph& graph, ValueId truth, std::vector<ValueRange>& inputs) {
  const Node* node = graph.producer(truth);
  if (node == nullptr) return;
  const std::span<const ValueId> operands = graph.operands(*node);
  if (node->op == Op::kLogicalAnd || node->op == Op::kBitwiseAnd) {
    narrow_by(graph, operands[0], inputs);
    narrow_by(graph, operands[1], inputs);
    return;
  }
  if (info(node->op).has(kView) && graph.type(operands[0]).dtype == DType::kBool)
    return narrow_by(graph, operands[0], inputs);
  const bool below = node->op == Op::kLt || node->op == Op::kLe;
  const bool above = node->op == Op::kGt || node->op == Op::kGe;
  if (!below && !above) return;
  const std::int64_t step = node->op == Op::kLt || node->op == Op::kGt ? 1 : 0;
  const Value& left = graph.value(viewed(graph, operands[0]));
  const Value& right = graph.value(viewed(graph, operands[1]));
  narrow(left, right, below, step, inputs);
  narrow(right, left, above, step, inputs);
}

// The ranges at the start of the body of a loop: those before the iteration, narrowed by the condition.
std::vector<ValueRange> entered(const Graph& condition, std::vector<ValueRange> ranges) {
  narrow_by(condition, condition.outputs()[0].value, ranges);
  return ranges;
}

// ---- regions ----

// The ranges inside a region whose inputs have the ranges `inputs`.
IntegerRanges inside(const Graph& region, const std::vector<ValueRange>& inputs, int bits) {
  std::vector<ValueRange> known = initial_integer_ranges(region);
  for (std::size_t i = 0; i < inputs.size(); ++i) known[region.inputs()[i].value.index()] = inputs[i];
  return {region, std::move(known), {bits, bits}};
}

std::vector<ValueRange> of_outputs(const Graph& region, const IntegerRanges& ranges) {
  std::vector<ValueRange> out;
  for (const Output& output : region.outputs()) out.push_back(ranges.of(output.value));
  return out;
}

// Ranges that hold before every iteration of a loop. They are a fixed point: the ranges of the start values,
// united with those that the body returns for them. A bound that still moves after kTurns iterations becomes
// infinite. If the condition of the loop bounds the value, the last iterations make the bound finite again.
std::vector<ValueRange> loop_invariant(const Node& node, const std::vector<ValueRange>& start, int bits) {
  constexpr int kTurns = 3;
  const Graph& condition = *node.regions[0];
  const Graph& body = *node.regions[1];
  const auto turned = [&](const std::vector<ValueRange>& ranges) {
    std::vector<ValueRange> next = of_outputs(body, inside(body, entered(condition, ranges), bits));
    next.insert(next.end(), start.begin() + node.result_count, start.end());  // operands that are only read
    for (std::size_t i = 0; i < next.size(); ++i) next[i] = united(next[i], start[i]);
    return next;
  };
  std::vector<ValueRange> ranges = start;
  for (std::size_t turn = 0;; ++turn) {
    const std::vector<ValueRange> next = turned(ranges);
    bool stable = true;
    for (std::size_t i = 0; i < next.size(); ++i) {
      const bool falls = next[i].low<ranges[i].low, rises = next[i].high> ranges[i].high;
      stable = stable && !falls && !rises;
      ranges[i] = united(ranges[i], next[i]);
      if (turn >= kTurns && falls) ranges[i].low = ValueRange::all().low;
      if (turn >= kTurns && rises) ranges[i].high = ValueRange::all().high;
    }
    if (stable) break;
  }
  for (int turn = 0; turn < kTurns; ++turn) ranges = turned(ranges);  // the ranges stay invariant
  return ranges;
}

}  // namespace

bool is_division(Op op) { return op == Op::kDiv || op == Op::kRemainder || op == Op::kFmod; }

ValueRange range_of_dtype(DType dtype) {
  if (dtype == DType::kBool) return {0, 1};
  return integer_limits(dtype).value_or(ValueRange::all());
}

std::vector<ValueRange> initial_integer_ranges(const Graph& graph) {
  std::vector<ValueRange> ranges(graph.values().size(), ValueRange::all());
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const Value& value = graph.values()[i];
    if (is_float(value.type.dtype)) continue;
    ranges[i] =
        value.kind == ValueKind::kConstant ? of_constant(*value.constant) : range_of_dtype(value.type.dtype);
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

IntegerRanges::IntegerRanges(const Graph& graph, std::vector<ValueRange> initial, IntegerWidth width)
    : graph_(graph), ranges_(std::move(initial)), computed_(graph.nodes().size(), ValueRange::all()) {
  work::add(graph.nodes().size() + graph.values().size());
  for (const Node& node : graph.nodes()) {
    if (node.regions.empty())
      add_node(node, width);
    else
      add_regions(node, width.region_bits);
  }
}

void IntegerRanges::add_node(const Node& node, IntegerWidth width) {
  if (node.op == Op::kOpaque) {
    if (width.foreign == ForeignResults::kInitial) return;
    for (std::uint32_t r = 0; r < node.result_count; ++r)
      ranges_[node.first_result + r] = foreign_range(node, graph_.type(graph_.result(node, r)).dtype);
    return;
  }
  if (node.op == Op::kSplit || node.op == Op::kUnbind) {
    const ValueRange range = computed_by({graph_, ranges_, node});
    for (std::uint32_t r = 0; r < node.result_count; ++r)
      if (ValueRange& each = ranges_[node.first_result + r]; each.contains(range)) each = range;
    return;
  }
  for (std::uint32_t r = 1; r < node.result_count; ++r)
    if (graph_.type(graph_.result(node, r)).dtype == DType::kI64) overflowing_.push_back(&node);
  if (node.result_count == 0) return;
  const ValueId result = graph_.result(node);
  const DType dtype = graph_.type(result).dtype;
  if (is_float(dtype)) return;
  ValueRange& range = ranges_[node.first_result];
  const ValueRange computed = node.result_count == 1 ? computed_by({graph_, ranges_, node}) : range;
  computed_[graph_.id(node).index()] = computed;
  const bool stays = range.contains(computed);
  if (stays) range = computed;
  if ((!stays && !wraps_alike(node.op, dtype)) ||
      (can_overflow(graph_, result) && !fits(range, width.bits)) || has_no_quotient(node))
    overflowing_.push_back(&node);
}

// Adds a node with regions to overflowing() if an operand, a result or a value inside its regions may need
// more than `bits` bits.
void IntegerRanges::add_regions(const Node& node, int bits) {
  const bool loop = node.op == Op::kWhileLoop;
  std::vector<ValueRange> operands;
  for (std::size_t i = loop ? 0 : 1; i < node.operand_count; ++i)
    operands.push_back(ranges_[graph_.operands(node)[i].index()]);
  bool sound = true;
  for (const ValueId operand : graph_.operands(node))
    sound = sound && (!is_integer(graph_.type(operand).dtype) || fits(ranges_[operand.index()], bits));
  if (loop) operands = loop_invariant(node, operands, bits);
  for (std::size_t i = 0; i < node.regions.size(); ++i) {
    const Graph& region = *node.regions[i];
    const bool body = loop && i == 1;
    const IntegerRanges ranges = inside(region, body ? entered(*node.regions[0], operands) : operands, bits);
    sound = sound && ranges.overflowing().empty();
    const std::vector<ValueRange> results = of_outputs(region, ranges);
    for (std::uint32_t r = 0; r < node.result_count && !loop; ++r) {
      ValueRange& range = ranges_[node.first_result + r];
      range = i == 0 ? results[r] : united(range, results[r]);
    }
  }
  for (std::uint32_t r = 0; r < node.result_count; ++r) {
    ValueRange& range = ranges_[node.first_result + r];
    if (loop) range = operands[r];
    sound = sound && (!can_overflow(graph_, graph_.result(node, r)) || fits(range, bits));
  }
  if (!sound) overflowing_.push_back(&node);
}

bool IntegerRanges::has_no_quotient(const Node& node) const {
  if (!is_division(node.op) || !can_overflow(graph_, graph_.result(node))) return false;
  const std::span<const ValueId> operands = graph_.operands(node);
  return ranges_[operands[0].index()].low <= integers_of_bits(31).low &&
         ranges_[operands[1].index()].contains(-1);
}

}  // namespace tosaic::analysis
