// Reductions along any set of axes. Adjacent axes that are all reduced, or all kept, are merged, so every
// request has one of two forms:
//
//   ... keep x reduce x keep x reduce     each innermost row is folded into one accumulator
//   ... reduce x keep x reduce x keep     rows are folded element by element, 512 results at a time
//
// Floats accumulate in double and are rounded once; integers accumulate modulo 2^64. var and std make a
// second pass, which sums the squared distances from the mean. Threads share the results.
#include "tosaic/kernels/reduce_block.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>

#include "tosaic/base/error.h"
#include "tosaic/kernels/families.h"
#include "tosaic/kernels/parallel.h"
#include "tosaic/kernels/walk.h"

namespace tosaic::kernels {
namespace {

using std::int64_t;

// What is computed from the accumulator when all elements are folded.
enum class Finish : std::uint8_t { kNothing, kMean, kVariance, kDeviation };

struct Meaning {
  Fold fold = Fold::kSum;
  Finish finish = Finish::kNothing;
  Dims axes;
  double correction = 0;
  bool needs_elements = false;      // true: there is no result for zero elements
  bool computes_in_result = false;  // the domain is that of the result's dtype; false: of the operand's
};

// True if a second pass sums squared distances from the mean.
bool is_centred(const Meaning& meaning) {
  return meaning.finish == Finish::kVariance || meaning.finish == Finish::kDeviation;
}

struct Plan {
  Meaning meaning;
  Domain domain = Domain::kF32;
  FoldLoops fold, squares;
  ConvertBlock load = nullptr;  // null if the array has the domain's element type
  ConvertBlock store = nullptr;
  int64_t element = 0, result_element = 0;
  Dims kept_extents, kept_strides, reduce_extents, reduce_strides;  // without the innermost merged axis
  bool innermost_kept = false;
  int64_t innermost = 1;
  int64_t terms = 1;  // elements that are reduced to one result
  int64_t results = 1;

