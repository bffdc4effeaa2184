// Expansions: what `decompose` puts in place of a composite operator. One function an operator, grouped by
// family in expand_*.cpp. Each returns the value that replaces the node's only result.
#pragma once

#include "tosaic/passes/emitter.h"

namespace tosaic::passes {

// expand_normalize.cpp
[[nodiscard]] ValueId expand_batch_norm(Emitter& e);
[[nodiscard]] ValueId expand_layer_norm(Emitter& e);
[[nodiscard]] ValueId expand_rms_norm(Emitter& e);
[[nodiscard]] ValueId expand_group_norm(Emitter& e);
[[nodiscard]] ValueId expand_softmax(Emitter& e);
[[nodiscard]] ValueId expand_log_softmax(Emitter& e);
[[nodiscard]] ValueId expand_sdpa(Emitter& e);
// softmax over one axis; `safe`: rows of only -inf give zeros.
[[nodiscard]] ValueId softmax(Emitter& e, ValueId x, std::size_t axis, bool safe);

// expand_activation.cpp
[[nodiscard]] ValueId expand_gelu(Emitter& e);
[[nodiscard]] ValueId expand_silu(Emitter& e);
[[nodiscard]] ValueId expand_hardsigmoid(Emitter& e);
[[nodiscard]] ValueId expand_hardswish(Emitter& e);
[[nodiscard]] ValueId expand_leaky_relu(Emitter& e);
[[nodiscard]] ValueId expand_elu(Emitter& e);

// expand_reduce.cpp
[[nodiscard]] ValueId expand_mean(Emitter& e);
[[nodiscard]] ValueId expand_var(Emitter& e);
[[nodiscard]] ValueId expand_argmin(Emitter& e);
[[nodiscard]] ValueId expand_cumsum(Emitter& e);
[[nodiscard]] ValueId expand_diff(Emitter& e);
// sum over `axes` divided by their size, in the dtype of x.
[[nodiscard]] ValueId mean(Emitter& e, ValueId x, const Dims& axes, bool keepdim);

// expand_contraction.cpp
[[nodiscard]] ValueId expand_addmm(Emitter& e);
[[nodiscard]] ValueId expand_matmul_by_constant(Emitter& e);
[[nodiscard]] ValueId expand_conv1d(Emitter& e);
[[nodiscard]] ValueId expand_adaptive_avg_pool(Emitter& e);
[[nodiscard]] ValueId expand_resize(
    Emitter& e);  // beyond RESIZE: as index_select or linear, an axis at a time
[[nodiscard]] ValueId expand_to_rank4(Emitter& e);  // pools and resize of 1-d or unbatched input

// expand_movement.cpp
[[nodiscard]] ValueId expand_stack(Emitter& e);
[[nodiscard]] std::vector<ValueId> expand_split(Emitter& e);
[[nodiscard]] std::vector<ValueId> expand_unbind(Emitter& e);
[[nodiscard]] ValueId expand_select(Emitter& e);
[[nodiscard]] ValueId expand_triangle(Emitter& e);
[[nodiscard]] ValueId expand_index(Emitter& e);

// expand_recurrent.cpp
[[nodiscard]] std::vector<ValueId> expand_recurrent(Emitter& e);

}  // namespace tosaic::passes
