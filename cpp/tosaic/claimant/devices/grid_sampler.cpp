// A texture sampler: images of i8 in Vulkan's SNORM format with grids of i8 or i16 from -1 to 1, or floats.
// The integers have fixed quantization parameters, since the hardware computes with the numbers of the
// format. It takes dequantize -> grid_sample -> quantize as one unit.
#include "tosaic/claimant/devices/records.h"

namespace tosaic::claimant {

Device grid_sampler() {
  Limits limits;
  limits.operators = {{{Op::kGridSample}, {DType::kI8}, {DType::kI8, DType::kI16}, {DType::kI8}},
                      {{Op::kGridSample}, {DType::kF32}, {DType::kF32}, {DType::kF32}}};
  limits.limits = {{{Op::kGridSample}, Quantity::kRank, 4, 4},
                   {{Op::kGridSample}, Quantity::kSnorm, 1, 1, When::kNarrow},
                   {{Op::kGridSample}, Quantity::kUnitGrid, 1, 1, When::kNarrow}};
  return {.name = "grid-sampler",
          .members = {{"grid-sampler"}},
          .arithmetic = "TOSA-1.0+INT+FP+int16",
          .limits = std::move(limits),
          .preserves_composites = true};
}

}  // namespace tosaic::claimant
