// Pools. Every operator becomes, for each axis, a list of windows [begin, end) of input coordinates.
//
//   avg_pool, max_pool   windows at o * stride - padding; count_include_pad counts padding up to in + padding
//   adaptive pools       [floor(o * in / out), ceil((o + 1) * in / out))
//   tosa.avg_pool2d      the mean over the positions inside the image; for integers, the sum times the
//                        reciprocal of the count
//   tosa.max_pool2d      nan_mode decides whether NaN is propagated
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "tosaic/base/error.h"
#include "tosaic/ir/apply_scale.h"
#include "tosaic/kernels/block.h"
#include "tosaic/kernels/families.h"
#include "tosaic/kernels/isa/pool.h"
#include "tosaic/kernels/isa/rescale.h"
#include "tosaic/kernels/parallel.h"
#include "tosaic/kernels/spatial.h"
#include "tosaic/kernels/transpose_block.h"

namespace tosaic::kernels {
namespace {

const PoolKernels<float>& pool_kernels(Isa isa, float) { return TOSAIC_SELECT_ISA(isa, kPoolF32); }
const PoolKernels<std::int8_t>& pool_kernels(Isa isa, std::int8_t) { return TOSAIC_SELECT_ISA(isa, kPoolI8); }
const PoolKernels<std::int16_t>& pool_kernels(Isa isa, std::int16_t) {
  return TOSAIC_SELECT_ISA(isa, kPoolI16);
}

using Index = std::int64_t;

struct Axis {
  std::vector<PoolWindow> windows;  // the parts of the windows inside the image
  std::vector<Index> counted;       // one per window: the positions that the mean counts
  Index step = 1;                   // dilation
};

struct Pool {
  Image in, out;
  std::array<Axis, 3> axes;
  Pooling pooling = Pooling::kSum;
  std::optional<Index> divisor = {};
  bool rescales = false;  // integer means multiply by TOSA's reciprocal_of(count)
  Index zero_point = 0, output_zero_point = 0;
};

Axis whole_axis() { return {.windows = {{0, 1}}, .counted = {1}}; }

struct Window {
  Index kernel, stride, pad, dilation;
};

Axis sliding_axis(Index in, Index out, const Window& window, bool count_pad) {
  Axis axis{.windows = {}, .counted = {}, .step = window.dilation};
  for (Index o = 0; o < out; ++o) {
    const Index start = o * window.stride - window.pad;
    const Index stop = std::min(start + (window.kernel - 1) * window.dilation + 1, in + window.pad);
    const Index skipped = start < 0 ? (-start + window.dilation - 1) / window.dilation * window.dilation : 0;
    const PoolWindow inside{start + skipped, std::max(start + skipped, std::min(stop, in))};
    axis.windows.push_back(inside);
    axis.counted.push_back(count_pad ? stop - start : inside.end - inside.begin);
  }
  return axis;
}

Axis adaptive_axis(Index in, Index out) {
  Axis axis;
  for (Index o = 0; o < out; ++o) {
    axis.windows.push_back({o * in / out, ((o + 1) * in + out - 1) / out});
    axis.counted.push_back(axis.windows.back().end - axis.windows.back().begin);
  }
  return axis;
}

Pool canonical_pool(const Request& request, Pooling pooling) {
  const auto& attrs = get<PoolAttrs>(*request.attrs);
  const std::size_t rank = attrs.kernel.size();
  Pool pool{.in = image_of(request.operands[0].shape, rank, false),
            .out = image_of(request.results[0].shape, rank, false),
            .axes = {whole_axis(), whole_axis(), whole_axis()},
            .pooling = pooling,
            .divisor = attrs.divisor_override};
  for (std::size_t i = 0; i < rank; ++i) {
    const std::size_t at = 3 - rank + i;
    const Window window{attrs.kernel[i], attrs.stride.empty() ? attrs.kernel[i] : attrs.stride[i],
                        attrs.padding.empty() ? 0 : attrs.padding[i],
                        attrs.dilation.empty() || pooling == Pooling::kSum ? 1 : attrs.dilation[i]};
    pool.axes[at] = sliding_axis(pool.in.extent[at], pool.out.extent[at], window, attrs.count_include_pad);
  }
  return pool;
}

Pool adaptive_pool(const Request& request, Pooling pooling) {
  const std::size_t rank = get<ShapeAttrs>(*request.attrs).shape.size();
  Pool pool{.in = image_of(request.operands[0].shape, rank, false),
            .out = image_of(request.results[0].shape, rank, false),
            .axes = {whole_axis(), whole_axis(), whole_axis()},
            .pooling = pooling};
  for (std::size_t at = 3 - rank; at < 3; ++at)
    pool.axes[at] = adaptive_axis(pool.in.extent[at], pool.out.extent[at]);
  return pool;
}

// A pool of TOSA. pad = (top, bottom, left, right).
Pool tosa_pool(const Request& request, const Dims& kernel, const Dims& stride, const Dims& pad) {
  Pool pool{.in = image_of(request.operands[0].shape, 2, true),
            .out = image_of(request.results[0].shape, 2, true),
            .axes = {whole_axis(), whole_axis(), whole_axis()}};
  for (std::size_t i = 0; i < 2; ++i)
    pool.axes[1 + i] = sliding_axis(pool.in.extent[1 + i], pool.out.extent[1 + i],
                                    {kernel[i], stride[i], pad[2 * i], 1}, false);
  return pool;
}

Index count_of(const Pool& pool, Index d, Index h, Index w) {
  return pool.axes[0].counted[static_cast<std::size_t>(d)] *
         pool.axes[1].counted[static_cast<std::size_t>(h)] *
         pool.axes[2].counted[static_cast<std::size_t>(w)];
}

// ---- the reference ----

template <class T>
T start_of(Pooling pooling) {
  if (pooling == Pooling::kSum) return T{};
  if constexpr (std::is_integral_v<T>) return std::numeric_limits<T>::min();
  return pooling == Pooling::kMax ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::quiet_NaN();
}

template <class T>
T combine(Pooling pooling, T sum, T value) {
  if (pooling == Pooling::kSum) return sum + value;
  if constexpr (std::is_integral_v<T>) return std::max(sum, value);
  if (pooling == Pooling::kMax) return value > sum || std::isnan(value) ? value : sum;
  return value > sum || std::isnan(sum) ? value : sum;
}

// TOSA's division by a count.
Index divide_rounded(Index sum, Index count) {
  return apply_scale(sum, reciprocal_of(count), MultiplierWidth::k32, RoundingMode::kSingleRound);
}

double finish(const Pool&, double sum, Index divisor) { return sum / static_cast<double>(divisor); }
Index finish(const Pool& pool, Index sum, Index divisor) {
  return pool.rescales ? divide_rounded(sum, divisor) : sum / divisor;
}

// The limits of an integer result that saturates.
ValueRange limits_of(DType dtype) {
  return dtype == DType::kI8 || dtype == DType::kI16 ? *integer_limits(dtype) : ValueRange::all();
}

template <class T>
T pool_one(const Pool& pool, const T* image, const PoolWindow& d, const PoolWindow& h, const PoolWindow& w) {
  const auto stride = pool.in.strides();
  T sum = start_of<T>(pool.pooling);
  for (Index z = d.begin; z < d.end; z += pool.axes[0].step)
    for (Index y = h.begin; y < h.end; y += pool.axes[1].step)
      for (Index x = w.begin; x < w.end; x += pool.axes[2].step)
        sum = combine(pool.pooling, sum, image[z * stride[0] + y * stride[1] + x * stride[2]]);
  return sum;
}

template <class T>
void pool_all(const Pool& pool, const ValueRange& limits, const T* from, T* to) {
  const auto stride = pool.out.strides();
  for (Index n = 0; n < pool.in.batch; ++n)
    for (Index c = 0; c < pool.in.channels; ++c) {
      const T* image = from + n * pool.in.channels * pool.in.pixels() + c * pool.in.channel_stride();
      T* result = to + n * pool.out.channels * pool.out.pixels() + c * pool.out.channel_stride();
      for (Index d = 0; d < pool.out.extent[0]; ++d)
        for (Index h = 0; h < pool.out.extent[1]; ++h)
          for (Index w = 0; w < pool.out.extent[2]; ++w) {
            T value = pool_one(pool, image, pool.axes[0].windows[static_cast<std::size_t>(d)],
                               pool.axes[1].windows[static_cast<std::size_t>(h)],
                               pool.axes[2].windows[static_cast<std::size_t>(w)]);
            if (pool.pooling == Pooling::kSum)
              value = finish(pool, value, pool.divisor.value_or(count_of(pool, d, h, w)));
            if constexpr (std::is_integral_v<T>)
              if (pool.rescales) value = std::clamp(value + pool.output_zero_point, limits.low, limits.high);
            result[d * stride[0] + h * stride[1] + w * stride[2]] = value;
          }
    }
}

Kernel reference_pool(const Request& request, const Pool& pool, std::string name) {
  const DType dtype = request.operands[0].dtype;
  const ValueRange limits = limits_of(request.results[0].dtype);
  if (is_float(dtype))
    return kernel_over<double>(request, 0, std::move(name), [pool, limits](const double* from, double* to) {
      pool_all(pool, limits, from, to);
    });
  return kernel_over<Index>(
      request, pool.zero_point, std::move(name),
      [pool, limits](const Index* from, Index* to) { pool_all(pool, limits, from, to); });
}

// ---- the fast path: along the channels ----

std::vector<Index> counts_of(const Pool& pool) {
  std::vector<Index> counts;
  for (Index d = 0; d < pool.out.extent[0]; ++d)
    for (Index h = 0; h < pool.out.extent[1]; ++h)
      for (Index w = 0; w < pool.out.extent[2]; ++w)
        counts.push_back(pool.divisor.value_or(count_of(pool, d, h, w)));
  return counts;
}

// Computes means of integers: it rescales lines of 32-bit sums by the reciprocals of their counts.
class IntegerMeans {
 public:
  IntegerMeans(const Pool& pool, DType dtype, Isa isa)
      : pool_(pool),
        limits_(limits_of(dtype)),
        rescale_(TOSAIC_SELECT_ISA(isa, kRescaleI32)),
        store_(convert_kernels(isa).store(Domain::kI32, dtype, Rounding::kTruncate)) {}

