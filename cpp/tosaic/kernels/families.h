// families: the families of kernels, which the column `kernel` of ops.def names.
//
// Each function prepares the kernel of any operator whose row names it: see prepare() in kernel.h. If the
// kernel has no name, prepare() names it after the operator.
#pragma once

#include <array>

#include "tosaic/ir/op_table.h"
#include "tosaic/kernels/kernel.h"

namespace tosaic::kernels {

[[nodiscard]] Kernel prepare_contraction(const Request& request);  // contraction.cpp; also fused kernels
[[nodiscard]] Kernel prepare_pool(const Request& request);         // pool.cpp
[[nodiscard]] Kernel prepare_resize(const Request& request);       // resize.cpp
[[nodiscard]] Kernel prepare_grid_sample(const Request& request);  // grid_sample.cpp
[[nodiscard]] Kernel prepare_integer_grid_sample(const Request& request);  // integer_grid_sample.cpp
[[nodiscard]] Kernel prepare_elementwise(const Request& request);          // elementwise.cpp
[[nodiscard]] Kernel prepare_reduce(const Request& request);     // reduce.cpp: along any set of axes
[[nodiscard]] Kernel prepare_sort(const Request& request);       // sort.cpp
[[nodiscard]] Kernel prepare_scan(const Request& request);       // scan.cpp: along one axis, by positions
[[nodiscard]] Kernel prepare_normalize(const Request& request);  // normalize.cpp: norms and softmaxes
[[nodiscard]] Kernel prepare_attention(const Request& request);  // attention.cpp: sdpa
[[nodiscard]] Kernel prepare_movement(const Request& request);   // movement.cpp: views and movement
// index.cpp and scatter.cpp: operators that read or write at positions from index arrays. Running the kernel
// throws InvalidGraph, which names the index and the limits, if an index is out of range.
[[nodiscard]] Kernel prepare_index(const Request& request);
[[nodiscard]] Kernel prepare_index_put(const Request& request);
[[nodiscard]] Kernel prepare_scatter_reduce(const Request& request);  // scatter_reduce.cpp
[[nodiscard]] Kernel prepare_arange(const Request& request);          // creation.cpp
[[nodiscard]] Kernel prepare_full(const Request& request);
[[nodiscard]] Kernel prepare_table(const Request& request);  // tosa_requantize.cpp
[[nodiscard]] Kernel prepare_tosa_rescale(const Request& request);
[[nodiscard]] Kernel prepare_rescale(const Request& request);
[[nodiscard]] Kernel prepare_fourier(const Request& request);  // tosa_fourier.cpp

// multiply_adds() of operators of these families
[[nodiscard]] std::uint64_t contraction_multiply_adds(const Request& request);
[[nodiscard]] std::uint64_t attention_multiply_adds(const Request& request);

using Prepare = Kernel (*)(const Request&);

// The family of each operator, or null.
inline constexpr auto kFamilies = [] {
  constexpr Prepare kNoKernel = nullptr;
  return std::array<Prepare, kOpCount>{
#define TOSAIC_OP(Name, text, AttrsT, operands, results, traits, int16, inference, error, kernel, ...) kernel,
#include "tosaic/ir/ops.def"
  };
}();

[[nodiscard]] constexpr Prepare family_of(Op op) { return kFamilies[static_cast<std::size_t>(op)]; }

// True if the row of the operator names `family`. This is a predicate for OpTable::mismatch().
template <Prepare family>
[[nodiscard]] constexpr bool has_family(Op op) {
  constexpr Prepare kNoKernel = nullptr;
  constexpr bool kHas[] = {
#define TOSAIC_OP(Name, text, AttrsT, operands, results, traits, int16, inference, error, kernel, ...) \
  is_same_function<kernel, family>,
#include "tosaic/ir/ops.def"
  };
  return kHas[static_cast<std::size_t>(op)];
}

}  // namespace tosaic::kernels
