// The loop of DepthwiseStepKernels. Only files of kernels/isa/ include this header.
#pragma once

#include "tosaic/kernels/isa/depthwise_steps.h"
#include "tosaic/kernels/isa/gather.h"
#include "tosaic/kernels/isa/multiply.h"
#include "tosaic/kernels/isa/narrow.h"
#include "tosaic/kernels/isa/quads.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

using Byte = std::int8_t;
using Sums = Vector<std::uint32_t>;
constexpr int kVectors = 4;
constexpr Index kSumLanes = kLanes<std::uint32_t>;
constexpr Index kBlock = kLanes<Byte>;
using Words = Vector<std::int16_t>;

#if !defined(__aarch64__) && TOSAIC_VECTOR_BYTES == 32
// Interleaves the words of two vectors in each 16 bytes.
[[gnu::always_inline]] inline void interleave(Words a, Words b, Words& low, Words& high) {
  low = (Words)_mm256_unpacklo_epi16((__m256i)a, (__m256i)b);
  high = (Words)_mm256_unpackhi_epi16((__m256i)a, (__m256i)b);
}
#elif !defined(__aarch64__) && TOSAIC_VECTOR_BYTES == 64
[[gnu::always_inline]] inline void interleave(Words a, Words b, Words& low, Words& high) {
  low = (Words)_mm512_unpacklo_epi16((__m512i)a, (__m512i)b);
  high = (Words)_mm512_unpackhi_epi16((__m512i)a, (__m512i)b);
}
#endif

// Loads the factors of a block at four taps, and interleaves them. Only the first kTaps taps are read; the
// factors of the others are zero.
template <int kTaps>
[[gnu::always_inline]] inline void load_step(const Byte* const* tap, Index at,
                                             Vector<Byte> (&factors)[kVectors]) {
  Vector<Byte> x[4] = {};
#pragma GCC unroll 4
  for (int t = 0; t < kTaps; ++t) x[t] = load(tap[t] + at);
  interleave(x, factors);
}

#if !defined(__aarch64__) && TOSAIC_VECTOR_BYTES > 16
// Loads the factors of a block at two taps, and interleaves them.
template <int kTaps>
[[gnu::always_inline]] inline void load_step(const std::int16_t* const* tap, Index at,
                                             Vector<std::int16_t> (&factors)[kVectors]) {
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const Index from = at + half * kLanes<std::int16_t>;
    const Words first = load(tap[0] + from), second = kTaps > 1 ? load(tap[1] + from) : Words{};
    interleave(first, second, factors[2 * half], factors[2 * half + 1]);
  }
}
#endif

// Adds the products of one step to the sums of a block.
template <class T, int kTaps>
[[gnu::always_inline]] inline void add_step(Sums (&sum)[kVectors], const Factor<T>* const* tap, Index at,
                                            const Factor<T>* weights) {
  Vector<Factor<T>> factors[kVectors];
  load_step<kTaps>(tap, at, factors);
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v)
    add_product(sum[v], load(weights + v * kLanes<Factor<T>>), (Vector<std::int32_t>)factors[v]);
}

// kSteps > 0: that many steps, of which the last one has kLast taps. 0: as many as the line has.
template <class T, int kSteps, int kLast>
[[gnu::always_inline]] inline void add_taps(Sums (&sum)[kVectors], const DepthwiseSteps<T>& line, Index at,
                                            const Factor<T>* weights) {
  constexpr int kStep = Arithmetic<T>::kStep;
  constexpr Index kStepFactors = kVectors * kLanes<Factor<T>>;
  if constexpr (kSteps > 0) {
#pragma GCC unroll 8
    for (int s = 0; s + 1 < kSteps; ++s)
      add_step<T, kStep>(sum, line.taps + kStep * s, at, weights + s * kStepFactors);
    add_step<T, kLast>(sum, line.taps + kStep * (kSteps - 1), at, weights + (kSteps - 1) * kStepFactors);
  } else {
    for (Index s = 0; s < line.steps; ++s)
      add_step<T, kStep>(sum, line.taps + kStep * s, at, weights + s * kStepFactors);
  }
}

