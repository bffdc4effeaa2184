// decompose: composite operators become operators that a TOSA target has a counterpart for.
//
//   softmax(x)  ->  amax, sub, exp, sum, reciprocal, mul          layer_norm  ->  mean, sub, mul, mean,
//   rsqrt, mul, add sdpa        ->  matmul, add mask, softmax, matmul             addmm       ->  linear
//
// The expansions stand in expand_*.cpp. Operators that the target has stay, whatever their attributes.

#include <algorithm>

#include "tosaic/ir/rewriter.h"
#include "tosaic/passes/expansions.h"
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
  if (const auto* pool = std::get_if<PoolAttrs>(node.attrs.get()))
    return pool->kernel.size() <= 2 && (rank != 4 || pool->kernel.size() == 1);
  if (const auto* resize = std::get_if<ResizeAttrs>(node.attrs.get())) return resize->size.size() == 1;
  return false;
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

// The expansion of a node, or null where it stays. The switch names every operator that has one.
Expansion expansion_of(const Graph& graph, const Node& node) {
  switch (node.op) {  // NOLINT: the table of expansions; every other operator stays
    case Op::kAddmm:
    case Op::kBaddbmm:
      return expand_addmm;
    case Op::kSdpa:
      return expand_sdpa;
    case Op::kLeakyRelu:
      return expand_leaky_relu;
    case Op::kElu:
      return expand_elu;
    case Op::kAcos:
      return expand_acos;
    case Op::kAcosh:
      return expand_acosh;
    case Op::kAsin:
      return expand_asin;
    case Op::kAsinh:
      return expand_asinh;
    case Op::kAtan:
      return expand_atan;
    case Op::kAtanh:
      return expand_atanh;
    case Op::kCosh:
      return expand_cosh;
    case Op::kErfinv:
      return expand_erfinv;
    case Op::kExpm1:
      return expand_expm1;
    case Op::kLog10:
      return expand_log10;
    case Op::kLog1p:
      return expand_log1p;
    case Op::kLog2:
      return expand_log2;
    case Op::kSinh:
      return expand_sinh;
    case Op::kTan:
      return expand_tan;
    case Op::kIsinf:
      return expand_isinf;
    case Op::kNanToNum:
      return expand_nan_to_num;
    case Op::kLogit:
      return expand_logit;
    case Op::kMish:
      return expand_mish;
    case Op::kLogSigmoid:
      return expand_log_sigmoid;
    case Op::kSoftplus:
      return expand_softplus;
    case Op::kSoftshrink:
      return expand_softshrink;
    case Op::kHardshrink:
      return expand_hardshrink;
    case Op::kAtan2:
      return expand_atan2;
    case Op::kLerp:
      return expand_lerp;
    case Op::kPrelu:
      return expand_prelu;
    case Op::kGlu:
      return expand_glu;
    case Op::kStd:
      return expand_std;
    case Op::kLogsumexp:
      return expand_logsumexp;
    case Op::kVectorNorm:
      return expand_vector_norm;
    case Op::kQuantize:
      return expand_quantize;
    case Op::kDequantize:
      return expand_dequantize;
    case Op::kAddcmul:
    case Op::kAddcdiv:
      return expand_addc;
    case Op::kRemainder:
      return has_float_result(graph, node) ? expand_remainder : nullptr;
    case Op::kFmod:
      return has_float_result(graph, node) ? expand_fmod : nullptr;
    case Op::kDiv:
      return Graph::attrs<DivAttrs>(node).rounding != DivRounding::kNone && has_float_result(graph, node)
                 ? expand_rounded_division
                 : nullptr;
    case Op::kProd:
      return has_float_result(graph, node) ? nullptr : expand_integer_product;
    case Op::kGelu:
      return expand_gelu;
    case Op::kSilu:
      return expand_silu;
    case Op::kHardsigmoid:
      return expand_hardsigmoid;
    case Op::kHardswish:
      return expand_hardswish;
    case Op::kMean:
      return expand_mean;
    case Op::kVar:
      return expand_var;
    case Op::kArgmin:
      return expand_argmin;
    case Op::kCumsum:
      return expand_cumsum;
    case Op::kDiff:
      return expand_diff;
    case Op::kBatchNorm:
      return expand_batch_norm;
    case Op::kLayerNorm:
      return expand_layer_norm;
    case Op::kRmsNorm:
      return expand_rms_norm;
    case Op::kGroupNorm:
      return expand_group_norm;
    case Op::kSoftmax:
    case Op::kSafeSoftmax:
      return expand_softmax;
    case Op::kLogSoftmax:
      return expand_log_softmax;
    case Op::kStack:
      return expand_stack;
    case Op::kSelect:
      return expand_select;
    case Op::kTril:
    case Op::kTriu:
      return expand_triangle;
    case Op::kIndex:
      return has_bool_index(graph, node) ? nullptr : expand_index;
    case Op::kAdaptiveAvgPool:
    case Op::kAdaptiveMaxPool:
      return expand_adaptive_pool;
    case Op::kAvgPool:
    case Op::kMaxPool:
      return Graph::attrs<PoolAttrs>(node).kernel.size() == 3 ? expand_pool3d
             : needs_rank4(graph, node)                       ? expand_to_rank4
             : is_dilated_pool(node)                          ? expand_dilated_pool
                                                              : nullptr;
    case Op::kScatter:
      return expand_scatter;
    case Op::kSliceScatter:
      return expand_slice_scatter;
    case Op::kIndexPut:
      return is_row_write(graph, node) ? nullptr : expand_index_put;
    case Op::kEinsum:
      return expand_einsum;
    case Op::kGridSample:
      return expand_grid_sample;
    case Op::kAffineGrid:
      return expand_affine_grid;
    case Op::kResize:
      return needs_rank4(graph, node)     ? expand_to_rank4
             : beyond_resize(graph, node) ? expand_resize
                                          : nullptr;
    case Op::kConv: {
      const std::size_t weight_rank = graph.type(graph.operands(node)[1]).rank();
      const bool batched = graph.type(graph.operands(node)[0]).rank() == weight_rank;
      if (weight_rank == 3 || !batched) return expand_conv1d;
      return weight_rank == 5 && Graph::attrs<ConvAttrs>(node).transposed ? expand_transposed_conv3d
                                                                          : nullptr;
    }
    case Op::kMatmul: {
      if (is_integer(graph.type(graph.result(node)).dtype)) return expand_integer_matmul;
      const ValueId other = graph.operands(node)[1];
      const bool matrix = constant_of(graph, other) != nullptr && graph.type(other).rank() == 2;
      return matrix && graph.type(graph.operands(node)[0]).rank() >= 2 ? expand_matmul_by_constant : nullptr;
    }
    default:
      return nullptr;
  }
}

