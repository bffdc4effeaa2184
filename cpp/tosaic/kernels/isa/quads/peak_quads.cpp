#include "tosaic/kernels/isa/peak.h"
#include "tosaic/kernels/isa/peak_loops.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

#if defined(__ARM_FEATURE_MATMUL_INT8)
using Bytes = Vector<std::int8_t>;
constexpr PeakLoop kBytes = {multiply_add_rounds<Vector<std::uint32_t>, Bytes, Bytes, add_matrix_product>,
                             kSums * 2 * kLanes<std::int8_t>};
#else
constexpr PeakLoop kBytes = kMultiplyAdds<Quads>;
#endif

}  // namespace

const PeakKernels kPeakKernels = {.f32 = kMultiplyAdds<float>,
                                  .f64 = kMultiplyAdds<double>,
                                  .i16 = kMultiplyAdds<Pairs>,
                                  .i8 = kBytes,
                                  .add = add_arrays};

}  // namespace tosaic::kernels::TOSAIC_ISA
