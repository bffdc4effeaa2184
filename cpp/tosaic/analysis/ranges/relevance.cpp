// Relevant numbers: a walk from the outputs to the inputs. A rule computes, from the relevant numbers of a
// node's result, the relevant numbers of one operand.
//
//   add(x, y)        x matters from low - max(y) to high - min(y)
//   linear(x, w, b)  b does so, next to the largest sum of products
//   relu(x)          x matters from 0, since relu of less is 0
//   amax, where      x matters as the result does
//   where(x > c, x)  x matters from c
//   round(x)         x matters from 1 below to 1 above what its result does
//
// The result of a softmax or an argmax does not show how far one number of a row is above all others: see
// Extremes.
//
// An operator without a rule needs all numbers. Bounds are moved outward by more than floats round.

#include <algorithm>
#include <cmath>

#include "tosaic/analysis/ranges/ranges.h"
#include "tosaic/analysis/ranges/rule_table.h"
#include "tosaic/ir/constant_value.h"
#include "tosaic/ir/control_flow.h"
#include "tosaic/ir/op_table.h"
#include "tosaic/ir/softmax.h"

namespace tosaic::analysis {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kFlat = 120;       // exp(-kFlat) is 0 in f32, and so is kFlat * exp(-kFlat)
constexpr double kFarBelow = -1e3;  // a constant below this hides scores from a softmax
constexpr double kMargin =
    0.25;  // of the largest magnitude: inputs other than the samples have other numbers
constexpr double kUnnoticed = 0.5;  // steps by which a result may change

using Numbers = Interval<double>;

// A node, what its readers need of its result, and the ranges of its operands.
struct Site {
  const Graph& graph;
  const FloatRanges& ranges;
  const Node& node;
  Numbers wanted;
  double slack = 0;         // the result may change by this much
  bool of_samples = false;  // the ranges are those of samples