// The same for operators with several results.
MultiExpansion expansion_of_all(const Node& node) {
  switch (node.op) {  // NOLINT: as above
    case Op::kSplit:
      return expand_split;
    case Op::kUnbind:
      return expand_unbind;
    case Op::kRecurrent:
      return expand_recurrent;
    default:
      return nullptr;
  }
}

// Composites that torch computes in f32 where their operands are narrower floats. The others move elements,
// or consist of contractions and pools, which accumulate in f32 anyway.
Emitter::Width width_of(Op op) {
  switch (op) {  // NOLINT: the arithmetic composites
    case Op::kLeakyRelu:
    case Op::kElu:
    case Op::kAcos:
    case Op::kAcosh:
    case Op::kAsin:
    case Op::kAsinh:
    case Op::kAtan:
    case Op::kAtanh:
    case Op::kCosh:
    case Op::kErfinv:
    case Op::kExpm1:
    case Op::kLog10:
    case Op::kLog1p:
    case Op::kLog2:
    case Op::kSinh:
    case Op::kTan:
    case Op::kMish:
    case Op::kLogSigmoid:
    case Op::kSoftplus:
    case Op::kSoftshrink:
    case Op::kHardshrink:
    case Op::kAtan2:
    case Op::kLerp:
    case Op::kPrelu:
    case Op::kStd:
    case Op::kLogsumexp:
    case Op::kVectorNorm:
    case Op::kRemainder:
    case Op::kFmod:
    case Op::kAddcmul:
    case Op::kAddcdiv:
    case Op::kDiv:
    case Op::kGelu:
    case Op::kSilu:
    case Op::kHardsigmoid:
    case Op::kHardswish:
    case Op::kMean:
    case Op::kVar:
    case Op::kCumsum:
    case Op::kBatchNorm:
    case Op::kLayerNorm:
    case Op::kRmsNorm:
    case Op::kGroupNorm:
    case Op::kSoftmax:
    case Op::kSafeSoftmax:
    case Op::kLogSoftmax:
    case Op::kRecurrent:
    case Op::kGridSample:
    case Op::kAffineGrid:
    case Op::kResize:
      return Emitter::Width::kWide;
    default:
      return Emitter::Width::kAsIs;
  }
}

using Filter = std::function<bool(const Graph&, const Node&)>;

std::optional<Graph> expand_once(const Graph& graph, const Filter& wanted) {
  Rewriter rewriter(graph);
  for (const Node& node : graph.nodes()) {
    if (!wanted(graph, node)) {
      rewriter.keep(node);
      continue;
    }
    const MultiExpansion multi = expansion_of_all(node);
    const Expansion single = multi == nullptr ? expansion_of(graph, node) : nullptr;
    if (multi == nullptr && single == nullptr) {
      rewriter.keep(node);
      continue;
    }
    Emitter emitter(rewriter, node, width_of(node.op));
    if (multi != nullptr) {
      emitter.replace(multi(emitter));
    } else {
      emitter.replace(single(emitter));
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
  return expand_composites(graph, [](const Graph&, const Node&) { return true; });
}

}  // namespace tosaic::passes
