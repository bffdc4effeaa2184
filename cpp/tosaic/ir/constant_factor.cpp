#include "tosaic/ir/constant_factor.h"

#include <algorithm>
#include <cmath>

#include "tosaic/ir/constant_value.h"
#include "tosaic/ir/quantized_value.h"

namespace tosaic {
namespace {

constexpr std::size_t kMostElements = std::size_t{1} << 20;
constexpr double kClearlyRounded =
    0.25;  // of a unit: far enough from a tie (0.5) for the errors of float arithmetic

// The number that all elements of a constant share, dequantized if the constant is quantized.
std::optional<double> number_of(const Graph& graph, ValueId id) {
  const std::optional<double> stored = splat_of(graph, id, kMostElements);
  const QParamsRef& qparams = graph.type(id).qparams;
  if (!stored || !qparams) return stored;
  if (qparams->axis) return std::nullopt;
  return (*stored - static_cast<double>(qparams->zero_points.front())) * qparams->scales.front();
}

}  // namespace

std::optional<ConstantFactor> constant_factor(const Graph& graph, const Node& node) {
  const bool divides = node.op == Op::kDiv && Graph::attrs<DivAttrs>(node).rounding == DivRounding::kNone;
  if (node.op != Op::kMul && !divides) return std::nullopt;
  const std::span<const ValueId> operands = graph.operands(node);
  for (const std::size_t data : {std::size_t{0}, std::size_t{1}}) {
    if (data == 1 && divides) break;
    const ValueId number = operands[1 - data];
    if (constant_of(graph, operands[data]) != nullptr || constant_of(graph, number) == nullptr) continue;
    if (graph.type(operands[data]).shape != graph.type(graph.result(node)).shape) continue;
    const std::optional<double> found = number_of(graph, number);
    if (!found) continue;
    const double factor = divides ? 1 / *found : *found;
    if (std::isfinite(factor) && factor != 0) return ConstantFactor{data, factor};
  }
  return std::nullopt;
}

std::int64_t mirrored_zero_point(const QParams& qparams) {
  return qparams.qmin + qparams.qmax - qparams.zero_points.front();
}

bool keeps_integers(const QParams& from, double factor, const QParams& to) {
  if (from.axis || to.axis || !(factor > 0) || from.storage != to.storage) return false;
  if (from.zero_points != to.zero_points || from.qmin < to.qmin || from.qmax > to.qmax) return false;
  const auto zero_point = static_cast<double>(from.zero_points.front());
  const double most =
      std::max(static_cast<double>(from.qmax) - zero_point, zero_point - static_cast<double>(from.qmin));
  return std::abs(from.scales.front() * factor / to.scales.front() - 1) * most < kClearlyRounded;
}

}  // namespace tosaic
