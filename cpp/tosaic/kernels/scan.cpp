// argmax, argmin, cumargmax, cumargmin, cumsum and diff along an axis (axis_columns.h).

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "tosaic/base/error.h"
#include "tosaic/kernels/axis_columns.h"
#include "tosaic/kernels/block.h"
#include "tosaic/kernels/families.h"
#include "tosaic/kernels/scratch.h"

namespace tosaic::kernels {
namespace {

using std::int64_t;

struct Plan {
  AxisSplit split;
  Domain domain = Domain::kF64;
  ConvertBlock load = nullptr, store = nullptr;
  int64_t element = 0, result_element = 0;
};

Plan make_plan(const Request& request, DType computes_like, DType stored_as_domain_of, std::size_t axis) {
  const Operand& input = request.operands[0];
  const Isa isa = request.options.reference ? Isa::kBaseline : request.options.isa;
  const ConvertKernels& convert = convert_kernels(isa);
  Plan plan;
  plan.split = split_at(input.shape, axis);
  plan.domain = domain_of(computes_like, true);
  plan.load = convert.load(input.dtype, plan.domain);
  plan.store =
      convert.store(domain_of(stored_as_domain_of, true), request.results[0].dtype, Rounding::kTruncate);
  plan.element = static_cast<int64_t>(byte_size(input.dtype));
  plan.result_element = static_cast<int64_t>(byte_size(request.results[0].dtype));
  return plan;
}

template <class Body>
void for_each_columns(const AxisSplit& split, Team* team, Body body) {
  const double elements = static_cast<double>(split.extent * std::min(kColumns, split.inner));
  kernels::for_each_columns(split, elements * 4 * cost::kCopy, team, std::move(body));
}

// ---- argmax, argmin ----

struct ArgMeaning {
  bool largest = true;
  bool skips_nan = false;
};

bool is_nan(double value) { return std::isnan(value); }
bool is_nan(int64_t) { return false; }

// True if `value` replaces `best`. Of equal values the first one wins. A NaN beats every number, unless NaNs
// are skipped.
template <class T>
bool beats(const ArgMeaning& meaning, T value, T best) {
  if (meaning.skips_nan && is_nan(best)) return !is_nan(value);
  const bool better = meaning.largest ? value > best : value < best;
  return better || (!meaning.skips_nan && is_nan(value) && !is_nan(best));
}

template <class T>
void arg_along(const Plan& plan, const ArgMeaning& meaning, const std::byte* row, std::byte* result) {
  alignas(64) std::array<T, kBlockElements> block;
  T best{};
  int64_t best_at = 0;
  for (int64_t i = 0; i < plan.split.extent; i += kBlockElements) {
    const int64_t count = std::min(kBlockElements, plan.split.extent - i);
    plan.load(row + i * plan.element, block.data(), count);
    if (i == 0) best = block[0];
    for (int64_t k = 0; k < count; ++k) {
      const T value = block[static_cast<std::size_t>(k)];
      if (!beats(meaning, value, best)) continue;
      best = value;
      best_at = i + k;
    }
  }
  plan.store(&best_at, result, 1);
}

template <class T>
void arg_across(const Plan& plan, const ArgMeaning& meaning, const std::byte* first, int64_t columns,
                std::byte* result) {
  alignas(64) std::array<T, kColumns> block;
  alignas(64) std::array<T, kColumns> best;
  alignas(64) std::array<int64_t, kColumns> best_at{};
  plan.load(first, best.data(), columns);
  for (int64_t i = 1; i < plan.split.extent; ++i) {
    plan.load(first + i * plan.split.inner * plan.element, block.data(), columns);
    for (std::size_t k = 0; k < static_cast<std::size_t>(columns); ++k) {
      const bool better = beats(meaning, block[k], best[k]);
      best[k] = better ? block[k] : best[k];
      best_at[k] = better ? i : best_at[k];
    }
  }
  plan.store(best_at.data(), result, columns);
}

void run_arg(const Plan& plan, const ArgMeaning& meaning, const Arrays& arrays) {
  const AxisSplit& split = plan.split;
  with_number(plan.domain, [&](auto number) {
    using T = decltype(number);
    for_each_columns(split, arrays.team, [&](int64_t outer, int64_t column, int64_t columns, Worker) {
      const std::byte* first =
          arrays.operands[0] + (outer * split.extent * split.inner + column) * plan.element;
      std::byte* result = arrays.results[0] + (outer * split.inner + column) * plan.result_element;
      if (split.inner == 1)
        arg_along<T>(plan, meaning, first, result);
      else
        arg_across<T>(plan, meaning, first, columns, result);
    });
  });
}

Kernel prepare_arg(const Request& request, const ArgMeaning& meaning, std::optional<int64_t> axis) {
  const Operand& input = request.operands[0];
  Plan plan =
      make_plan(request, input.dtype, DType::kI64, axis ? normalize_axis(*axis, input.shape.size()) : 0);
  if (!axis) plan.split = {1, num_elements(input.shape), 1};
  if (plan.split.extent == 0 && plan.split.outer * plan.split.inner != 0)
    throw InvalidGraph({.where = std::string(info(request.op).name),
                        .what = "no extremum of an empty extent",
                        .expected = "at least one element along the axis",
                        .got = to_string(input.shape)});
  Kernel kernel;
  kernel.run = [plan, meaning](const Arrays& arrays) { run_arg(plan, meaning, arrays); };
  return kernel;
}

// ---- cumargmax, cumargmin ----

// For each element, writes the position of the largest (smallest) element up to it: of the last one if
// several are equal, or of the last NaN if there is one.
template <class T>
void arg_so_far(const Plan& plan, bool largest, const std::byte* first, int64_t columns, std::byte* result) {
  alignas(64) std::array<T, kColumns> block;
  alignas(64) std::array<T, kColumns> best;
  alignas(64) std::array<int64_t, kColumns> best_at{};
  for (int64_t i = 0; i < plan.split.extent; ++i) {
    plan.load(first + i * plan.split.inner * plan.element, block.data(), columns);
    for (std::size_t k = 0; k < static_cast<std::size_t>(columns); ++k) {
      const T value = block[k];
      const bool better = largest ? value >= best[k] : value <= best[k];
      if (i != 0 && !is_nan(value) && (is_nan(best[k]) || !better)) continue;
      best[k] = value;
      best_at[k] = i;
    }
    plan.store(best_at.data(), result + i * plan.split.inner * plan.result_element, columns);
  }
}

template <bool largest>
Kernel prepare_arg_so_far(const Request& request) {
  const Operand& input = request.operands[0];
  const Plan plan = make_plan(request, input.dtype, DType::kI64,
                              normalize_axis(attrs_of<AxisAttrs>(request).axis, input.shape.size()));
  Kernel kernel;
  kernel.run = [plan](const Arrays& arrays) {
    const AxisSplit& split = plan.split;
    with_number(plan.domain, [&](auto number) {
      using T = decltype(number);
      for_each_columns(split, arrays.team, [&](int64_t outer, int64_t column, int64_t columns, Worker) {
        const int64_t at = outer * split.extent * split.inner + column;
        arg_so_far<T>(plan, largest, arrays.operands[0] + at * plan.element, columns,
                      arrays.results[0] + at * plan.result_element);
      });
    });
  };
  return kernel;
}

// ---- cumsum ----

double sum(double a, double b) { return a + b; }
int64_t sum(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}
double difference(double a, double b) { return a - b; }
int64_t difference(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b));
}

