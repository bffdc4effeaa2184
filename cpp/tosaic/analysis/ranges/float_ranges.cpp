// Ranges of floats. Rules compute intervals as if operators did not round; `rounded` then widens them.
#include <algorithm>
#include <cmath>

#include "tosaic/analysis/ranges/ranges.h"
#include "tosaic/analysis/ranges/rule_table.h"
#include "tosaic/ir/scale_grid.h"

namespace tosaic::analysis {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// A lower bound of the magnitude of all elements that are not 0.
double least_of(const FloatRange& range) {
  return std::max({range.least, range.bounds.low, -range.bounds.high});
}

FloatRange range_of(const Interval<double>& bounds, double least = 0) {
  return {bounds, least_of({bounds, least})};
}

FloatRange of_dtype(DType dtype) {
  if (dtype == DType::kBool) return {{0, 1}, 1};
  if (dtype == DType::kF16) return {Interval<double>::all(), 0x1p-24};
  const std::optional<ValueRange> integers = integer_limits(dtype);
  if (!integers) return {};
  return {{static_cast<double>(integers->low), static_cast<double>(integers->high)}, 1};
}

// The range of a number that is known. 0 has no elements that are not 0.
FloatRange of_number(double number) {
  return {Interval<double>::only(number), number == 0 ? kInf : std::fabs(number)};
}

// The range after rounding to the dtype, which adds a relative error, overflow to infinity and underflow to
// zero.
FloatRange rounded(const FloatRange& range, DType dtype) {
  if (!is_float(dtype)) return range;
  const double slack = dtype == DType::kF32 || dtype == DType::kF64 ? 0x1p-20 : 0x1p-6;
  const double limit = largest_finite(dtype);
  const auto outward = [&](double bound, double sign) {
    const double moved = bound + sign * slack * std::fabs(bound);
    return sign * moved > limit ? sign * kInf : moved;
  };
  FloatRange out{{outward(range.bounds.low, -1), outward(range.bounds.high, 1)}, 0};
  if (std::isnan(out.bounds.low) || std::isnan(out.bounds.high)) return of_dtype(dtype);
  out.least =
      std::max(of_dtype(dtype).least, range.least * (1 - slack) < 0x1p-126 ? 0.0 : range.least * (1 - slack));
  return out;
}

FloatRange united(const FloatRange& a, const FloatRange& b) {
  return {united(a.bounds, b.bounds), std::min(least_of(a), least_of(b))};
}

FloatRange product(const FloatRange& a, const FloatRange& b) {
  return {product(a.bounds, b.bounds), a.least * b.least};
}

FloatRange magnitude(const FloatRange& a) { return range_of(magnitude(a.bounds), a.least); }

// The range of a function that is monotonically increasing.
FloatRange mapped(const FloatRange& a, double (*function)(double)) {
  return range_of({function(a.bounds.low), function(a.bounds.high)});
}

FloatRange clamped(const FloatRange& a, double low, double high) {
  const auto bounded = [&](double x) { return std::clamp(x, std::min(low, high), high); };
  return range_of({bounded(a.bounds.low), bounded(a.bounds.high)});
}

FloatRange of_constant(const Constant& constant) {
  if (!constant.storage.bound() || num_elements(constant.shape) == 0) return of_dtype(constant.dtype);
  FloatRange range{{kInf, -kInf}, kInf};
  const Elements elements(constant);
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const double value = elements.as_double(i);
    if (std::isnan(value)) return of_dtype(constant.dtype);
    range.bounds = united(range.bounds, Interval<double>::only(value));
    if (value != 0) range.least = std::min(range.least, std::fabs(value));
  }
  return range;
}

// ---- the rules: the range of a node's result before it is rounded to its dtype ----

// A node, and the ranges of its operands.
struct Site {
  const Graph& graph;
  const FloatRanges& ranges;
  const Node& node;

  [[nodiscard]] ValueId operand(std::size_t i) const { return graph.operands(node)[i]; }
  [[nodiscard]] const FloatRange& at(std::size_t i) const { return ranges.of(operand(i)); }
  [[nodiscard]] FloatRange all_from(std::size_t first) const {
    FloatRange range = at(first);
    for (std::size_t i = first + 1; i < node.operand_count; ++i) range = united(range, at(i));
    return range;
  }
};
using Rule = FloatRange (*)(const Site&);