  // A function that approaches a limit as exp(-x) does, differs from it by no more than the slack beyond this
  // x.
  [[nodiscard]] double flat() const { return slack > 0 ? std::clamp(-std::log(slack), 4.0, kFlat) : kFlat; }
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

// The relevant numbers of an operand that no result depends on: none.
constexpr Numbers kNoNumber{kInf, -kInf};

Numbers scatter(const Site& s, std::size_t i) { return i == 1 ? Numbers::all() : s.wanted; }
Numbers rounded(const Site& s, std::size_t) { return {s.wanted.low - 1, s.wanted.high + 1}; }

// The variance of a single number is 0, or NaN.
Numbers variance(const Site& s, std::size_t) {
  const auto count = [&](ValueId id) { return num_elements(s.graph.type(id).shape); };
  return count(s.operand(0)) == count(s.graph.result(s.node)) ? kNoNumber : Numbers::all();
}

// The numbers that a reader wants and that can reach it: `wanted`, clipped to `passing`.
Numbers reaching(const Numbers& wanted, const Numbers& passing) {
  const auto within = [&](double x) { return std::clamp(x, passing.low, passing.high); };
  return {within(wanted.low), within(wanted.high)};
}

// How far a value may be beyond `bounds` for inputs that are not among the samples.
double beyond_samples(const Site& s, const Numbers& bounds) {
  return s.of_samples ? kMargin * magnitude(bounds).high : 0;
}

// A maximum does not depend on numbers of one operand that are below all numbers of the other operand, nor a
// minimum on numbers above them.
Numbers maximum(const Site& s, std::size_t i) {
  const Numbers other = s.range(1 - i).bounds;
  return reaching(s.wanted, {other.low - beyond_samples(s, other), kInf});
}
Numbers minimum(const Site& s, std::size_t i) {
  const Numbers other = s.range(1 - i).bounds;
  return reaching(s.wanted, {-kInf, other.high + beyond_samples(s, other)});
}

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

// The relevant numbers of x (i = 0) or y (i = 1) in x + sign * alpha * y.
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

// A margin: quantization rounds both operands of a comparison, and must not make unequal numbers equal.
double beside(const Numbers& compared) { return 0x1p-8 * magnitude(compared).high + 1; }

// The comparisons that are true if operand 0 is the larger operand, and if it is the smaller one.
constexpr OpTable<bool> kPassesGreater = {{Op::kGt, true}, {Op::kGe, true}};
constexpr OpTable<bool> kPassesLess = {{Op::kLt, true}, {Op::kLe, true}};

// The numbers of `x` that pass, or do not pass, a comparison of x itself: where(x > c, x, y) selects none
// below c.
Numbers passing(const Site& s, ValueId x, ValueId truth, bool passes) {
  const Node* const node = s.graph.producer(truth);
  if (node == nullptr || !(kPassesGreater.contains(node->op) || kPassesLess.contains(node->op)))
    return Numbers::all();
  const std::span<const ValueId> compared = s.graph.operands(*node);
  if ((compared[0] == x) == (compared[1] == x)) return Numbers::all();
  const bool is_first = compared[0] == x;
  const Numbers other = s.ranges.of(compared[is_first ? 1 : 0]).bounds;
  if (!std::isfinite(other.low) || !std::isfinite(other.high)) return Numbers::all();
  if (kPassesGreater.contains(node->op) == (is_first == passes)) return {other.low - beside(other), kInf};
  return {-kInf, other.high + beside(other)};
}

// The truth value that all elements of a constant have.
std::optional<bool> truth_everywhere(const Graph& graph, ValueId id) {
  const Constant* const constant = constant_of(graph, id);
  if (constant == nullptr || !constant->storage.bound()) return std::nullopt;
  const Elements elements(*constant);
  for (std::size_t i = 1; i < elements.size(); ++i)
    if (elements.as_int(i) != elements.as_int(0)) return std::nullopt;
  return elements.size() == 0 ? std::nullopt : std::optional(elements.as_int(0) != 0);
}

Numbers where(const Site& s, std::size_t i) {
  if (i == 0) return Numbers::all();
  if (truth_everywhere(s.graph, s.operand(0)) == (i == 2)) return kNoNumber;
  return reaching(s.wanted, passing(s, s.operand(i), s.operand(0), i == 1));
}

// x * truth, where the truth is a comparison of x.
Numbers before_truth(const Site& s, std::size_t i) {
  const Node* const node = s.graph.producer(s.operand(1 - i));
  if (node == nullptr || node->op != Op::kCast) return Numbers::all();
  return passing(s, s.operand(i), s.graph.operands(*node)[0], true);
}

// Relevant for products by y other than 0: where y is 0, the product is 0 for any finite x.
Numbers before_factor(const Site& s, std::size_t i) {
  if (s.operand(0) == s.operand(1)) return Numbers::all();
  const FloatRange& by = s.range(1 - i);
  const double least = std::max({by.least, by.bounds.low, -by.bounds.high});
  if (by.bounds.low >= 0) return before_product(s.wanted, least, by.bounds.high);
  if (by.bounds.high <= 0) return negated(before_product(s.wanted, least, -by.bounds.low));
  return Numbers::all();
}

Numbers multiplied(const Site& s, std::size_t i) { return reaching(before_factor(s, i), before_truth(s, i)); }

// The largest magnitude of a sum of products: the number of products, times the largest magnitude of x, times
// that of the weight.
double largest_sum(const Site& s, std::size_t x, std::size_t weight) {
  const Shape& shape = s.graph.type(s.operand(weight)).shape;
  if (shape.size() < 2) return kInf;
  const bool is_matrix = s.node.op == Op::kAddmm || s.node.op == Op::kBaddbmm;
  std::int64_t others = shape[0];  // the results to which one position of the input adds
  if (is_matrix) others = num_elements(shape) / std::max<std::int64_t>(1, shape[shape.size() - 2]);
  if (s.node.op == Op::kConv && Graph::attrs<ConvAttrs>(s.node).transposed) others = shape[1];
  const double terms =
      static_cast<double>(num_elements(shape)) / static_cast<double>(std::max<std::int64_t>(1, others));
  return terms * magnitude(s.range(x).bounds).high * magnitude(s.range(weight).bounds).high;
}

// The addend c of beta * c + alpha * (a sum of products of operands x and weight).
Numbers before_sum(const Site& s, std::size_t x, std::size_t weight, double alpha, double beta) {
  if (s.wanted == Numbers::all())
    return Numbers::all();  // the range of a constant weight would read its elements
  const double most = std::fabs(alpha) * largest_sum(s, x, weight);
  if (!std::isfinite(most) || !std::isfinite(beta) || beta == 0) return Numbers::all();
  return product({s.wanted.low - most, s.wanted.high + most}, Numbers::only(1 / beta));
}

Numbers added_to_matmul(const Site& s, std::size_t i) {
  const auto& attrs = Graph::attrs<AddmmAttrs>(s.node);
  if (i != 0) return Numbers::all();
  return before_sum(s, 1, 2, as_double(attrs.alpha), as_double(attrs.beta));
}

Numbers bias(const Site& s, std::size_t i) { return i == 2 ? before_sum(s, 0, 1, 1, 1) : Numbers::all(); }

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
  return {other.low - beside(other), other.high + beside(other)};
}

// Functions that are constant beyond +-kFlat.
Numbers flat_on_both_sides(const Site& s, std::size_t) { return {-s.flat(), s.flat()}; }

Numbers exponential(const Site& s, std::size_t) {
  const double low = s.slack > 0 ? std::max(std::log(s.slack), -kFlat) : -kFlat;
  return {low, s.wanted.high > 0 ? std::max(std::log(s.wanted.high), low) + 0x1p-8 : low};
}
Numbers exponential_less_one(const Site& s, std::size_t) {
  const double low = -s.flat();
  return {low, s.wanted.high > -1 ? std::max(std::log1p(s.wanted.high), low) + 0x1p-8 : low};
}

// silu and mish are about x * exp(x) far below 0, so nearly 0, and at least x - 1 above 4. The bound is where
// they reach about twice the slack: a wider range would have a larger step, which costs more accuracy.
Numbers gated(const Site& s, std::size_t) {
  const double tail = s.flat() + std::log(s.flat()) - 0.5;
  return {s.slack > 0 ? -std::min(tail, kFlat) : -kFlat, std::max(s.wanted.high, 4.0) + 1};
}
// Bounds for gelu and hardswish. Far below 0, these are smaller than exp(-x^2 / 2), or 0.
Numbers gated_by_square(const Site& s, std::size_t i) {
  const double low = s.slack > 0 ? -std::max(std::sqrt(2 * s.flat()), 3.0) : -kFlat;
  return {low, gated(s, i).high};
}

Numbers elu(const Site& s, std::size_t i) {
  const auto& attrs = Graph::attrs<EluAttrs>(s.node);
  if (attrs.input_scale != 1 || attrs.scale != 1) return Numbers::all();
  return {-s.flat(), gated(s, i).high};
}

Numbers softplus(const Site& s, std::size_t i) {
  const auto& attrs = Graph::attrs<SoftplusAttrs>(s.node);
  if (!(attrs.beta > 0)) return Numbers::all();
  return {-kFlat / attrs.beta, gated(s, i).high};
}

Numbers log_sigmoid(const Site& s, std::size_t) { return {std::min(s.wanted.low, -4.0) - 1, s.flat()}; }

Numbers leaky_relu(const Site& s, std::size_t) {
  const double slope = Graph::attrs<SlopeAttrs>(s.node).alpha;
  if (!(slope > 0)) return Numbers::all();
  const auto before = [&](double bound) { return bound < 0 ? bound / slope : bound; };
  return {before(s.wanted.low), before(s.wanted.high)};
}

// ---- softmax ----

// Operators whose results are the elements of their float operands.
constexpr OpTable<bool> kJoins = {{Op::kWhere, true},        {Op::kCat, true},      {Op::kStack, true},
                                  {Op::kSliceScatter, true}, {Op::kIndexPut, true}, {Op::kScatter, true}};

// How many operators visible() looks through. Each may double the work, as it may have two operands.
constexpr int kDeepest = 8;

// True for a product of truth values and numbers that are all below -`depth`.
bool is_hiding_product(const Site& s, ValueId id, double depth) {
  const Node* const node = s.graph.producer(id);
  if (node == nullptr || node->op != Op::kMul) return false;
  const auto range = [&](std::size_t i) { return s.ranges.of(s.graph.operands(*node)[i]); };
  const auto is_truth = [](const FloatRange& x) {
    return x.bounds.low >= 0 && x.bounds.high <= 1 + 0x1p-10 && x.least >= 1 - 0x1p-10;
  };
  return (is_truth(range(0)) && range(1).bounds.high < -depth) ||
         (is_truth(range(1)) && range(0).bounds.high < -depth);
}

// The elements of a constant that do not hide scores; no numbers if all do.
Numbers visible_elements(const Constant& constant) {
  Numbers out{kInf, -kInf};
  const Elements elements(constant);
  for (std::size_t i = 0; i < elements.size(); ++i)
    if (const double x = elements.as_double(i); x > kFarBelow) out = united(out, {x, x});
  return out;
}

// The elements of an addend that do not hide scores, if each row of the softmax has one: then no hidden
// number is the largest of its row. All numbers otherwise.
std::optional<Numbers> visible_addend(const Site& s, ValueId id) {
  const Constant* const constant = constant_of(s.graph, id);
  const Shape& whole = s.graph.type(s.operand(0)).shape;
  const auto rank = static_cast<std::int64_t>(whole.size());
  const std::int64_t axis = Graph::attrs<AxisDtypeAttrs>(s.node).axis;
  if (constant == nullptr || !constant->storage.bound() || (axis != -1 && axis != rank - 1))
    return std::nullopt;
  if (constant->shape.empty() || whole.empty() || constant->shape.back() != whole.back()) return std::nullopt;
  const Elements elements(*constant);
  const auto row = static_cast<std::size_t>(whole.back());
  Numbers out{kInf, -kInf};
  for (std::size_t begin = 0; begin < elements.size(); begin += row) {
    double most = -kInf;
    for (std::size_t i = begin; i < begin + row; ++i) {
      const double x = elements.as_double(i);
      if (std::isnan(x)) return std::nullopt;
      if (x > kFarBelow) out = united(out, {x, x});
      most = std::max(most, x);
    }
    if (most <= kFarBelow) return std::nullopt;
  }
  return out;
}

Numbers visible_of(const Site& s, ValueId id, int depth);

// The numbers of `id` that a mask does not hide. Constants below kFarBelow are left out. If the softmax may
// change by the slack, operands are left out, too, if they are so far below the others that their
// exponentials change it by less.
Numbers visible(const Site& s, ValueId id, int depth = 0) {
  const Numbers found = visible_of(s, id, depth), all = s.ranges.of(id).bounds;
  const Numbers both{std::max(found.low, all.low), std::min(found.high, all.high)};
  return both.low <= both.high ? both : found;
}

Numbers visible_of(const Site& s, ValueId id, int depth) {
  const Graph& graph = s.graph;
  const Node* node = graph.producer(id);
  if (node == nullptr || depth > kDeepest || node->result_count != 1) return s.ranges.of(id).bounds;
  const auto operand = [&](std::size_t i) { return graph.operands(*node)[i]; };
  const auto at = [&](std::size_t i) { return visible(s, operand(i), depth + 1); };
  // In a constant from which elements are chosen, only some elements may hide scores.
  const auto chosen_at = [&](std::size_t i) {
    const Constant* const constant = constant_of(graph, operand(i));
    if (constant == nullptr || !constant->storage.bound()) return at(i);
    const Numbers seen = visible_elements(*constant);
    return seen.low <= seen.high ? seen : at(i);
  };
  const auto is_number = [&](ValueId each) { return each.valid() && is_float(graph.type(each).dtype); };
  double floor = -kInf;
  if (s.slack > 0 && (kJoins.contains(node->op) || node->op == Op::kMaximum))
    for (std::size_t i = 0; i < node->operand_count; ++i)
      if (is_number(operand(i))) floor = std::max(floor, s.ranges.of(operand(i)).bounds.low - s.flat());
  const auto hides = [&](std::size_t i) {
    if (s.slack > 0 && s.ranges.of(operand(i)).bounds.high < floor) return true;
    const std::optional<double> number = splat_of(graph, operand(i));
    return number && *number <= kFarBelow;
  };
  const Op op = node->op;
  if (kJoins.contains(op)) {
    Numbers out{kInf, -kInf};
    for (std::size_t i = 0; i < node->operand_count; ++i)
      if (is_number(operand(i)) && !hides(i)) out = united(out, chosen_at(i));
    return out;
  }
  if (op == Op::kMinimum) return smaller_of(chosen_at(0), chosen_at(1));
  if (op == Op::kClamp) {
    const auto& attrs = Graph::attrs<ClampAttrs>(*node);
    const double low = attrs.min ? as_double(*attrs.min) : -kInf;
    const double high = attrs.max ? as_double(*attrs.max) : kInf;
    return low <= high ? reaching(at(0), {low, high}) : s.ranges.of(id).bounds;
  }
  if (op == Op::kMaximum) return hides(0) ? at(1) : hides(1) ? at(0) : larger_of(at(0), at(1));
  if (op == Op::kAdd && *node->attrs == default_attrs(op)) {
    for (std::size_t i = 0; s.slack > 0 && i < 2; ++i)
      if (is_hiding_product(s, operand(i), s.flat() + 2 * magnitude(at(1 - i)).high)) return at(1 - i);
    const auto addend = [&](std::size_t i) { return visible_addend(s, operand(i)).value_or(at(i)); };
    return sum(addend(0), addend(1));
  }
  if (op == Op::kMul) return product(at(0), at(1));
  if (op == Op::kPad && Graph::attrs<PadAttrs>(*node).mode == PadMode::kConstant) {
    const double number = as_double(Graph::attrs<PadAttrs>(*node).value);
    const bool is_hidden = number <= kFarBelow || (s.slack > 0 && number < at(0).low - s.flat());
    return is_hidden ? at(0) : united(at(0), Numbers::only(number));
  }
  return info(op).has(kElementsOfInput) ? at(0) : s.ranges.of(id).bounds;
}

// ---- numbers that win or lose ----

// The numbers of a value: `others` follow from data, `above` and `below` are constants far from them. If
// `above` is a single number, a reader that finds the largest does not depend on how far above it is.
struct Extremes {
  Numbers others = kNoNumber, above = kNoNumber, below = kNoNumber;

