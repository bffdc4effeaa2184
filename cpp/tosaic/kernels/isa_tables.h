// The functions of kernels/isa/ that were compiled for an instruction set.
#pragma once

#include "tosaic/kernels/isa/depthwise.h"
#include "tosaic/kernels/isa/depthwise_quads.h"
#include "tosaic/kernels/isa/gemm.h"
#include "tosaic/kernels/isa/pool.h"

namespace tosaic::kernels {

[[nodiscard]] const GemmKernels<float>& gemm_kernels_f32(Isa isa);
[[nodiscard]] const GemmKernels<double>& gemm_kernels_f64(Isa isa);
[[nodiscard]] const GemmKernels<std::int16_t>& gemm_kernels_i16(Isa isa);
// Null for an instruction set that does not multiply quads.
[[nodiscard]] const GemmKernels<std::int8_t>* gemm_kernels_i8(Isa isa);
[[nodiscard]] const DepthwiseQuadKernels* depthwise_quad_kernels(Isa isa);
[[nodiscard]] const DepthwiseKernels<float>& depthwise_kernels_f32(Isa isa);
[[nodiscard]] const DepthwiseKernels<double>& depthwise_kernels_f64(Isa isa);
[[nodiscard]] const DepthwiseKernels<std::int16_t>& depthwise_kernels_i16(Isa isa);
[[nodiscard]] const PoolKernels<float>& pool_kernels(Isa isa, float);
[[nodiscard]] const PoolKernels<std::int8_t>& pool_kernels(Isa isa, std::int8_t);
[[nodiscard]] const PoolKernels<std::int16_t>& pool_kernels(Isa isa, std::int16_t);

}  // namespace tosaic::kernels
