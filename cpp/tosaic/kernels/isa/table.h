// TABLE of 16 bits: what each instruction set provides.
#pragma once

#include <cstdint>

#include "tosaic/kernels/kernel.h"

namespace tosaic::kernels {

// 512 entries each; the slope is the difference to the next entry.
struct InterpolationTable {
  const std::int32_t* base = nullptr;
  const std::int32_t* slope = nullptr;
};

struct TableKernels {
  // Nine bits of value + 2^15 choose an entry, the other seven lie between it and the next: the result has 7
  // more bits than the entries.
  void (*interpolate)(const InterpolationTable& table, const std::int16_t* values, std::int32_t* results,
                      std::int64_t count) = nullptr;
};

namespace baseline {
extern const TableKernels kTable;
}
namespace avx2 {
extern const TableKernels kTable;
}
namespace avx512 {
extern const TableKernels kTable;
}

}  // namespace tosaic::kernels
