// Resizes. For each axis, a table has the two inputs that each output o reads, and their weights. Bicubic
// reads four inputs.
//
// torch computes the source position of output o in float (double for f64 tensors). `in` and `out` are the
// extents of the axis in the operand and in the result:
//   scale     with align_corners (in - 1) / (out - 1), except for nearest; otherwise 1 / the given scale, or
//             in / out if no scale is given
//   nearest   floor(o * scale); with two spatial axes o if out = in, and floor(o / 2) if out = 2 * in
//   bilinear  max(0, scale * (o + 0.5) - 0.5), or o * scale with align_corners; o if out = in
//
// TOSA computes the source position of output o in integers, with the scale scale_n / scale_d:
//   y = o * scale_d + offset, iy = floor(y / scale_n), dy = y - iy * scale_n
//   nearest   iy + (2 * dy >= scale_n)
//   bilinear  iy and iy + 1 with weights scale_n - dy and dy; for floats the weights are divided by scale_n
#include <algorithm>
#include <cmath>
#include <vector>

#include "tosaic/base/error.h"
#include "tosaic/kernels/families.h"
#include "tosaic/kernels/parallel.h"
#include "tosaic/kernels/spatial.h"

namespace tosaic::kernels {
namespace {

using Index = std::int64_t;

// The output at one coordinate of an axis is input[first] * weights[0] + input[second] * weights[1].
template <class T>
struct Blend {
  Index first = 0, second = 0;
  T weights[2] = {1, 0};
};
template <class T>
using Axis = std::vector<Blend<T>>;

template <class T>
struct Resize {
  Image in, out;
  std::array<Axis<T>, 3> axes;
  std::array<bool, 3> blends{};  // per axis; if false, only `first` is read, without a weight
};

// ---- torch ----

template <class Float>
Float source_scale(Index in, Index out, bool align_corners, double given) {
  if (align_corners) return out > 1 ? static_cast<Float>(in - 1) / static_cast<Float>(out - 1) : Float{0};
  if (given > 0) return static_cast<Float>(1.0 / given);
  return static_cast<Float>(in) / static_cast<Float>(out);
}

// With `whole_steps`, nearest copies the axis if out = in, and reads each input twice if out = 2 * in.
template <class Float, class T>
Axis<T> torch_axis(Index in, Index out, const ResizeAttrs& attrs, double given, bool whole_steps) {
  Axis<T> axis;
  const bool nearest = attrs.mode == ResizeMode::kNearest;
  const Float scale = source_scale<Float>(in, out, attrs.align_corners && !nearest, given);
  for (Index o = 0; o < out; ++o) {
    const auto at = static_cast<Float>(o);
    Blend<T> blend;
    if (nearest) {
      blend.first = std::min(static_cast<Index>(at * scale), in - 1);
      if (whole_steps && (out == in || out == 2 * in)) blend.first = o * in / out;
    } else if (out == in) {
      blend.first = blend.second = o;
    } else {
      const Float half{0.5};
      const Float position =
          attrs.align_corners ? scale * at : std::max(Float{0}, std::fma(scale, at + half, -half));
      blend.first = std::min(static_cast<Index>(position), in - 1);
      blend.second = std::min(blend.first + 1, in - 1);
      const Float fraction = std::clamp(position - static_cast<Float>(blend.first), Float{0}, Float{1});
      blend.weights[1] = static_cast<T>(fraction);
      blend.weights[0] = static_cast<T>(Float{1} - fraction);
    }
    axis.push_back(blend);
  }
  return axis;
}

template <class T>
Resize<T> torch_resize(const Request& request) {
  const auto& attrs = get<ResizeAttrs>(*request.attrs);
  const std::size_t rank = attrs.size.empty() ? attrs.scales.size() : attrs.size.size();
  Resize<T> resize{.in = image_of(request.operands[0].shape, rank, false),
                   .out = image_of(request.results[0].shape, rank, false),
                   .axes = {Axis<T>(1), Axis<T>(1), Axis<T>(1)}};
  for (std::size_t i = 0; i < rank; ++i) {
    const std::size_t at = 3 - rank + i;
    resize.blends[at] = attrs.mode == ResizeMode::kBilinear;
    const double given = attrs.scales.empty() ? 0 : attrs.scales[i];
    const Index in = resize.in.extent[at];
    const Index out = resize.out.extent[at];
    resize.axes[at] = request.operands[0].dtype == DType::kF64
                          ? torch_axis<double, T>(in, out, attrs, given, rank == 2)
                          : torch_axis<float, T>(in, out, attrs, given, rank == 2);
  }
  return resize;
}

// ---- TOSA ----

Index floor_div(Index a, Index b) { return a / b - (a % b < 0 ? 1 : 0); }

template <class T>
Axis<T> tosa_axis(Index in, Index out, Index numerator, Index denominator, Index offset, bool nearest) {
  Axis<T> axis;
  for (Index o = 0; o < out; ++o) {
    const Index y = o * denominator + offset;
    const Index whole = floor_div(y, numerator);
    const Index rest = y - whole * numerator;
    Blend<T> blend;
    blend.first = std::clamp<Index>(whole, 0, in - 1);
    blend.second = std::clamp<Index>(whole + 1, 0, in - 1);
    if (nearest) {
      if (2 * rest >= numerator) blend.first = blend.second;
    } else if constexpr (std::is_integral_v<T>) {
      blend.weights[0] = numerator - rest;
      blend.weights[1] = rest;
    } else {
      blend.weights[1] = static_cast<T>(rest) / static_cast<T>(numerator);
      blend.weights[0] = T{1} - blend.weights[1];
    }
    axis.push_back(blend);
  }
  return axis;
}

template <class T>
Resize<T> tosa_resize(const Request& request) {
  const auto& attrs = get<TosaResizeAttrs>(*request.attrs);
  Resize<T> resize{.in = image_of(request.operands[0].shape, 2, true),
                   .out = image_of(request.results[0].shape, 2, true),
                   .axes = {Axis<T>(1), Axis<T>(1), Axis<T>(1)}};
  const bool nearest = attrs.mode == ResizeMode::kNearest;
  for (std::size_t i = 0; i < 2; ++i) {
    resize.blends[1 + i] = !nearest;
    resize.axes[1 + i] = tosa_axis<T>(resize.in.extent[1 + i], resize.out.extent[1 + i], attrs.scale[2 * i],
                                      attrs.scale[2 * i + 1], attrs.offset[i], nearest);
  }
  return resize;
}

template <class T>
Resize<T> resize_of(const Request& request) {
  return request.op == Op::kResize ? torch_resize<T>(request) : tosa_resize<T>(request);
}

// ---- the reference ----

template <class T>
T blended(const Resize<T>& resize, const T* image, const Blend<T>& d, const Blend<T>& h, const Blend<T>& w) {
  const auto stride = resize.in.strides();
  const auto read = [&](int z, int y, int x) {
    return image[(z == 0 ? d.first : d.second) * stride[0] + (y == 0 ? h.first : h.second) * stride[1] +
                 (x == 0 ? w.first : w.second) * stride[2]];
  };
  T sum{};
  for (int z = 0; z <= static_cast<int>(resize.blends[0]); ++z)
    for (int y = 0; y <= static_cast<int>(resize.blends[1]); ++y)
      for (int x = 0; x <= static_cast<int>(resize.blends[2]); ++x)
        sum += d.weights[z] * h.weights[y] * w.weights[x] * read(z, y, x);
  return sum;
}

template <class T>
void resize_all(const Resize<T>& resize, const T* from, T* to) {
  const auto stride = resize.out.strides();
  for (Index n = 0; n < resize.in.batch; ++n)
    for (Index c = 0; c < resize.in.channels; ++c) {
      const T* image = from + n * resize.in.channels * resize.in.pixels() + c * resize.in.channel_stride();
      T* result = to + n * resize.out.channels * resize.out.pixels() + c * resize.out.channel_stride();
      for (std::size_t d = 0; d < resize.axes[0].size(); ++d)
        for (std::size_t h = 0; h < resize.axes[1].size(); ++h)
          for (std::size_t w = 0; w < resize.axes[2].size(); ++w)
            result[static_cast<Index>(d) * stride[0] + static_cast<Index>(h) * stride[1] +
                   static_cast<Index>(w) * stride[2]] =
                blended(resize, image, resize.axes[0][d], resize.axes[1][h], resize.axes[2][w]);
    }
}

template <class T>
Kernel reference_resize(const Request& request) {
  return kernel_over<T>(
      request, 0, "resize.reference",
      [resize = resize_of<T>(request)](const T* from, T* to) { resize_all(resize, from, to); });
}

// ---- the fast path, without a depth axis: first along h into one line of Wide, then along w ----

// The weighted sum in Wide. An integer Wide holds it exactly: see weighted_fit().
template <class Wide, class T, class Weight>
Wide weighted(const Blend<Weight>& blend, T first, T second) {
  return static_cast<Wide>(static_cast<Wide>(first) * static_cast<Wide>(blend.weights[0]) +
                           static_cast<Wide>(second) * static_cast<Wide>(blend.weights[1]));
}

// Blends two lines of an image, or two pixels of a line, into one. Each has `size` elements.
template <class T, class Wide, class Weight>
void blend_two(const Blend<Weight>& blend, bool blends, const T* from, Index size, Wide* to) {
  const T* first = from + blend.first * size;
  const T* second = from + blend.second * size;
  if (blends)
    for (Index i = 0; i < size; ++i) to[i] = weighted<Wide>(blend, first[i], second[i]);
  else
    std::copy_n(first, size, to);
}

// Resizes a line along w. A pixel has `width` elements.
template <class Wide, class Weight>
void blend_pixels(const Axis<Weight>& axis, bool blends, const Wide* line, Index width, Wide* to) {
  for (const Blend<Weight>& w : axis) {
    blend_two(w, blends, line, width, to);
    to += width;
  }
}

// Resizes an image: reads arrays of T, and writes arrays of Wide.
template <class T, class Wide>
Kernel fast_resize(const Request& request) {
  using Weight = std::conditional_t<std::is_integral_v<T>, Index, T>;
  const Resize<Weight> resize = resize_of<Weight>(request);
  const bool last = resize.in.channels_last;
  const Index width = last ? resize.in.channels : 1;
  const Index images = last ? resize.in.batch : resize.in.batch * resize.in.channels;
  ScratchPlan plan;
  ScratchPlan own;
  own.take<Wide>(resize.in.extent[2] * width);
  const PerWorker line_of = plan.take_each(own, request.options.threads.count);
  Kernel kernel;
  kernel.name = "resize.lines";
  kernel.scratch_bytes = plan.bytes();
  kernel.run = [resize, width, images, line_of](const Arrays& arrays) {
    const auto* from = reinterpret_cast<const T*>(arrays.operands[0]);
    auto* to = reinterpret_cast<Wide*>(arrays.results[0]);
    const Index lines = resize.out.extent[1], line_size = resize.out.extent[2] * width;
    const Loop loop{.count = images * lines, .unit_cost = static_cast<double>(line_size) * 4 * cost::kCopy};
    parallel_for(arrays.team, loop, [&](Index begin, Index end, Worker worker) {
      auto* line = piece<Wide>(line_of.of(arrays.scratch, worker), 0);
      for (Index i = begin; i < end; ++i) {
        const T* image = from + i / lines * resize.in.pixels() * width;
        blend_two(resize.axes[1][static_cast<std::size_t>(i % lines)], resize.blends[1], image,
                  resize.in.extent[2] * width, line);
        blend_pixels(resize.axes[2], resize.blends[2], line, width, to + i * line_size);
      }
    });
  };
  return kernel;
}

// True if weighted sums of elements of `bits` bits fit `result_bits` bits: scales of at most 2048 add 11 bits
// per axis. Nearest has no weights.
bool weighted_fit(const Request& request, int bits, int result_bits) {
  const auto* attrs = get_if<TosaResizeAttrs>(request.attrs);
  if (attrs == nullptr || attrs->mode == ResizeMode::kNearest) return true;
  return attrs->scale[0] <= 2048 && attrs->scale[2] <= 2048 && bits + 22 <= result_bits;
}

// The kernel of the fast path for integers. `run` is empty if there is none for the dtypes.
Kernel fast_integer_resize(const Request& request) {
  const DType from = request.operands[0].dtype, to = request.results[0].dtype;
  if (from == DType::kI8 && to == DType::kI8 && weighted_fit(request, 8, 8))
    return fast_resize<std::int8_t, std::int8_t>(request);
  if (from == DType::kI16 && to == DType::kI16 && weighted_fit(request, 16, 16))
    return fast_resize<std::int16_t, std::int16_t>(request);
  if (from == DType::kI8 && to == DType::kI32 && weighted_fit(request, 8, 32))
    return fast_resize<std::int8_t, std::int32_t>(request);
  if (from == DType::kI16 && to == DType::kI48 && weighted_fit(request, 16, 64))
    return fast_resize<std::int16_t, std::int64_t>(request);
  return {};
}

// ---- bicubic: four taps per axis, for images of any float dtype ----

struct CubicTaps {
  std::array<Index, 4> at{};
  std::array<double, 4> weights{};
};

// Keys' cubic kernel with a = -0.75, at the distances t + 1, t, 1 - t and 2 - t. Taps outside the image read
// the nearest pixel of the image.
template <class Float>
std::vector<CubicTaps> cubic_axis(Index in, Index out, const ResizeAttrs& attrs, double given) {
  const Float scale = source_scale<Float>(in, out, attrs.align_corners, given);
  const Float a{-0.75}, half{0.5};
  const auto outer = [a](Float d) { return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a; };
  const auto inner = [a](Float d) { return ((a + 2) * d - (a + 3)) * d * d + 1; };
  std::vector<CubicTaps> axis;
  for (Index o = 0; o < out; ++o) {
    const auto place = static_cast<Float>(o);
    const Float position = attrs.align_corners ? scale * place : scale * (place + half) - half;
    const Index low = std::min(static_cast<Index>(std::floor(position)), in - 1);
    const Float t = std::clamp(position - static_cast<Float>(low), Float{0}, Float{1});
    CubicTaps taps;
    for (std::size_t i = 0; i < 4; ++i)
      taps.at[i] = std::clamp<Index>(low + static_cast<Index>(i) - 1, 0, in - 1);
    taps.weights = {outer(t + 1), inner(t), inner(1 - t), outer(2 - t)};
    axis.push_back(taps);
  }
  return axis;
}

struct CubicResize {
  Index images = 0, height = 0, width = 0;
  std::vector<CubicTaps> rows, columns;