template <class T>
void cumsum_along(const Plan& plan, const std::byte* row, std::byte* result) {
  alignas(64) std::array<T, kBlockElements> block;
  T total{};
  for (int64_t i = 0; i < plan.split.extent; i += kBlockElements) {
    const int64_t count = std::min(kBlockElements, plan.split.extent - i);
    plan.load(row + i * plan.element, block.data(), count);
    for (std::size_t k = 0; k < static_cast<std::size_t>(count); ++k) block[k] = total = sum(total, block[k]);
    plan.store(block.data(), result + i * plan.result_element, count);
  }
}

template <class T>
void cumsum_across(const Plan& plan, const std::byte* first, int64_t columns, std::byte* result) {
  alignas(64) std::array<T, kColumns> block;
  alignas(64) std::array<T, kColumns> total{};
  for (int64_t i = 0; i < plan.split.extent; ++i) {
    plan.load(first + i * plan.split.inner * plan.element, block.data(), columns);
    for (std::size_t k = 0; k < static_cast<std::size_t>(columns); ++k) total[k] = sum(total[k], block[k]);
    plan.store(total.data(), result + i * plan.split.inner * plan.result_element, columns);
  }
}

void run_cumsum(const Plan& plan, const Arrays& arrays) {
  const AxisSplit& split = plan.split;
  with_number(plan.domain, [&](auto number) {
    using T = decltype(number);
    for_each_columns(split, arrays.team, [&](int64_t outer, int64_t column, int64_t columns, Worker) {
      const int64_t at = outer * split.extent * split.inner + column;
      const std::byte* first = arrays.operands[0] + at * plan.element;
      std::byte* result = arrays.results[0] + at * plan.result_element;
      if (split.inner == 1)
        cumsum_along<T>(plan, first, result);
      else
        cumsum_across<T>(plan, first, columns, result);
    });
  });
}

Kernel prepare_cumsum(const Request& request) {
  const DType dtype = request.results[0].dtype;
  const std::size_t axis =
      normalize_axis(attrs_of<AxisDtypeAttrs>(request).axis, request.operands[0].shape.size());
  const Plan plan = make_plan(request, dtype, dtype, axis);
  Kernel kernel;
  kernel.run = [plan](const Arrays& arrays) { run_cumsum(plan, arrays); };
  return kernel;
}

