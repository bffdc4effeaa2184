#include "tosaic/kernels/quantize_block.h"

namespace tosaic::kernels {

const QuantizeKernels& quantize_kernels(Isa isa) { return TOSAIC_SELECT_ISA(isa, kQuantizeKernels); }

}  // namespace tosaic::kernels
