// Samples of an image of integers at the positions of a grid of integers: ir/integer_sampler.h defines the
// arithmetic. The reference computes each sample by itself in 64 bits; the fast path computes the taps of 128
// samples for all channels.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "tosaic/ir/integer_sampler.h"
#include "tosaic/kernels/block.h"
#include "tosaic/kernels/families.h"
#include "tosaic/kernels/isa/integer_grid.h"
#include "tosaic/kernels/parallel.h"
#include "tosaic/kernels/scratch.h"
#include "tosaic/kernels/transpose_block.h"
#include "tosaic/kernels/wide.h"

namespace tosaic::kernels {
namespace {

using Index = std::int64_t;

struct Extents {
  Index batch = 1, channels = 1, height = 1, width = 1, outputs = 1;  // outputs: per image
};

Extents extents_of(const Request& request) {
  const Shape& image = request.operands[0].shape;
  const Shape& grid = request.operands[1].shape;
  return {image[0], image[1], image[2], image[3], grid[1] * grid[2]};
}

// ---- the reference ----

Index floor_mod(Index a, Index b) { return ((a % b) + b) % b; }

class ReferenceAxis {
 public:
  ReferenceAxis(const IntegerGridSampleAttrs& attrs, std::size_t axis, Index extent)
      : attrs_(attrs),
        by_{static_cast<std::int32_t>(attrs.multiplier[axis]), static_cast<std::int32_t>(attrs.shift[axis])},
        fraction_(static_cast<int>(attrs.fraction[axis])),
        extent_(extent) {}

  [[nodiscard]] Index position(Index q) const {
    const Index bounded = std::clamp(q, attrs_.grid_low, attrs_.grid_high) - attrs_.grid_zp;
    return apply_scale(bounded, by_, MultiplierWidth::k32, RoundingMode::kSingleRound) +
           (extent_ - 1) * (unit() / 2);
  }

  // Applies the padding to the position of a nearest or bilinear sample.
  [[nodiscard]] Index padded(Index p) const {
    if (attrs_.sample.padding == GridPadding::kZeros) return p;
    if (attrs_.sample.padding == GridPadding::kReflection) {
      const Index low = attrs_.sample.align_corners ? 0 : -unit() / 2, turn = period() * unit();
      if (turn == 0) return 0;
      const Index extra = floor_mod(p - low, turn);
      p = std::min(extra, turn - extra) + low;
    }
    return std::clamp<Index>(p, 0, (extent_ - 1) * unit());
  }

  // The pixel at a whole position, or -1 if there is none. With padding `reflection`, positions are mirrored.
  [[nodiscard]] Index pixel(Index whole) const {
    if (attrs_.sample.padding == GridPadding::kBorder) return std::clamp<Index>(whole, 0, extent_ - 1);
    if (attrs_.sample.padding == GridPadding::kReflection) {
      if (period() == 0) return 0;
      const Index last = period() - (attrs_.sample.align_corners ? 0 : 1);
      const Index extra = floor_mod(whole, period());
      return std::min(extra, last - extra);
    }
    return whole >= 0 && whole < extent_ ? whole : -1;
  }

  [[nodiscard]] Index nearest(Index p) const {  // half to even
    const Index whole = p >> fraction_, rest = p - whole * unit();
    return whole + (2 * rest > unit() || (2 * rest == unit() && (whole & 1) != 0) ? 1 : 0);
  }
  [[nodiscard]] Index whole(Index p) const { return p >> fraction_; }
  // The fractional part with `bits` bits.
  [[nodiscard]] Index fraction(Index p, int bits) const {
    return (p - whole(p) * unit()) << (bits - fraction_);
  }
  [[nodiscard]] Index unit() const { return Index{1} << fraction_; }

 private:
  [[nodiscard]] Index period() const { return 2 * (attrs_.sample.align_corners ? extent_ - 1 : extent_); }

