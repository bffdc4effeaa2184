// Interval arithmetic over floats. The result of an operator without a rule has the range of its dtype.
#include "tosaic/passes/legalize_tosa/float_range.h"

#include <algorithm>
#include <cmath>

#include "tosaic/passes/match.h"

namespace tosaic::passes {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// A lower bound of the magnitude of all elements that are not 0.
double least_of(const FloatRange& range) { return std::max({range.least, range.min, -range.max}); }

FloatRange range_of(double min, double max, double least = 0) {
  FloatRange range{min, max, least};
  range.least = least_of(range);
  return range;
}

FloatRange of_dtype(DType dtype) {
  if (dtype == DType::kBool) return {0, 1, 1};
  if (dtype == DType::kF16) return {-kInf, kInf, 0x1p-24};
  const std::optional<ValueRange> integers = integer_limits(dtype);
  return integers ? FloatRange{static_cast<double>(integers->low), static_cast<double>(integers->high), 1}
                  : FloatRange{};
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
  FloatRange out{outward(range.min, -1), outward(range.max, 1), 0};
  if (std::isnan(out.min) || std::isnan(out.max)) return of_dtype(dtype);
  out.least =
      std::max(of_dtype(dtype).least, range.least * (1 - slack) < 0x1p-126 ? 0.0 : range.least * (1 - slack));
  return out;
}

FloatRange united(const FloatRange& a, const FloatRange& b) {
  return {std::min(a.min, b.min), std::max(a.max, b.max), std::min(least_of(a), least_of(b))};
}

FloatRange negated(const FloatRange& a) { return {-a.max, -a.min, a.least}; }

FloatRange sum(const FloatRange& a, const FloatRange& b) { return range_of(a.min + b.min, a.max + b.max); }

FloatRange product(const FloatRange& a, const FloatRange& b) {
  FloatRange range{kInf, -kInf, a.least * b.least};
  for (const double x : {a.min, a.max})
    for (const double y : {b.min, b.max}) {
      const double corner = x == 0 || y == 0 ? 0 : x * y;
      range.min = std::min(range.min, corner);
      range.max = std::max(range.max, corner);
    }
  return range;
}

FloatRange magnitude(const FloatRange& a) {
  const double low = a.min > 0 ? a.min : a.max < 0 ? -a.max : 0;
  return range_of(low, std::max(-a.min, a.max), a.least);
}

FloatRange mapped(const FloatRange& a, double (*monotone)(double)) {
  return range_of(monotone(a.min), monotone(a.max));
}

FloatRange clamped(FloatRange a, double low, double high) {
  return range_of(std::clamp(a.min, std::min(low, high), high), std::clamp(a.max, std::min(low, high), high));
}

FloatRange of_constant(const Constant& constant) {
  if (!constant.storage.bound() || num_elements(constant.shape) == 0) return of_dtype(constant.dtype);
  FloatRange range{kInf, -kInf, kInf};
  const Elements elements(constant);
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const double value = elements.as_double(i);
    if (std::isnan(value)) return of_dtype(constant.dtype);
    range = {std::min(range.min, value), std::max(range.max, value),
             value == 0 ? range.least : std::min(range.least, std::fabs(value))};
  }
  return range;
}

// The range of a node's result before it is rounded to its dtype, from the ranges of the operands.
class Rules {
 public:
  Rules(const Graph& graph, const FloatRanges& ranges) : graph_(graph), ranges_(ranges) {}

  [[nodiscard]] FloatRange of_node(const Node& node) const;

 private:
  [[nodiscard]] const FloatRange& at(const Node& node, std::size_t i) const {
    return ranges_.of(graph_.operands(node)[i]);
  }

  [[nodiscard]] FloatRange all(const Node& node, std::size_t first) const {
    FloatRange range = at(node, first);
    for (std::size_t i = first + 1; i < node.operand_count; ++i) range = united(range, at(node, i));
    return range;
  }

  [[nodiscard]] FloatRange clamp(const Node& node) const {
    const auto& attrs = Graph::attrs<ClampAttrs>(node);
    const double low = attrs.min ? as_double(*attrs.min) : -kInf;
    const double high = attrs.max ? as_double(*attrs.max) : kInf;
    if (std::isnan(low) || std::isnan(high)) return {};
    return clamped(at(node, 0), low, high);
  }

