#include "tosaic/kernels/histogram_block.h"

namespace tosaic::kernels {

const HistogramKernels& histogram_kernels(Isa isa) { return TOSAIC_SELECT_ISA(isa, kHistogramKernels); }

}  // namespace tosaic::kernels
