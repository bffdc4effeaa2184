// Limits of a texture sampler: images of i8 in Vulkan's SNORM format, and grids of i8 or i16 from -1 to 1. The
// sampler has fixed quantization parameters, since the hardware computes with the numbers of the format.
#include "tosaic/claimant/tables.h"

namespace tosaic::claimant {

const Limits& sampler_limits() {
  static const Limits limits = [] {
    Limits out;
    out.operators = {{{Op::kGridSample}, {DType::kI8}, {DType::kI8, DType::kI16}, {DType::kI8}}};
    out.limits = {{{Op::kGridSample}, Quantity::kRank, 4, 4},
                  {{Op::kGridSample}, Quantity::kSnorm, 1, 1},
                  {{Op::kGridSample}, Quantity::kUnitGrid, 1, 1}};
    return out;
  }();
  return limits;
}

}  // namespace tosaic::claimant
