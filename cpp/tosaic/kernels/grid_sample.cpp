// Samples of an image at the positions of a grid: torch's grid_sampler_2d. grid_volume.cpp samples volumes.
//
//   position = (coordinate + 1) / 2 * (extent - 1)         with align_corners: -1 and 1 are the outer pixels
//              ((coordinate + 1) * extent - 1) / 2         without: -1 and 1 are the outer edges of these
//                                                          pixels
//   nearest    the pixel at the padded position, rounded half to even
//   bilinear   4 pixels around the padded position
//   bicubic    16 pixels around the position; the padding applies to each pixel
//
// Padding `border` clips positions to the image, `reflection` mirrors them at its edges and then clips, and
// `zeros` makes pixels outside of the image zero. Clipping a NaN returns position 0. Positions are computed
// in f32 (f64 for f64), in the order of operations of torch's vectorised kernel.
//
// The fast path of f32 computes the taps of 256 outputs at once, for all channels. If the grid has enough
// positions, it first packs the image: channels innermost, with a margin of zeros.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tosaic/base/error.h"
#include "tosaic/kernels/block.h"
#include "tosaic/kernels/families.h"
#include "tosaic/kernels/float_sampler.h"
#include "tosaic/kernels/grid_volume.h"
#include "tosaic/kernels/isa/grid_sample.h"
#include "tosaic/kernels/sampled_arrays.h"
#include "tosaic/kernels/spatial.h"

namespace tosaic::kernels {
namespace {

using Index = std::int64_t;

// The extents of a sampler, and the elements between neighbours of the image and of the result.
struct Sampler {
  GridSampleAttrs attrs;
  Index batch = 1, channels = 1, height = 1, width = 1, outputs = 1;  // outputs: per image
  bool channels_last = false;

  [[nodiscard]] Index pixels() const { return height * width; }
  [[nodiscard]] Index pixel_stride() const { return channels_last ? channels : 1; }
  [[nodiscard]] Index channel_stride() const { return channels_last ? 1 : pixels(); }
  [[nodiscard]] Index output_stride() const { return channels_last ? channels : 1; }
  [[nodiscard]] Index output_channel_stride() const { return channels_last ? 1 : outputs; }
};

// ---- the reference ----

template <class Float>
class Axis {
 public:
  Axis(Index extent, const GridSampleAttrs& attrs) : attrs_(attrs), extent_(static_cast<Float>(extent)) {}

  [[nodiscard]] Float position(Float coordinate) const {
    const Float shifted = coordinate + 1;
    return attrs_.align_corners ? shifted * ((extent_ - 1) / 2) : shifted * (extent_ / 2) + Float{-0.5};
  }
  [[nodiscard]] Float padded(Float x) const {
    if (attrs_.padding == GridPadding::kZeros) return x;
    return clipped(attrs_.padding == GridPadding::kReflection ? reflected(x) : x);
  }
  // The pixel at a whole position, or -1 if there is none.
  [[nodiscard]] Index pixel(Float whole) const {
    return whole >= 0 && whole <= extent_ - 1 ? static_cast<Index>(whole) : -1;
  }

 private:
  [[nodiscard]] Float clipped(Float x) const { return x >= 0 ? std::min(x, extent_ - 1) : Float{0}; }
  [[nodiscard]] Float reflected(Float x) const {
    if (attrs_.align_corners && extent_ == 1) return x * 0;
    const Float low = attrs_.align_corners ? Float{0} : Float{-0.5};
    const Float turn = 2 * (attrs_.align_corners ? extent_ - 1 : extent_);
    const Float away = std::abs(x - low);
    const Float extra = away - std::trunc(away / turn) * turn;
    return std::min(extra, turn - extra) + low;
  }

