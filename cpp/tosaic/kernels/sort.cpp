// argsort along an axis (axis_columns.h). An element is sorted as a 64-bit key, whose order is the order of
// the numbers, with its position.

#include <bit>
#include <cmath>
#include <limits>

#include "tosaic/base/error.h"
#include "tosaic/kernels/axis_columns.h"
#include "tosaic/kernels/families.h"
#include "tosaic/kernels/scratch.h"

namespace tosaic::kernels {
namespace {

using std::int64_t;
using std::uint64_t;

constexpr uint64_t kSign = uint64_t{1} << 63;

struct Place {
  uint64_t key = 0;
  int64_t at = 0;
  friend bool operator<(const Place& a, const Place& b) {
    return a.key != b.key ? a.key < b.key : a.at < b.at;
  }
};

uint64_t key_of(int64_t value) { return static_cast<uint64_t>(value) ^ kSign; }

// Zeros of both signs are equal, and a NaN is larger than infinity.
uint64_t key_of(double value) {
  if (std::isnan(value)) return std::numeric_limits<uint64_t>::max();
  const auto bits = std::bit_cast<uint64_t>(value == 0 ? 0.0 : value);
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}

struct Plan {
  AxisSplit split;
  Domain domain = Domain::kF64;
  ConvertBlock load = nullptr, store = nullptr;
  int64_t element = 0;
  bool descending = false;
  int64_t count = 0;  // of positions of a line
  PerWorker scratch;
  std::size_t values = 0, places = 0, positions = 0;  // offsets in the scratch memory of a worker
};

// Sorts `columns` lines, which lie side by side.
template <class T>
void sort_columns(const Plan& plan, const std::byte* first, int64_t columns, std::byte* result,
                  std::byte* scratch) {
  const int64_t extent = plan.split.extent, inner = plan.split.inner;
  T* values = piece<T>(scratch, plan.values);
  Place* places = piece<Place>(scratch, plan.places);
  int64_t* positions = piece<int64_t>(scratch, plan.positions);
  if (inner == 1)
    plan.load(first, values, extent);
  else
    for (int64_t i = 0; i < extent; ++i)
      plan.load(first + i * inner * plan.element, values + i * columns, columns);
  for (int64_t column = 0; column < columns; ++column) {
    for (int64_t i = 0; i < extent; ++i) {
      const uint64_t key = key_of(values[i * columns + column]);
      places[i] = {plan.descending ? ~key : key, i};
    }
    std::partial_sort(places, places + plan.count, places + extent);
    for (int64_t i = 0; i < plan.count; ++i) positions[i * columns + column] = places[i].at;
  }
  for (int64_t i = 0; i < plan.count; ++i)
    plan.store(positions + i * columns, result + i * inner * static_cast<int64_t>(sizeof(int64_t)), columns);
}

}  // namespace

Kernel prepare_sort(const Request& request) {
  const auto& attrs = attrs_of<SortAttrs>(request);
  const Operand& input = request.operands[0];
  if (request.results[0].dtype != DType::kI64) fail_unsupported(request);
  const Isa isa = request.options.reference ? Isa::kBaseline : request.options.isa;
  const ConvertKernels& convert = convert_kernels(isa);
  Plan plan;
  plan.split = input.shape.empty() ? AxisSplit{}
                                   : split_at(input.shape, normalize_axis(attrs.axis, input.shape.size()));
  plan.domain = domain_of(input.dtype, true);
  plan.load = convert.load(input.dtype, plan.domain);
  plan.store = convert.store(Domain::kI64, DType::kI64, Rounding::kTruncate);
  plan.element = static_cast<int64_t>(byte_size(input.dtype));
  plan.descending = attrs.descending;
  plan.count = attrs.count.value_or(plan.split.extent);
  const int64_t columns = std::min(kColumns, std::max<int64_t>(1, plan.split.inner));
  ScratchPlan scratch, own;
  plan.values = own.take<double>(plan.split.extent * columns);
  plan.places = own.take<Place>(plan.split.extent);
  plan.positions = own.take<int64_t>(plan.split.extent * columns);
  plan.scratch = scratch.take_each(own, request.options.threads.count);
  Kernel kernel;
  kernel.scratch_bytes = scratch.bytes();
  kernel.run = [plan](const Arrays& arrays) {
    const AxisSplit& split = plan.split;
    const double extent = static_cast<double>(std::max<int64_t>(2, split.extent));
    const double lines = static_cast<double>(std::min(kColumns, split.inner));
    const double unit_cost = lines * extent * std::log2(extent) * 4 * cost::kCopy;
    with_number(plan.domain, [&](auto number) {
      using T = decltype(number);
      for_each_columns(split, unit_cost, arrays.team,
                       [&](int64_t outer, int64_t column, int64_t count, Worker worker) {
                         const int64_t from = outer * split.extent * split.inner + column;
                         const int64_t to = outer * plan.count * split.inner + column;
                         sort_columns<T>(plan, arrays.operands[0] + from * plan.element, count,
                                         arrays.results[0] + to * static_cast<int64_t>(sizeof(int64_t)),
                                         plan.scratch.of(arrays.scratch, worker));
                       });
    });
  };
  return kernel;
}

}  // namespace tosaic::kernels