  // Writes the means of the pixels of a line, one count per pixel. Overwrites `sums`.
  void write(std::int32_t* sums, std::span<const Index> counts, Index channels, void* to) const {
    Index from = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (i + 1 < counts.size() && counts[i + 1] == counts[i]) continue;
      const Index end = static_cast<Index>(i + 1) * channels;
      divide(sums + from, end - from, counts[i]);
      from = end;
    }
    store_(sums, to, from);
  }

 private:
  void divide(std::int32_t* sums, Index elements, Index count) const {
    const Multiplier by = reciprocal_of(count);
    std::array<std::int32_t, 1 + kRescalePadding> multiplier, shift;
    multiplier.fill(by.multiplier);
    shift.fill(by.shift);
    const RescaleTables<std::int32_t> tables{.multiplier = multiplier.data(),
                                             .shift = shift.data(),
                                             .uniform = true,
                                             .input_zp = static_cast<std::int32_t>(count * pool_.zero_point),
                                             .output_zp = static_cast<std::int32_t>(pool_.output_zero_point),
                                             .min = static_cast<std::int32_t>(limits_.low),
                                             .max = static_cast<std::int32_t>(limits_.high)};
    rescale_.scale(tables, sums, sums, elements);
  }

  Pool pool_;
  ValueRange limits_;
  const RescaleKernels<std::int32_t>& rescale_;
  ConvertBlock store_;
};

template <class T>
class FastPool {
 public:
  static constexpr bool kIsFloat = std::is_same_v<T, float>;

