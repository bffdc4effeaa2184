#include "tosaic/kernels/isa/depthwise.h"

#include "tosaic/kernels/isa/multiply.h"
#include "tosaic/kernels/isa/words.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

using Index = std::int64_t;
using Floats = Vector<float>;
constexpr Index kWidth = kLanes<float>;

// The taps of one axis that are inside the image: [begin, end).
struct TapRange {
  Index begin, end;
};

TapRange taps_inside(Index first, Index dilation, Index taps, Index extent) {
  TapRange range{first < 0 ? (-first + dilation - 1) / dilation : 0, taps};
  const Index reach = extent - first <= 0 ? 0 : (extent - first + dilation - 1) / dilation;
  if (reach < range.end) range.end = reach;
  if (range.begin > range.end) range.begin = range.end;
  return range;
}

struct Taps {
  TapRange d, h, w;
};

// A vector of the image minus the zero point, as the factor of add_tap(). It has all lanes, or only the
// first `count`.
[[gnu::always_inline]] inline Floats image_at(const float* at, float) { return load(at); }
[[gnu::always_inline]] inline Floats image_first(const float* at, float, Index count) {
  return load_first(at, count);
}
[[gnu::always_inline]] inline Vector<double> image_at(const double* at, double) { return load(at); }
[[gnu::always_inline]] inline Vector<double> image_first(const double* at, double, Index count) {
  return load_first(at, count);
}
// With i16 in place of i8, the zero point is 0, and only the low 16 bits are multiplied.
template <class S>
inline constexpr bool kIsInteger = sizeof(S) <= 2;
template <class S>
  requires kIsInteger<S>
[[gnu::always_inline]] inline Vector<std::int32_t> image_at(const S* at, std::int16_t zero_point) {
  return load_widened(at) - zero_point;
}
template <class S>
  requires kIsInteger<S>
[[gnu::always_inline]] inline Vector<std::int32_t> image_first(const S* at, std::int16_t zero_point,
                                                               Index count) {
  return load_widened_first(at, count) - zero_point;
}

template <class T>
inline constexpr bool kWidens = !std::is_same_v<Partial<T>, Sum<T>>;

// Stores the first `count` sums of adjacent channels, plus biases, in more bits.
template <class T>
[[gnu::always_inline]] inline void store_wide(const DepthwiseLine<T>& line, Vector<Partial<T>> sum,
                                              Index channel, Sum<T>* to, Index count) {
  std::int32_t lanes[kLanes<std::int32_t>];
  store(lanes, (Vector<std::int32_t>)sum);
  for (Index i = 0; i < count; ++i) to[i] = lanes[i] + (line.bias == nullptr ? 0 : line.bias[channel + i]);
}

// Computes P adjacent outputs for V vectors of channels. If V == 1, only the first `valid` lanes are
// channels.
template <class T, int P, int V>
[[gnu::always_inline]] inline void outputs(const DepthwiseLine<T>& line, const Taps& taps, Index first_w,
                                           Index out, Index channel, Index valid) {
  constexpr Index lanes = kLanes<Partial<T>>, kStep = Arithmetic<T>::kStep;
  const bool whole = V > 1 || valid >= lanes;
  const Factor<T> zero_point = line.zero_point;
  Vector<Partial<T>> sum[P][V];
  for (int v = 0; v < V; ++v) {
    Vector<Partial<T>> bias = {};
    if constexpr (!kWidens<T>) {
      if (line.bias != nullptr) {
        const Sum<T>* at = line.bias + channel + v * lanes;
        bias = whole ? load(at) : load_first(at, valid);
      }
    }
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) sum[p][v] = bias;
  }
  const Index step = line.step_w * line.stride[2];
  for (Index d = taps.d.begin; d < taps.d.end; ++d) {
    for (Index h = taps.h.begin; h < taps.h.end; ++h) {
      const Source<T>* image = line.input + (line.first[0] + d * line.dilation[0]) * line.stride[0] +
                               (line.first[1] + h * line.dilation[1]) * line.stride[1] +
                               (first_w + taps.w.begin * line.dilation[2]) * line.stride[2] + channel;
      const Factor<T>* weight =
          line.weight +
          (((d * line.taps[1] + h) * line.taps[2] + taps.w.begin) * line.channels + channel) * kStep;
      for (Index w = taps.w.begin; w < taps.w.end; ++w) {
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) {
          const Vector<Factor<T>> tap =
              whole ? load(weight + v * lanes * kStep) : load_first(weight, valid * kStep);
#pragma GCC unroll 4
          for (int p = 0; p < P; ++p) {
            const Source<T>* at = image + p * step + v * lanes;
            add_tap(sum[p][v], tap, whole ? image_at(at, zero_point) : image_first(at, zero_point, valid));
          }
        }
        image += line.dilation[2] * line.stride[2];
        weight += line.channels * kStep;
      }
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
    Sum<T>* to = line.output + (out + p) * line.channels + channel;
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      if constexpr (kWidens<T>) {
        if (line.rescale_words != nullptr)
          WordLanes(*line.rescale_words, channel + v * lanes)
              .store_words(line.words + (out + p) * line.channels + channel + v * lanes, sum[p][v],
                           whole ? lanes : valid);
        else
          store_wide(line, sum[p][v], channel + v * lanes, to + v * lanes, whole ? lanes : valid);
        continue;
      } else {
        Vector<Sum<T>> value = sum[p][v];
        if (line.clamp) value = clamp<Sum<T>>(value, broadcast(line.low), broadcast(line.high));
        if (whole)
          store(to + v * lanes, value);
        else
          store_first(to, value, valid);
      }
    }
  }
}

