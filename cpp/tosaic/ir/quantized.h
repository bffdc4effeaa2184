// What operators do to values with qparams, at stage quantized.
#pragma once

#include <memory>
#include <optional>

#include "tosaic/ir/graph.h"

namespace tosaic {

// The parameters that a quantize or dequantize node carries, for integers of that storage dtype.
template <class A>
[[nodiscard]] QParamsRef qparams_of(const A& attrs, DType storage) {
  return std::make_shared<const QParams>(
      QParams{storage, attrs.qmin, attrs.qmax, attrs.axis, attrs.scales, attrs.zero_points});
}

template <class A>
[[nodiscard]] A attrs_of_qparams(DType dtype, const QParams& qparams) {
  return {dtype, qparams.axis, qparams.qmin, qparams.qmax, qparams.scales, qparams.zero_points};
}

// Integers stand for the same numbers, by qparams or the attributes of a quantize or dequantize node; ranges
// may differ.
template <class A, class B>
[[nodiscard]] bool same_grid(const A& a, const B& b) {
  return a.axis == b.axis && a.scales == b.scales && a.zero_points == b.zero_points;
}

[[nodiscard]] inline bool same_qparams(const QParamsRef& a, const QParamsRef& b) {
  return a == b || (a && b && *a == *b);
}

// Elements of the result are elements of the operands: the operator does the same to integers that stand for
// them, whatever they stand for.
[[nodiscard]] bool rearranges(const Node& node);

// Elements of the result are elements of the float operands, or 0.
[[nodiscard]] bool moves(const Node& node);

// As `moves`, and which of them it is may be decided by order.
[[nodiscard]] bool chooses(const Node& node);

// q(op(x)) = op'(q(x)), where op' = q op dq with the same parameters on both sides: what moves and chooses,
// and bounds, since quantizing keeps the order.
[[nodiscard]] bool commutes_with_quantize(const Node& node);

// 0 is one of the values that these parameters stand for.
[[nodiscard]] bool has_zero(const QParams& qparams);

// The parameters of the result of a node that moves elements, where those of its data are given: an axis goes
// where the node takes it. Nothing where it does not stay one axis.
[[nodiscard]] std::optional<QParamsRef> moved(const Graph& graph, const Node& node, const QParamsRef& from);

// The node rearranges integers that stand for the same numbers before and behind it.
[[nodiscard]] bool keeps_numbers(const Graph& graph, const Node& node);

// An operator, but for quantize and dequantize, over or onto values with qparams: it means their numbers.
[[nodiscard]] bool means_numbers(const Graph& graph, const Node& node);

}  // namespace tosaic
