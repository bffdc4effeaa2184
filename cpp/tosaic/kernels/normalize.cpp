// Normalizations and softmax. Rows are read as f32 or f64; other dtypes are converted through scratch.
// Statistics are computed in double, and every result is rounded once.
//
//   batch_norm               one scale and one shift per channel
//   layer_norm, rms_norm     statistics of a row, weights along the row
//   group_norm               statistics of a row of channels, one scale and one shift per channel
//   softmax, log_softmax     row by row or, if the axis is not the last, 64 columns side by side
//
// Threads share the rows, or the blocks of columns.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "tosaic/kernels/families.h"
#include "tosaic/kernels/normalize_block.h"
#include "tosaic/kernels/parallel.h"
#include "tosaic/kernels/reduce_block.h"
#include "tosaic/kernels/scratch.h"

namespace tosaic::kernels {
namespace {

using std::int64_t;

constexpr int64_t kColumns = 64;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kElementCost = 4 * cost::kCopy;  // two or three passes in double

// The base class of all plans: the loops for elements of T, and how rows are loaded and stored.
template <class T>
struct Base {
  const NormalizeLoops<T>* loops = nullptr;
  FoldLoops sum, squares, max;
  ConvertBlock load = nullptr, store = nullptr;  // null if the array holds T
  int64_t element = 0, result_element = 0;
  std::size_t row_scratch = 0;  // offset in a worker's scratch
  PerWorker workers;

  // The arrays for a worker: the same operands and results, and the scratch memory of that worker.
  [[nodiscard]] Arrays arrays_of(const Arrays& arrays, Worker worker) const {
    return {arrays.operands, arrays.results, workers.of(arrays.scratch, worker)};
  }

  // The argument `arrays` of the following functions is the result of arrays_of(), for one worker.
  //
  // `count` elements of the operand as T, in scratch or in place.
  [[nodiscard]] const T* row(const Arrays& arrays, int64_t offset, int64_t count) const {
    const std::byte* from = arrays.operands[0] + offset * element;
    if (load == nullptr) return reinterpret_cast<const T*>(from);
    T* to = piece<T>(arrays.scratch, row_scratch);
    load(from, to, count);
    return to;
  }
  // Where the results of a row are computed: in the result array or in scratch, from which finish() converts
  // them to the result array. If row() and out() both use scratch, they return the same memory.
  [[nodiscard]] T* out(const Arrays& arrays, int64_t offset) const {
    return store != nullptr ? piece<T>(arrays.scratch, row_scratch)
                            : reinterpret_cast<T*>(arrays.results[0] + offset * result_element);
  }
  void finish(const Arrays& arrays, int64_t offset, const T* values, int64_t count) const {
    if (store != nullptr) store(values, arrays.results[0] + offset * result_element, count);
  }
};

template <class T>
inline constexpr Domain kDomain = Domain::kF32;
template <>
inline constexpr Domain kDomain<double> = Domain::kF64;

template <class T>
Base<T> base_of(const Request& request, ScratchPlan& own, int64_t row) {
  const Isa isa = request.options.reference ? Isa::kBaseline : request.options.isa;
  const ConvertKernels& convert = convert_kernels(isa);
  const ReduceKernels& reduce = TOSAIC_SELECT_ISA(isa, kReduceKernels);
  const Operand& input = request.operands[0];
  const Operand& result = request.results[0];
  if (!is_float(result.dtype)) fail_unsupported(request);
  Base<T> base;
  base.loops = &loops_of<T>(TOSAIC_SELECT_ISA(isa, kNormalizeKernels));
  base.sum = reduce.find(Fold::kSum, kDomain<T>);
  base.squares = reduce.find(Fold::kSquares, kDomain<T>);
  base.max = reduce.find(Fold::kMax, kDomain<T>);
  if (!is_domain(input.dtype, kDomain<T>)) base.load = convert.load(input.dtype, kDomain<T>);
  if (!is_domain(result.dtype, kDomain<T>))
    base.store = convert.store(kDomain<T>, result.dtype, Rounding::kTruncate);
  base.element = static_cast<int64_t>(byte_size(input.dtype));
  base.result_element = static_cast<int64_t>(byte_size(result.dtype));
  if (base.load != nullptr || base.store != nullptr) base.row_scratch = own.take<T>(row);
  return base;
}

// The elements of a weight, bias, mean or variance as doubles in scratch. If the operand is absent, all
// elements are `absent`.
struct Weights {
  std::size_t operand = 0;
  bool present = false;
  ConvertBlock load = nullptr;
  int64_t count = 0;
  double absent = 0;
  std::size_t scratch = 0;

