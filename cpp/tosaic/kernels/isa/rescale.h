// RESCALE of blocks with 32-bit results: the loops that each instruction set provides.
#pragma once

#include <cstdint>

#include "tosaic/kernels/isa/each_set.h"
#include "tosaic/kernels/kernel.h"

namespace tosaic::kernels {

// The parameters of the elements of a block. T is the type of its values: i32, or i64 for i48 (with 16-bit
// multipliers). The tables have one entry per element or, if `uniform` is true, one entry for all elements.
// kRescalePadding further entries follow.
template <class T>
struct RescaleTables {
  const std::int32_t* multiplier = nullptr;
  const std::int32_t* shift = nullptr;
  const T* low = nullptr;  // bounds of value - input_zp; only inside() reads them
  const T* high = nullptr;
  bool uniform = false;
  bool double_round = false;  // only if T is i32
  bool high_halves = false;   // true if every shift is at least 33 and rounding is single
  // true if `uniform` is, rounding is single, and the multiplier is 2^(shift - right), with `right` at most
  // 31. Then the scaled value is the value shifted by `right`, to the left if `right` is negative.
  bool shifts = false;
  std::int32_t right = 0;
  T input_zp = 0;
  std::int32_t output_zp = 0;
  std::int32_t min = 0, max = 0;  // limits of the result

  // The tables of the elements from element i on.
  [[nodiscard]] RescaleTables at(std::int64_t i) const {
    RescaleTables tables = *this;
    if (uniform) return tables;
    tables.multiplier += i;
    tables.shift += i;
    tables.low += i;
    tables.high += i;
    return tables;
  }
};

// The parameters with which sums of 32 bits are rescaled to i16: see isa/words.h. The tables have one entry
// per column, or `multiplier` and `shift` have one for all columns if `uniform` is true; kRescalePadding
// further ones follow. Every sum has a result.
struct WordTables {
  const std::int32_t* multiplier = nullptr;
  const std::int32_t* shift = nullptr;
  const std::int64_t* added = nullptr;  // the entries of a vector of columns are in the order of word_place()
  bool uniform = false;
  std::int32_t output_zp = 0;
  std::int32_t min = 0, max = 0;  // limits of the result

  // The tables of the columns from `column` on, which is a multiple of the lanes of a vector.
  [[nodiscard]] WordTables at(std::int64_t column) const {
    WordTables tables = *this;
    tables.added += column;
    if (uniform) return tables;
    tables.multiplier += column;
    tables.shift += column;
    return tables;
  }
};

// Where the 64-bit product of a lane is: instructions of x86 multiply the even lanes of a vector, or the odd
// ones.
[[nodiscard]] constexpr std::int64_t word_place(std::int64_t lane, [[maybe_unused]] std::int64_t lanes) {
#if defined(__aarch64__)
  return lane;
#else
  return lane % 2 * (lanes / 2) + lane / 2;
#endif
}

// At least the number of lanes of any vector.
inline constexpr std::int64_t kRescalePadding = 16;

template <class T>
struct RescaleKernels {
  // True if every value minus the zero point is in [low, high].
  bool (*inside)(const RescaleTables<T>& tables, const T* values, std::int64_t count) = nullptr;
  // clamp(apply_scale(value - input_zp) + output_zp, min, max) of values that are inside. `results` may be
  // the same array as `values`.
  void (*scale)(const RescaleTables<T>& tables, const T* values, std::int32_t* results,
                std::int64_t count) = nullptr;
  // scale() to results of i16: if every value minus the zero point is in [low, high], returns true. Otherwise
  // returns false, and the contents of `results` are undefined. Null if the instruction set cannot do this.
  bool (*scale_to_words)(const RescaleTables<T>& tables, T low, T high, const T* values,
                         std::int16_t* results, std::int64_t count) = nullptr;
  // scale() of signed values of 1, 2 or 4 bytes to signed results of 1, 2 or 4 bytes: direct[a][b] reads
  // values of 2^a bytes and writes results of 2^b bytes. Returns false, with undefined contents of `results`,
  // if a value minus the zero point is outside of [low, high]. Values of less than 4 bytes are not compared
  // with these bounds. All are null if T is i64, or if the instruction set does not scale vectors.
  using Direct = bool (*)(const RescaleTables<T>& tables, T low, T high, const void* values, void* results,
                          std::int64_t count);
  Direct direct[3][3] = {};
};

TOSAIC_IN_EACH_SET(extern const RescaleKernels<std::int32_t> kRescaleI32;)
TOSAIC_IN_EACH_SET(extern const RescaleKernels<std::int64_t> kRescaleI64;)

}  // namespace tosaic::kernels