  // The blocks of results for one position of the outer axes.
  [[nodiscard]] int64_t blocks() const {
    return innermost_kept ? (innermost + kBlockElements - 1) / kBlockElements : 1;
  }
};

// ---- scalar folds: the reference ----

bool is_nan(double value) { return std::isnan(value); }
bool is_nan(int64_t) { return false; }

template <class T>
T merge_scalar(Fold fold, T a, T b) {
  switch (fold) {
    case Fold::kSum:
    case Fold::kSquares:
      if constexpr (std::is_same_v<T, int64_t>)
        return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
      else
        return a + b;
    case Fold::kProduct:
      if constexpr (std::is_same_v<T, int64_t>)
        return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
      else
        return a * b;
    case Fold::kMax:
      return is_nan(a) || a > b ? a : b;
    case Fold::kMin:
      return is_nan(a) || a < b ? a : b;
    case Fold::kMaxNumbers:
      return b > a ? b : a;
    case Fold::kMinNumbers:
      return b < a ? b : a;
    case Fold::kAny:
      return b != T{0} ? T{1} : a;
    case Fold::kAll:
      return b == T{0} ? T{0} : a;
  }
  return a;
}

template <Fold kFold>
void along_reference(const void* block, int64_t count, double centre, Accumulator* accumulator) {
  const auto* values = static_cast<const double*>(block);
  for (int64_t i = 0; i < count; ++i) {
    const double distance = values[i] - centre;
    accumulator->real =
        merge_scalar(kFold, accumulator->real, kFold == Fold::kSquares ? distance * distance : values[i]);
  }
}

template <Fold kFold>
void across_reference(const void* block, int64_t count, const double* centres, Accumulator* accumulators) {
  for (int64_t i = 0; i < count; ++i)
    along_reference<kFold>(static_cast<const double*>(block) + i, 1,
                           kFold == Fold::kSquares ? centres[i] : 0.0, accumulators + i);
}

template <Fold kFold>
void along_reference_integer(const void* block, int64_t count, double, Accumulator* accumulator) {
  const auto* values = static_cast<const int64_t*>(block);
  for (int64_t i = 0; i < count; ++i) accumulator->whole = merge_scalar(kFold, accumulator->whole, values[i]);
}

template <Fold kFold>
void across_reference_integer(const void* block, int64_t count, const double*, Accumulator* accumulators) {
  const auto* values = static_cast<const int64_t*>(block);
  for (int64_t i = 0; i < count; ++i)
    accumulators[i].whole = merge_scalar(kFold, accumulators[i].whole, values[i]);
}

template <Fold kFold>
FoldLoops reference_loops(Domain domain) {
  if (is_float(domain)) return {along_reference<kFold>, across_reference<kFold>};
  return {along_reference_integer<kFold>, across_reference_integer<kFold>};
}

FoldLoops find_reference_loops(Fold fold, Domain domain) {
  return with_fold(fold, [domain](auto constant) { return reference_loops<constant()>(domain); });
}

// ---- meanings ----

template <Fold fold, bool needs_elements = false, bool computes_in_result = false>
Meaning over_axes(const Request& request) {
  return {fold, Finish::kNothing, attrs_of<ReduceAttrs>(request).axes, 0, needs_elements, computes_in_result};
}

template <Fold fold, bool computes_in_result = false>
Meaning over_axis(const Request& request) {
  return {fold, Finish::kNothing, Dims{attrs_of<AxisAttrs>(request).axis}, 0, false, computes_in_result};
}

template <Fold propagate, Fold numbers>
Meaning by_nan_mode(const Request& request) {
  const auto& attrs = attrs_of<TosaAxisNanAttrs>(request);
  return {attrs.nan_mode == NanMode::kPropagate ? propagate : numbers,
          Finish::kNothing,
          Dims{attrs.axis},
          0,
          true,
          false};
}

Meaning mean(const Request& request) {
  Meaning meaning = over_axes<Fold::kSum, false, true>(request);
  meaning.finish = Finish::kMean;
  return meaning;
}

template <Finish finish>
Meaning variance(const Request& request) {
  const auto& attrs = attrs_of<VarAttrs>(request);
  return {Fold::kSum, finish, attrs.axes, attrs.correction, false, true};
}

constexpr OpTable<Meaning (*)(const Request&)> kMeanings = {
    {Op::kSum, over_axes<Fold::kSum, false, true>},
    {Op::kMean, mean},
    {Op::kVar, variance<Finish::kVariance>},
    {Op::kStd, variance<Finish::kDeviation>},
    {Op::kProd, over_axes<Fold::kProduct, false, true>},
    {Op::kAmax, over_axes<Fold::kMax, true>},
    {Op::kAmin, over_axes<Fold::kMin, true>},
    {Op::kAny, over_axes<Fold::kAny>},
    {Op::kAll, over_axes<Fold::kAll>},
    {Op::kTosaReduceAll, over_axis<Fold::kAll>},
    {Op::kTosaReduceAny, over_axis<Fold::kAny>},
    {Op::kTosaReduceSum, over_axis<Fold::kSum, true>},
    {Op::kTosaReduceProduct, over_axis<Fold::kProduct, true>},
    {Op::kTosaReduceMax, by_nan_mode<Fold::kMax, Fold::kMaxNumbers>},
    {Op::kTosaReduceMin, by_nan_mode<Fold::kMin, Fold::kMinNumbers>},
};
static_assert(complete<kMeanings.mismatch(has_family<prepare_reduce>)>);

// ---- running ----

Accumulator start(Fold fold, Domain domain) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const bool real = is_float(domain);
  switch (fold) {
    case Fold::kMax:
    case Fold::kMaxNumbers:
      return real ? Accumulator{.real = -kInf} : Accumulator{.whole = std::numeric_limits<int64_t>::min()};
    case Fold::kMin:
    case Fold::kMinNumbers:
      return real ? Accumulator{.real = kInf} : Accumulator{.whole = std::numeric_limits<int64_t>::max()};
    case Fold::kProduct:
    case Fold::kAll:
      return real ? Accumulator{.real = 1.0} : Accumulator{.whole = 1};
    case Fold::kSum:
    case Fold::kAny:
    case Fold::kSquares:
      return real ? Accumulator{.real = 0.0} : Accumulator{.whole = 0};
  }
  return {};
}

class Run {
 public:
  Run(const Plan& plan, const std::byte* input, std::byte* result)
      : plan_(plan), input_(input), result_(result) {}

