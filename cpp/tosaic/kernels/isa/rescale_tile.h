// How the sums of a tile, biases of columns included, become elements of i8 or i32: RESCALE and CLAMP, while
// the sums are in the first-level cache. Only files of kernels/isa/ include this header.
#pragma once

#include "tosaic/kernels/isa/gemm.h"
#include "tosaic/kernels/isa/narrow.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

#if defined(TOSAIC_RESCALES_VECTORS)

// The multipliers and shifts of a vector of columns.
template <RescaleWay kWay>
[[gnu::always_inline]] inline LaneScale<kWay> scale_of_columns(const RescaleTables<std::int32_t>& t,
                                                               std::int64_t column) {
  const auto entries = [&](const std::int32_t* table) {
    return t.uniform ? broadcast(table[0]) : load(table + column);
  };
  return {entries(t.multiplier), entries(t.shift)};
}

// ---- in registers ----

// Converts sums of one or two adjacent vectors of columns to bytes: four vectors of sums, of four or two
// rows, become one register of bytes.
template <RescaleWay kWay, int kVectors>
struct ColumnsToBytes {
  static constexpr std::int64_t kRight = kVectors == 2 ? kLanes<std::int32_t> : 0;
  LaneScale<kWay> left, right;
  ByteRange range;

  [[gnu::always_inline]] ColumnsToBytes(const RescaleTables<std::int32_t>& t, std::int64_t column)
      : left(scale_of_columns<kWay>(t, column)),
        right(scale_of_columns<kWay>(t, column + kRight)),
        range(t) {}

  [[gnu::always_inline]] Register words(Vector<std::uint32_t> a, Vector<std::uint32_t> b) const {
    return range.words(rescale_vector((V32)a, left), rescale_vector((V32)b, right));
  }

  // The bytes of two pairs of vectors, row by row.
  [[gnu::always_inline]] Register bytes(Register first, Register second) const {
    return by_row(range.bytes(first, second));
  }
};

// Stores row r of the rows of ColumnsToBytes::bytes(): a half or a quarter of the register.
template <int W>
[[gnu::always_inline]] inline void store_row(Register bytes, int r, std::int8_t* to) {
#if TOSAIC_VECTOR_BYTES == 64
  if constexpr (W == 2) {
    const __m256i half = r == 0 ? _mm512_maskz_extracti32x8_epi32(0xff, bytes, 0)
                                : _mm512_maskz_extracti32x8_epi32(0xff, bytes, 1);
    __builtin_memcpy(to, &half, sizeof half);
  } else {
    const __m128i quarter = r == 0   ? _mm512_maskz_extracti32x4_epi32(0xf, bytes, 0)
                            : r == 1 ? _mm512_maskz_extracti32x4_epi32(0xf, bytes, 1)
                            : r == 2 ? _mm512_maskz_extracti32x4_epi32(0xf, bytes, 2)
                                     : _mm512_maskz_extracti32x4_epi32(0xf, bytes, 3);
    __builtin_memcpy(to, &quarter, sizeof quarter);
  }
#elif defined(__AVX2__)
  if constexpr (W == 2) {
    const __m128i half = r == 0 ? _mm256_castsi256_si128(bytes) : _mm256_extracti128_si256(bytes, 1);
    __builtin_memcpy(to, &half, sizeof half);
  } else {
    const std::int64_t quarter = ((V64)bytes)[r];
    __builtin_memcpy(to, &quarter, sizeof quarter);
  }
#else
  if constexpr (W == 2) {
    const std::int64_t half = ((V64)bytes)[r];
    __builtin_memcpy(to, &half, sizeof half);
  } else {
    const std::int32_t quarter = ((V32)bytes)[r];
    __builtin_memcpy(to, &quarter, sizeof quarter);
  }
#endif
}

// True if rescale_registers() computes a tile of this width: results are i8, all columns exist, no sums are
// to be added, and the high halves of products suffice.
template <class T>
[[gnu::always_inline]] inline bool fits_registers(const GemmBlock<T>& block, std::int64_t width,
                                                  std::int64_t valid) {
  return block.bytes != nullptr && valid == width && block.rescale->high_halves && !block.accumulate;
}

template <class T, int R, int W>
[[gnu::always_inline]] inline void rescale_registers(const GemmBlock<T>& block,
                                                     const Vector<Sum<T>> (&sum)[R][W], std::int64_t row,
                                                     std::int64_t column) {
  constexpr int kRowsAtOnce = 4 / W;
  const ColumnsToBytes<RescaleWay::kHigh, W> columns(*block.rescale, column);
  std::int8_t* to = block.bytes + row * block.bytes_stride + column;
#pragma GCC unroll 8
  for (int i = 0; i < R; i += kRowsAtOnce) {
    // Beyond the last row, the last row is repeated.
    const auto vector_at = [&](int v) { return sum[i + v / W < R ? i + v / W : R - 1][v % W]; };
    const Register bytes =
        columns.bytes(columns.words(vector_at(0), vector_at(1)), columns.words(vector_at(2), vector_at(3)));
#pragma GCC unroll 4
    for (int r = 0; r < kRowsAtOnce; ++r)
      if (i + r < R) store_row<W>(bytes, r, to + r * block.bytes_stride);
    to += kRowsAtOnce * block.bytes_stride;
  }
}

// ---- from memory ----

