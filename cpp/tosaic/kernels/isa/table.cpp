// TABLE of blocks.
//
// A shuffle of bytes looks up 16 entries by the low four bits of a value. So a table of 256 entries is 16
// shuffles, and the upper four bits of the value choose among their results, two by two:
//
//   entries 0..15  16..31  32..47  48..63 ...      each looked up by the low four bits
//        \__ bit 4 __/       \__ bit 4 __/
//             \_______ bit 5 _______/ ...
#include "tosaic/kernels/isa/table.h"

#include "tosaic/kernels/isa/masked.h"

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

#if defined(__AVX2__)

#if TOSAIC_VECTOR_BYTES == 64
using Bytes = __m512i;
[[gnu::always_inline]] inline Bytes entries_of(const std::int8_t* table) {
  __m128i lane;
  __builtin_memcpy(&lane, table, sizeof lane);
  return _mm512_maskz_broadcast_i32x4(0xffff, lane);
}
// The bytes of `b` where bit kBit of the value is set, else those of `a`.
template <int kBit>
[[gnu::always_inline]] inline Bytes chosen(Bytes a, Bytes b, Bytes values) {
  return _mm512_mask_blend_epi8(_mm512_test_epi8_mask(values, _mm512_set1_epi8(static_cast<char>(1 << kBit))),
                                a, b);
}
[[gnu::always_inline]] inline Bytes shuffled(Bytes entries, Bytes values) {
  return _mm512_shuffle_epi8(entries, values);
}
#else
using Bytes = __m256i;
[[gnu::always_inline]] inline Bytes entries_of(const std::int8_t* table) {
  __m128i lane;
  __builtin_memcpy(&lane, table, sizeof lane);
  return _mm256_broadcastsi128_si256(lane);
}
// The bytes of `b` where bit kBit of the value is set, else those of `a`. The blend reads bit 7 of each byte.
template <int kBit>
[[gnu::always_inline]] inline Bytes chosen(Bytes a, Bytes b, Bytes values) {
  return _mm256_blendv_epi8(a, b, _mm256_slli_epi16(values, 7 - kBit));
}
[[gnu::always_inline]] inline Bytes shuffled(Bytes entries, Bytes values) {
  return _mm256_shuffle_epi8(entries, values);
}
#endif

// Chooses among the entries [kFirst, kFirst + 2^kBits), by bits 0..kBits - 1 of the values.
template <int kFirst, int kBits>
[[gnu::always_inline]] inline Bytes looked_up(const std::int8_t* table, Bytes low, Bytes values) {
  if constexpr (kBits == 4) {
    return shuffled(entries_of(table + kFirst), low);
  } else {
    const Bytes a = looked_up<kFirst, kBits - 1>(table, low, values);
    const Bytes b = looked_up<kFirst + (1 << (kBits - 1)), kBits - 1>(table, low, values);
    return chosen<kBits - 1>(a, b, values);
  }
}

void look_up(const std::int8_t* table, const std::int8_t* values, std::int8_t* results, std::int64_t count) {
  using Vector8 = Vector<std::int8_t>;
  constexpr std::int64_t kWidth = kLanes<std::int8_t>;
  const Vector8 flip = broadcast(static_cast<std::int8_t>(-128)), low = broadcast(std::int8_t{15});
  const auto found = [&](Vector8 value) {
    const Vector8 place = value ^ flip;  // value + 128, without a sign
    return (Vector8)looked_up<0, 8>(table, (Bytes)(place & low), (Bytes)place);
  };
  std::int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) store(results + i, found(load(values + i)));
  if (i < count) store_bytes(results + i, found(load_bytes(values + i, count - i)), count - i);
}

constexpr auto kLookUp = look_up;

#else

constexpr std::nullptr_t kLookUp = nullptr;

#endif

// The elements at a vector of indices, which are in the table.
[[gnu::always_inline]] inline Vector<std::int32_t> gathered(const std::int32_t* table,
                                                            Vector<std::int32_t> at) {
#if TOSAIC_VECTOR_BYTES == 64
  const __m512i none = _mm512_setzero_si512();
  return (Vector<std::int32_t>)_mm512_mask_i32gather_epi32(none, 0xffff, (__m512i)at, table, 4);
#elif defined(__AVX2__)
  return (Vector<std::int32_t>)_mm256_i32gather_epi32(table, (__m256i)at, 4);
#else
  Vector<std::int32_t> found;
  for (std::int64_t lane = 0; lane < kLanes<std::int32_t>; ++lane) found[lane] = table[at[lane]];
  return found;
#endif
}

// An index outside of the table reads entry 0.
bool gather(const std::int32_t* table, std::int32_t limit, const std::int32_t* indices, std::int32_t* results,
            std::int64_t count) {
  using Vector32 = Vector<std::int32_t>;
  constexpr std::int64_t kWidth = kLanes<std::int32_t>;
  if (limit <= 0) return count == 0;
  const Vector32 last = broadcast(limit - 1), first{};
  Vector32 outside{};
  const auto found = [&](Vector32 at) {
    const Vector32 misses = (at < first) | (at > last);
    outside |= misses;
    return gathered(table, at & ~misses);
  };
  std::int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) store(results + i, found(load(indices + i)));
  if (i < count) store_part(results + i, found(load_part(indices + i, count - i)), count - i);
  std::int32_t any = 0;
#pragma GCC unroll 16
  for (std::int64_t lane = 0; lane < kWidth; ++lane) any |= outside[lane];
  return any == 0;
}

}  // namespace

extern const TableKernels kTable;
const TableKernels kTable = {interpolate, kLookUp, gather};

}  // namespace tosaic::kernels::TOSAIC_ISA
