#include "tosaic/kernels/isa/peak.h"

#include "tosaic/kernels/isa/peak_loops.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

#if defined(__AVX2__) && TOSAIC_VECTOR_BYTES == 32
constexpr PeakLoop kBytes = {
    multiply_add_rounds<Vector<std::uint32_t>, Vector<std::int8_t>, QuadFactor, add_capped_product>,
    kSums * kLanes<std::int8_t>};
#else
constexpr PeakLoop kBytes = {};
#endif

}  // namespace

const PeakKernels kPeakKernels = {.f32 = kMultiplyAdds<float>,
                                  .f64 = kMultiplyAdds<double>,
                                  .i16 = kMultiplyAdds<Pairs>,
                                  .i8 = kBytes,
                                  .add = add_arrays};

}  // namespace tosaic::kernels::TOSAIC_ISA
