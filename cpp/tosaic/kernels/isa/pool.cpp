#include "tosaic/kernels/isa/pool.h"

#include "tosaic/kernels/isa/vector.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

using Index = std::int64_t;
using Floats = Vector<float>;
constexpr Index kWidth = kLanes<float>;

template <Pooling P>
[[gnu::always_inline]] inline Floats combine(Floats sum, Floats value) {
  if constexpr (P == Pooling::kSum) return sum + value;
  if constexpr (P == Pooling::kMax) return (value > sum) | (value != value) ? value : sum;
  return (value > sum) | (sum != sum) ? value : sum;
}

// V vectors of channels of one output (the last one of `valid` lanes when V == 1).
template <Pooling P, int V>
[[gnu::always_inline]] inline void output(const PoolLine& line, Index out, Index channel, Index valid) {
  const bool whole = V > 1 || valid >= kWidth;
  constexpr float kStart = P == Pooling::kSum   ? 0.0F
                           : P == Pooling::kMax ? -__builtin_inff()
                                                : __builtin_nanf("");
  Floats sum[V];
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) sum[v] = broadcast(kStart);
  const PoolWindow w = line.w[out];
  for (Index z = line.d.begin; z < line.d.end; z += line.step[0])
    for (Index y = line.h.begin; y < line.h.end; y += line.step[1]) {
      const float* at = line.input + z * line.stride[0] + y * line.stride[1] + channel;
      for (Index x = w.begin; x < w.end; x += line.step[2])
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) {
          const float* from = at + x * line.stride[2] + v * kWidth;
          sum[v] = combine<P>(sum[v], whole ? load(from) : load_first(from, valid));
        }
    }
  float* to = line.output + out * line.channels + channel;
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) {
    if constexpr (P == Pooling::kSum) sum[v] /= line.divisor[out];
    if (whole)
      store(to + v * kWidth, sum[v]);
    else
      store_first(to, sum[v], valid);
  }
}

template <Pooling P>
void pool_line_of(const PoolLine& line) {
  constexpr int kVectors = 4;
  for (Index out = 0; out < line.out_w; ++out) {
    Index channel = 0;
    for (; channel + kVectors * kWidth <= line.channels; channel += kVectors * kWidth)
      output<P, kVectors>(line, out, channel, 0);
    for (; channel + kWidth <= line.channels; channel += kWidth) output<P, 1>(line, out, channel, kWidth);
    if (channel < line.channels) output<P, 1>(line, out, channel, line.channels - channel);
  }
}

void pool_line(const PoolLine& line) {
  switch (line.pooling) {
    case Pooling::kSum:
      return pool_line_of<Pooling::kSum>(line);
    case Pooling::kMax:
      return pool_line_of<Pooling::kMax>(line);
    case Pooling::kMaxIgnoringNan:
      return pool_line_of<Pooling::kMaxIgnoringNan>(line);
  }
}

}  // namespace

extern const PoolKernels kPool;
const PoolKernels kPool = {pool_line};

}  // namespace tosaic::kernels::TOSAIC_ISA
