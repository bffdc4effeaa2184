#include "tosaic/kernels/isa/depthwise_quads.h"

#include "tosaic/kernels/isa/gather.h"
#include "tosaic/kernels/isa/multiply.h"
#include "tosaic/kernels/isa/narrow.h"
#include "tosaic/kernels/isa/quads.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

using Byte = std::int8_t;
using Bytes = Vector<Byte>;
using Sums = Vector<std::uint32_t>;
constexpr int kVectors = 4;
constexpr Index kSumLanes = kLanes<std::uint32_t>;
constexpr Index kBlock = kLanes<Byte>;

// Adds the products of four taps to the sums of a block. Taps from `taps` on are zero.
template <int kTaps>
[[gnu::always_inline]] inline void add_quad(Sums (&sum)[kVectors], const Byte* const* tap, Index at,
                                            const Byte* weights) {
  Bytes x[4] = {}, quads[kVectors];
#pragma GCC unroll 4
  for (int t = 0; t < kTaps; ++t) x[t] = load(tap[t] + at);
  interleave(x, quads);
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
  for (Index place = 0; place < kBlock; ++place)
    if (quad_channel(kBlock, place) < valid) to[quad_channel(kBlock, place)] = arranged[place];
}

template <RescaleWay kWay>
[[gnu::always_inline]] inline void store_bytes(const Sums (&sum)[kVectors], const LaneScale<kWay>* by,
                                               const ByteRange& range, Byte* to, Index valid) {
  V32 scaled[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) scaled[v] = rescale_vector((V32)sum[v], by[v]);
  const auto bytes = (Bytes)range.bytes(range.words(scaled[0], scaled[1]), range.words(scaled[2], scaled[3]));
  if (valid >= kBlock)
    store(to, bytes);
  else
    store_bytes(to, bytes, valid);
}

template <int kQuads, int kLast, RescaleWay kWay>
void line_of(const DepthwiseQuads& line) {
  const RescaleTables<std::int32_t>& t = line.rescale;
  const ByteRange range(t);
  for (Index block = 0; block < line.blocks; ++block) {
    const Byte* weights = line.weights + block * line.quads * kBlock * 4;
    Sums terms[kVectors];
    for (int v = 0; v < kVectors; ++v) terms[v] = load(line.terms + block * kBlock + v * kSumLanes);
    const auto lane_scale = [&](Index v) {
      const Index at = block * kBlock + v * kSumLanes;
      return line.bytes == nullptr ? LaneScale<kWay>(V32{}, V32{} + 33)
                                   : LaneScale<kWay>(load(t.multiplier + at), load(t.shift + at));
    };
    const LaneScale<kWay> by[kVectors] = {lane_scale(0), lane_scale(1), lane_scale(2), lane_scale(3)};
    for (Index x = 0; x < line.pixels; ++x)
      for (Index e = block * kBlock; e < line.elements; e += line.blocks * kBlock) {
        Sums sum[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[v] = terms[v];
        add_taps<kQuads, kLast>(sum, line, x * line.source_step + e, weights);
        const Index valid = line.elements - e, to = x * line.result_step + e;
        if (line.bytes == nullptr)
          store_sums(sum, line.sums + to, valid);
        else
          store_bytes<kWay>(sum, by, range, line.bytes + to, valid);
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
const DepthwiseQuadKernels kDepthwiseQuads = {kBlock, depthwise_line, copy_line, pad_line};

}  // namespace tosaic::kernels::TOSAIC_ISA