  const IntegerGridSampleAttrs& attrs_;
  Multiplier by_;
  int fraction_;
  Index extent_;
};

std::array<Index, 4> cubic_weights(Index t) {
  constexpr int bits = kAxisWeightBits;
  constexpr Index one = Index{1} << bits;
  const Index both = multiply_shifted(t, one - t, bits);
  const Index first = -multiply_shifted(multiply_shifted(both, one - t, bits), 3, 2);
  const Index last = -multiply_shifted(multiply_shifted(both, t, bits), 3, 2);
  const Index second =
      one - multiply_shifted(multiply_shifted(t, t, bits), 9 * (one / 4) - multiply_shifted(t, 5, 2), bits);
  return {first, second, one - first - second - last, last};
}

// The sample at one position of one plane.
Index reference_sample(const IntegerGridSampleAttrs& attrs, const ReferenceAxis& x, const ReferenceAxis& y,
                       Index gx, Index gy, const Index* plane, Index width, SamplerWeights weights) {
  const auto read = [&](Index column, Index row) {
    return row < 0 || column < 0 ? 0
                                 : std::max(plane[row * width + column], attrs.input_low) - attrs.input_zp;
  };
  const auto product = [&](Index v, Index w) { return multiply_shifted(v, w, weights.product_shift); };
  Index px = x.position(gx), py = y.position(gy);
  if (attrs.sample.mode == ResizeMode::kBicubic) {
    const auto across = cubic_weights(x.fraction(px, kAxisWeightBits));
    const auto down = cubic_weights(y.fraction(py, kAxisWeightBits));
    Index sum = 0;
    for (Index k = 0; k < 4; ++k)
      for (Index j = 0; j < 4; ++j) {
        const Index weight =
            multiply_shifted(across[static_cast<std::size_t>(j)], down[static_cast<std::size_t>(k)],
                             2 * kAxisWeightBits - weights.bits);
        sum += product(read(x.pixel(x.whole(px) + j - 1), y.pixel(y.whole(py) + k - 1)), weight);
      }
    return sum;
  }
  px = x.padded(px);
  py = y.padded(py);
  if (attrs.sample.mode == ResizeMode::kNearest)
    return read(x.pixel(x.nearest(px)), y.pixel(y.nearest(py))) + attrs.input_zp;
  const Index fx = x.fraction(px, weights.bits), fy = y.fraction(py, weights.bits);
  const Index both = multiply_shifted(fx, fy, weights.bits);
  const Index one = Index{1} << weights.bits;
  const Index west = x.whole(px), north = y.whole(py);
  return product(read(x.pixel(west), y.pixel(north)), one - fx - fy + both) +
         product(read(x.pixel(west + 1), y.pixel(north)), fx - both) +
         product(read(x.pixel(west), y.pixel(north + 1)), fy - both) +
         product(read(x.pixel(west + 1), y.pixel(north + 1)), both);
}

Kernel reference_kernel(const Request& request) {
  const auto& attrs = attrs_of<IntegerGridSampleAttrs>(request);
  const Extents e = extents_of(request);
  const DType dtype = request.operands[0].dtype, grid_dtype = request.operands[1].dtype;
  const DType to_dtype = request.results[0].dtype;
  ScratchPlan plan;
  const Index pixels = e.batch * e.channels * e.height * e.width, places = 2 * e.batch * e.outputs;
  const Index results = e.batch * e.channels * e.outputs;
  const std::size_t image_at = plan.take<Index>(pixels), grid_at = plan.take<Index>(places),
                    result_at = plan.take<Index>(results);
  Kernel kernel;
  kernel.scratch_bytes = plan.bytes();
  kernel.run = [=](const Arrays& arrays) {
    auto* image = piece<Index>(arrays.scratch, image_at);
    auto* grid = piece<Index>(arrays.scratch, grid_at);
    auto* to = piece<Index>(arrays.scratch, result_at);
    widen(dtype, arrays.operands[0], pixels, 0, image);
    widen(grid_dtype, arrays.operands[1], places, 0, grid);
    const SamplerWeights weights = sampler_weights(dtype);
    const ReferenceAxis x(attrs, 0, e.width), y(attrs, 1, e.height);
    for (Index n = 0; n < e.batch; ++n)
      for (Index c = 0; c < e.channels; ++c)
        for (Index i = 0; i < e.outputs; ++i) {
          const Index* at = grid + 2 * (n * e.outputs + i);
          to[(n * e.channels + c) * e.outputs + i] = reference_sample(
              attrs, x, y, at[0], at[1], image + (n * e.channels + c) * e.height * e.width, e.width, weights);
        }
    narrow(to, results, to_dtype, arrays.results[0]);
  };
  return kernel;
}

// ---- the fast path ----

IntegerGridLayout layout_of(const IntegerGridSampleAttrs& attrs, const Extents& e, DType image) {
  IntegerGridLayout layout;
  layout.mode = attrs.sample.mode;
  layout.padding = attrs.sample.padding;
  const bool corners = attrs.sample.align_corners;
  for (std::size_t i = 0; i < 2; ++i) {
    const auto extent = static_cast<std::int32_t>(i == 0 ? e.width : e.height);
    IntegerGridAxis& axis = layout.axes[i];
    axis.multiplier = attrs.multiplier[i];
    axis.shift = static_cast<std::int32_t>(attrs.shift[i]);
    axis.round = Index{1} << (attrs.shift[i] - 1);
    axis.fraction = static_cast<std::int32_t>(attrs.fraction[i]);
    axis.centre = (extent - 1) * (1 << (axis.fraction - 1));
    axis.last = extent - 1;
    axis.mirror = corners ? 0 : 1;
    axis.period = 2 * (corners ? extent - 1 : extent);
    axis.stride = i == 0 ? 1 : static_cast<std::int32_t>(e.width);
  }
  const SamplerWeights weights = sampler_weights(image);
  layout.weight_bits = weights.bits;
  layout.product_shift = weights.product_shift;
  layout.grid_zp = static_cast<std::int32_t>(attrs.grid_zp);
  layout.grid_low = static_cast<std::int32_t>(attrs.grid_low);
  layout.grid_high = static_cast<std::int32_t>(attrs.grid_high);
  layout.input_zp = static_cast<std::int32_t>(attrs.input_zp);
  layout.input_low = static_cast<std::int32_t>(attrs.input_low);
  return layout;
}

void copy_block(const void* from, void* to, Index count) {
  std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(std::int32_t));
}

// What an image of T needs in addition to the loops: whether its channels are moved innermost, and scratch.
template <class T>
class FastSampler {
 public:
  using Pixel = typename PreparedPixel<T>::Type;

