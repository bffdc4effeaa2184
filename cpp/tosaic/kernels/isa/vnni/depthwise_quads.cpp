#include "tosaic/kernels/isa/depthwise_quads.h"

#include "tosaic/kernels/isa/gather.h"
#include "tosaic/kernels/isa/multiply.h"
#include "tosaic/kernels/isa/rescale_vector.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

using Byte = std::int8_t;
using Bytes = Vector<Byte>;
using Sums = Vector<std::uint32_t>;
constexpr int kVectors = 4;
constexpr Index kSumLanes = kLanes<std::uint32_t>;

// Adds the products of four taps to the sums of a block. Taps from `taps` on are zero.
template <int kTaps>
[[gnu::always_inline]] inline void add_quad(Sums (&sum)[kVectors], const Byte* const* tap, Index at,
                                            const Byte* weights) {
  __m512i x[4] = {};
#pragma GCC unroll 4
  for (int t = 0; t < kTaps; ++t) x[t] = (__m512i)load(tap[t] + at);
  const __m512i low_a = _mm512_unpacklo_epi8(x[0], x[1]), high_a = _mm512_unpackhi_epi8(x[0], x[1]),
                low_b = _mm512_unpacklo_epi8(x[2], x[3]), high_b = _mm512_unpackhi_epi8(x[2], x[3]);
  const __m512i quads[kVectors] = {_mm512_unpacklo_epi16(low_a, low_b), _mm512_unpackhi_epi16(low_a, low_b),
                                   _mm512_unpacklo_epi16(high_a, high_b),
                                   _mm512_unpackhi_epi16(high_a, high_b)};
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v)
    add_product(sum[v], load(weights + v * kLanes<Byte>), (Vector<std::int32_t>)quads[v]);
}

// kQuads > 0: that many quads, of which the last one has kLast taps. 0: as many as the line has.
template <int kQuads, int kLast>
[[gnu::always_inline]] inline void add_taps(Sums (&sum)[kVectors], const DepthwiseQuads& line, Index at,
                                            const Byte* weights) {
  constexpr Index kQuadBytes = kVectors * kLanes<Byte>;
  if constexpr (kQuads > 0) {
#pragma GCC unroll 4
    for (int q = 0; q + 1 < kQuads; ++q) add_quad<4>(sum, line.taps + 4 * q, at, weights + q * kQuadBytes);
    add_quad<kLast>(sum, line.taps + 4 * (kQuads - 1), at, weights + (kQuads - 1) * kQuadBytes);
  } else {
    for (Index q = 0; q < line.quads; ++q) add_quad<4>(sum, line.taps + 4 * q, at, weights + q * kQuadBytes);
  }
}

// Stores sums in the order of the channels.
void store_sums(const Sums (&sum)[kVectors], std::uint32_t* to, Index valid) {
  std::uint32_t arranged[kVectors * kSumLanes];
  for (int v = 0; v < kVectors; ++v) store(arranged + v * kSumLanes, sum[v]);
  for (Index place = 0; place < kQuadBlock; ++place)
    if (quad_channel(place) < valid) to[quad_channel(place)] = arranged[place];
}

struct ByteLimits512 {
  __m512i output_zp, low, high;
};

template <RescaleWay kWay>
[[gnu::always_inline]] inline void store_bytes(const Sums (&sum)[kVectors], const LaneScale<kWay>* by,
                                               const ByteLimits512& limits, Byte* to, Index valid) {
  __m512i scaled[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) scaled[v] = (__m512i)rescale_vector((V32)sum[v], by[v]);
  // Saturation of 32 to 16 bits, of the sum with the zero point, and of 16 to 8 bits gives the same byte as one
  // saturation of the exact sum.
  const __m512i low = _mm512_adds_epi16(_mm512_packs_epi32(scaled[0], scaled[1]), limits.output_zp),
                high = _mm512_adds_epi16(_mm512_packs_epi32(scaled[2], scaled[3]), limits.output_zp);
  const __m512i narrow = _mm512_packs_epi16(low, high);
  const __m512i bytes = _mm512_max_epi8(_mm512_min_epi8(narrow, limits.high), limits.low);
  if (valid >= kQuadBlock)
    store(to, (Bytes)bytes);
  else
    _mm512_mask_storeu_epi8(to, (__mmask64{1} << valid) - 1, bytes);
}

template <int kQuads, int kLast, RescaleWay kWay>
void line_of(const DepthwiseQuads& line) {
  const RescaleTables<std::int32_t>& t = line.rescale;
  const ByteLimits512 limits{_mm512_set1_epi16(static_cast<short>(t.output_zp)),
                             _mm512_set1_epi8(static_cast<char>(t.min)),
                             _mm512_set1_epi8(static_cast<char>(t.max))};
  for (Index block = 0; block < line.blocks; ++block) {
    const Byte* weights = line.weights + block * line.quads * kQuadBlock * 4;
    Sums terms[kVectors];
    for (int v = 0; v < kVectors; ++v) terms[v] = load(line.terms + block * kQuadBlock + v * kSumLanes);
    const auto lane_scale = [&](Index v) {
      const Index at = block * kQuadBlock + v * kSumLanes;
      return line.bytes == nullptr ? LaneScale<kWay>(V32{}, V32{} + 33)
                                   : LaneScale<kWay>(load(t.multiplier + at), load(t.shift + at));
    };
    const LaneScale<kWay> by[kVectors] = {lane_scale(0), lane_scale(1), lane_scale(2), lane_scale(3)};
    for (Index x = 0; x < line.pixels; ++x)
      for (Index e = block * kQuadBlock; e < line.elements; e += line.blocks * kQuadBlock) {
        Sums sum[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[v] = terms[v];
        add_taps<kQuads, kLast>(sum, line, x * line.source_step + e, weights);
        const Index valid = line.elements - e, to = x * line.result_step + e;
        if (line.bytes == nullptr)
          store_sums(sum, line.sums + to, valid);
        else
          store_bytes<kWay>(sum, by, limits, line.bytes + to, valid);
      }
  }
}

template <RescaleWay kWay>
void line_by(const DepthwiseQuads& line) {
  // 3 x 3 taps: the weights of a block stay in registers.
  return line.num_taps == 9 ? line_of<3, 1, kWay>(line) : line_of<0, 0, kWay>(line);
}

void depthwise_line(const DepthwiseQuads& line) {
  if (line.rescale.high_halves) return line_by<RescaleWay::kHigh>(line);
  return line.rescale.double_round ? line_by<RescaleWay::kDouble>(line) : line_by<RescaleWay::kSingle>(line);
}

void copy_line(const Byte* from, Index count, Byte* to) { as_factors(to, from, Byte{0}, count); }
void pad_line(Byte zero_point, Index count, Byte* to) { pad(to, zero_point, count); }

}  // namespace

extern const DepthwiseQuadKernels kDepthwiseQuads;
const DepthwiseQuadKernels kDepthwiseQuads = {depthwise_line, copy_line, pad_line};

}  // namespace tosaic::kernels::TOSAIC_ISA
