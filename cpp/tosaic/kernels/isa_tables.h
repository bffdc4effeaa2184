// The functions of kernels/isa/ that were compiled for an instruction set.
#pragma once

#include "tosaic/kernels/isa/depthwise.h"
#include "tosaic/kernels/isa/depthwise_steps.h"
#include "tosaic/kernels/isa/gemm.h"
#include "tosaic/kernels/isa/peak.h"
#include "tosaic/kernels/isa/pool.h"

namespace tosaic::kernels {

// The kernels of Isa::kAvxVnni are in namespace avxvnni, whose instructions have the encoding VEX, and in
// avxvnni_evex. True if the processor has the instructions with VEX; only on x86.
[[nodiscard]] bool has_avx_vnni();

[[nodiscard]] const GemmKernels<float>& gemm_kernels_f32(Isa isa);
[[nodiscard]] const GemmKernels<double>& gemm_kernels_f64(Isa isa);
[[nodiscard]] const GemmKernels<Pairs>& gemm_kernels_pairs(Isa isa);
[[nodiscard]] const GemmKernels<WidePairs>& gemm_kernels_wide_pairs(Isa isa);
// True if the instruction set has instructions that multiply quads.
[[nodiscard]] bool multiplies_quads(Isa isa);
// Null for an instruction set without such instructions, except those that multiply quads as pairs.
[[nodiscard]] const GemmKernels<Quads>* gemm_kernels_quads(Isa isa);
// Null for an instruction set without such instructions.
[[nodiscard]] const DepthwiseStepKernels<Quads>* depthwise_quads(Isa isa);
// Null for an instruction set that multiplies tap by tap.
[[nodiscard]] const DepthwiseStepKernels<Pairs>* depthwise_pair_steps(Isa isa);
// Null for an instruction set without such kernels.
[[nodiscard]] const GemmKernels<PositivePairs>* gemm_kernels_positive_pairs(Isa isa);
[[nodiscard]] const GemmKernels<CappedQuads>* gemm_kernels_capped_quads(Isa isa);
// True if this processor adds floats in other units than those that multiply integers. Then PositivePairs
// take less time than Pairs and CappedQuads.
[[nodiscard]] bool has_other_adders();
[[nodiscard]] const DepthwiseKernels<float>& depthwise_kernels_f32(Isa isa);
[[nodiscard]] const DepthwiseKernels<double>& depthwise_kernels_f64(Isa isa);
[[nodiscard]] const DepthwiseKernels<Pairs>& depthwise_kernels_pairs(Isa isa);
[[nodiscard]] const DepthwiseKernels<WidePairs>& depthwise_kernels_wide_pairs(Isa isa);
[[nodiscard]] const PeakKernels& peak_kernels(Isa isa);
[[nodiscard]] const PoolKernels<float>& pool_kernels(Isa isa, float);
[[nodiscard]] const PoolKernels<std::int8_t>& pool_kernels(Isa isa, std::int8_t);
[[nodiscard]] const PoolKernels<std::int16_t>& pool_kernels(Isa isa, std::int16_t);

}  // namespace tosaic::kernels