  FastSampler(const Request& request, const IntegerGridKernels& kernels, const IntegerGridSums<T>& sums)
      : e_(extents_of(request)),
        layout_(layout_of(attrs_of<IntegerGridSampleAttrs>(request), e_, request.operands[0].dtype)),
        kernels_(kernels),
        sums_(sums),
        transpose_(TOSAIC_SELECT_ISA(request.options.isa, kTransposeKernels)) {
    const DType grid = request.operands[1].dtype;
    grid_bytes_ = static_cast<Index>(byte_size(grid));
    load_ = is_domain(grid, Domain::kI32) ? copy_block
                                          : convert_kernels(request.options.isa).load(grid, Domain::kI32);
    // Packing makes the channels of a pixel one vector. One or two channels are as fast plane by plane.
    if (!is_nearest() && e_.channels > 2) packed_channels_ = (e_.channels + 3) / 4 * 4;
    if (!is_nearest())
      image_at_ = plan_.take<Pixel>(pixels() * (packed_channels_ > 0 ? packed_channels_ : e_.channels));
    ScratchPlan own;
    taps_at_ = own.take<IntegerTaps>(1);
    grid_at_ = own.take<std::int32_t>(2 * kIntegerGridBlock);
    rows_at_ = own.take<T>(kChunk * packed_channels_);
    block_at_ = own.take<std::int32_t>(kIntegerGridBlock * packed_channels_);
    workers_ = plan_.take_each(own, request.options.threads.count);
  }

  [[nodiscard]] std::size_t scratch_bytes() const { return plan_.bytes(); }

  void run(const Arrays& arrays) const {
    const double taps = is_nearest() ? 1 : layout_.mode == ResizeMode::kBilinear ? 4 : 16;
    const Loop outputs{
        .count = e_.outputs,
        .step = kIntegerGridBlock,
        .unit_cost = static_cast<double>(e_.channels) * taps * 5 * cost::kCopy + cost::kScattered};
    for (Index n = 0; n < e_.batch; ++n) {
      const T* image = reinterpret_cast<const T*>(arrays.operands[0]) + n * e_.channels * pixels();
      if (!is_nearest()) prepare(image, arrays);
      parallel_for(arrays.team, outputs, [&](Index begin, Index end, Worker worker) {
        for (Index i = begin; i < end; i += kIntegerGridBlock)
          sample(n, image, i, std::min(kIntegerGridBlock, end - i), arrays,
                 workers_.of(arrays.scratch, worker));
      });
    }
  }

 private:
  static constexpr Index kChunk = 256;  // pixels whose channels are moved at a time

