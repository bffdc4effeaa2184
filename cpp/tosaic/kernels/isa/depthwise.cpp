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
// If elements are i16, the zero point is 0, and add_tap() multiplies only the low 16 bits.
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

// Stores the first `count` sums of adjacent channels, plus biases, as elements of the wider Sum<T>.
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

}  // namespace

extern const DepthwiseKernels<float> kDepthwiseF32;
const DepthwiseKernels<float> kDepthwiseF32 = {depthwise_line<float>};
extern const DepthwiseKernels<double> kDepthwiseF64;
const DepthwiseKernels<double> kDepthwiseF64 = {depthwise_line<double>};
extern const DepthwiseKernels<Pairs> kDepthwisePairs;
const DepthwiseKernels<Pairs> kDepthwisePairs = {depthwise_line<Pairs>};
extern const DepthwiseKernels<WidePairs> kDepthwiseWidePairs;
const DepthwiseKernels<WidePairs> kDepthwiseWidePairs = {depthwise_line<WidePairs>};

}  // namespace tosaic::kernels::TOSAIC_ISA