  void run(const double* from, double* to) const {
    for (Index n = 0; n < images; ++n, from += height * width)
      for (const CubicTaps& row : rows)
        for (const CubicTaps& column : columns) {
          double sum = 0;
          for (std::size_t i = 0; i < 4; ++i) {
            double line = 0;
            for (std::size_t k = 0; k < 4; ++k)
              line += from[row.at[i] * width + column.at[k]] * column.weights[k];
            sum += line * row.weights[i];
          }
          *to++ = sum;
        }
  }
};

Kernel cubic_resize(const Request& request) {
  const auto& attrs = get<ResizeAttrs>(*request.attrs);
  const Shape& in = request.operands[0].shape;
  if (attrs.size.size() != 2)
    throw UnsupportedOp({.where = "kernels", .what = "no kernel for 'resize' bicubic but of images"});
  const auto axis = [&](std::size_t i) {
    const double given = attrs.scales.empty() ? 0 : attrs.scales[i];
    const Index extent = in[in.size() - 2 + i];
    return request.operands[0].dtype == DType::kF64 ? cubic_axis<double>(extent, attrs.size[i], attrs, given)
                                                    : cubic_axis<float>(extent, attrs.size[i], attrs, given);
  };
  CubicResize resize{.images = num_elements(in) / (in[in.size() - 2] * in.back()),
                     .height = in[in.size() - 2],
                     .width = in.back(),
                     .rows = axis(0),
                     .columns = axis(1)};
  return kernel_over<double>(
      request, 0, "resize.bicubic",
      [resize = std::move(resize)](const double* from, double* to) { resize.run(from, to); });
}

bool is_flat(const Request& request) {
  return request.op == Op::kTosaResize || get<ResizeAttrs>(*request.attrs).size.size() <= 2;
}

}  // namespace

Kernel prepare_resize(const Request& request) {
  const DType dtype = request.operands[0].dtype;
  const bool cubic =
      request.op == Op::kResize && get<ResizeAttrs>(*request.attrs).mode == ResizeMode::kBicubic;
  if (cubic && is_float(dtype)) return cubic_resize(request);
  if (is_float(dtype)) {
    const bool f32 = dtype == DType::kF32 && request.results[0].dtype == DType::kF32;
    return request.options.reference || !f32 || !is_flat(request) ? reference_resize<double>(request)
                                                                  : fast_resize<float, float>(request);
  }
  const bool nearest =
      request.op == Op::kResize && get<ResizeAttrs>(*request.attrs).mode == ResizeMode::kNearest;
  if (request.op == Op::kResize && !nearest)
    throw UnsupportedOp({.where = "kernels",
                         .what = "no kernel for 'resize' with weights on " + std::string(to_string(dtype)),
                         .hint = "Cast to a float dtype first"});
  Kernel fast;
  if (!request.options.reference && is_flat(request)) fast = fast_integer_resize(request);
  return fast.run ? fast : reference_resize<std::int64_t>(request);
}

}  // namespace tosaic::kernels
