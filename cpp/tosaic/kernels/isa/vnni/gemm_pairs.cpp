// Products of i16 and i8. One instruction multiplies pairs and adds the products.
#include "tosaic/kernels/isa/pairs.h"

namespace tosaic::kernels::TOSAIC_ISA {

extern const GemmKernels<WidePairs> kGemmWidePairs;
const GemmKernels<WidePairs> kGemmWidePairs = pair_kernels<WidePairs>();

}  // namespace tosaic::kernels::TOSAIC_ISA