  [[nodiscard]] bool is_nearest() const { return layout_.mode == ResizeMode::kNearest; }
  [[nodiscard]] Index pixels() const { return e_.height * e_.width; }

  void prepare(const T* image, const Arrays& arrays) const {
    auto* to = piece<Pixel>(arrays.scratch, image_at_);
    if (packed_channels_ == 0) {
      const Loop all{.count = e_.channels * pixels(), .step = 64, .unit_cost = 2 * cost::kCopy};
      return parallel_for(arrays.team, all, [&](Index begin, Index end, Worker) {
        sums_.prepare(layout_, image + begin, end - begin, to + begin);
      });
    }
    const Loop loop{.count = pixels(),
                    .step = kChunk,
                    .unit_cost = static_cast<double>(packed_channels_) * 2 * cost::kCopy};
    parallel_for(arrays.team, loop, [&](Index begin, Index end, Worker worker) {
      auto* rows = piece<T>(workers_.of(arrays.scratch, worker), rows_at_);
      std::fill_n(rows, kChunk * packed_channels_, T{});
      for (Index first = begin; first < end; first += kChunk) {
        const Index count = std::min(kChunk, end - first);
        transpose_.find(sizeof(T))(image + first, pixels(), e_.channels, count, rows, packed_channels_);
        sums_.prepare(layout_, rows, count * packed_channels_, to + first * packed_channels_);
      }
    });
  }

  // Samples `count` outputs of image n from output `first` on. `scratch` belongs to one worker.
  void sample(Index n, const T* image, Index first, Index count, const Arrays& arrays,
              std::byte* scratch) const {
    auto& taps = *piece<IntegerTaps>(scratch, taps_at_);
    auto* grid = piece<std::int32_t>(scratch, grid_at_);
    load_(arrays.operands[1] + 2 * (n * e_.outputs + first) * grid_bytes_, grid, 2 * count);
    kernels_.taps(layout_, grid, count, taps);
    const Index at = n * e_.channels * e_.outputs + first;
    if (is_nearest())
      return sums_.nearest(layout_, taps, count, image, pixels(), e_.channels,
                           reinterpret_cast<T*>(arrays.results[0]) + at, e_.outputs);
    auto* to = reinterpret_cast<std::int32_t*>(arrays.results[0]) + at;
    const auto* prepared = piece<Pixel>(arrays.scratch, image_at_);
    if (packed_channels_ == 0) {
      for (Index c = 0; c < e_.channels; ++c)
        sums_.plane(layout_, taps, count, prepared + c * pixels(), to + c * e_.outputs);
      return;
    }
    auto* block = piece<std::int32_t>(scratch, block_at_);
    sums_.pixels(layout_, taps, count, prepared, packed_channels_, block);
    transpose_.find(sizeof(std::int32_t))(block, packed_channels_, count, e_.channels, to, e_.outputs);
  }

  Extents e_;
  IntegerGridLayout layout_;
  const IntegerGridKernels& kernels_;
  const IntegerGridSums<T>& sums_;
  const TransposeKernels& transpose_;
  Index grid_bytes_ = 1, packed_channels_ = 0;  // 0: plane by plane
  ConvertBlock load_ = nullptr;
  ScratchPlan plan_;
  std::size_t image_at_ = 0;
  PerWorker workers_;
  std::size_t taps_at_ = 0, grid_at_ = 0, rows_at_ = 0, block_at_ = 0;  // in a worker's scratch
};

template <class T>
Kernel fast_kernel(const Request& request, const IntegerGridKernels& kernels,
                   const IntegerGridSums<T>& sums) {
  auto sampler = std::make_shared<const FastSampler<T>>(request, kernels, sums);
  Kernel kernel;
  kernel.scratch_bytes = sampler->scratch_bytes();
  kernel.run = [sampler](const Arrays& arrays) { sampler->run(arrays); };
  return kernel;
}

}  // namespace

Kernel prepare_integer_grid_sample(const Request& request) {
  if (request.options.reference) return reference_kernel(request);
  const IntegerGridKernels& kernels = TOSAIC_SELECT_ISA(request.options.isa, kIntegerGridKernels);
  return request.operands[0].dtype == DType::kI8 ? fast_kernel<std::int8_t>(request, kernels, kernels.i8)
                                                 : fast_kernel<std::int16_t>(request, kernels, kernels.i16);
}

}  // namespace tosaic::kernels
