// expansions: the functions by which `decompose` expands composite operators. There is one for each operator,
// and each family has a file expand_*.cpp. A function returns the value that replaces the node's only result,
// or one value for each result.
#pragma once

#include "tosaic/passes/decompose/emitter.h"

namespace tosaic::passes {

// widen_unsigned.cpp: replaces arithmetic over unsigned integers by arithmetic in i32. Returns nothing if
// there is none.
[[nodiscard]] std::optional<Graph> widen_unsigned(const Graph& graph);

// expand_normalize.cpp
[[nodiscard]] ValueId expand_batch_norm(Emitter& e);
[[nodiscard]] ValueId expand_layer_norm(Emitter& e);
[[nodiscard]] ValueId expand_rms_norm(Emitter& e);
[[nodiscard]] ValueId expand_group_norm(Emitter& e);
[[nodiscard]] ValueId expand_softmax(Emitter& e);
[[nodiscard]] ValueId expand_log_softmax(Emitter& e);
[[nodiscard]] ValueId expand_sdpa(Emitter& e);

// expand_activation.cpp
[[nodiscard]] ValueId expand_gelu(Emitter& e);
[[nodiscard]] ValueId expand_silu(Emitter& e);
[[nodiscard]] ValueId expand_hardsigmoid(Emitter& e);
[[nodiscard]] ValueId expand_hardswish(Emitter& e);
[[nodiscard]] ValueId expand_leaky_relu(Emitter& e);

// expand_function.cpp
[[nodiscard]] ValueId expand_acos(Emitter& e);
[[nodiscard]] ValueId expand_acosh(Emitter& e);
[[nodiscard]] ValueId expand_asin(Emitter& e);
[[nodiscard]] ValueId expand_asinh(Emitter& e);
[[nodiscard]] ValueId expand_atan(Emitter& e);
[[nodiscard]] ValueId expand_atanh(Emitter& e);
[[nodiscard]] ValueId expand_cosh(Emitter& e);
[[nodiscard]] ValueId expand_erfc(Emitter& e);
[[nodiscard]] ValueId expand_erfinv(Emitter& e);
[[nodiscard]] ValueId expand_expm1(Emitter& e);
[[nodiscard]] ValueId expand_log10(Emitter& e);
[[nodiscard]] ValueId expand_log1p(Emitter& e);
[[nodiscard]] ValueId expand_log2(Emitter& e);
[[nodiscard]] ValueId expand_sinh(Emitter& e);
[[nodiscard]] ValueId expand_tan(Emitter& e);
[[nodiscard]] ValueId expand_isinf(Emitter& e);
[[nodiscard]] ValueId expand_nan_to_num(Emitter& e);
[[nodiscard]] ValueId expand_logit(Emitter& e);
[[nodiscard]] ValueId expand_mish(Emitter& e);
[[nodiscard]] ValueId expand_log_sigmoid(Emitter& e);
[[nodiscard]] ValueId expand_softplus(Emitter& e);
[[nodiscard]] ValueId expand_softshrink(Emitter& e);
[[nodiscard]] ValueId expand_hardshrink(Emitter& e);
[[nodiscard]] ValueId expand_atan2(Emitter& e);
[[nodiscard]] ValueId expand_hypot(Emitter& e);
[[nodiscard]] ValueId expand_lerp(Emitter& e);
[[nodiscard]] ValueId expand_prelu(Emitter& e);
[[nodiscard]] ValueId expand_glu(Emitter& e);
[[nodiscard]] ValueId expand_std(Emitter& e);
[[nodiscard]] ValueId expand_logsumexp(Emitter& e);
[[nodiscard]] ValueId expand_vector_norm(Emitter& e);
[[nodiscard]] ValueId expand_quantize(Emitter& e);
[[nodiscard]] ValueId expand_dequantize(Emitter& e);
[[nodiscard]] ValueId expand_elu(Emitter& e);
[[nodiscard]] ValueId expand_addc(Emitter& e);  // addcmul, addcdiv
[[nodiscard]] ValueId expand_remainder(Emitter& e);
[[nodiscard]] ValueId expand_fmod(Emitter& e);
[[nodiscard]] ValueId expand_wide_exponent(Emitter& e);
[[nodiscard]] ValueId expand_rounded_division(Emitter& e);
[[nodiscard]] ValueId expand_integer_product(Emitter& e);
[[nodiscard]] ValueId expand_gcd(Emitter& e);

// expand_reduce.cpp
[[nodiscard]] ValueId expand_mean(Emitter& e);
[[nodiscard]] ValueId expand_var(Emitter& e);
[[nodiscard]] ValueId expand_argmin(Emitter& e);
[[nodiscard]] ValueId expand_argsort(Emitter& e);    // expand_order.cpp
[[nodiscard]] ValueId expand_cumargmax(Emitter& e);  // expand_order.cpp
[[nodiscard]] ValueId expand_cumargmin(Emitter& e);  // expand_order.cpp
[[nodiscard]] ValueId expand_cumsum(Emitter& e);
[[nodiscard]] ValueId expand_diff(Emitter& e);
// The sum over `axes` divided by the number of elements summed, in the dtype of x.
[[nodiscard]] ValueId mean(Emitter& e, ValueId x, const Dims& axes, bool keepdim);

// expand_contraction.cpp
[[nodiscard]] ValueId expand_addmm(Emitter& e);
[[nodiscard]] ValueId expand_matmul_by_constant(Emitter& e);
[[nodiscard]] ValueId expand_conv1d(Emitter& e);
[[nodiscard]] ValueId expand_resize(
    Emitter& e);  // for resizes that RESIZE lacks: looked-up elements and weighted sums, one axis at a time
[[nodiscard]] ValueId expand_to_rank4(Emitter& e);  // pools and resizes of 1-d or unbatched input

// expand_movement.cpp
[[nodiscard]] ValueId expand_stack(Emitter& e);
[[nodiscard]] std::vector<ValueId> expand_split(Emitter& e);
[[nodiscard]] std::vector<ValueId> expand_unbind(Emitter& e);
[[nodiscard]] ValueId expand_select(Emitter& e);
[[nodiscard]] ValueId expand_triangle(Emitter& e);
[[nodiscard]] ValueId expand_index(Emitter& e);
// x[.., i, j, ..] with index tensors on several axes, as one lookup of rows. The indexed axes of x are moved
// to the front and merged, and the index tensors are combined into one. Operand `first` + k of the node is
// the index tensor of axis k, or absent.
struct IndexedRows {
  ValueId rows;       // x as (product of the indexed extents, kept extents...)
  ValueId index;      // row numbers: i64, 1-d, not negative
  Dims perm;          // the axes of x: the indexed ones, then the kept ones
  Shape index_shape;  // the broadcast shape of the index tensors
  Shape kept;
  std::size_t kept_before = 0;  // how many kept axes precede the index axes in torch's result
  [[nodiscard]] Dims to_front() const;
};
[[nodiscard]] IndexedRows indexed_rows(Emitter& e, std::size_t first);

// expand_scatter.cpp
[[nodiscard]] ValueId expand_scatter(Emitter& e);
// scatter at an index whose elements are known to differ along the axis.
[[nodiscard]] ValueId scatter_at_places_that_differ(Emitter& e, ValueId x, ValueId index, ValueId source,
                                                    std::size_t axis);
[[nodiscard]] ValueId expand_scatter_reduce(Emitter& e);
[[nodiscard]] ValueId expand_slice_scatter(Emitter& e);
[[nodiscard]] ValueId expand_index_put(Emitter& e);
// True if an index_put overwrites rows of a matrix at one list of i32 indices, which is what TOSA's SCATTER
// does. Constant indices must be in range and distinct. Other indices are assumed to be in range and
// distinct, unless all rows that are written are equal: torch then defines what repeated indices write.
[[nodiscard]] bool is_row_write(const Graph& graph, const Node& node);

// expand_einsum.cpp
[[nodiscard]] ValueId expand_einsum(Emitter& e);
[[nodiscard]] ValueId expand_integer_matmul(Emitter& e);  // TOSA multiplies matrices of floats and i8 only

// expand_grid.cpp
[[nodiscard]] ValueId expand_grid_sample(Emitter& e);
[[nodiscard]] ValueId expand_integer_grid_sample(Emitter& e);  // expand_integer_grid.cpp
[[nodiscard]] ValueId expand_affine_grid(Emitter& e);

// expand_pool.cpp
[[nodiscard]] ValueId expand_pool3d(Emitter& e);        // over height and width, then over the depth
[[nodiscard]] ValueId expand_dilated_pool(Emitter& e);  // the maximum of strided slices, an axis at a time
[[nodiscard]] ValueId expand_adaptive_pool(Emitter& e);
[[nodiscard]] ValueId expand_transposed_conv3d(Emitter& e);  // a convolution of the input with zeros inserted

// expand_recurrent.cpp
[[nodiscard]] std::vector<ValueId> expand_recurrent(Emitter& e);

}  // namespace tosaic::passes