  FastPool(const Pool& pool, DType dtype, const Options& options, ScratchPlan& plan)
      : pool_(pool), kernels_(pool_kernels(options.isa, T{})), means_(pool, dtype, options.isa) {
    taps_ = 1;
    for (const Axis& axis : pool.axes)
      if (!axis.windows.empty())
        taps_ *= (axis.windows[0].end - axis.windows[0].begin + axis.step - 1) / axis.step;
    if (pool.pooling != Pooling::kSum) return;
    counts_ = counts_of(pool);
    divisors_.assign(counts_.begin(), counts_.end());
    if (kIsFloat) return;
    ScratchPlan own;
    own.take<std::int32_t>(pool.out.extent[2] * pool.in.channels);
    sums_ = plan.take_each(own, options.threads.count);
  }

  [[nodiscard]] const Pool& pool() const { return pool_; }

  void run(const T* from, T* to, const Workspace& workspace) const {
    PoolLine<T> prototype;
    fill(prototype);
    const auto lines_h = pool_.out.extent[1], lines = pool_.out.extent[0] * lines_h;
    const Index line_size = pool_.out.extent[2] * pool_.in.channels;
    const Loop loop{.count = pool_.in.batch * lines,
                    .unit_cost = static_cast<double>(line_size * taps_) * cost::kCopy};
    parallel_for(workspace.team, loop, [&](Index begin, Index end, Worker worker) {
      PoolLine<T> line = prototype;
      if (sums_.bytes != 0) line.sums = piece<std::int32_t>(sums_.of(workspace.scratch, worker), 0);
      for (Index i = begin; i < end; ++i) {
        line.input = from + i / lines * pool_.in.pixels() * pool_.in.channels;
        line.output = to + i * line_size;
        line.d = pool_.axes[0].windows[static_cast<std::size_t>(i % lines / lines_h)];
        line.h = pool_.axes[1].windows[static_cast<std::size_t>(i % lines_h)];
        run_line(line, static_cast<std::size_t>(i % lines * line.out_w));
      }
    });
  }