  // Computes the units [begin, end): results or, if the innermost axis is kept, blocks of up to 512 of them.
  void units(int64_t begin, int64_t end) {
    const int64_t blocks = plan_.blocks();
    const int64_t first =
        plan_.innermost_kept ? begin / blocks * plan_.innermost + begin % blocks * kBlockElements : begin;
    result_ += first * plan_.result_element;
    Walk kept(plan_.kept_extents, plan_.kept_strides);
    kept.seek(begin / blocks);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t block = unit % blocks;
      if (plan_.innermost_kept)
        reduce_across(kept.offset(), block * kBlockElements);
      else
        reduce_along(kept.offset());
      if (block + 1 == blocks) kept.next();
    }
    flush();
  }

 private:
  // The elements [offset, offset + count) as a block of the domain. If they need conversion, count must be at
  // most kBlockElements.
  const void* block(int64_t offset, int64_t count) {
    const std::byte* from = input_ + offset * plan_.element;
    if (plan_.load == nullptr) return from;
    plan_.load(from, buffer_.data(), count);
    return buffer_.data();
  }

  void fold_row(FoldAlong fold, int64_t offset, double centre, Accumulator& accumulator) {
    const int64_t step = plan_.load == nullptr ? plan_.innermost : kBlockElements;
    for (int64_t i = 0; i < plan_.innermost; i += step) {
      const int64_t count = std::min(step, plan_.innermost - i);
      fold(block(offset + i, count), count, centre, &accumulator);
    }
  }

  void fold_rows(FoldAlong fold, int64_t offset, double centre, Accumulator& accumulator) {
    if (plan_.terms == 0) return;
    if (plan_.reduce_extents.empty()) return fold_row(fold, offset, centre, accumulator);
    Walk reduce(plan_.reduce_extents, plan_.reduce_strides);
    do fold_row(fold, offset + reduce.offset(), centre, accumulator);
    while (reduce.next());
  }

  void reduce_along(int64_t offset) {
    Accumulator& accumulator = accumulators_.at(static_cast<std::size_t>(pending_));
    accumulator = start(plan_.meaning.fold, plan_.domain);
    fold_rows(plan_.fold.along, offset, 0.0, accumulator);
    if (is_centred(plan_.meaning)) {
      const double centre = accumulator.real / static_cast<double>(plan_.terms);
      accumulator.real = 0.0;
      fold_rows(plan_.squares.along, offset, centre, accumulator);
    }
    if (++pending_ == kBlockElements) flush();
  }

  // Reduces the columns from `first` on.
  void reduce_across(int64_t offset, int64_t first) {
    pending_ = std::min(kBlockElements, plan_.innermost - first);
    std::fill_n(accumulators_.data(), pending_, start(plan_.meaning.fold, plan_.domain));
    fold_columns(plan_.fold.across, offset + first);
    if (is_centred(plan_.meaning)) {
      for (int64_t k = 0; k < pending_; ++k) {
        const auto at = static_cast<std::size_t>(k);
        centres_.at(at) = accumulators_.at(at).real / static_cast<double>(plan_.terms);
        accumulators_.at(at).real = 0.0;
      }
      fold_columns(plan_.squares.across, offset + first);
    }
    flush();
  }

  void fold_columns(FoldAcross fold, int64_t offset) {
    if (plan_.terms == 0) return;
    Walk reduce(plan_.reduce_extents, plan_.reduce_strides);
    do fold(block(offset + reduce.offset(), pending_), pending_, centres_.data(), accumulators_.data());
    while (reduce.next());
  }

  void flush() {
    if (plan_.meaning.finish != Finish::kNothing) {
      const auto terms = static_cast<double>(plan_.terms);
      const double divisor =
          plan_.meaning.finish == Finish::kMean ? terms : std::max(0.0, terms - plan_.meaning.correction);
      for (int64_t i = 0; i < pending_; ++i) {
        double& value = accumulators_.at(static_cast<std::size_t>(i)).real;
        value = plan_.meaning.finish == Finish::kDeviation ? std::sqrt(value / divisor) : value / divisor;
      }
    }
    plan_.store(accumulators_.data(), result_, pending_);
    result_ += pending_ * plan_.result_element;
    pending_ = 0;
  }

  const Plan& plan_;
  const std::byte* input_;
  std::byte* result_;
  int64_t pending_ = 0;
  std::array<Accumulator, kBlockElements> accumulators_;
  std::array<double, kBlockElements> centres_;
  alignas(64) std::array<std::byte, kBlockElements * 8> buffer_;
};

// ---- preparing ----

