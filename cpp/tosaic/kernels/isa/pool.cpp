#include "tosaic/kernels/isa/pool.h"

#include "tosaic/kernels/isa/widen.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

using Index = std::int64_t;

template <class T>
inline constexpr bool kIsFloat = std::is_same_v<T, float>;

// The type in which elements of T are pooled.
template <class T, Pooling P>
using Pooled = std::conditional_t<P == Pooling::kSum && !kIsFloat<T>, std::int32_t, T>;

template <class T, Pooling P>
[[gnu::always_inline]] inline Pooled<T, P>* output_of(const PoolLine<T>& line) {
  if constexpr (std::is_same_v<Pooled<T, P>, T>)
    return line.output;
  else
    return line.sums;
}

template <class T, Pooling P>
[[gnu::always_inline]] inline Vector<Pooled<T, P>> start() {
  if constexpr (P == Pooling::kSum)
    return Vector<Pooled<T, P>>{};
  else if constexpr (!kIsFloat<T>)
    return broadcast(static_cast<T>(T{1} << (8 * sizeof(T) - 1)));
  else
    return broadcast(P == Pooling::kMax ? -__builtin_inff() : __builtin_nanf(""));
}

template <class T, Pooling P>
[[gnu::always_inline]] inline Vector<Pooled<T, P>> element(const T* at, bool whole, Index valid) {
  if constexpr (std::is_same_v<Pooled<T, P>, T>)
    return whole ? load(at) : load_first(at, valid);
  else
    return whole ? load_widened(at) : load_widened_first(at, valid);
}

template <Pooling P, class V>
[[gnu::always_inline]] inline V combine(V sum, V value) {
  if constexpr (P == Pooling::kSum) return sum + value;
  if constexpr (P == Pooling::kMax) return (value > sum) | (value != value) ? value : sum;
  return (value > sum) | (sum != sum) ? value : sum;
}

// Computes V vectors of channels of one output. If V == 1, only the first `valid` lanes are channels.
template <class T, Pooling P, int V>
[[gnu::always_inline]] inline void output(const PoolLine<T>& line, Index out, Index channel, Index valid) {
  constexpr Index lanes = kLanes<Pooled<T, P>>;
  const bool whole = V > 1 || valid >= lanes;
  Vector<Pooled<T, P>> sum[V];
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) sum[v] = start<T, P>();
  const PoolWindow w = line.w[out];
  for (Index z = line.d.begin; z < line.d.end; z += line.step[0])
    for (Index y = line.h.begin; y < line.h.end; y += line.step[1]) {
      const T* at = line.input + z * line.stride[0] + y * line.stride[1] + channel;
      for (Index x = w.begin; x < w.end; x += line.step[2])
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v)
          sum[v] = combine<P>(sum[v], element<T, P>(at + x * line.stride[2] + v * lanes, whole, valid));
    }
  Pooled<T, P>* to = output_of<T, P>(line) + out * line.channels + channel;
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) {
    if constexpr (P == Pooling::kSum && kIsFloat<T>) sum[v] /= line.divisor[out];
    if (whole)
      store(to + v * lanes, sum[v]);
    else
      store_first(to, sum[v], valid);
  }
}

template <class T, Pooling P>
void pool_line_of(const PoolLine<T>& line) {
  constexpr int kVectors = 4;
  constexpr Index lanes = kLanes<Pooled<T, P>>;
  for (Index out = 0; out < line.out_w; ++out) {
    Index channel = 0;
    for (; channel + kVectors * lanes <= line.channels; channel += kVectors * lanes)
      output<T, P, kVectors>(line, out, channel, 0);
    for (; channel + lanes <= line.channels; channel += lanes) output<T, P, 1>(line, out, channel, lanes);
    if (channel < line.channels) output<T, P, 1>(line, out, channel, line.channels - channel);
  }
}

template <class T>
void pool_line(const PoolLine<T>& line) {
  switch (line.pooling) {
    case Pooling::kSum:
      return pool_line_of<T, Pooling::kSum>(line);
    case Pooling::kMax:
      return pool_line_of<T, Pooling::kMax>(line);
    case Pooling::kMaxIgnoringNan:
      return pool_line_of<T, kIsFloat<T> ? Pooling::kMaxIgnoringNan : Pooling::kMax>(line);
  }
}

}  // namespace

extern const PoolKernels<float> kPoolF32;
const PoolKernels<float> kPoolF32 = {pool_line<float>};
extern const PoolKernels<std::int8_t> kPoolI8;
const PoolKernels<std::int8_t> kPoolI8 = {pool_line<std::int8_t>};
extern const PoolKernels<std::int16_t> kPoolI16;
const PoolKernels<std::int16_t> kPoolI16 = {pool_line<std::int16_t>};

}  // namespace tosaic::kernels::TOSAIC_ISA