  const GridSampleAttrs& attrs_;
  Float extent_;
};

// The pixels of one axis and their weights.
struct Taps {
  int count = 1;
  Index pixel[4] = {};
  double weight[4] = {1, 0, 0, 0};
};

template <class Float>
void cubic_weights(Float t, double* to) {
  const Float a{-0.75};
  const auto outer = [a](Float d) { return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a; };
  const auto inner = [a](Float d) { return ((a + 2) * d - (a + 3)) * d * d + 1; };
  const Float weights[] = {outer(t + 1), inner(t), inner(1 - t), outer(2 - t)};
  std::copy_n(weights, 4, to);
}

template <class Float>
Taps taps_of(const Axis<Float>& axis, Float coordinate, ResizeMode mode) {
  const Float position = axis.position(coordinate);
  Taps taps;
  switch (mode) {
    case ResizeMode::kNearest:
      taps.pixel[0] = axis.pixel(std::nearbyint(axis.padded(position)));
      break;
    case ResizeMode::kBilinear: {
      const Float padded = axis.padded(position), whole = std::floor(padded);
      taps.count = 2;
      taps.weight[1] = padded - whole;
      taps.weight[0] = 1 - (padded - whole);
      for (int k = 0; k < 2; ++k) taps.pixel[k] = axis.pixel(whole + static_cast<Float>(k));
      break;
    }
    case ResizeMode::kBicubic: {
      const Float whole = std::floor(position);
      taps.count = 4;
      cubic_weights(position - whole, taps.weight);
      for (int k = 0; k < 4; ++k) taps.pixel[k] = axis.pixel(axis.padded(whole + static_cast<Float>(k - 1)));
      break;
    }
  }
  return taps;
}

// Sums in double. A tap outside of the image is zero, but its weight may be NaN.
template <class T>
double sum_of(const Taps& columns, const Taps& rows, const T* plane, Index row_stride, Index pixel_stride) {
  const auto read = [&](Index row, Index column) {
    return row < 0 || column < 0 ? 0.0 : static_cast<double>(plane[row * row_stride + column * pixel_stride]);
  };
  if (rows.count == 1) return read(rows.pixel[0], columns.pixel[0]);
  double sum = 0;
  for (int k = 0; k < rows.count; ++k)
    for (int j = 0; j < columns.count; ++j)
      sum += read(rows.pixel[k], columns.pixel[j]) * (columns.weight[j] * rows.weight[k]);
  return sum;
}

template <class Float, class T>
void sample_all(const Sampler& s, const T* image, const T* grid, T* to) {
  const Axis<Float> x(s.width, s.attrs), y(s.height, s.attrs);
  for (Index n = 0; n < s.batch; ++n) {
    for (Index i = 0; i < s.outputs; ++i, grid += 2) {
      const Taps columns = taps_of(x, static_cast<Float>(grid[0]), s.attrs.mode);
      const Taps rows = taps_of(y, static_cast<Float>(grid[1]), s.attrs.mode);
      for (Index c = 0; c < s.channels; ++c)
        to[i * s.output_stride() + c * s.output_channel_stride()] = static_cast<T>(sum_of(
            columns, rows, image + c * s.channel_stride(), s.width * s.pixel_stride(), s.pixel_stride()));
    }
    image += s.pixels() * s.channels;
    to += s.outputs * s.channels;
  }
}

// ---- the fast path: f32 ----

// With more channels, vectors along the channels of a pixel are faster than computing plane by plane.
constexpr Index kMostPlanes = 2;

class FastSampler {
 public:
  FastSampler(const Sampler& s, const Options& options)
      : s_(s),
        positions_(TOSAIC_SELECT_ISA(options.isa, kGridKernels)),
        sums_(TOSAIC_SELECT_ISA(options.isa, kGridSums)) {
    ScratchPlan own;
    layout_.mode = s.attrs.mode;
    layout_.padding = s.attrs.padding;
    layout_.x = axis(s.width);
    layout_.y = axis(s.height);
    layout_.packed = is_worth_packing();
    if (layout_.packed) {
      planar_ = s.channels == 1 || (!s.channels_last && s.channels <= kMostPlanes);
      packed_channels_ = planar_ ? 1 : (s.channels + 3) / 4 * 4;
      before_ = s.attrs.mode == ResizeMode::kBicubic ? 4 : s.attrs.padding == GridPadding::kZeros ? 2 : 0;
      after_ = std::max<Index>(before_, 1);
      const Index line = (s.width + before_ + after_) * packed_channels_;
      layout_.x.stride = static_cast<std::int32_t>(packed_channels_);
      layout_.y.stride = static_cast<std::int32_t>(line);
      layout_.origin = static_cast<std::int32_t>(before_ * (line + packed_channels_));
      image_at_ = plan_.take<float>(packed_size() * (planar_ ? s.channels : 1));
      if (packed_channels_ > 1) block_at_ = own.take<float>(kGridBlock * packed_channels_);
    } else {
      layout_.x.stride = static_cast<std::int32_t>(s.pixel_stride());
      layout_.y.stride = static_cast<std::int32_t>(s.pixel_stride() * s.width);
    }
    taps_at_ = own.take<GridTaps>(1);
    workers_ = plan_.take_each(own, options.threads.count);
  }

