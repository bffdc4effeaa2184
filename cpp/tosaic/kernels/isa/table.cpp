#include "tosaic/kernels/isa/table.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

void interpolate(const InterpolationTable& table, const std::int16_t* __restrict values,
                 std::int32_t* __restrict results, std::int64_t count) {
  const std::int32_t* __restrict base = table.base;
  const std::int32_t* __restrict slope = table.slope;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t offset = values[i] + 32768;
    results[i] = base[offset >> 7] * 128 + slope[offset >> 7] * (offset & 127);
  }
}

}  // namespace

extern const TableKernels kTable;
const TableKernels kTable = {interpolate};

}  // namespace tosaic::kernels::TOSAIC_ISA