  void add(double x) {
    if (std::isinf(x)) return;  // bound-numbers does not change infinities
    Numbers& of = x >= -kFarBelow ? above : x <= kFarBelow ? below : others;
    of = std::isnan(x) ? Numbers::all() : united(of, Numbers::only(x));
  }
  void add(const Numbers& range) { others = united(others, range); }
  void add(const Extremes& x) {
    others = united(others, x.others);
    above = united(above, x.above), below = united(below, x.below);
  }
  [[nodiscard]] bool one_above() const { return above.low >= above.high; }
  [[nodiscard]] bool one_below() const { return below.low >= below.high; }
};

// A node that adds a number to each element, or multiplies it by a number: x -> x * factor + offset.
struct Line {
  double factor = 1, offset = 0;
  [[nodiscard]] Numbers of(const Numbers& x) const {
    if (x.low > x.high) return x;
    const double a = x.low * factor + offset, b = x.high * factor + offset;
    return {std::min(a, b), std::max(a, b)};
  }
};

std::optional<Line> line_of(const Graph& graph, const Node& node) {
  const Op op = node.op;
  if (op == Op::kNeg) return Line{.factor = -1};
  const bool is_sum = op == Op::kAdd || op == Op::kSub;
  if (!is_sum && op != Op::kMul && op != Op::kDiv) return std::nullopt;
  if (op != Op::kMul && *node.attrs != default_attrs(op)) return std::nullopt;
  const std::optional<double> number = splat_of(graph, graph.operands(node)[1]);
  if (!number || !std::isfinite(*number) || (!is_sum && *number == 0)) return std::nullopt;
  if (is_sum) return Line{.offset = op == Op::kAdd ? *number : -*number};
  return Line{.factor = op == Op::kMul ? *number : 1 / *number};
}

// The numbers of `id`, as far as they are elements of other values, possibly times a number and plus another.
Extremes extremes_of(const Site& s, ValueId id, int depth = 0) {
  Extremes out;
  if (const Constant* const constant = constant_of(s.graph, id)) {
    if (!constant->storage.bound()) out.add(Numbers::all());
    const Elements elements(*constant);
    for (std::size_t i = 0; constant->storage.bound() && i < elements.size(); ++i)
      out.add(elements.as_double(i));
    return out;
  }
  const Node* const node = s.graph.producer(id);
  const Numbers range = s.ranges.of(id).bounds;
  const std::span<const ValueId> operands =
      node == nullptr ? std::span<const ValueId>{} : s.graph.operands(*node);
  // The operand of a cast may have integers. The condition of a `where` is not one of its numbers.
  const std::size_t first = node != nullptr && node->op == Op::kWhere ? 1 : 0;
  const bool is_of_floats = operands.size() > first && is_float(s.graph.type(operands[first]).dtype);
  if (!is_of_floats || depth > kDeepest || magnitude(range).high < -kFarBelow) {
    out.add(range);
    return out;
  }
  if (const std::optional<Line> line = line_of(s.graph, *node)) {
    const Extremes x = extremes_of(s, operands[0], depth + 1);
    out = {line->of(x.others), line->of(x.above), line->of(x.below)};
    if (line->factor < 0) std::swap(out.above, out.below);
    return out;
  }
  const Op op = node->op;
  const bool adds = op == Op::kIndexPut && Graph::attrs<IndexPutAttrs>(*node).accumulate;
  const bool takes_elements = kJoins.contains(op) || info(op).has(kMovement) || info(op).has(kSelection) ||
                              info(op).has(kElementsOfInput);
  if (adds || !takes_elements) {
    out.add(range);
    return out;
  }
  if (op == Op::kPad && Graph::attrs<PadAttrs>(*node).mode == PadMode::kConstant)
    out.add(as_double(Graph::attrs<PadAttrs>(*node).value));
  if (info(op).has(kSelection) || op == Op::kTril || op == Op::kTriu) out.add(0.0);
  const std::optional<bool> truth = op == Op::kWhere ? truth_everywhere(s.graph, operands[0]) : std::nullopt;
  for (std::size_t i = first; i < operands.size(); ++i)
    if (operands[i].valid() && is_float(s.graph.type(operands[i]).dtype) && truth != (i == 2))
      out.add(extremes_of(s, operands[i], depth + 1));
  return out;
}

Extremes extremes(const Site& s) { return extremes_of(s, s.operand(0)); }

// The operand of an operator to which only the order of the numbers matters. A number above or below the
// others stays above or below them in integers that have as few as 2^5 steps for the others.
Numbers ordered(const Site& s, std::size_t) {
  const Extremes found = extremes(s);
  if (found.others.low > found.others.high) return Numbers::all();
  const double size = magnitude(found.others).high;
  const double beside = (size > 0 ? 0x1p-4 * size : 1) + beyond_samples(s, found.others);
  return {found.one_below() ? found.others.low - beside : -kInf,
          found.one_above() ? found.others.high + beside : kInf};
}

// The largest number that a softmax distinguishes: if one number is larger, the results of the others are 0.
double winning(const Site& s, double flat) {
  const Extremes found = extremes(s);
  if (!found.one_above() || found.others.low > found.others.high) return kInf;
  return found.others.high + beyond_samples(s, found.others) + flat;
}

Numbers softmax_with(const Site& s, double further) {
  const std::int64_t row = row_of_softmax(s.graph, s.node);
  if (row == 1) return kNoNumber;  // the result is 1
  const Numbers seen = visible(s, s.operand(0));
  const double flat = std::min(s.flat() + std::log(std::max(static_cast<double>(row), 1.0)), kFlat);
  const double high = winning(s, flat + further);
  return {std::isfinite(seen.low) ? seen.low - flat - further : -kInf, std::max(high, seen.low)};
}

Numbers softmax(const Site& s, std::size_t) { return softmax_with(s, 0); }
Numbers log_softmax(const Site& s, std::size_t) { return softmax_with(s, -std::min(s.wanted.low, 0.0)); }

// ---- steps ----

// The largest change of a result if an operand changes by 1. Operators without a slope have no known bound.
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
double of_addend_of_matmul(const Site& s, std::size_t i) {
  return i == 0 ? std::fabs(as_double(Graph::attrs<AddmmAttrs>(s.node).beta)) : kInf;
}
double of_bias(const Site&, std::size_t i) { return i == 2 ? 1 : kInf; }
double of_leaky_relu(const Site& s, std::size_t) {
  return std::max(1.0, std::fabs(Graph::attrs<SlopeAttrs>(s.node).alpha));
}
double of_exponent(const Site& s, std::size_t) { return std::max(1.0, s.wanted.high + 1); }

// The slope of (x - mean) / sqrt(variance + eps) over n elements: at most 1 / sqrt(eps) through x, as much
// through the mean, and sqrt(n) times as much through the root.
double of_norm(const Site& s, std::size_t i, double eps, double reduced) {
  if (i != 0 || !(eps > 0)) return kInf;
  const std::span<const ValueId> operands = s.graph.operands(s.node);
  const bool is_weighted = operands.size() > 1 && operands[1].valid();
  const double weight = is_weighted ? magnitude(s.range(1).bounds).high : 1;
  return weight * (2 + std::sqrt(reduced)) / std::sqrt(eps);
}
double of_trailing_norm(const Site& s, std::size_t i) {
  const auto& attrs = Graph::attrs<NormAttrs>(s.node);
  const Shape& shape = s.graph.type(s.operand(0)).shape;
  const auto rank = static_cast<std::int64_t>(shape.size());
  double reduced = 1;
  for (std::int64_t axis = std::max<std::int64_t>(0, rank - attrs.normalized_rank); axis < rank; ++axis)
    reduced *= static_cast<double>(shape[static_cast<std::size_t>(axis)]);
  return of_norm(s, i, attrs.eps.value_or(0), reduced);
}
double of_group_norm(const Site& s, std::size_t i) {
  const auto& attrs = Graph::attrs<GroupNormAttrs>(s.node);
  const Shape& shape = s.graph.type(s.operand(0)).shape;
  if (shape.empty() || shape[0] == 0) return kInf;
  const std::int64_t reduced = num_elements(shape) / shape[0] / attrs.groups;
  return of_norm(s, i, attrs.eps, static_cast<double>(reduced));
}

const RuleTable<Slope>& slopes() {
  static constexpr RuleTable<Slope>::Row kRows[] = {
      {Op::kCat, one},
      {Op::kStack, one},
      {Op::kSplit, one},
      {Op::kUnbind, one},
      {Op::kSelect, one},
      {Op::kPad, one},
      {Op::kTril, one},
      {Op::kTriu, one},
      {Op::kSliceScatter, one},
      {Op::kMaximum, one},
      {Op::kMinimum, one},
      {Op::kWhere, one},
      {Op::kScatter, one},
      {Op::kIndexPut, one},
      {Op::kRelu, one},
      {Op::kClamp, one},
      {Op::kNeg, one},
      {Op::kAbs, one},
      {Op::kAdd, of_addend},
      {Op::kSub, of_addend},
      {Op::kMul, of_factor},
      {Op::kDiv, of_dividend},
      {Op::kMean, one},
      {Op::kAvgPool, one},
      {Op::kAdaptiveAvgPool, one},
      {Op::kResize, two},
      {Op::kNanToNum, one},
      {Op::kLeakyRelu, of_leaky_relu},
      {Op::kSoftplus, one},
      {Op::kLogSigmoid, one},
      {Op::kSin, one},
      {Op::kCos, one},
      {Op::kSum, of_sum},
      {Op::kSigmoid, one},
      {Op::kTanh, one},
      {Op::kErf, two},
      {Op::kGelu, two},
      {Op::kSilu, two},
      {Op::kMish, two},
      {Op::kHardswish, two},
      {Op::kHardsigmoid, one},
      {Op::kSoftmax, one},
      {Op::kSafeSoftmax, one},
      {Op::kLogSoftmax, two},
      {Op::kExp, of_exponent},
      {Op::kExpm1, of_exponent},
      {Op::kLayerNorm, of_trailing_norm},
      {Op::kRmsNorm, of_trailing_norm},
      {Op::kGroupNorm, of_group_norm},
      {Op::kAdaptiveMaxPool, one},
      {Op::kAddmm, of_addend_of_matmul},
      {Op::kBaddbmm, of_addend_of_matmul},
      {Op::kConv, of_bias},
      {Op::kLinear, of_bias},
  };
  static const RuleTable<Slope> table(one, kRows);
  return table;
}

constexpr OpTable<bool> kNorms = {{Op::kLayerNorm, true}, {Op::kRmsNorm, true}, {Op::kGroupNorm, true}};

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
      {Op::kNanToNum, as_result},
      {Op::kMaximum, maximum},
      {Op::kMinimum, minimum},
      {Op::kWhere, where},
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
      {Op::kAddmm, added_to_matmul},
      {Op::kBaddbmm, added_to_matmul},
      {Op::kConv, bias},
      {Op::kLinear, bias},
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
      {Op::kGelu, gated_by_square},
      {Op::kSilu, gated},
      {Op::kMish, gated},
      {Op::kHardswish, gated_by_square},
      {Op::kElu, elu},
      {Op::kSoftplus, softplus},
      {Op::kLogSigmoid, log_sigmoid},
      {Op::kLeakyRelu, leaky_relu},
      {Op::kSoftmax, softmax},
      {Op::kSafeSoftmax, softmax},
      {Op::kLogSoftmax, log_softmax},
      {Op::kArgmax, ordered},
      {Op::kArgmin, ordered},
      {Op::kArgsort, ordered},
      {Op::kCumargmax, ordered},
      {Op::kCumargmin, ordered},
      {Op::kSign, [](const Site&, std::size_t) { return Numbers{-1, 1}; }},
      {Op::kRound, rounded},
      {Op::kFloor, rounded},
      {Op::kCeil, rounded},
      {Op::kTrunc, rounded},
      {Op::kVar, variance},
      {Op::kStd, variance},
  };
  static const RuleTable<Rule> table(of_first, kRows);
  return table;
}