void set_groups(Plan& plan, const Shape& shape, const Dims& axes) {
  Dims extents;
  std::uint32_t reduced = 0;  // bit i: merged axis i is reduced
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 1) continue;
    const bool is_reduced = axes.contains(static_cast<int64_t>(i));
    const std::size_t last = extents.size() - 1u;
    if (!extents.empty() && ((reduced >> last) & 1u) == (is_reduced ? 1u : 0u)) {
      extents[last] *= shape[i];
    } else {
      if (is_reduced) reduced |= 1u << extents.size();
      extents.push_back(shape[i]);
    }
  }
  const Dims strides = contiguous_strides(extents);
  for (std::size_t i = 0; i < extents.size(); ++i) {
    const bool is_reduced = ((reduced >> i) & 1u) != 0;
    (is_reduced ? plan.terms : plan.results) *= extents[i];
    if (i + 1 == extents.size()) {
      plan.innermost = extents[i];
      plan.innermost_kept = !is_reduced;
    } else {
      (is_reduced ? plan.reduce_extents : plan.kept_extents).push_back(extents[i]);
      (is_reduced ? plan.reduce_strides : plan.kept_strides).push_back(strides[i]);
    }
  }
}

Domain reduce_domain(const Meaning& meaning, DType input, DType result, bool reference) {
  const bool real = tosaic::is_float(meaning.computes_in_result ? result : input);
  // The upper bits of sums and products are lost in results of 32 bits.
  const bool is_short = byte_size(input) <= 4 && byte_size(result) <= 4 && !tosaic::is_float(input);
  if (!real) return is_short && !reference ? Domain::kI32 : Domain::kI64;
  const bool narrow = tosaic::is_float(input) && input != DType::kF64;
  return narrow && !reference ? Domain::kF32 : Domain::kF64;
}

[[noreturn]] void fail_empty(const Request& request) {
  throw InvalidGraph({.where = std::string(info(request.op).name),
                      .what = "no extremum of an empty extent",
                      .expected = "at least one element along the reduced axes",
                      .got = to_string(request.operands[0].shape)});
}

}  // namespace

Kernel prepare_reduce(const Request& request) {
  const Meaning meaning = (*kMeanings.find(request.op))(request);
  const Operand& input = request.operands[0];
  const Operand& result = request.results[0];
  const bool reference = request.options.reference;
  const Isa isa = reference ? Isa::kBaseline : request.options.isa;
  auto plan = std::make_shared<Plan>();
  plan->meaning = meaning;
  plan->domain = reduce_domain(meaning, input.dtype, result.dtype, reference);
  const ReduceKernels& kernels = TOSAIC_SELECT_ISA(isa, kReduceKernels);
  plan->fold =
      reference ? find_reference_loops(meaning.fold, plan->domain) : kernels.find(meaning.fold, plan->domain);
  plan->squares = reference ? find_reference_loops(Fold::kSquares, plan->domain)
                            : kernels.find(Fold::kSquares, plan->domain);
  const ConvertKernels& convert = convert_kernels(isa);
  if (!is_domain(input.dtype, plan->domain)) plan->load = convert.load(input.dtype, plan->domain);
  plan->store =
      convert.store(is_float(plan->domain) ? Domain::kF64 : Domain::kI64, result.dtype, Rounding::kTruncate);
  plan->element = static_cast<int64_t>(byte_size(input.dtype));
  plan->result_element = static_cast<int64_t>(byte_size(result.dtype));
  set_groups(*plan, input.shape, meaning.axes);
  if (meaning.needs_elements && plan->terms == 0 && plan->results != 0) fail_empty(request);
  if (is_centred(meaning) && !is_float(plan->domain)) fail_unsupported(request);
  Kernel kernel;
  kernel.run = [plan = std::shared_ptr<const Plan>(plan)](const Arrays& arrays) {
    if (plan->results == 0) return;
    const int64_t width = plan->innermost_kept ? std::min(plan->innermost, kBlockElements) : 1;
    const int64_t outer = plan->innermost_kept ? plan->results / plan->innermost : plan->results;
    const Loop loop{.count = outer * plan->blocks(),
                    .unit_cost = static_cast<double>(plan->terms * width) * 2 * cost::kCopy};
    parallel_for(arrays.team, loop, [&](int64_t begin, int64_t end, Worker) {
      Run(*plan, arrays.operands[0], arrays.results[0]).units(begin, end);
    });
  };
  return kernel;
}

}  // namespace tosaic::kernels