// Stores the first `count` lanes as elements of i8, with saturation, limited to [min, max].
struct ByteLimits {
  using Element = std::int8_t;
  using Bytes = Vector<std::int8_t, 16>;
  Bytes low, high;
  explicit ByteLimits(const RescaleTables<std::int32_t>& t)
      : low(Bytes{} + static_cast<std::int8_t>(t.min)), high(Bytes{} + static_cast<std::int8_t>(t.max)) {}

  [[gnu::always_inline]] void store(std::int8_t* to, V32 value, std::int64_t count) const {
#if TOSAIC_VECTOR_BYTES == 64
    const auto narrow = (Bytes)_mm512_maskz_cvtsepi32_epi8(0xffff, (__m512i)value);
#elif defined(__AVX2__)
    const __m128i words =
        _mm_packs_epi32(_mm256_castsi256_si128((__m256i)value), _mm256_extracti128_si256((__m256i)value, 1));
    const auto narrow = (Bytes)_mm_packs_epi16(words, words);
#else
    const Register words = to_words(value, value), narrow = to_bytes(words, words);
#endif
    Bytes bytes = narrow > high ? high : narrow;
    bytes = bytes < low ? low : bytes;
    if (count >= kLanes<std::int32_t>) {
      __builtin_memcpy(to, &bytes, kLanes<std::int32_t>);
      return;
    }
    std::int8_t lanes[sizeof bytes];
    __builtin_memcpy(lanes, &bytes, sizeof bytes);
    for (std::int64_t i = 0; i < count; ++i) to[i] = lanes[i];
  }
};

// Stores the first `count` lanes as elements of i32, limited to [min, max].
struct WideLimits {
  using Element = std::int32_t;
  V32 low, high;
  explicit WideLimits(const RescaleTables<std::int32_t>& t) : low(broadcast(t.min)), high(broadcast(t.max)) {}

  [[gnu::always_inline]] void store(std::int32_t* to, V32 value, std::int64_t count) const {
    const V32 capped = value > high ? high : value;
    store_first(to, capped < low ? low : capped, count);
  }
};

// `results` are the elements of row 0 and column 0 of the block, and the next row begins `stride` elements
// later.
template <class T, RescaleWay kWay, class Limits>
void rescale_tile_by(const GemmBlock<T>& block, const Sum<T>* sums, std::int64_t width, std::int64_t row,
                     std::int64_t rows, std::int64_t column, std::int64_t valid,
                     typename Limits::Element* results, std::int64_t stride) {
  constexpr std::int64_t lanes = kLanes<Sum<T>>;
  const V32 output_zp = broadcast(block.rescale->output_zp);
  const Limits limits(*block.rescale);
  for (std::int64_t j = 0; j < valid; j += lanes) {
    const std::int64_t count = valid - j < lanes ? valid - j : lanes;
    const std::int64_t at = column + j;
    const LaneScale<kWay> by = scale_of_columns<kWay>(*block.rescale, at);
    const Sum<T>* from = sums + j;
    typename Limits::Element* to = results + row * stride + at;
    for (std::int64_t i = 0; i < rows; ++i, from += width, to += stride) {
      Vector<Sum<T>> sum = load(from);
      if (block.row_bias != nullptr) sum += block.row_bias[row + i];
      if (block.accumulate) sum += load_first(block.c + (row + i) * block.c_stride + at, count);
      limits.store(to, rescale_vector((V32)sum, by) + output_zp, count);
    }
  }
}

template <class T>
[[gnu::noinline]] void rescale_tile(const GemmBlock<T>& block, const Sum<T>* sums, std::int64_t width,
                                    std::int64_t row, std::int64_t rows, std::int64_t column,
                                    std::int64_t valid) {
  const auto rescale = [&]<RescaleWay kWay>() {
    if (block.bytes != nullptr)
      return rescale_tile_by<T, kWay, ByteLimits>(block, sums, width, row, rows, column, valid, block.bytes,
                                                  block.bytes_stride);
    rescale_tile_by<T, kWay, WideLimits>(block, sums, width, row, rows, column, valid,
                                         reinterpret_cast<std::int32_t*>(block.c), block.c_stride);
  };
  if (block.rescale->high_halves) return rescale.template operator()<RescaleWay::kHigh>();
  if (block.rescale->double_round) return rescale.template operator()<RescaleWay::kDouble>();
  rescale.template operator()<RescaleWay::kSingle>();
}

#else

template <class T>
[[gnu::noinline]] void rescale_tile(const GemmBlock<T>& block, const Sum<T>* sums, std::int64_t width,
                                    std::int64_t row, std::int64_t rows, std::int64_t column,
                                    std::int64_t valid) {
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < valid; ++j) {
      const std::int64_t at = column + j;
      Sum<T> sum = sums[i * width + j];
      if (block.row_bias != nullptr) sum += block.row_bias[row + i];
      if (block.accumulate) sum += block.c[(row + i) * block.c_stride + at];
      const std::int32_t result = scaled_one(*block.rescale, static_cast<std::int32_t>(sum), at);
      if (block.bytes != nullptr)
        block.bytes[(row + i) * block.bytes_stride + at] = static_cast<std::int8_t>(result);
      else
        block.c[(row + i) * block.c_stride + at] = static_cast<Sum<T>>(result);
    }
}

#endif

}  // namespace
}  // namespace tosaic::kernels::TOSAIC_ISA