// Stores sums in the order of the channels.
template <class T>
void store_sums(const Sums (&sum)[kVectors], std::uint32_t* to, Index valid) {
  std::uint32_t arranged[kVectors * kSumLanes];
  for (int v = 0; v < kVectors; ++v) store(arranged + v * kSumLanes, sum[v]);
  for (Index place = 0; place < kBlock; ++place)
    if (step_channel<T>(kBlock, place) < valid) to[step_channel<T>(kBlock, place)] = arranged[place];
}

template <class T, RescaleWay kWay>
[[gnu::always_inline]] inline void store_bytes(const Sums (&sum)[kVectors], const LaneScale<kWay>* by,
                                               const ByteRange& range, Byte* to, Index valid) {
  V32 scaled[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) scaled[v] = rescale_vector((V32)sum[v], by[v]);
  auto bytes =
      (Vector<Byte>)range.bytes(range.words(scaled[0], scaled[1]), range.words(scaled[2], scaled[3]));
#if TOSAIC_VECTOR_BYTES == 32
  // The bytes of both halves of a block are next to each other in each 16 bytes.
  if constexpr (std::is_same_v<T, Pairs>)
    bytes = (Vector<Byte>)__builtin_shufflevector((V64)bytes, (V64)bytes, 0, 2, 1, 3);
#elif TOSAIC_VECTOR_BYTES == 64
  if constexpr (std::is_same_v<T, Pairs>)
    bytes = (Vector<Byte>)__builtin_shufflevector((V64)bytes, (V64)bytes, 0, 2, 4, 6, 1, 3, 5, 7);
#endif
  if (valid >= kBlock)
    store(to, bytes);
  else
    store_bytes(to, bytes, valid);
}

template <class T, int kSteps, int kLast, RescaleWay kWay>
void line_of(const DepthwiseSteps<T>& line) {
  const RescaleTables<std::int32_t>& t = line.rescale;
  const ByteRange range(t);
  for (Index block = 0; block < line.blocks; ++block) {
    const Factor<T>* weights = line.weights + block * line.steps * kBlock * Arithmetic<T>::kStep;
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
        add_taps<T, kSteps, kLast>(sum, line, x * line.source_step + e, weights);
        const Index valid = line.elements - e, to = x * line.result_step + e;
        if (line.bytes == nullptr)
          store_sums<T>(sum, line.sums + to, valid);
        else
          store_bytes<T, kWay>(sum, by, range, line.bytes + to, valid);
      }
  }
}

template <class T, RescaleWay kWay>
void line_by(const DepthwiseSteps<T>& line) {
  // 3 x 3 taps: the pointers to the taps stay in registers, and so do the weights of a block if there are
  // enough.
  constexpr int kStep = Arithmetic<T>::kStep, kNine = (9 + kStep - 1) / kStep;
  return line.num_taps == 9 ? line_of<T, kNine, 9 - kStep*(kNine - 1), kWay>(line)
                            : line_of<T, 0, 0, kWay>(line);
}

template <class T>
void depthwise_line(const DepthwiseSteps<T>& line) {
  if (line.rescale.high_halves) return line_by<T, RescaleWay::kHigh>(line);
  return line.rescale.double_round ? line_by<T, RescaleWay::kDouble>(line)
                                   : line_by<T, RescaleWay::kSingle>(line);
}

template <class T>
void copy_line(const Byte* from, Factor<T> zero_point, Index count, Factor<T>* to) {
  as_factors(to, from, zero_point, count);
}
template <class T>
void pad_line(Factor<T> zero_point, Index count, Factor<T>* to) {
  pad(to, zero_point, count);
}

template <class T>
constexpr DepthwiseStepKernels<T> step_kernels() {
  return {kBlock, depthwise_line<T>, copy_line<T>, pad_line<T>};
}

}  // namespace
}  // namespace tosaic::kernels::TOSAIC_ISA
