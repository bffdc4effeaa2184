#include "tosaic/kernels/isa_tables.h"

namespace tosaic::kernels {
namespace {

// A null table was not compiled.
template <class Table>
Table& choose(Isa isa, Table* baseline, Table* avx2, Table* avx512) {
  if (isa >= Isa::kAvx512 && avx512 != nullptr) return *avx512;
  if (isa >= Isa::kAvx2 && avx2 != nullptr) return *avx2;
  return *baseline;
}

}  // namespace

#if defined(TOSAIC_HAVE_AVX2) && defined(TOSAIC_HAVE_AVX512)
#define TOSAIC_CHOOSE(isa, table) \
  choose<decltype(baseline::table)>(isa, &baseline::table, &avx2::table, &avx512::table)
#else
#define TOSAIC_CHOOSE(isa, table) choose<decltype(baseline::table)>(isa, &baseline::table, nullptr, nullptr)
#endif

// The table of the instruction set if it multiplies quads, or else `other`.
#if defined(TOSAIC_HAVE_AVX512)
#define TOSAIC_CHOOSE_QUADS(isa, table, other)    \
  ((isa) >= Isa::kAvx512Vnni ? &avx512vnni::table \
   : (isa) != Isa::kAvxVnni  ? (other)            \
   : has_avx_vnni()          ? &avxvnni::table    \
                             : &avxvnni_evex::table)
#elif defined(TOSAIC_HAVE_DOTPROD)
#define TOSAIC_CHOOSE_QUADS(isa, table, other) \
  ((isa) == Isa::kI8mm ? &i8mm::table : (isa) == Isa::kDotProd ? &dotprod::table : (other))
#else
#define TOSAIC_CHOOSE_QUADS(isa, table, other) (static_cast<void>(isa), (other))
#endif

const GemmKernels<float>& gemm_kernels_f32(Isa isa) { return TOSAIC_CHOOSE(isa, kGemmF32); }
const GemmKernels<double>& gemm_kernels_f64(Isa isa) { return TOSAIC_CHOOSE(isa, kGemmF64); }
const GemmKernels<Pairs>& gemm_kernels_pairs(Isa isa) { return TOSAIC_CHOOSE(isa, kGemmPairs); }
const GemmKernels<WidePairs>& gemm_kernels_wide_pairs(Isa isa) {
  const GemmKernels<WidePairs>& kernels = TOSAIC_CHOOSE(isa, kGemmWidePairs);
#if defined(TOSAIC_HAVE_AVX512)
  return *TOSAIC_CHOOSE_QUADS(isa, kGemmWidePairs, &kernels);
#else
  return kernels;
#endif
}
const GemmKernels<Quads>* gemm_kernels_quads(Isa isa) {
  const GemmKernels<Quads>* as_pairs = nullptr;
#if defined(TOSAIC_HAVE_AVX512)
  if (isa == Isa::kAmx) return &amx::kGemmQuads;
  if (isa >= Isa::kAvx2) as_pairs = isa >= Isa::kAvx512 ? &avx512::kGemmQuads : &avx2::kGemmQuads;
#endif
  return TOSAIC_CHOOSE_QUADS(isa, kGemmQuads, as_pairs);
}
bool multiplies_quads(Isa isa) { return depthwise_quads(isa) != nullptr; }
const GemmKernels<PositivePairs>* gemm_kernels_positive_pairs([[maybe_unused]] Isa isa) {
#if defined(TOSAIC_HAVE_AVX2)
  if (isa == Isa::kAvx2) return &avx2::kGemmPositivePairs;
#endif
  return nullptr;
}
const GemmKernels<CappedQuads>* gemm_kernels_capped_quads([[maybe_unused]] Isa isa) {
#if defined(TOSAIC_HAVE_AVX2)
  if (isa == Isa::kAvx2) return &avx2::kGemmCappedQuads;
#endif
  return nullptr;
}
bool has_other_adders() {
#if defined(TOSAIC_HAVE_AVX2)
  static const bool is_amd = __builtin_cpu_is("amd") != 0;
  return is_amd;
#else
  return false;
#endif
}
const DepthwiseStepKernels<Quads>* depthwise_quads(Isa isa) {
  return TOSAIC_CHOOSE_QUADS(isa, kDepthwiseQuads, nullptr);
}
const DepthwiseStepKernels<Pairs>* depthwise_pair_steps([[maybe_unused]] Isa isa) {
#if defined(TOSAIC_HAVE_AVX512)
  if (isa >= Isa::kAvx512) return &avx512::kDepthwisePairSteps;
  if (isa >= Isa::kAvx2) return &avx2::kDepthwisePairSteps;
#endif
  return nullptr;
}
const DepthwiseKernels<float>& depthwise_kernels_f32(Isa isa) { return TOSAIC_CHOOSE(isa, kDepthwiseF32); }
const DepthwiseKernels<double>& depthwise_kernels_f64(Isa isa) { return TOSAIC_CHOOSE(isa, kDepthwiseF64); }
const DepthwiseKernels<Pairs>& depthwise_kernels_pairs(Isa isa) {
  return TOSAIC_CHOOSE(isa, kDepthwisePairs);
}
const DepthwiseKernels<WidePairs>& depthwise_kernels_wide_pairs(Isa isa) {
  return TOSAIC_CHOOSE(isa, kDepthwiseWidePairs);
}
const PeakKernels& peak_kernels(Isa isa) {
#if defined(TOSAIC_HAVE_AVX512)
  if (isa == Isa::kAmx) return amx::kPeakKernels;
#endif
  return *TOSAIC_CHOOSE_QUADS(isa, kPeakKernels, &TOSAIC_CHOOSE(isa, kPeakKernels));
}
const PoolKernels<float>& pool_kernels(Isa isa, float) { return TOSAIC_CHOOSE(isa, kPoolF32); }
const PoolKernels<std::int8_t>& pool_kernels(Isa isa, std::int8_t) { return TOSAIC_CHOOSE(isa, kPoolI8); }
const PoolKernels<std::int16_t>& pool_kernels(Isa isa, std::int16_t) { return TOSAIC_CHOOSE(isa, kPoolI16); }

#undef TOSAIC_CHOOSE_QUADS
#undef TOSAIC_CHOOSE

}  // namespace tosaic::kernels