 private:
  // Sets what all lines share.
  void fill(PoolLine<T>& line) const {
    line.channels = pool_.in.channels;
    line.out_w = pool_.out.extent[2];
    line.pooling = pool_.pooling;
    line.w = pool_.axes[2].windows.data();
    for (std::size_t axis = 0; axis < 3; ++axis) line.step[axis] = pool_.axes[axis].step;
    line.stride[2] = pool_.in.channels;
    line.stride[1] = line.stride[2] * pool_.in.extent[2];
    line.stride[0] = line.stride[1] * pool_.in.extent[1];
  }

  void run_line(PoolLine<T>& line, std::size_t pixel) const {
    if (pool_.pooling != Pooling::kSum) return kernels_.line(line);
    line.divisor = divisors_.data() + pixel;
    kernels_.line(line);
    if constexpr (!kIsFloat)
      means_.write(line.sums, std::span(counts_).subspan(pixel, static_cast<std::size_t>(line.out_w)),
                   line.channels, line.output);
  }

  Pool pool_;
  const PoolKernels<T>& kernels_;
  IntegerMeans means_;
  std::vector<Index> counts_;  // for means only: one per output pixel
  std::vector<float> divisors_;
  Index taps_ = 1;  // of the first window
  PerWorker sums_;
};

template <class T>
Kernel fast_pool(const Request& request, const Pool& pool) {
  const Isa isa = request.options.isa;
  ScratchPlan plan;
  auto fast = std::make_shared<const FastPool<T>>(pool, request.results[0].dtype, request.options, plan);
  const std::size_t in_at = plan.take<T>(pool.in.channels_last ? 0 : pool.in.size());
  const std::size_t out_at = plan.take<T>(pool.in.channels_last ? 0 : pool.out.size());
  Kernel kernel;
  kernel.name.append("pool.").append(to_string(isa));
  kernel.scratch_bytes = plan.bytes();
  if (pool.in.channels_last) {
    kernel.run = [fast](const Arrays& arrays) {
      fast->run(reinterpret_cast<const T*>(arrays.operands[0]), reinterpret_cast<T*>(arrays.results[0]),
                {arrays.scratch, arrays.team});
    };
    return kernel;
  }
  kernel.run = [fast, in_at, out_at,
                transpose = TOSAIC_SELECT_ISA(isa, kTransposeKernels).find(sizeof(T))](const Arrays& arrays) {
    const Image& in = fast->pool().in;
    const Image& out = fast->pool().out;
    auto* last = piece<T>(arrays.scratch, in_at);
    auto* pooled = piece<T>(arrays.scratch, out_at);
    transpose_all({transpose, sizeof(T), in.batch, in.channels, in.pixels()}, arrays.operands[0],
                  reinterpret_cast<std::byte*>(last), arrays.team);
    fast->run(last, pooled, {arrays.scratch, arrays.team});
    transpose_all({transpose, sizeof(T), out.batch, out.pixels(), out.channels},
                  reinterpret_cast<const std::byte*>(pooled), arrays.results[0], arrays.team);
  };
  return kernel;
}

// True if the integer fast path can compute this pool: it divides means only as TOSA does, and its sums of
// elements minus their zero points must fit 32 bits.
bool sums_fit(const Pool& pool, DType dtype) {
  if (pool.pooling != Pooling::kSum) return true;
  Index count = 1;
  for (const Axis& axis : pool.axes)
    count *= axis.counted.empty() ? 0 : *std::max_element(axis.counted.begin(), axis.counted.end());
  const Index largest = dtype == DType::kI8 ? 256 : 65536;  // the largest |element - zero point|
  return pool.rescales && count <= std::numeric_limits<std::int32_t>::max() / largest;
}

Kernel pool_kernel(const Request& request, const Pool& pool) {
  const DType dtype = request.operands[0].dtype;
  if (dtype == DType::kBool)
    throw UnsupportedOp(
        {.where = "kernels", .what = "no kernel for '" + std::string(info(request.op).name) + "' on bool"});
  if (!request.options.reference && dtype == request.results[0].dtype) {
    if (dtype == DType::kF32) return fast_pool<float>(request, pool);
    if (dtype == DType::kI8 && sums_fit(pool, dtype)) return fast_pool<std::int8_t>(request, pool);
    if (dtype == DType::kI16 && sums_fit(pool, dtype)) return fast_pool<std::int16_t>(request, pool);
  }
  return reference_pool(request, pool, "pool.reference");
}

template <Pooling pooling>
Kernel canonical(const Request& request) {
  return pool_kernel(request, canonical_pool(request, pooling));
}

template <Pooling pooling>
Kernel adaptive(const Request& request) {
  return pool_kernel(request, adaptive_pool(request, pooling));
}

Kernel tosa_avg_pool(const Request& request) {
  const auto& attrs = get<TosaAvgPoolAttrs>(*request.attrs);
  Pool pool = tosa_pool(request, attrs.kernel, attrs.stride, attrs.pad);
  pool.rescales = true;
  pool.zero_point = attrs.input_zp;
  pool.output_zero_point = attrs.output_zp;
  return pool_kernel(request, pool);
}

Kernel tosa_max_pool(const Request& request) {
  const auto& attrs = get<TosaMaxPoolAttrs>(*request.attrs);
  Pool pool = tosa_pool(request, attrs.kernel, attrs.stride, attrs.pad);
  pool.pooling = attrs.nan_mode == NanMode::kIgnore ? Pooling::kMaxIgnoringNan : Pooling::kMax;
  return pool_kernel(request, pool);
}

constexpr OpTable<Prepare> kKernels = {
    {Op::kAvgPool, canonical<Pooling::kSum>},
    {Op::kMaxPool, canonical<Pooling::kMax>},
    {Op::kAdaptiveAvgPool, adaptive<Pooling::kSum>},
    {Op::kAdaptiveMaxPool, adaptive<Pooling::kMax>},
    {Op::kTosaAvgPool2d, tosa_avg_pool},
    {Op::kTosaMaxPool2d, tosa_max_pool},
};
static_assert(complete<kKernels.mismatch(has_family<prepare_pool>)>);

}  // namespace

Kernel prepare_pool(const Request& request) { return (*kKernels.find(request.op))(request); }

}  // namespace tosaic::kernels