  // True if 32 bits hold the offset of each pixel and floats represent the middles of all pixels. The copy of
  // the image has margins of up to 4 pixels on each side, and its channels are rounded up to a multiple of 4.
  [[nodiscard]] static bool fits(const Sampler& s) {
    constexpr Index kLongest = Index{1} << 22;
    return s.width < kLongest && s.height < kLongest &&
           (s.width + 8) * (s.height + 8) * (s.channels + 3) < std::numeric_limits<std::int32_t>::max();
  }

  [[nodiscard]] ScratchPlan& plan() { return plan_; }

  void run(const float* image, const float* grid, float* to, const Workspace& workspace) const {
    float* packed = layout_.packed ? piece<float>(workspace.scratch, image_at_) : nullptr;
    const double taps = s_.attrs.mode == ResizeMode::kNearest    ? 1
                        : s_.attrs.mode == ResizeMode::kBilinear ? 4
                                                                 : 16;
    const Loop outputs{
        .count = s_.outputs,
        .step = kGridBlock,
        .unit_cost = static_cast<double>(s_.channels) * taps * 5 * cost::kCopy + cost::kScattered};
    for (Index n = 0; n < s_.batch; ++n) {
      if (packed != nullptr) pack(image, packed, workspace.team);
      parallel_for(workspace.team, outputs, [&](Index begin, Index end, Worker worker) {
        sample(image, packed, grid, begin, end, to, workers_.of(workspace.scratch, worker));
      });
      image += s_.pixels() * s_.channels;
      grid += 2 * s_.outputs;
      to += s_.outputs * s_.channels;
    }
  }

 private:
  // Computes outputs [begin, end) of an image. `scratch` belongs to one worker.
  void sample(const float* image, const float* packed, const float* grid, Index begin, Index end, float* to,
              std::byte* scratch) const {
    auto& taps = *piece<GridTaps>(scratch, taps_at_);
    for (Index i = begin; i < end; i += kGridBlock) {
      const Index count = std::min(kGridBlock, end - i);
      positions_.positions(layout_, grid + 2 * i, count, taps);
      float* out = to + i * s_.output_stride();
      if (packed != nullptr)
        sample_packed(taps, count, packed, out, piece<float>(scratch, block_at_));
      else
        sample_in_place(taps, count, image, out);
    }
  }

  // Packing moves each pixel once. A grid with few positions reads fewer pixels than packing moves. A nearest
  // sample reads only one pixel, so packing would not save time. The loops over planes need adjacent pixels.
  [[nodiscard]] bool is_worth_packing() const {
    return s_.attrs.mode != ResizeMode::kNearest &&
           (4 * s_.outputs >= s_.pixels() || s_.width == 1 || (s_.channels_last && s_.channels > 1));
  }