  [[nodiscard]] FloatRange scaled_operand(const Node& node, double sign) const {
    const double alpha = sign * as_double(Graph::attrs<AlphaAttrs>(node).alpha);
    return product(at(node, 1), range_of(alpha, alpha));
  }

  [[nodiscard]] double reduced_count(const Node& node) const {
    const auto out = static_cast<double>(num_elements(graph_.type(graph_.result(node)).shape));
    return static_cast<double>(num_elements(graph_.type(graph_.operands(node)[0]).shape)) /
           std::max(1.0, out);
  }

  const Graph& graph_;
  const FloatRanges& ranges_;
};

FloatRange Rules::of_node(const Node& node) const {
  switch (node.op) {  // NOLINT: operators with a rule
    case Op::kClamp:
      return clamp(node);
    case Op::kSigmoid:
      return {0, 1, 0};
    case Op::kTanh:
    case Op::kErf:
    case Op::kSin:
    case Op::kCos:
      return {-1, 1, 0};
    case Op::kExp:
      return mapped(at(node, 0), [](double x) { return std::exp(x); });
    case Op::kSqrt:
      return mapped(clamped(at(node, 0), 0, kInf), [](double x) { return std::sqrt(x); });
    case Op::kRsqrt:
      return {0, kInf, 0};
    case Op::kRelu:
      return clamped(at(node, 0), 0, kInf);
    case Op::kAbs:
      return magnitude(at(node, 0));
    case Op::kNeg:
      return negated(at(node, 0));
    case Op::kFloor:
      return mapped(at(node, 0), [](double x) { return std::floor(x); });
    case Op::kCeil:
      return mapped(at(node, 0), [](double x) { return std::ceil(x); });
    case Op::kRound:
      return mapped(at(node, 0), [](double x) { return std::nearbyint(x); });
    case Op::kTrunc:
      return mapped(at(node, 0), [](double x) { return std::trunc(x); });
    case Op::kAdd:
      return sum(at(node, 0), scaled_operand(node, 1));
    case Op::kSub:
      return sum(at(node, 0), scaled_operand(node, -1));
    case Op::kMul:
      return graph_.operands(node)[0] == graph_.operands(node)[1]
                 ? magnitude(product(at(node, 0), at(node, 0)))
                 : product(at(node, 0), at(node, 1));
    case Op::kMaximum: {
      const FloatRange &a = at(node, 0), &b = at(node, 1);
      return range_of(std::max(a.min, b.min), std::max(a.max, b.max));
    }
    case Op::kMinimum: {
      const FloatRange &a = at(node, 0), &b = at(node, 1);
      return range_of(std::min(a.min, b.min), std::min(a.max, b.max));
    }
    case Op::kWhere:
      return all(node, 1);
    case Op::kCat:
      return all(node, 0);
    case Op::kSum: {
      const double count = reduced_count(node);
      const FloatRange terms = at(node, 0);
      if (terms.min >= 0 && count >= 1)
        return range_of(terms.min, product(terms, range_of(count, count)).max);
      return product(united(terms, range_of(0, 0)), range_of(0, count));
    }
    default:
      return has_elements_of_input(node.op) ? at(node, 0) : of_dtype(graph_.type(graph_.result(node)).dtype);
  }
}

}  // namespace

FloatRanges::FloatRanges(const Graph& graph) : graph_(graph), ranges_(graph.values().size()) {
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    const Value& value = graph.values()[i];
    if (value.kind != ValueKind::kConstant) ranges_[i] = of_dtype(value.type.dtype);
  }
  const Rules rules(graph, *this);
  for (const Node& node : graph.nodes()) {
    if (node.result_count != 1) continue;
    const DType dtype = graph.type(graph.result(node)).dtype;
    if (is_float(dtype)) ranges_[node.first_result] = rounded(rules.of_node(node), dtype);
  }
}

const FloatRange& FloatRanges::of(ValueId value) const {
  std::optional<FloatRange>& range = ranges_[value.index()];
  if (!range) range = of_constant(*graph_.value(value).constant);
  return *range;
}

}  // namespace tosaic::passes
