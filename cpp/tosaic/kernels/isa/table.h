// TABLE, and GATHER from a table of 32-bit elements: the loops that each instruction set provides.
#pragma once

#include <cstdint>

#include "tosaic/kernels/isa/each_set.h"
#include "tosaic/kernels/kernel.h"

namespace tosaic::kernels {

// 512 entries each. slope[i] is the difference from entry i to entry i + 1.
struct InterpolationTable {
  const std::int32_t* base = nullptr;
  const std::int32_t* slope = nullptr;
};

struct TableKernels {
  // The upper nine bits of value + 2^15 select an entry. The lower seven interpolate between it and the next
  // entry, so the result has 7 bits more than the entries.
  void (*interpolate)(const InterpolationTable& table, const std::int16_t* values, std::int32_t* results,
                      std::int64_t count) = nullptr;
  // results[i] = table[value + 128], with 256 entries. `results` may be the same array as `values`. Null if
  // the instruction set has no permutation of bytes.
  void (*look_up)(const std::int8_t* table, const std::int8_t* values, std::int8_t* results,
                  std::int64_t count) = nullptr;
  // results[i] = table[indices[i]], if all indices are in [0, limit), and returns true. Otherwise returns
  // false, and the contents of `results` are undefined.
  bool (*gather)(const std::int32_t* table, std::int32_t limit, const std::int32_t* indices,
                 std::int32_t* results, std::int64_t count) = nullptr;
};

TOSAIC_IN_EACH_SET(extern const TableKernels kTable;)

}  // namespace tosaic::kernels
