// Relevant numbers: a walk from the outputs to the inputs. A rule computes, from the relevant numbers of a node's
// result, those of one operand.
//
//   add(x, y)      x matters from low - max(y) to high - min(y)
//   relu(x)        x matters from 0, since relu of less is 0
//   amax, where    x matters as the result does
//
// An operator without a rule needs all numbers. Bounds are moved outward by more than floats round.

#include <algorithm>
#include <cmath>

#include "tosaic/analysis/ranges/ranges.h"
#include "tosaic/analysis/ranges/rule_table.h"
#include "tosaic/ir/constant_value.h"
#include "tosaic/ir/control_flow.h"
#include "tosaic/ir/op_table.h"

namespace tosaic::analysis {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kFlat = 120;       // exp(-kFlat) is 0 in f32, and so is kFlat * exp(-kFlat)
constexpr double kFarBelow = -1e3;  // a constant below hides scores from a softmax

using Numbers = Interval<double>;

// A node, what its readers need of its result, and the ranges of its operands.
struct Site {
  const Graph& graph;
  const FloatRanges& ranges;
  const Node& node;
  Numbers wanted;

  [[nodiscard]] ValueId operand(std::size_t i) const { return graph.operands(node)[i]; }
  [[nodiscard]] const FloatRange& range(std::size_t i) const { return ranges.of(operand(i)); }
};
using Rule = Numbers (*)(const Site&, std::size_t operand);

Numbers outward(Numbers of) {
  const auto moved = [](double bound, double sign) { return bound + sign * (0x1p-16 * std::fabs(bound)); };
  return {moved(of.low, -1), moved(of.high, 1)};
}

// ---- rules ----

Numbers as_result(const Site& s, std::size_t) { return s.wanted; }
Numbers of_first(const Site& s, std::size_t i) { return i == 0 ? s.wanted : Numbers::all(); }
Numbers of_others(const Site& s, std::size_t i) { return i == 0 ? Numbers::all() : s.wanted; }

Numbers cast(const Site& s, std::size_t) {
  const bool is_number = is_float(s.graph.type(s.graph.result(s.node)).dtype);
  return is_number ? s.wanted : Numbers::all();
}

// The numbers that do not saturate. Both QuantizeAttrs and QParams have the fields.
template <class Parameters>
Numbers unsaturated(const Parameters& q) {
  Numbers out{kInf, -kInf};
  for (std::size_t c = 0; c < q.scales.size(); ++c) {
    const auto at = [&](std::int64_t integer) {
      return (static_cast<double>(integer) - static_cast<double>(q.zero_points[c])) * q.scales[c];
    };
    out = united(out, {at(q.qmin - 1), at(q.qmax + 1)});
  }
  return q.scales.empty() ? Numbers::all() : out;
}

Numbers quantized(const Site& s, std::size_t) { return unsaturated(Graph::attrs<QuantizeAttrs>(s.node)); }

Numbers index_put(const Site& s, std::size_t i) {
  return i < 2 && !Graph::attrs<IndexPutAttrs>(s.node).accumulate ? s.wanted : Numbers::all();
}
Numbers scatter(const Site& s, std::size_t i) { return i == 1 ? Numbers::all() : s.wanted; }

Numbers relu(const Site& s, std::size_t) {
  return {std::max(s.wanted.low, 0.0), std::max(s.wanted.high, 0.0)};
}

Numbers clamp(const Site& s, std::size_t) {
  const auto& attrs = Graph::attrs<ClampAttrs>(s.node);
  const double low = attrs.min ? as_double(*attrs.min) : -kInf;
  const double high = attrs.max ? as_double(*attrs.max) : kInf;
  if (!(low <= high)) return Numbers::all();
  return {std::clamp(s.wanted.low, low, high), std::clamp(s.wanted.high, low, high)};
}

Numbers absolute(const Site& s, std::size_t) {
  const double size = std::max({std::fabs(s.wanted.low), std::fabs(s.wanted.high), 0.0});
  return {-size, size};
}

// The operand of x + sign * alpha * y, or y.
Numbers addend(const Site& s, std::size_t i, double sign) {
  if (s.operand(0) == s.operand(1)) return Numbers::all();
  const double alpha = sign * as_double(Graph::attrs<AlphaAttrs>(s.node).alpha);
  if (alpha == 0 || !std::isfinite(alpha)) return Numbers::all();
  const Numbers other = i == 0 ? product(s.range(1).bounds, Numbers::only(alpha)) : s.range(0).bounds;
  if (!std::isfinite(other.low) || !std::isfinite(other.high)) return Numbers::all();
  const Numbers own{s.wanted.low - other.high, s.wanted.high - other.low};
  return i == 0 ? own : product(own, Numbers::only(1 / alpha));
}
Numbers added(const Site& s, std::size_t i) { return addend(s, i, 1); }
Numbers subtracted(const Site& s, std::size_t i) { return addend(s, i, -1); }

// The numbers x that matter to x * y for y from `least` to `most`, both positive.
Numbers before_product(Numbers wanted, double least, double most) {
  if (!(least > 0) || !std::isfinite(most)) return Numbers::all();
  return {std::min(wanted.low / least, wanted.low / most), std::max(wanted.high / least, wanted.high / most)};
}

// Where y is 0, so is the product of any finite x.
Numbers multiplied(const Site& s, std::size_t i) {
  if (s.operand(0) == s.operand(1)) return Numbers::all();
  const FloatRange& by = s.range(1 - i);
  const double least = std::max({by.least, by.bounds.low, -by.bounds.high});
  if (by.bounds.low >= 0) return before_product(s.wanted, least, by.bounds.high);
  if (by.bounds.high <= 0) return negated(before_product(s.wanted, least, -by.bounds.low));
  return Numbers::all();
}

Numbers divided(const Site& s, std::size_t i) {
  const std::optional<double> by = splat_of(s.graph, s.operand(1));
  if (i == 1 || Graph::attrs<DivAttrs>(s.node).rounding != DivRounding::kNone || !by || *by == 0 ||
      !std::isfinite(*by))
    return Numbers::all();
  const Numbers out = before_product(s.wanted, 1 / std::fabs(*by), 1 / std::fabs(*by));
  return *by > 0 ? out : negated(out);
}

Numbers compared(const Site& s, std::size_t i) {
  const Numbers other = s.range(1 - i).bounds;
  // Integers round both operands, and what is just beyond must not become equal.
  const double margin = 0x1p-8 * std::max(std::fabs(other.low), std::fabs(other.high)) + 1;
  return {other.low - margin, other.high + margin};
}

// Functions that are constant beyond +-kFlat.
Numbers flat_on_both_sides(const Site&, std::size_t) { return {-kFlat, kFlat}; }

Numbers exponential(const Site& s, std::size_t) {
  return {-kFlat, s.wanted.high > 0 ? std::max(std::log(s.wanted.high), -kFlat) + 0x1p-8 : -kFlat};
}
Numbers exponential_less_one(const Site& s, std::size_t) {
  return {-kFlat, s.wanted.high > -1 ? std::max(std::log1p(s.wanted.high), -kFlat) + 0x1p-8 : -kFlat};
}

// gelu, silu, mish and hardswish: 0 far below, and at least x - 1 above 4.
Numbers gated(const Site& s, std::size_t) { return {-kFlat, std::max(s.wanted.high, 4.0) + 1}; }

Numbers elu(const Site& s, std::size_t i) {
  const auto& attrs = Graph::attrs<EluAttrs>(s.node);
  if (attrs.input_scale != 1 || attrs.scale != 1) return Numbers::all();
  return {-kFlat, gated(s, i).high};
}

Numbers softplus(const Site& s, std::size_t i) {
  const auto& attrs = Graph::attrs<SoftplusAttrs>(s.node);
  if (!(attrs.beta > 0)) return Numbers::all();
  return {-kFlat / attrs.beta, gated(s, i).high};
}

Numbers log_sigmoid(const Site& s, std::size_t) { return {std::min(s.wanted.low, -4.0) - 1, kFlat}; }

Numbers leaky_relu(const Site& s, std::size_t) {
  const double slope = Graph::attrs<SlopeAttrs>(s.node).alpha;
  if (!(slope > 0)) return Numbers::all();
  const auto before = [&](double bound) { return bound < 0 ? bound / slope : bound; };
  return {before(s.wanted.low), before(s.wanted.high)};
}

// ---- softmax ----

// Operators whose results are the elements of their float operands.
constexpr OpTable<bool> kJoins = {{Op::kWhere, true},
                                  {Op::kCat, true},
                                  {Op::kStack, true},
                                  {Op::kSliceScatter, true},
                                  {Op::kScatter, true}};

// How many operators visible() looks through. Each may have two operands, so that the walk doubles with each.
constexpr int kDeepest = 8;

// An interval of the numbers of `id` that a mask does not hide: constants far below others are left out.
Numbers visible(const Graph& graph, const FloatRanges& ranges, ValueId id, int depth = 0) {
  const Node* node = graph.producer(id);
  if (node == nullptr || depth > kDeepest || node->result_count != 1) return ranges.of(id).bounds;
  const auto at = [&](std::size_t i) { return visible(graph, ranges, graph.operands(*node)[i], depth + 1); };
  const auto hides = [&](std::size_t i) {
    const std::optional<double> number = splat_of(graph, graph.operands(*node)[i]);
    return number && *number <= kFarBelow;
  };
  const Op op = node->op;
  if (kJoins.contains(op)) {
    Numbers out{kInf, -kInf};
    for (std::size_t i = 0; i < node->operand_count; ++i)
      if (is_float(graph.type(graph.operands(*node)[i]).dtype) && !hides(i)) out = united(out, at(i));
    return out;
  }
  if (op == Op::kMaximum) return hides(0) ? at(1) : hides(1) ? at(0) : larger_of(at(0), at(1));
  if (op == Op::kAdd && *node->attrs == default_attrs(op)) return sum(at(0), at(1));
  if (op == Op::kMul) return product(at(0), at(1));
  return info(op).has(kElementsOfInput) ? at(0) : ranges.of(id).bounds;
}

Numbers softmax(const Site& s, std::size_t) {
  const Numbers seen = visible(s.graph, s.ranges, s.operand(0));
  return {std::isfinite(seen.low) ? seen.low - kFlat : -kInf, kInf};
}

Numbers log_softmax(const Site& s, std::size_t i) {
  const Numbers out = softmax(s, i);
  return {out.low + std::min(s.wanted.low, 0.0), kInf};
}

// ---- steps ----

// By how much a result may change at most if an operand changes by 1. Nothing is known of other operators.
using Slope = double (*)(const Site&, std::size_t operand);

double one(const Site&, std::size_t) { return 1; }
double two(const Site&, std::size_t) { return 2; }  // functions whose slope is below 2 everywhere
double of_addend(const Site& s, std::size_t i) {
  return i == 0 ? 1 : std::fabs(as_double(Graph::attrs<AlphaAttrs>(s.node).alpha));
}
double of_factor(const Site& s, std::size_t i) {
  const Numbers other = magnitude(s.range(1 - i).bounds);
  return s.operand(0) == s.operand(1) ? 2 * other.high : other.high;
}
double of_dividend(const Site& s, std::size_t i) {
  const std::optional<double> by = splat_of(s.graph, s.operand(1));
  return i == 0 && by && *by != 0 ? 1 / std::fabs(*by) : kInf;
}
double of_sum(const Site& s, std::size_t) {
  const double results = static_cast<double>(num_elements(s.graph.type(s.graph.result(s.node)).shape));
  return static_cast<double>(num_elements(s.graph.type(s.operand(0)).shape)) / std::max(1.0, results);
}
double of_exponent(const Site& s, std::size_t) { return std::max(1.0, s.wanted.high + 1); }

const RuleTable<Slope>& slopes() {
  static constexpr RuleTable<Slope>::Row kRows[] = {
      {Op::kCat, one},         {Op::kStack, one},         {Op::kSplit, one},
      {Op::kUnbind, one},      {Op::kSelect, one},        {Op::kPad, one},
      {Op::kTril, one},        {Op::kTriu, one},          {Op::kSliceScatter, one},
      {Op::kMaximum, one},     {Op::kMinimum, one},       {Op::kWhere, one},
      {Op::kScatter, one},     {Op::kIndexPut, one},      {Op::kRelu, one},
      {Op::kClamp, one},       {Op::kNeg, one},           {Op::kAbs, one},
      {Op::kAdd, of_addend},   {Op::kSub, of_addend},     {Op::kMul, of_factor},
      {Op::kDiv, of_dividend}, {Op::kMean, one},          {Op::kAvgPool, one},
      {Op::kSum, of_sum},      {Op::kSigmoid, one},       {Op::kTanh, one},
      {Op::kErf, two},         {Op::kGelu, two},          {Op::kSilu, two},
      {Op::kMish, two},        {Op::kHardswish, two},     {Op::kHardsigmoid, one},
      {Op::kSoftmax, one},     {Op::kSafeSoftmax, one},   {Op::kLogSoftmax, two},
      {Op::kExp, of_exponent}, {Op::kExpm1, of_exponent}, {Op::kAdaptiveMaxPool, one},
  };
  static const RuleTable<Slope> table(one, kRows);
  return table;
}

bool reads_rows(Op op) { return op == Op::kSoftmax || op == Op::kSafeSoftmax || op == Op::kLogSoftmax; }

const RuleTable<Rule>& rules() {
  static constexpr RuleTable<Rule>::Row kRows[] = {
      {Op::kQuantize, quantized},
      {Op::kCast, cast},
      {Op::kCat, as_result},
      {Op::kStack, as_result},
      {Op::kSplit, as_result},
      {Op::kUnbind, as_result},
      {Op::kSelect, as_result},
      {Op::kPad, as_result},
      {Op::kTril, as_result},
      {Op::kTriu, as_result},
      {Op::kSliceScatter, as_result},
      {Op::kAdaptiveMaxPool, as_result},
      {Op::kMaximum, as_result},
      {Op::kMinimum, as_result},
      {Op::kWhere, of_others},
      {Op::kScatter, scatter},
      {Op::kIndexPut, index_put},
      {Op::kRelu, relu},
      {Op::kClamp, clamp},
      {Op::kNeg, [](const Site& s, std::size_t) { return negated(s.wanted); }},
      {Op::kAbs, absolute},
      {Op::kAdd, added},
      {Op::kSub, subtracted},
      {Op::kMul, multiplied},
      {Op::kDiv, divided},
      {Op::kEq, compared},
      {Op::kNe, compared},
      {Op::kLt, compared},
      {Op::kLe, compared},
      {Op::kGt, compared},
      {Op::kGe, compared},
      {Op::kSigmoid, flat_on_both_sides},
      {Op::kTanh, flat_on_both_sides},
      {Op::kErf, flat_on_both_sides},
      {Op::kHardsigmoid, flat_on_both_sides},
      {Op::kExp, exponential},
      {Op::kExpm1, exponential_less_one},
      {Op::kGelu, gated},
      {Op::kSilu, gated},
      {Op::kMish, gated},
      {Op::kHardswish, gated},
      {Op::kElu, elu},
      {Op::kSoftplus, softplus},
      {Op::kLogSigmoid, log_sigmoid},
      {Op::kLeakyRelu, leaky_relu},
      {Op::kSoftmax, softmax},
      {Op::kSafeSoftmax, softmax},
      {Op::kLogSoftmax, log_softmax},
  };
  static const RuleTable<Rule> table(of_first, kRows);
  return table;
}

constexpr RelevantNumbers kUnread{{kInf, -kInf}, kInf, false};

bool is_read(const Numbers& wanted) { return wanted.low <= wanted.high; }

Numbers bounds_of(const Site& site, std::size_t operand) {
  const Rule rule = rules()[site.node.op];
  if (rule == nullptr) return Numbers::all();
  // If all results saturate, the bound is no result of the operator, and the walk knows nothing of such numbers.
  if (site.node.result_count == 1) {
    const Numbers made = site.ranges.of(site.graph.result(site.node)).bounds;
    if (made.low > site.wanted.high || made.high < site.wanted.low) return Numbers::all();
  }
  const Numbers bounds = outward(rule(site, operand));
  return is_read(bounds) ? bounds : Numbers::all();  // also for NaN
}

// `step`: that of the result.
double step_of(const Site& site, std::size_t operand, double step) {
  if (site.node.op == Op::kQuantize)
    return *std::ranges::min_element(Graph::attrs<QuantizeAttrs>(site.node).scales);
  const Slope slope = slopes()[site.node.op];
  const double most = slope == nullptr ? kInf : slope(site, operand);
  return most > 0 && std::isfinite(most) ? step / most : 0;
}

}  // namespace