// ---- diff ----

// One of the operands that diff joins along the axis: prepend, input and append, in this order.
struct Joined {
  std::size_t operand = 0;
  int64_t extent = 0;
};

struct DiffPlan {
  Plan plan;
  std::array<Joined, 3> parts;
  std::size_t part_count = 0;
  int64_t extent = 0;  // the extent of all parts together
  int64_t order = 1;
  bool is_bool = false;
};

template <class T>
void diff_columns(const DiffPlan& diff, const Arrays& arrays, int64_t outer, int64_t column, int64_t columns,
                  T* lines) {
  const Plan& plan = diff.plan;
  T* line = lines;
  for (std::size_t p = 0; p < diff.part_count; ++p) {
    const Joined& part = diff.parts.at(p);
    const int64_t first = outer * part.extent * plan.split.inner + column;
    for (int64_t i = 0; i < part.extent; ++i, line += columns)
      plan.load(arrays.operands[part.operand] + (first + i * plan.split.inner) * plan.element, line, columns);
  }
  const int64_t length = std::max<int64_t>(0, diff.extent - diff.order);
  for (int64_t pass = 1; pass <= diff.order && length > 0; ++pass)
    for (int64_t i = 0; i < (diff.extent - pass) * columns; ++i)
      lines[i] = difference(lines[i + columns], lines[i]);
  if constexpr (std::is_same_v<T, int64_t>) {
    if (diff.is_bool)  // torch's diff of bool is an exclusive or: the difference modulo 2
      for (int64_t i = 0; i < length * columns; ++i) lines[i] &= 1;
  }
  const int64_t first = outer * length * plan.split.inner + column;
  for (int64_t i = 0; i < length; ++i)
    plan.store(lines + i * columns, arrays.results[0] + (first + i * plan.split.inner) * plan.result_element,
               columns);
}

Kernel prepare_diff(const Request& request) {
  const auto& attrs = attrs_of<DiffAttrs>(request);
  const Operand& input = request.operands[0];
  const std::size_t axis = normalize_axis(attrs.axis, input.shape.size());
  DiffPlan diff;
  diff.plan = make_plan(request, input.dtype, input.dtype, axis);
  diff.order = attrs.n;
  diff.is_bool = input.dtype == DType::kBool;
  for (const std::size_t operand : {std::size_t{1}, std::size_t{0}, std::size_t{2}}) {
    if (operand >= request.operands.size() || !request.operands[operand].present) continue;
    if (request.operands[operand].dtype != input.dtype) fail_unsupported(request);
    const int64_t extent = request.operands[operand].shape[axis];
    diff.parts.at(diff.part_count++) = {operand, extent};
    diff.extent += extent;
  }
  Kernel kernel;
  ScratchPlan scratch, own;
  own.take<double>(diff.extent * std::min(kColumns, diff.plan.split.inner));
  const PerWorker lines_of = scratch.take_each(own, request.options.threads.count);
  kernel.scratch_bytes = scratch.bytes();
  kernel.run = [diff, lines_of](const Arrays& arrays) {
    with_number(diff.plan.domain, [&](auto number) {
      using T = decltype(number);
      for_each_columns(diff.plan.split, arrays.team,
                       [&](int64_t outer, int64_t column, int64_t columns, Worker worker) {
                         T* lines = piece<T>(lines_of.of(arrays.scratch, worker), 0);
                         diff_columns<T>(diff, arrays, outer, column, columns, lines);
                       });
    });
  };
  return kernel;
}

template <bool largest>
Kernel prepare_torch_arg(const Request& request) {
  return prepare_arg(request, {largest, false}, attrs_of<ArgAttrs>(request).axis);
}

Kernel prepare_tosa_argmax(const Request& request) {
  const auto& attrs = attrs_of<TosaAxisNanAttrs>(request);
  return prepare_arg(request, {true, attrs.nan_mode == NanMode::kIgnore}, attrs.axis);
}

constexpr OpTable<Prepare> kKernels = {
    {Op::kArgmax, prepare_torch_arg<true>},
    {Op::kArgmin, prepare_torch_arg<false>},
    {Op::kTosaArgmax, prepare_tosa_argmax},
    {Op::kCumargmax, prepare_arg_so_far<true>},
    {Op::kCumargmin, prepare_arg_so_far<false>},
    {Op::kCumsum, prepare_cumsum},
    {Op::kDiff, prepare_diff},
};
static_assert(complete<kKernels.mismatch(has_family<prepare_scan>)>);

}  // namespace

Kernel prepare_scan(const Request& request) { return (*kKernels.find(request.op))(request); }

}  // namespace tosaic::kernels