  [[nodiscard]] GridAxis axis(Index extent) const {
    const auto size = static_cast<float>(extent);
    const bool corners = s_.attrs.align_corners;
    return {.scale = (corners ? size - 1 : size) / 2,
            .shift = corners ? 0.0F : -0.5F,
            .last = size - 1,
            .low = corners ? 0.0F : -0.5F,
            .turn = 2 * (corners ? size - 1 : size)};
  }

  [[nodiscard]] Index line() const { return layout_.y.stride; }
  [[nodiscard]] Index packed_size() const { return (s_.height + before_ + after_) * line(); }

  // The pixel whose value is stored in the margin at a position outside of the image, or -1 if zero is
  // stored. A bilinear sample reads outside of the image only with padding `zeros`, or with weight 0.
  [[nodiscard]] Index edge(Index at, Index extent) const {
    if (s_.attrs.mode != ResizeMode::kBicubic || s_.attrs.padding == GridPadding::kZeros) return -1;
    if (s_.attrs.padding == GridPadding::kBorder) return std::clamp<Index>(at, 0, extent - 1);
    const Index low = s_.attrs.align_corners ? 0 : 1,
                turn = 2 * (s_.attrs.align_corners ? extent - 1 : extent);
    if (turn == 0) return 0;
    const Index within = (at % turn + turn) % turn;
    return std::min(within, turn - low - within);
  }

  void fill_margin(float* packed) const {
    float* first = packed + layout_.origin;
    const auto copy_or_clear = [](const float* from, Index from_at, Index size, float* to) {
      if (from_at < 0)
        std::fill_n(to, size, 0.0F);
      else
        std::copy_n(from + from_at * size, size, to);
    };
    for (Index y = 0; y < s_.height; ++y) {
      float* row = first + y * line();
      for (Index x = before_ == 0 ? s_.width : -before_; x < s_.width + after_;
           x = x == -1 ? s_.width : x + 1)
        copy_or_clear(row, edge(x, s_.width), packed_channels_, row + x * packed_channels_);
    }
    float* rows = first - before_ * packed_channels_;  // with their margins
    for (Index y = before_ == 0 ? s_.height : -before_; y < s_.height + after_;
         y = y == -1 ? s_.height : y + 1)
      copy_or_clear(rows, edge(y, s_.height), line(), rows + y * line());
  }

  void pack(const float* image, float* packed, Team* team) const {
    if (planar_) {
      for (Index c = 0; c < s_.channels; ++c) {
        float* plane = packed + c * packed_size();
        for (Index y = 0; y < s_.height; ++y)
          std::copy_n(image + (c * s_.height + y) * s_.width, s_.width, plane + layout_.origin + y * line());
        fill_margin(plane);
      }
      return;
    }
    const Loop lines{.count = s_.height,
                     .unit_cost = static_cast<double>(s_.width * packed_channels_) * cost::kCopy};
    parallel_for(team, lines, [&](Index begin, Index end, Worker) {
      pack_lines(image, begin, end, packed + layout_.origin);
    });
    fill_margin(packed);
  }

  void pack_lines(const float* image, Index begin, Index end, float* to) const {
    to += begin * line();
    for (Index y = begin; y < end; ++y, to += line()) {
      if (!s_.channels_last) {
        sums_.pack(image + y * s_.width, s_.pixels(), s_.channels, s_.width, to, packed_channels_);
        continue;
      }
      const float* from = image + y * s_.width * s_.channels;
      if (s_.channels == packed_channels_) {
        std::copy_n(from, s_.width * s_.channels, to);
        continue;
      }
      for (Index x = 0; x < s_.width; ++x) {
        float* pixel = std::copy_n(from + x * s_.channels, s_.channels, to + x * packed_channels_);
        std::fill_n(pixel, packed_channels_ - s_.channels, 0.0F);
      }
    }
  }