  const double* values(const Arrays& arrays) const {
    auto* to = piece<double>(arrays.scratch, scratch);
    if (present)
      load(arrays.operands[operand], to, count);
    else
      std::fill_n(to, count, absent);
    return to;
  }
};

Weights weights_of(const Request& request, std::size_t operand, int64_t count, double absent,
                   ScratchPlan& scratch) {
  Weights weights{operand, operand < request.operands.size() && request.operands[operand].present,
                  nullptr, count,
                  absent,  0};
  if (weights.present)
    weights.load = convert_kernels(request.options.reference ? Isa::kBaseline : request.options.isa)
                       .load(request.operands[operand].dtype, Domain::kF64);
  weights.scratch = scratch.take<double>(count);
  return weights;
}

struct Statistics {
  double mean = 0, inverse_deviation = 0;
};

// The statistics of a row about its mean or, for rms_norm, about zero. The variance divides by the count.
template <class T>
Statistics statistics(const Base<T>& base, const T* row, int64_t count, double eps, bool about_zero) {
  Statistics result;
  const auto terms = static_cast<double>(count);
  if (!about_zero) {
    Accumulator sum{.real = 0.0};
    base.sum.along(row, count, 0.0, &sum);
    result.mean = sum.real / terms;
  }
  Accumulator squares{.real = 0.0};
  base.squares.along(row, count, result.mean, &squares);
  result.inverse_deviation = 1.0 / std::sqrt(squares.real / terms + eps);
  return result;
}

// ---- layer_norm, rms_norm ----

template <class T>
struct RowNorm {
  Base<T> base;
  Weights weight, bias;
  int64_t rows = 1, count = 1;
  double eps = 0;
  bool about_zero = false;
};

template <class T>
void run_row_norm(const RowNorm<T>& plan, const Arrays& arrays) {
  const double* weight = plan.weight.values(arrays);
  const double* bias = plan.bias.values(arrays);
  const Loop rows{.count = plan.rows, .unit_cost = static_cast<double>(plan.count) * kElementCost};
  parallel_for(arrays.team, rows, [&](int64_t begin, int64_t end, Worker worker) {
    const Arrays mine = plan.base.arrays_of(arrays, worker);
    for (int64_t at = begin * plan.count; at < end * plan.count; at += plan.count) {
      const T* row = plan.base.row(mine, at, plan.count);
      const Statistics s = statistics(plan.base, row, plan.count, plan.eps, plan.about_zero);
      T* out = plan.base.out(mine, at);
      plan.base.loops->affine_weighted(row, plan.count, s.inverse_deviation, -s.mean * s.inverse_deviation,
                                       weight, bias, out);
      plan.base.finish(mine, at, out, plan.count);
    }
  });
}

// torch's default: the epsilon of the dtype that rms_norm computes in, which is f32 for the narrow floats.
double default_eps(DType dtype) {
  return dtype == DType::kF64 ? std::numeric_limits<double>::epsilon()
                              : static_cast<double>(std::numeric_limits<float>::epsilon());
}

template <class T>
Kernel row_norm(const Request& request) {
  const auto& attrs = attrs_of<NormAttrs>(request);
  const Shape& shape = request.operands[0].shape;
  ScratchPlan scratch;
  RowNorm<T> plan;
  const std::size_t split = shape.size() - static_cast<std::size_t>(attrs.normalized_rank);
  for (std::size_t i = 0; i < shape.size(); ++i) (i < split ? plan.rows : plan.count) *= shape[i];
  plan.about_zero = request.op == Op::kRmsNorm;
  plan.eps = attrs.eps.value_or(plan.about_zero ? default_eps(request.operands[0].dtype) : 1e-5);
  ScratchPlan own;
  plan.base = base_of<T>(request, own, plan.count);
  plan.base.workers = scratch.take_each(own, request.options.threads.count);
  plan.weight = weights_of(request, 1, plan.count, 1.0, scratch);
  plan.bias = weights_of(request, plan.about_zero ? request.operands.size() : 2, plan.count, 0.0, scratch);
  Kernel kernel;
  kernel.scratch_bytes = scratch.bytes();
  kernel.run = [plan](const Arrays& arrays) { run_row_norm(plan, arrays); };
  return kernel;
}

// ---- batch_norm, group_norm ----

template <class T>
struct BatchNorm {
  Base<T> base;
  Weights weight, bias, mean, var;
  int64_t batches = 1, channels = 1, inner = 1;
  double eps = 0;
  std::size_t scales = 0, shifts = 0;
};

template <class T>
void run_batch_norm(const BatchNorm<T>& plan, const Arrays& arrays) {
  const double* weight = plan.weight.values(arrays);
  const double* bias = plan.bias.values(arrays);
  const double* mean = plan.mean.values(arrays);
  const double* var = plan.var.values(arrays);
  auto* scale = piece<double>(arrays.scratch, plan.scales);
  auto* shift = piece<double>(arrays.scratch, plan.shifts);
  for (int64_t c = 0; c < plan.channels; ++c) {
    scale[c] = weight[c] / std::sqrt(var[c] + plan.eps);
    shift[c] = bias[c] - mean[c] * scale[c];
  }
  const int64_t length = plan.inner == 1 ? plan.channels : plan.inner;
  const int64_t rows = plan.inner == 1 ? plan.batches : plan.batches * plan.channels;
  const Loop loop{.count = rows, .unit_cost = static_cast<double>(length) * cost::kCopy};
  parallel_for(arrays.team, loop, [&](int64_t begin, int64_t end, Worker worker) {
    const Arrays mine = plan.base.arrays_of(arrays, worker);
    for (int64_t r = begin; r < end; ++r) {
      const T* row = plan.base.row(mine, r * length, length);
      T* out = plan.base.out(mine, r * length);
      if (plan.inner == 1)
        plan.base.loops->affine_columns(row, length, scale, shift, out);
      else
        plan.base.loops->affine(row, length, scale[r % plan.channels], shift[r % plan.channels], out);
      plan.base.finish(mine, r * length, out, length);
    }
  });
}

// The extents as (batch, channels, product of the others).
void set_channels(const Shape& shape, int64_t& batches, int64_t& channels, int64_t& inner) {
  for (std::size_t i = 0; i < shape.size(); ++i) (i == 0 ? batches : i == 1 ? channels : inner) *= shape[i];
}

template <class T>
Kernel batch_norm(const Request& request) {
  ScratchPlan scratch;
  BatchNorm<T> plan;
  plan.eps = attrs_of<BatchNormAttrs>(request).eps;
  set_channels(request.operands[0].shape, plan.batches, plan.channels, plan.inner);
  ScratchPlan own;
  plan.base = base_of<T>(request, own, plan.inner == 1 ? plan.channels : plan.inner);
  plan.base.workers = scratch.take_each(own, request.options.threads.count);
  plan.weight = weights_of(request, 1, plan.channels, 1.0, scratch);
  plan.bias = weights_of(request, 2, plan.channels, 0.0, scratch);
  plan.mean = weights_of(request, 3, plan.channels, 0.0, scratch);
  plan.var = weights_of(request, 4, plan.channels, 1.0, scratch);
  plan.scales = scratch.take<double>(plan.channels);
  plan.shifts = scratch.take<double>(plan.channels);
  Kernel kernel;
  kernel.scratch_bytes = scratch.bytes();
  kernel.run = [plan](const Arrays& arrays) { run_batch_norm(plan, arrays); };
  return kernel;
}

template <class T>
struct GroupNorm {
  Base<T> base;
  Weights weight, bias;
  int64_t batches = 1, channels = 1, inner = 1, groups = 1;
  double eps = 0;
};

template <class T>
void normalize_group(const GroupNorm<T>& plan, const Statistics& s, const T* row, const double* weight,
                     const double* bias, T* out) {
  const int64_t channels = plan.channels / plan.groups;
  const double shift = -s.mean * s.inverse_deviation;
  if (plan.inner == 1) {
    plan.base.loops->affine_weighted(row, channels, s.inverse_deviation, shift, weight, bias, out);
    return;
  }
  for (int64_t c = 0; c < channels; ++c)
    plan.base.loops->affine(row + c * plan.inner, plan.inner, s.inverse_deviation * weight[c],
                            shift * weight[c] + bias[c], out + c * plan.inner);
}

template <class T>
void run_group_norm(const GroupNorm<T>& plan, const Arrays& arrays) {
  const double* weight = plan.weight.values(arrays);
  const double* bias = plan.bias.values(arrays);
  const int64_t channels = plan.channels / plan.groups;
  const int64_t length = channels * plan.inner;
  const Loop groups{.count = plan.batches * plan.groups,
                    .unit_cost = static_cast<double>(length) * kElementCost};
  parallel_for(arrays.team, groups, [&](int64_t begin, int64_t end, Worker worker) {
    const Arrays mine = plan.base.arrays_of(arrays, worker);
    for (int64_t r = begin; r < end; ++r) {
      const T* row = plan.base.row(mine, r * length, length);
      T* out = plan.base.out(mine, r * length);
      const int64_t channel = r % plan.groups * channels;
      normalize_group(plan, statistics(plan.base, row, length, plan.eps, false), row, weight + channel,
                      bias + channel, out);
      plan.base.finish(mine, r * length, out, length);
    }
  });
}

template <class T>
Kernel group_norm(const Request& request) {
  const auto& attrs = attrs_of<GroupNormAttrs>(request);
  ScratchPlan scratch;
  GroupNorm<T> plan;
  plan.eps = attrs.eps;
  plan.groups = attrs.groups;
  set_channels(request.operands[0].shape, plan.batches, plan.channels, plan.inner);
  ScratchPlan own;
  plan.base = base_of<T>(request, own, plan.channels / plan.groups * plan.inner);
  plan.base.workers = scratch.take_each(own, request.options.threads.count);
  plan.weight = weights_of(request, 1, plan.channels, 1.0, scratch);
  plan.bias = weights_of(request, 2, plan.channels, 0.0, scratch);
  Kernel kernel;
  kernel.scratch_bytes = scratch.bytes();
  kernel.run = [plan](const Arrays& arrays) { run_group_norm(plan, arrays); };
  return kernel;
}

// ---- softmax ----

enum class SoftmaxKind : std::uint8_t { kPlain, kSafe, kLog };

template <class T>
struct Softmax {
  Base<T> base;
  SoftmaxKind kind = SoftmaxKind::kPlain;
  int64_t outer = 1, extent = 1, inner = 1;
  std::size_t exps = 0, columns = 0;
};

template <class T>
void softmax_row(const Softmax<T>& plan, const Arrays& arrays, int64_t at) {
  const Base<T>& base = plan.base;
  const T* row = base.row(arrays, at, plan.extent);
  T* out = base.out(arrays, at);
  Accumulator max{.real = -kInf};
  base.max.along(row, plan.extent, 0.0, &max);
  if (plan.kind == SoftmaxKind::kLog) {
    const double sum = base.loops->exp_sum(row, plan.extent, max.real, nullptr);
    base.loops->subtract(row, plan.extent, max.real, std::log(sum), out);
  } else if (plan.kind == SoftmaxKind::kSafe && max.real == -kInf) {
    std::fill_n(out, plan.extent, T{0});
  } else {
    auto* exps = piece<double>(arrays.scratch, plan.exps);
    const double sum = base.loops->exp_sum(row, plan.extent, max.real, exps);
    base.loops->scale(exps, plan.extent, 1.0 / sum, out);
  }
  base.finish(arrays, at, out, plan.extent);
}

// The statistics of a block of columns, one per column.
struct ColumnStatistics {
  alignas(64) std::array<Accumulator, kColumns> folded;
  alignas(64) std::array<double, kColumns> max, sum, factor;
};

template <class T>
void softmax_columns(const Softmax<T>& plan, const Arrays& arrays, int64_t at, int64_t columns) {
  const Base<T>& base = plan.base;
  auto* exps = piece<double>(arrays.scratch, plan.exps);
  ColumnStatistics s;
  s.folded.fill(Accumulator{.real = -kInf});
  for (int64_t i = 0; i < plan.extent; ++i)
    base.max.across(base.row(arrays, at + i * plan.inner, columns), columns, nullptr, s.folded.data());
  for (std::size_t c = 0; c < static_cast<std::size_t>(columns); ++c) s.max[c] = s.folded[c].real;
  s.sum.fill(0.0);
  for (int64_t i = 0; i < plan.extent; ++i)
    base.loops->exp_columns(base.row(arrays, at + i * plan.inner, columns), columns, s.max.data(),
                            exps + i * columns, s.sum.data());
  for (std::size_t c = 0; c < static_cast<std::size_t>(columns); ++c)
    s.factor[c] = plan.kind == SoftmaxKind::kLog ? std::log(s.sum[c]) : 1.0 / s.sum[c];
  for (int64_t i = 0; i < plan.extent; ++i) {
    const int64_t row = at + i * plan.inner;
    T* out = base.out(arrays, row);
    if (plan.kind == SoftmaxKind::kLog)
      base.loops->subtract_columns(base.row(arrays, row, columns), columns, s.max.data(), s.factor.data(),
                                   out);
    else
      base.loops->scale_columns(exps + i * columns, columns, s.factor.data(), out);
    for (std::size_t c = 0; plan.kind == SoftmaxKind::kSafe && c < static_cast<std::size_t>(columns); ++c)
      if (s.max[c] == -kInf) out[c] = T{0};
    base.finish(arrays, row, out, columns);
  }
}

template <class T>
void run_softmax(const Softmax<T>& plan, const Arrays& arrays) {
  if (plan.extent == 0) return;
  const int64_t blocks = (plan.inner + kColumns - 1) / kColumns;
  const Loop loop{
      .count = plan.outer * blocks,
      .unit_cost = static_cast<double>(plan.extent * std::min(kColumns, plan.inner)) * cost::kFunction};
  parallel_for(arrays.team, loop, [&](int64_t begin, int64_t end, Worker worker) {
    const Arrays mine = plan.base.arrays_of(arrays, worker);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t at = unit / blocks * plan.extent * plan.inner;
      const int64_t column = unit % blocks * kColumns;
      if (plan.inner == 1)
        softmax_row(plan, mine, at);
      else
        softmax_columns(plan, mine, at + column, std::min(kColumns, plan.inner - column));
    }
  });
}

template <class T, SoftmaxKind kind>
Kernel softmax(const Request& request) {
  const Shape& shape = request.operands[0].shape;
  const std::size_t axis = normalize_axis(attrs_of<AxisDtypeAttrs>(request).axis, shape.size());
  ScratchPlan scratch;
  Softmax<T> plan;
  plan.kind = kind;
  for (std::size_t i = 0; i < shape.size(); ++i)
    (i < axis ? plan.outer : i == axis ? plan.extent : plan.inner) *= shape[i];
  const int64_t columns = std::clamp<int64_t>(plan.inner, 1, kColumns);
  ScratchPlan own;
  plan.base = base_of<T>(request, own, plan.inner == 1 ? plan.extent : columns);
  if (kind != SoftmaxKind::kLog || plan.inner != 1) plan.exps = own.take<double>(plan.extent * columns);
  plan.base.workers = scratch.take_each(own, request.options.threads.count);
  Kernel kernel;
  kernel.scratch_bytes = scratch.bytes();
  kernel.run = [plan](const Arrays& arrays) { run_softmax(plan, arrays); };
  return kernel;
}

template <class T>
constexpr OpTable<Prepare> kKernels = {
    {Op::kLayerNorm, row_norm<T>},
    {Op::kRmsNorm, row_norm<T>},
    {Op::kBatchNorm, batch_norm<T>},
    {Op::kGroupNorm, group_norm<T>},
    {Op::kSoftmax, softmax<T, SoftmaxKind::kPlain>},
    {Op::kSafeSoftmax, softmax<T, SoftmaxKind::kSafe>},
    {Op::kLogSoftmax, softmax<T, SoftmaxKind::kLog>},
};
static_assert(complete<kKernels<float>.mismatch(has_family<prepare_normalize>)>);

// True if rows are read as f64: in the reference, and if the operand or the result is f64 or the operand is
// an integer (softmax with a `dtype`).
bool is_wide(const Request& request) {
  if (request.options.reference || request.operands.empty() || request.results.empty()) return true;
  return !is_float(request.operands[0].dtype) || request.operands[0].dtype == DType::kF64 ||
         request.results[0].dtype == DType::kF64;
}

}  // namespace

Kernel prepare_normalize(const Request& request) {
  const auto& kernels = is_wide(request) ? kKernels<double> : kKernels<float>;
  return (*kernels.find(request.op))(request);
}

}  // namespace tosaic::kernels