constexpr RelevantNumbers kUnread{kNoNumber, kInf, kInf, false};

// Operators that can have any number as result: they return elements of their operands, or compute sums and
// products. If all their results saturate, they still do after their operands were bounded.
constexpr OpTable<bool> kMakesAny = {{Op::kAdd, true},      {Op::kSub, true},          {Op::kMul, true},
                                     {Op::kNeg, true},      {Op::kCast, true},         {Op::kWhere, true},
                                     {Op::kCat, true},      {Op::kStack, true},        {Op::kScatter, true},
                                     {Op::kIndexPut, true}, {Op::kSliceScatter, true}, {Op::kPad, true},
                                     {Op::kMaximum, true},  {Op::kMinimum, true}};

bool is_read(const Numbers& wanted) { return wanted.low <= wanted.high; }

Numbers bounds_of(const Site& site, std::size_t operand) {
  const Rule rule = rules()[site.node.op];
  if (rule == nullptr) return Numbers::all();
  // If all results saturate, the wanted bound is not a result of the operator. Then a rule knows nothing
  // about the operands, unless the operator can have any number as result.
  const Op op = site.node.op;
  const bool makes_any = kMakesAny.contains(op) || info(op).has(kElementsOfInput);
  if (site.node.result_count == 1 && !makes_any) {
    const Numbers made = site.ranges.of(site.graph.result(site.node)).bounds;
    if (made.low > site.wanted.high || made.high < site.wanted.low) return Numbers::all();
  }
  const Numbers found = rule(site, operand);
  if (found == kNoNumber) return found;
  const Numbers bounds = outward(found);
  return is_read(bounds) ? bounds : Numbers::all();  // also for NaN
}

