// decompose: expands composite operators into operators for which a TOSA target has a counterpart.
//
//   softmax     ->  amax, sub, exp, sum, reciprocal, mul
//   layer_norm  ->  mean, sub, mul, mean, rsqrt, mul, add
//   sdpa        ->  matmul, add mask, softmax, matmul
//   addmm       ->  linear
//
// Operators over unsigned integers compute in i32 (widen_unsigned.cpp), since TOSA has no unsigned dtypes.
//
// The expansions are in expand_*.cpp. An operator that TOSA has stays, unless its ranks, dtypes or attributes
// are beyond TOSA's operator. Dilated and 3-d pools, 1-d convolutions, integer matrix products, and resizes
// that RESIZE does not compute exactly are beyond it.

#include <algorithm>

#include "tosaic/ir/rewriter.h"
#include "tosaic/passes/byte_integers.h"
#include "tosaic/passes/decompose/expansions.h"
#include "tosaic/passes/match.h"
#include "tosaic/passes/pass.h"
#include "tosaic/passes/regions.h"
#include "tosaic/passes/resize_axis.h"

namespace tosaic::passes {
namespace {

using Expansion = ValueId (*)(Emitter&);
using MultiExpansion = std::vector<ValueId> (*)(Emitter&);

bool needs_rank4(const Graph& graph, const Node& node) {
  const std::size_t rank = graph.type(graph.operands(node)[0]).rank();
  if (const auto* pool = get_if<PoolAttrs>(node.attrs.get()))
    return pool->kernel.size() <= 2 && (rank != 4 || pool->kernel.size() == 1);
  if (const auto* resize = get_if<ResizeAttrs>(node.attrs.get())) return resize->size.size() == 1;
  return false;
}

// True if a nearest resize of one axis would read other elements if it were computed as one of two axes:
// torch has two rules (see `whole_steps` of nearest_elements).
bool changes_with_rank(const Graph& graph, const Node& node) {
  const auto& attrs = Graph::attrs<ResizeAttrs>(node);
  if (attrs.size.size() != 1 || attrs.mode != ResizeMode::kNearest || attrs.scales.empty()) return false;
  const std::int64_t in = graph.type(graph.operands(node)[0]).shape.back(), out = attrs.size[0];
  return nearest_elements(in, out, attrs.scales[0], false) !=
         nearest_elements(in, out, attrs.scales[0], true);
}

bool beyond_resize(const Graph& graph, const Node& node) {
  const auto& attrs = Graph::attrs<ResizeAttrs>(node);
  const Shape& in = graph.type(graph.operands(node)[0]).shape;
  if (num_elements(in) == 0 || num_elements(attrs.size) == 0) return false;
  if (attrs.size.size() != 2 || attrs.mode == ResizeMode::kBicubic) return true;
  return !exact_resize_axis(attrs, 0, in[2], attrs.size[0]) ||
         !exact_resize_axis(attrs, 1, in[3], attrs.size[1]);
}

bool is_dilated_pool(const Node& node) {
  const Dims& dilation = Graph::attrs<PoolAttrs>(node).dilation;
  return std::any_of(dilation.begin(), dilation.end(), [](std::int64_t d) { return d != 1; });
}

bool has_bool_index(const Graph& graph, const Node& node) {
  for (const ValueId operand : graph.operands(node).subspan(1))
    if (operand.valid() && graph.type(operand).dtype == DType::kBool) return true;
  return false;
}

bool has_float_result(const Graph& graph, const Node& node) {
  return is_float(graph.type(graph.result(node)).dtype);
}

// How a node is expanded: by a function with one result or by one with several, and at which width. If both
// functions are null, the node stays.
struct Rule {
  Expansion one = nullptr;
  MultiExpansion all = nullptr;
  Emitter::Width width = Emitter::Width::kAsIs;
};
constexpr Rule kStays;

// Torch computes these operators in f32 if their operands are narrower floats.
constexpr Rule wide(Expansion one) { return {one, nullptr, Emitter::Width::kWide}; }
constexpr Rule wide(MultiExpansion all) { return {nullptr, all, Emitter::Width::kWide}; }
// These operators move elements, round every step to the dtype as torch does, cast by themselves, or expand
// into contractions and pools, which accumulate in f32 anyway.
constexpr Rule as_is(Expansion one) { return {one, nullptr, Emitter::Width::kAsIs}; }
constexpr Rule as_is(MultiExpansion all) { return {nullptr, all, Emitter::Width::kAsIs}; }

// ---- operators that are expanded depending on attributes and types ----

Rule remainder_rule(const Graph& graph, const Node& node) {
  return has_float_result(graph, node) ? wide(expand_remainder) : kStays;
}

Rule fmod_rule(const Graph& graph, const Node& node) {
  return has_float_result(graph, node) ? wide(expand_fmod) : kStays;
}

Rule div_rule(const Graph& graph, const Node& node) {
  return Graph::attrs<DivAttrs>(node).rounding != DivRounding::kNone && has_float_result(graph, node)
             ? wide(expand_rounded_division)
             : kStays;
}

Rule prod_rule(const Graph& graph, const Node& node) {
  return has_float_result(graph, node) ? kStays : as_is(expand_integer_product);
}

Rule pow_rule(const Graph& graph, const Node& node) {
  return graph.type(graph.operands(node)[1]).dtype == DType::kF64 &&
                 graph.type(graph.result(node)).dtype == DType::kF32
             ? as_is(expand_wide_exponent)
             : kStays;
}

Rule index_rule(const Graph& graph, const Node& node) {
  return has_bool_index(graph, node) ? kStays : as_is(expand_index);
}

Rule pool_rule(const Graph& graph, const Node& node) {
  return Graph::attrs<PoolAttrs>(node).kernel.size() == 3 ? as_is(expand_pool3d)
         : needs_rank4(graph, node)                       ? as_is(expand_to_rank4)
         : is_dilated_pool(node)                          ? as_is(expand_dilated_pool)
                                                          : kStays;
}

Rule index_put_rule(const Graph& graph, const Node& node) {
  return is_row_write(graph, node) ? kStays : as_is(expand_index_put);
}

Rule resize_rule(const Graph& graph, const Node& node) {
  return changes_with_rank(graph, node) ? wide(expand_resize)
         : needs_rank4(graph, node)     ? wide(expand_to_rank4)
         : beyond_resize(graph, node)   ? wide(expand_resize)
                                        : kStays;
}

Rule conv_rule(const Graph& graph, const Node& node) {
  const std::size_t weight_rank = graph.type(graph.operands(node)[1]).rank();
  const bool batched = graph.type(graph.operands(node)[0]).rank() == weight_rank;
  if (weight_rank == 3 || !batched) return as_is(expand_conv1d);
  return weight_rank == 5 && Graph::attrs<ConvAttrs>(node).transposed ? as_is(expand_transposed_conv3d)
                                                                      : kStays;
}

Rule matmul_rule(const Graph& graph, const Node& node) {
  if (is_integer(graph.type(graph.result(node)).dtype))
    return multiplies_bytes(graph, node) ? kStays : as_is(expand_integer_matmul);
  const ValueId other = graph.operands(node)[1];
  const bool matrix = constant_of(graph, other) != nullptr && graph.type(other).rank() == 2;
  return matrix && graph.type(graph.operands(node)[0]).rank() >= 2 ? as_is(expand_matmul_by_constant)
                                                                   : kStays;
}

Rule resolved(const Rule& rule, const Graph& /*graph*/, const Node& /*node*/) { return rule; }
Rule resolved(Rule (*rule)(const Graph&, const Node&), const Graph& graph, const Node& node) {
  return rule(graph, node);
}

Rule rule_of(const Graph& graph, const Node& node) {
  switch (node.op) {
#define TOSAIC_OP(Name, text, AttrsT, operands, results, traits, int16, inference, error, kernel, expansion, \
                  ...)                                                                                       \
  case Op::Name:                                                                                             \
    return resolved(expansion, graph, node);
#define TOSAIC_TOSA_OP(Name, ...) case Op::Name:
#include "tosaic/ir/ops.def"
    return kStays;
  }
  return kStays;
}

using Filter = std::function<bool(const Graph&, const Node&)>;

std::optional<Graph> expand_once(const Graph& graph, const Filter& wanted) {
  Rewriter rewriter(graph);
  for (const Node& node : graph.nodes()) {
    if (!wanted(graph, node)) {
      rewriter.copy(node);
      continue;
    }
    const Rule rule = rule_of(graph, node);
    if (rule.one == nullptr && rule.all == nullptr) {
      rewriter.copy(node);
      continue;
    }
    Emitter emitter(rewriter, node, rule.width);
    if (rule.all != nullptr) {
      emitter.replace(rule.all(emitter));
    } else {
      emitter.replace(rule.one(emitter));
    }
  }
  return std::move(rewriter).finish();
}

}  // namespace

std::optional<Graph> expand_composites(const Graph& graph, const Filter& wanted) {
  std::optional<Graph> result =
      in_regions(graph, [&wanted](const Graph& region) { return expand_composites(region, wanted); });
  for (;;) {  // an expansion may use composites (adaptive pool -> avg_pool of rank 3)
    std::optional<Graph> next = expand_once(result ? *result : graph, wanted);
    if (!next) break;
    result = std::move(next);
  }
  if (!result) return result;
  std::optional<Graph> clean = dead_code(*result);
  return clean ? std::move(clean) : std::move(result);
}

std::optional<Graph> decompose(const Graph& graph) {
  std::optional<Graph> expanded = expand_composites(graph, [](const Graph&, const Node&) { return true; });
  std::optional<Graph> widened = widen_unsigned(expanded ? *expanded : graph);
  return widened ? std::move(widened) : std::move(expanded);
}

}  // namespace tosaic::passes
