#include "tosaic/kernels/isa/peak.h"

#include "tosaic/kernels/isa/peak_loops.h"

namespace tosaic::kernels::TOSAIC_ISA {

const PeakKernels kPeakKernels = {.f32 = kMultiplyAdds<float>,
                                  .f64 = kMultiplyAdds<double>,
                                  .i16 = kMultiplyAdds<Pairs>,
#if defined(__AVX2__)
                                  .i8 = kMultiplyAdds<Quads>,
#else
                                  .i8 = {},
#endif
                                  .add = add_arrays};

}  // namespace tosaic::kernels::TOSAIC_ISA