FloatRange first_operand(const Site& s) { return s.at(0); }
FloatRange up_to_one(const Site&) { return {{-1, 1}, 0}; }

FloatRange clamp(const Site& s) {
  const auto& attrs = Graph::attrs<ClampAttrs>(s.node);
  const double low = attrs.min ? as_double(*attrs.min) : -kInf;
  const double high = attrs.max ? as_double(*attrs.max) : kInf;
  if (std::isnan(low) || std::isnan(high)) return {};
  return clamped(s.at(0), low, high);
}

// The number that all elements other than 0 equal, if the range allows only one: 1 for booleans cast to
// floats, and c for their products with c.
std::optional<double> only_magnitude(const FloatRange& range) {
  if (range.bounds.low == 0 && range.bounds.high == range.least) return range.bounds.high;
  if (range.bounds.high == 0 && range.bounds.low == -range.least) return range.bounds.low;
  return std::nullopt;
}

// The range of operand 0 + sign * alpha * operand 1.
FloatRange scaled_sum(const Site& s, double sign) {
  const double alpha = sign * as_double(Graph::attrs<AlphaAttrs>(s.node).alpha);
  const FloatRange a = s.at(0), b = product(s.at(1), of_number(alpha));
  FloatRange out = range_of(sum(a.bounds, b.bounds));
  // 1 - truth is 1 or 0.
  for (const auto& [known, other] : {std::pair{a, b}, std::pair{b, a}})
    if (const std::optional<double> by = only_magnitude(other); by && known.bounds.low == known.bounds.high)
      out.least = united(of_number(known.bounds.low), of_number(known.bounds.low + *by)).least;
  return out;
}

FloatRange multiplication(const Site& s) {
  const FloatRange out = product(s.at(0), s.at(1));
  return s.operand(0) == s.operand(1) ? magnitude(out) : out;
}

FloatRange sum_over_axes(const Site& s) {
  const auto results = static_cast<double>(num_elements(s.graph.type(s.graph.result(s.node)).shape));
  const double count =
      static_cast<double>(num_elements(s.graph.type(s.operand(0)).shape)) / std::max(1.0, results);
  const FloatRange terms = s.at(0);
  if (terms.bounds.low >= 0 && count >= 1)
    return range_of({terms.bounds.low, product(terms.bounds, Interval<double>::only(count)).high});
  return product(united(terms, range_of({0, 0})), range_of({0, count}));
}

// The numbers that the integers represent. A file may hold integers beyond qmin and qmax.
FloatRange dequantized(const Site& s) {
  const auto& attrs = Graph::attrs<DequantizeAttrs>(s.node);
  const std::optional<ValueRange> stored = integer_limits(s.graph.type(s.operand(0)).dtype);
  if (!stored) return {};
  FloatRange range{{kInf, -kInf}, 0};
  const auto number = [&](double q, std::size_t c) {
    return (q - static_cast<double>(attrs.zero_points[c])) * attrs.scales[c];
  };
  // The elements of a bias are read, since they use few of its many bits. Other constants are large, and use
  // all of their few bits.
  const ConstantRef& bias = s.graph.value(s.operand(0)).constant;
  if (bias && (bias->dtype == DType::kI32 || bias->dtype == DType::kI64) && bias->storage.bound() &&
      num_elements(bias->shape) > 0) {
    const ScaleGrid grid(bias->shape, attrs.axis, attrs.groups);
    const Elements elements(*bias);
    for (std::size_t k = 0; k < elements.size(); ++k)
      range.bounds = united(range.bounds, Interval<double>::only(number(
                                              elements.as_double(k), grid.of(static_cast<std::int64_t>(k)))));
    return range;
  }
  for (std::size_t c = 0; c < attrs.scales.size(); ++c) {
    const auto at = [&](std::int64_t q) { return number(static_cast<double>(q), c); };
    range.bounds = united(range.bounds, {at(stored->low), at(stored->high)});
  }
  return attrs.scales.empty() ? FloatRange{} : range;
}