template <class T, int P>
[[gnu::noinline]] void all_channels(const DepthwiseLine<T>& line, const Taps& taps, Index first_w,
                                    Index out) {
  constexpr Index lanes = kLanes<Partial<T>>;
  constexpr int kVectors = 2;
  Index channel = 0;
  for (; channel + kVectors * lanes <= line.channels; channel += kVectors * lanes)
    outputs<T, P, kVectors>(line, taps, first_w, out, channel, 0);
  for (; channel + lanes <= line.channels; channel += lanes)
    outputs<T, P, 1>(line, taps, first_w, out, channel, lanes);
  if (channel < line.channels) outputs<T, P, 1>(line, taps, first_w, out, channel, line.channels - channel);
}

template <class T>
void depthwise_line(const DepthwiseLine<T>& line) {
  Taps taps{taps_inside(line.first[0], line.dilation[0], line.taps[0], line.in[0]),
            taps_inside(line.first[1], line.dilation[1], line.taps[1], line.in[1]),
            {}};
  // Outputs [inner, outer) use all taps along w.
  const Index reach = (line.taps[2] - 1) * line.dilation[2];
  Index inner = line.first[2] >= 0 ? 0 : (-line.first[2] + line.step_w - 1) / line.step_w;
  const Index space = line.in[2] - 1 - reach - line.first[2];
  Index outer = space < 0 ? 0 : space / line.step_w + 1;
  if (outer > line.out_w) outer = line.out_w;
  if (inner > outer) inner = outer;
  Index out = 0;
  while (out < line.out_w) {
    const Index first_w = line.first[2] + out * line.step_w;
    if (out >= inner && out + 4 <= outer) {
      taps.w = {0, line.taps[2]};
      all_channels<T, 4>(line, taps, first_w, out);
      out += 4;
    } else {
      taps.w = taps_inside(first_w, line.dilation[2], line.taps[2], line.in[2]);
      all_channels<T, 1>(line, taps, first_w, out);
      ++out;
    }
  }
}

// ---- channels first ----

