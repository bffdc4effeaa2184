// Depthwise convolution of quads of bytes.
#include "tosaic/kernels/isa/depthwise_step_loops.h"

namespace tosaic::kernels::TOSAIC_ISA {

extern const DepthwiseStepKernels<Quads> kStepsQuads;
const DepthwiseStepKernels<Quads> kStepsQuads = step_kernels<Quads>();

}  // namespace tosaic::kernels::TOSAIC_ISA