// `step` is the step of the result.
double step_of(const Site& site, std::size_t operand, double step) {
  if (site.node.op == Op::kQuantize)
    return *std::ranges::min_element(Graph::attrs<QuantizeAttrs>(site.node).scales);
  const Slope slope = slopes()[site.node.op];
  const double most = slope == nullptr ? kInf : slope(site, operand);
  return most > 0 && std::isfinite(most) && std::isfinite(step) ? step / most : 0;
}

}  // namespace

Relevance::Relevance(const Graph& graph, const FloatRanges& ranges, std::span<const double> levels)
    : graph_(graph),
      ranges_(ranges),
      levels_(levels.begin(), levels.end()),
      wanted_(graph.values().size(), kUnread) {
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
      all.finest = std::min(all.finest, needed.finest);
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
    if (type.qparams) {
      const double step = *std::ranges::min_element(type.qparams->scales);
      wanted = {unsaturated(*type.qparams), step, step, false};
    } else if (is_float(type.dtype)) {
      wanted = of_value(result);
    }
    out = {united(out.bounds, wanted.bounds), std::min(out.step, wanted.step),
           std::min(out.finest, wanted.finest), out.by_row || wanted.by_row};
  }
  return out;
}

RelevantNumbers Relevance::of_value(ValueId value) const {
  RelevantNumbers wanted = wanted_[value.index()];
  if (levels_.empty() || !is_read(wanted.bounds)) return wanted;
  const Numbers& observed = ranges_.of(value).bounds;
  // If all observed numbers have the same effect, `low` and `high` are the nearest number that matters.
  const auto within = [&](double x) { return std::clamp(x, wanted.bounds.low, wanted.bounds.high); };
  const double low = within(observed.low), high = within(observed.high);
  const double extent = std::max(high, 0.0) - std::min(low, 0.0);
  const double margin = kMargin * std::max(std::fabs(low), std::fabs(high));
  wanted.bounds = {within(low - margin), within(high + margin)};
  if (levels_[value.index()] > 0 && std::isfinite(extent))
    wanted.step = std::max(wanted.step, extent / levels_[value.index()]);
  return wanted;
}

RelevantNumbers Relevance::of(const Node& reader, std::size_t operand) const {
  if (!reader.regions.empty() || is_foreign(reader.op)) return {};
  const RelevantNumbers wanted = of_results(reader);
  if (!is_read(wanted.bounds)) return wanted;
  const bool of_samples = !levels_.empty();
  const Site site{graph_,    ranges_, reader, wanted.bounds, of_samples ? kUnnoticed * wanted.step : 0,
                  of_samples};
  // The slope of a norm is reached only by rows of nearly equal elements: it says nothing about other rows.
  const double finest = kNorms.contains(reader.op) ? 0 : step_of(site, operand, wanted.finest);
  return {bounds_of(site, operand), step_of(site, operand, wanted.step), finest > 0 ? finest : kInf,
          wanted.by_row || is_softmax(reader.op)};
}

}  // namespace tosaic::analysis