// The even and the odd elements of two vectors.
#if TOSAIC_VECTOR_BYTES == 64
#define TOSAIC_EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define TOSAIC_ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#elif TOSAIC_VECTOR_BYTES == 32
#define TOSAIC_EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define TOSAIC_ODD 1, 3, 5, 7, 9, 11, 13, 15
#else
#define TOSAIC_EVEN 0, 2, 4, 6
#define TOSAIC_ODD 1, 3, 5, 7
#endif
// Writes from[0, 2, ...] to `even` and from[1, 3, ...] to `odd`.
void split_in_two(const float* from, Index count, float* even, float* odd) {
  Index i = 0;
  for (; i + 2 * kWidth <= count; i += 2 * kWidth) {
    const Floats first = load(from + i);
    const Floats second = load(from + i + kWidth);
    store(even + i / 2, __builtin_shufflevector(first, second, TOSAIC_EVEN));
    store(odd + i / 2, __builtin_shufflevector(first, second, TOSAIC_ODD));
  }
  if (i == count) return;
  const Index left = count - i;
  const Floats first = load_first(from + i, left < kWidth ? left : kWidth);
  const Floats second = load_first(from + i + kWidth, left < kWidth ? 0 : left - kWidth);
  store_first(even + i / 2, __builtin_shufflevector(first, second, TOSAIC_EVEN), (left + 1) / 2);
  store_first(odd + i / 2, __builtin_shufflevector(first, second, TOSAIC_ODD), left / 2);
}

// Writes the image into the planes. The padding around it stays zero, as the caller filled it.
void fill_planes(const DepthwisePlane& p) {
  for (Index h = 0; h < p.in_h; ++h) {
    const Index y = h + p.pad_h;
    float* line = p.planes + (y % p.step_h) * p.step_w * p.plane_size + (y / p.step_h) * p.pitch;
    const float* from = p.input + h * p.in_w;
    // Element w of the image goes to plane (w + pad_w) % step_w, position (w + pad_w) / step_w.
    const auto place = [&](Index w) {
      return line + (w + p.pad_w) % p.step_w * p.plane_size + (w + p.pad_w) / p.step_w;
    };
    if (p.step_w == 1) {
      copy(line + p.pad_w, from, p.in_w);
    } else if (p.step_w == 2) {
      split_in_two(from, p.in_w, place(0), place(1));
    } else {
      for (Index first = 0; first < p.step_w && first < p.in_w; ++first) {
        float* to = place(first);
        for (Index w = first; w < p.in_w; w += p.step_w) *to++ = from[w];
      }
    }
  }
}

void depthwise_plane(const DepthwisePlane& p) {
  constexpr int kUnroll = 4;
  fill_planes(p);
  const Index count = p.out_h * p.pitch;
  const Floats low = broadcast(p.low);
  const Floats high = broadcast(p.high);
  for (Index i = 0; i < count; i += kUnroll * kWidth) {
    Floats sum[kUnroll];
#pragma GCC unroll 4
    for (int u = 0; u < kUnroll; ++u) sum[u] = broadcast(p.bias);
    const float* weight = p.weight;
    for (Index h = 0; h < p.taps_h; ++h) {
      const Index y = h * p.dilation_h;
      const float* line = p.planes + (y % p.step_h) * p.step_w * p.plane_size + y / p.step_h * p.pitch + i;
      for (Index w = 0; w < p.taps_w; ++w) {
        const Index x = w * p.dilation_w;
        const float* at = p.step_w == 1 ? line + x : line + x % p.step_w * p.plane_size + x / p.step_w;
        const float tap = *weight++;
#pragma GCC unroll 4
        for (int u = 0; u < kUnroll; ++u) sum[u] += load(at + u * kWidth) * tap;
      }
    }
#pragma GCC unroll 4
    for (int u = 0; u < kUnroll; ++u)
      store(p.sums + i + u * kWidth, p.clamp ? clamp<float>(sum[u], low, high) : sum[u]);
  }
  for (Index h = 0; h < p.out_h; ++h) copy(p.output + h * p.out_w, p.sums + h * p.pitch, p.out_w);
}

}  // namespace

extern const DepthwiseKernels<float> kDepthwiseF32;
const DepthwiseKernels<float> kDepthwiseF32 = {depthwise_line<float>, depthwise_plane};
extern const DepthwiseKernels<double> kDepthwiseF64;
const DepthwiseKernels<double> kDepthwiseF64 = {depthwise_line<double>, nullptr};
extern const DepthwiseKernels<Pairs> kDepthwisePairs;
const DepthwiseKernels<Pairs> kDepthwisePairs = {depthwise_line<Pairs>, nullptr};
extern const DepthwiseKernels<WidePairs> kDepthwiseWidePairs;
const DepthwiseKernels<WidePairs> kDepthwiseWidePairs = {depthwise_line<WidePairs>, nullptr};

}  // namespace tosaic::kernels::TOSAIC_ISA
