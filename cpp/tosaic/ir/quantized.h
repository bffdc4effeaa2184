// quantized: properties of operators on values with qparams, at stage quantized.
//
// q is quantize, dq is dequantize. At this stage an operator on values with qparams means q(op(dq(x))). Four
// predicates classify operators by what they do with elements:
//
//   rearranges              places elements of the operands                      reshape, permute, slice, cat
//   moves                   also inserts 0                                       tril, pad with 0
//   selects_elements        also chooses elements by their order or a condition  relu, max_pool, where
//   commutes_with_quantize  also clamps                                          clamp
//
// Each predicate holds for all nodes for which the one above it holds.
#pragma once

#include <memory>
#include <optional>

#include "tosaic/ir/graph.h"

namespace tosaic {

// The qparams in the attributes of a quantize or dequantize node, for integers of dtype `storage`.
template <class A>
[[nodiscard]] QParamsRef qparams_of(const A& attrs, DType storage) {
  return std::make_shared<const QParams>(
      QParams{storage, attrs.qmin, attrs.qmax, attrs.axis, attrs.scales, attrs.zero_points, attrs.groups});
}

// The inverse of qparams_of: the attributes of a quantize or dequantize node with result dtype `dtype`.
template <class A>
[[nodiscard]] A attrs_of_qparams(DType dtype, const QParams& qparams) {
  return {dtype,          qparams.axis,        qparams.qmin,  qparams.qmax,
          qparams.scales, qparams.zero_points, qparams.groups};
}

// True if equal integers represent equal numbers under a and b: axis, groups, scales and zero points are
// equal.
// Ranges may differ. a and b are QParams or attributes of quantize or dequantize nodes.
template <class A, class B>
[[nodiscard]] bool same_grid(const A& a, const B& b) {
  return a.axis == b.axis && a.groups == b.groups && a.scales == b.scales && a.zero_points == b.zero_points;
}

[[nodiscard]] inline bool same_qparams(const QParamsRef& a, const QParamsRef& b) {
  return a == b || (a && b && *a == *b);
}

// True for the float dtypes that integers with qparams may replace. Integers represent more bits than f16 and
// bf16 have; only tables reproduce the rounding of these two dtypes.
[[nodiscard]] inline bool has_integer_form(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

// The number that a movement inserts: pad, tril and triu. Returns nothing if it inserts none.
[[nodiscard]] std::optional<double> inserted_number(const Node& node);

// True if every element of the result is an element of an operand, at a position that does not depend on the
// elements. The operator can then run on the integers, whatever numbers they represent.
[[nodiscard]] bool rearranges(const Node& node);

// True if the node rearranges elements, or rearranges them and inserts 0 (tril, triu, constant padding with
// 0). On integers, the zero point takes the place of 0.
[[nodiscard]] bool moves(const Node& node);

// True if every element of the result is 0 or an element of an operand, and the choice depends only on
// positions, on the order of the elements (relu, pools and reductions by maximum or minimum) or on a
// condition (where).
[[nodiscard]] bool selects_elements(const Node& node);

// True if q(op(x)) = op'(q(x)), where op' = q op dq with the same parameters for operand and result. This
// holds for nodes that select elements and for clamp, because quantizing is monotonic.
[[nodiscard]] bool commutes_with_quantize(const Node& node);

// True if 0 is representable: every zero point is in [qmin, qmax].
[[nodiscard]] bool has_zero(const QParams& qparams);

// The parameters of the result of a node that moves elements, if its data have the parameters `from`. A
// per-channel axis, and the axis of groups, become the axes to which the node moves them. If the node
// reverses, chooses or repeats indices of an axis, its scales follow. Returns nothing if the axis is not an
// axis of the result, if the node inserts a number or takes elements along the axis at indices that are data,
// and for groups whose indices change. Per-tensor parameters are returned unchanged.
[[nodiscard]] std::optional<QParamsRef> qparams_after(const Graph& graph, const Node& node,
                                                      const QParamsRef& from);

// True if the node rearranges elements, and its results and all operands except indices have the same
// parameters (a per-channel axis may move). Such a node runs on the integers themselves.
[[nodiscard]] bool runs_on_integers(const Graph& graph, const Node& node);

// True if an operator that finds or replaces NaN (x != x, nan_to_num) reads the value, through movement and
// elementwise operators. No quantize may be between: integers have no NaN.
[[nodiscard]] bool is_tested_for_nan(const Graph& graph, ValueId value);

// True for a foreign operator whose description has a kernel over integers.
[[nodiscard]] bool has_integer_kernel(const Node& node);

// True if an operand or result has qparams and the node is neither quantize nor dequantize. Such a node
// computes with the numbers that the integers represent.
[[nodiscard]] bool computes_dequantized(const Graph& graph, const Node& node);

}  // namespace tosaic