Relevance::Relevance(const Graph& graph, const FloatRanges& ranges)
    : graph_(graph), ranges_(ranges), wanted_(graph.values().size(), kUnread) {
  for (const Output& output : graph.outputs()) wanted_[output.value.index()] = {};
  const std::span<const Node> nodes = graph.nodes();
  for (std::size_t n = nodes.size(); n-- > 0;) {
    const Node& node = nodes[n];
    const std::span<const ValueId> operands = graph.operands(node);
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if (!operands[i].valid() || !is_float(graph.type(operands[i]).dtype)) continue;
      const RelevantNumbers needed = of(node, i);
      RelevantNumbers& all = wanted_[operands[i].index()];
      all.bounds = united(all.bounds, needed.bounds);
      all.step = std::min(all.step, needed.step);
      all.by_row = all.by_row || needed.by_row;
    }
  }
}

RelevantNumbers Relevance::of_results(const Node& node) const {
  RelevantNumbers out = kUnread;
  for (std::uint32_t r = 0; r < node.result_count; ++r) {
    const ValueId result = graph_.result(node, r);
    const TensorType& type = graph_.type(result);
    RelevantNumbers wanted;
    if (type.qparams)
      wanted = {unsaturated(*type.qparams), *std::ranges::min_element(type.qparams->scales), false};
    else if (is_float(type.dtype))
      wanted = wanted_[result.index()];
    out = {united(out.bounds, wanted.bounds), std::min(out.step, wanted.step), out.by_row || wanted.by_row};
  }
  return out;
}

RelevantNumbers Relevance::of(const Node& reader, std::size_t operand) const {
  if (!reader.regions.empty() || is_foreign(reader.op)) return {};
  const RelevantNumbers wanted = of_results(reader);
  if (!is_read(wanted.bounds)) return wanted;
  const Site site{graph_, ranges_, reader, wanted.bounds};
  return {bounds_of(site, operand), step_of(site, operand, wanted.step),
          wanted.by_row || reads_rows(reader.op)};
}

}  // namespace tosaic::analysis