  void sample_packed(const GridTaps& taps, Index count, const float* packed, float* out, float* block) const {
    if (planar_) {
      for (Index c = 0; c < s_.channels; ++c)
        sums_.packed(layout_, taps, count, packed + c * packed_size(), 1, out + c * s_.outputs);
      return;
    }
    const bool direct = s_.channels_last && s_.channels == packed_channels_;
    sums_.packed(layout_, taps, count, packed, packed_channels_, direct ? out : block);
    if (direct) return;
    if (!s_.channels_last) {
      sums_.unpack(block, packed_channels_, s_.channels, count, out, s_.outputs);
      return;
    }
    for (Index i = 0; i < count; ++i)
      std::copy_n(block + i * packed_channels_, s_.channels, out + i * s_.channels);
  }

  void sample_in_place(const GridTaps& taps, Index count, const float* image, float* out) const {
    if (!s_.channels_last || s_.channels == 1) {
      sums_.planes(layout_, taps, count, {image, out, s_.channels, s_.pixels(), s_.outputs});
    } else {
      sums_.pixels(taps, count, image, s_.channels, out);
    }
  }

  Sampler s_;
  const GridKernels& positions_;
  const GridSums& sums_;
  GridLayout layout_;
  bool planar_ = false;                                 // each channel is packed by itself
  Index packed_channels_ = 1, before_ = 0, after_ = 0;  // margins in pixels
  ScratchPlan plan_;
  std::size_t image_at_ = 0;
  PerWorker workers_;
  std::size_t block_at_ = 0, taps_at_ = 0;  // in a worker's scratch
};

Sampler sampler_of(const GridSampleAttrs& attrs, const Shape& image, const Shape& grid, bool channels_last) {
  const Image extents = image_of(image, 2, channels_last);
  return {
      attrs,        extents.batch, extents.channels, extents.extent[1], extents.extent[2], grid[1] * grid[2],
      channels_last};
}

}  // namespace

FloatSampler float_sampler(const GridSampleAttrs& attrs, const Shape& image, const Shape& grid,
                           bool channels_last, const Options& options) {
  const Sampler s = sampler_of(attrs, image, grid, channels_last);
  if (options.reference || !FastSampler::fits(s))
    return {[s](const float* from, const float* at, float* to, const Workspace&) {
              sample_all<float>(s, from, at, to);
            },
            0};
  FastSampler fast(s, options);
  const std::size_t bytes = fast.plan().bytes();
  return {[fast](const float* from, const float* at, float* to, const Workspace& workspace) {
            fast.run(from, at, to, workspace);
          },
          bytes};
}

Kernel prepare_grid_sample(const Request& request) {
  const auto& attrs = attrs_of<GridSampleAttrs>(request);
  const Shape& image = request.operands[0].shape;
  const Shape& grid = request.operands[1].shape;
  if (image.size() == 5) return prepare_grid_volume(request);
  const Sampler s = sampler_of(attrs, image, grid, false);
  if (request.operands[0].dtype == DType::kF64)
    return kernel_in<double>(request, kernel_name(request, "f64"), {},
                             [s](const double* from, const double* at, double* to, const Workspace&) {
                               sample_all<double>(s, from, at, to);
                             });
  if (request.options.reference)
    return kernel_in<double>(request, kernel_name(request), {},
                             [s](const double* from, const double* at, double* to, const Workspace&) {
                               sample_all<float>(s, from, at, to);
                             });
  const FloatSampler fast = float_sampler(attrs, image, grid, false, request.options);
  ScratchPlan plan;
  plan.take<std::byte>(static_cast<std::int64_t>(fast.scratch_bytes));
  return kernel_in<float>(request, kernel_name(request), plan,
                          [run = fast.run](const float* from, const float* at, float* to,
                                           const Workspace& workspace) { run(from, at, to, workspace); });
}

}  // namespace tosaic::kernels
