// Depthwise convolution of bytes in pairs of taps, for instruction sets that rescale vectors. The others
// multiply tap by tap: isa/depthwise.cpp.
#include "tosaic/kernels/isa/vector.h"

#if !defined(__aarch64__) && TOSAIC_VECTOR_BYTES > 16
#include "tosaic/kernels/isa/depthwise_step_loops.h"

namespace tosaic::kernels::TOSAIC_ISA {

extern const DepthwiseStepKernels<Pairs> kStepsPairs;
const DepthwiseStepKernels<Pairs> kStepsPairs = step_kernels<Pairs>();

}  // namespace tosaic::kernels::TOSAIC_ISA
#endif
