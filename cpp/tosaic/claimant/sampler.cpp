// Limits of a texture sampler: images of i8 in Vulkan's SNORM format with grids of i8 or i16 from -1 to 1, or
// floats. The integers have fixed quantization parameters, since the hardware computes with the numbers of
// the format.
#include "tosaic/claimant/tables.h"

namespace tosaic::claimant {

const Limits& sampler_limits() {
  static const Limits limits = [] {
    Limits out;
    out.operators = {{{Op::kGridSample}, {DType::kI8}, {DType::kI8, DType::kI16}, {DType::kI8}},
                     {{Op::kGridSample}, {DType::kF32}, {DType::kF32}, {DType::kF32}}};
    out.limits = {{{Op::kGridSample}, Quantity::kRank, 4, 4},
                  {{Op::kGridSample}, Quantity::kSnorm, 1, 1, When::kNarrow},
                  {{Op::kGridSample}, Quantity::kUnitGrid, 1, 1, When::kNarrow}};
    return out;
  }();
  return limits;
}

}  // namespace tosaic::claimant
