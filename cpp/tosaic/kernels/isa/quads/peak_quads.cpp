#include "tosaic/kernels/isa/peak.h"
#include "tosaic/kernels/isa/peak_loops.h"

namespace tosaic::kernels::TOSAIC_ISA {

const PeakKernels kPeakKernels = {.f32 = kMultiplyAdds<float>,
                                  .f64 = kMultiplyAdds<double>,
                                  .i16 = kMultiplyAdds<Pairs>,
                                  .i8 = kMultiplyAdds<Quads>,
                                  .add = add_arrays};

}  // namespace tosaic::kernels::TOSAIC_ISA