FloatRange matrix_product(const Site& s) {
  const auto depth = static_cast<double>(s.graph.type(s.operand(0)).shape.back());
  const FloatRange terms = product(s.at(0), s.at(1));
  return range_of(product(terms.bounds, Interval<double>::only(depth)));
}

FloatRange padded(const Site& s) {
  const auto& attrs = Graph::attrs<PadAttrs>(s.node);
  if (attrs.mode != PadMode::kConstant) return s.at(0);
  return united(s.at(0), of_number(as_double(attrs.value)));
}

FloatRange with_zeros(const Site& s) { return united(s.at(0), of_number(0)); }
// A mean is in the bounds of the numbers, but may be nearer to 0 than all numbers that are not 0.
FloatRange averaged(const Site& s) { return range_of(s.at(0).bounds); }
FloatRange pooled(const Site& s) {
  return Graph::attrs<PoolAttrs>(s.node).divisor_override ? FloatRange{} : range_of(with_zeros(s).bounds);
}
FloatRange at_least_zero(const Site&) { return {{0, kInf}, 0}; }
FloatRange at_most_zero(const Site&) { return {{-kInf, 0}, 0}; }

// Activations that are between 0 and x for positive x, and not below -1/2 for negative x.
FloatRange gated(const Site& s) {
  const Interval<double>& x = s.at(0).bounds;
  return range_of({x.low >= 0 ? 0 : -0.5, std::max(x.high, 0.0)});
}

FloatRange leaky(const Site& s) {
  const double slope = Graph::attrs<SlopeAttrs>(s.node).alpha;
  if (!(slope >= 0)) return {};
  const auto at = [&](double x) { return x < 0 ? x * slope : x; };
  return range_of({at(s.at(0).bounds.low), at(s.at(0).bounds.high)});
}

// The quotient by a number.
FloatRange quotient(const Site& s) {
  const Interval<double> by = s.at(1).bounds;
  const bool is_number = by.low == by.high && by.low != 0 && std::isfinite(by.low);
  if (!is_number || Graph::attrs<DivAttrs>(s.node).rounding != DivRounding::kNone) return {};
  return product(s.at(0), of_number(1 / by.low));
}

FloatRange values_put(const Site& s) {
  return Graph::attrs<IndexPutAttrs>(s.node).accumulate ? FloatRange{} : united(s.at(0), s.at(1));
}

const RuleTable<Rule>& rules() {
  static constexpr RuleTable<Rule>::Row kRows[] = {
      {Op::kDequantize, dequantized},
      {Op::kMatmul, matrix_product},
      {Op::kPad, padded},
      {Op::kStack, [](const Site& s) { return s.all_from(0); }},
      {Op::kSplit, first_operand},
      {Op::kUnbind, first_operand},
      {Op::kSelect, first_operand},
      {Op::kTril, with_zeros},
      {Op::kTriu, with_zeros},
      {Op::kMean, averaged},
      {Op::kAvgPool, pooled},
      {Op::kAdaptiveAvgPool, averaged},
      {Op::kAdaptiveMaxPool, first_operand},
      {Op::kVar, at_least_zero},
      {Op::kStd, at_least_zero},
      {Op::kLogSoftmax, at_most_zero},
      {Op::kLogSigmoid, at_most_zero},
      {Op::kSoftplus, at_least_zero},
      {Op::kHardsigmoid, [](const Site&) { return FloatRange{{0, 1}, 0}; }},
      {Op::kSilu, gated},
      {Op::kGelu, gated},
      {Op::kMish, gated},
      {Op::kHardswish, gated},
      {Op::kLeakyRelu, leaky},
      {Op::kDiv, quotient},
      {Op::kSliceScatter, [](const Site& s) { return s.all_from(0); }},
      {Op::kScatter, [](const Site& s) { return united(s.at(0), s.at(2)); }},
      {Op::kIndexPut, values_put},
      {Op::kSoftmax, [](const Site&) { return FloatRange{{0, 1}, 0}; }},
      {Op::kSafeSoftmax, [](const Site&) { return FloatRange{{0, 1}, 0}; }},
      {Op::kClamp, clamp},
      {Op::kSigmoid, [](const Site&) { return FloatRange{{0, 1}, 0}; }},
      {Op::kTanh, up_to_one},
      {Op::kErf, up_to_one},
      {Op::kSin, up_to_one},
      {Op::kCos, up_to_one},
      {Op::kExp, [](const Site& s) { return mapped(s.at(0), [](double x) { return std::exp(x); }); }},
      {Op::kSqrt,
       [](const Site& s) {
         return mapped(clamped(s.at(0), 0, kInf), [](double x) { return std::sqrt(x); });
       }},
      {Op::kRsqrt, [](const Site&) { return FloatRange{{0, kInf}, 0}; }},
      {Op::kRelu, [](const Site& s) { return clamped(s.at(0), 0, kInf); }},
      {Op::kAbs, [](const Site& s) { return magnitude(s.at(0)); }},
      {Op::kNeg, [](const Site& s) { return FloatRange{negated(s.at(0).bounds), s.at(0).least}; }},
      {Op::kFloor, [](const Site& s) { return mapped(s.at(0), [](double x) { return std::floor(x); }); }},
      {Op::kCeil, [](const Site& s) { return mapped(s.at(0), [](double x) { return std::ceil(x); }); }},
      {Op::kRound, [](const Site& s) { return mapped(s.at(0), [](double x) { return std::nearbyint(x); }); }},
      {Op::kTrunc, [](const Site& s) { return mapped(s.at(0), [](double x) { return std::trunc(x); }); }},
      {Op::kAdd, [](const Site& s) { return scaled_sum(s, 1); }},
      {Op::kSub, [](const Site& s) { return scaled_sum(s, -1); }},
      {Op::kMul, multiplication},
      {Op::kMaximum, [](const Site& s) { return range_of(larger_of(s.at(0).bounds, s.at(1).bounds)); }},
      {Op::kMinimum, [](const Site& s) { return range_of(smaller_of(s.at(0).bounds, s.at(1).bounds)); }},
      {Op::kWhere, [](const Site& s) { return s.all_from(1); }},
      {Op::kCat, [](const Site& s) { return s.all_from(0); }},
      {Op::kSum, sum_over_axes},
  };
  static const RuleTable<Rule> table(first_operand, kRows);
  return table;
}

// True if the elements of the result are elements of operand 0, in a dtype that has all of them.
bool is_exact(const Graph& graph, const Node& node) {
  if (!info(node.op).has(kElementsOfInput)) return false;
  const DType from = graph.type(graph.operands(node)[0]).dtype, to = graph.type(graph.result(node)).dtype;
  if (from == to || to == DType::kF64) return true;
  return to == DType::kF32 && (from == DType::kBool || from == DType::kI8 || from == DType::kU8 ||
                               from == DType::kI16 || from == DType::kF16 || from == DType::kBF16);
}

}  // namespace

FloatRanges::FloatRanges(const Graph& graph, std::span<const std::optional<Interval<double>>> observed)
    : graph_(graph), ranges_(graph.values().size()) {
  const auto observe = [&](std::size_t value) {
    if (value < observed.size() && observed[value]) ranges_[value]->bounds = *observed[value];
  };
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    const Value& value = graph.values()[i];
    if (value.kind == ValueKind::kConstant) continue;
    ranges_[i] = of_dtype(value.type.dtype);
    observe(i);
  }
  for (const Node& node : graph.nodes()) {
    const Rule rule = rules()[node.op];
    if (rule == nullptr || node.result_count == 0) continue;
    const DType dtype = graph.type(graph.result(node)).dtype;
    if (!is_float(dtype)) continue;
    const FloatRange exact = rule({graph, *this, node});
    const FloatRange range = is_exact(graph, node) ? exact : rounded(exact, dtype);
    for (std::uint32_t r = 0; r < node.result_count; ++r) {
      ranges_[node.first_result + r] = range;
      observe(node.first_result + r);
    }
  }
}

const FloatRange& FloatRanges::of(ValueId value) const {
  std::optional<FloatRange>& range = ranges_[value.index()];
  if (!range) range = of_constant(*graph_.value(value).constant);
  return *range;
}

}  // namespace tosaic::analysis
