// tosa.table and tosa.rescale: integer functions of one element, exact as the specification spells them.
#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>

#include "tosaic/base/error.h"
#include "tosaic/kernels/block.h"

namespace tosaic::kernels {
namespace {

using std::int64_t;

template <class T>
T element(const std::byte* array, int64_t i) {
  T value;
  std::memcpy(&value, array + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <class T>
void put(std::byte* array, int64_t i, T value) {
  std::memcpy(array + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

// ---- table ----

Kernel table_i8(int64_t count) {
  Kernel kernel;
  kernel.in_place = 1;
  kernel.run = [count](const Arrays& arrays) {
    for (int64_t i = 0; i < count; ++i)
      arrays.results[0][i] = arrays.operands[1][element<std::int8_t>(arrays.operands[0], i) + 128];
  };
  return kernel;
}

// Nine bits choose an entry, the other seven lie between it and the next: the result has 7 more bits.
std::int32_t interpolated(const std::byte* table, std::int16_t value) {
  const int offset = value + 32768;
  const int base = element<std::int16_t>(table, offset >> 7);
  const int next = element<std::int16_t>(table, (offset >> 7) + 1);
  const int slope = next - base;
  if (slope < std::numeric_limits<std::int16_t>::min() || slope > std::numeric_limits<std::int16_t>::max())
    throw InvalidGraph(
        {.where = "run",
         .what = "tosa.table: entries " + std::to_string(offset >> 7) + " and the next are too far apart",
         .expected = "a difference of 16 bits",
         .got = std::to_string(slope)});
  return base * 128 + slope * (offset & 127);
}

Kernel table_i16(int64_t count) {
  Kernel kernel;
  kernel.run = [count](const Arrays& arrays) {
    for (int64_t i = 0; i < count; ++i)
      put(arrays.results[0], i,
          interpolated(arrays.operands[1], element<std::int16_t>(arrays.operands[0], i)));
  };
  return kernel;
}

Kernel table(const Request& request) {
  const int64_t count = num_elements(request.results[0].shape);
  const DType dtype = request.operands[0].dtype;
  if (dtype == DType::kI8) return table_i8(count);
  if (dtype == DType::kI16) return table_i16(count);
  fail_unsupported(request);
}

// ---- rescale ----

int64_t load(DType dtype, bool is_unsigned, const std::byte* array, int64_t i) {
  if (dtype == DType::kI8)
    return is_unsigned ? element<std::uint8_t>(array, i) : element<std::int8_t>(array, i);
  if (dtype == DType::kI16)
    return is_unsigned ? element<std::uint16_t>(array, i) : element<std::int16_t>(array, i);
  if (dtype == DType::kI32) return element<std::int32_t>(array, i);
  return element<int64_t>(array, i);  // i48 lies in eight bytes
}

// Low bits: an unsigned element has the bytes of the signed one.
void store(DType dtype, std::byte* array, int64_t i, int64_t value) {
  if (dtype == DType::kI8) return put(array, i, static_cast<std::int8_t>(value));
  if (dtype == DType::kI16) return put(array, i, static_cast<std::int16_t>(value));
  put(array, i, static_cast<std::int32_t>(value));
}

struct Rescale {
  TosaRescaleAttrs attrs;
  DType from = DType::kI8;
  int64_t channels = 1, count = 0;
  int64_t low = 0, high = 0;  // of the result
};

[[noreturn]] void fail_range(const char* what, int64_t low, int64_t high, int64_t got) {
  throw InvalidGraph({.where = "tosa.rescale",
                      .what = std::string(what) + " is out of range",
                      .expected = std::to_string(low) + " to " + std::to_string(high),
                      .got = std::to_string(got)});
}

// round(value * multiplier / 2^shift), half up; with double_round half away from zero at bit 30 first.
int64_t scaled(const Rescale& plan, int64_t value, std::size_t channel) {
  constexpr int64_t kLow = std::numeric_limits<std::int32_t>::min();
  constexpr int64_t kHigh = std::numeric_limits<std::int32_t>::max();
  const int64_t multiplier = plan.attrs.multiplier[channel];
  const int64_t shift = plan.attrs.shift[channel];
  int64_t round = int64_t{1} << (shift - 1);
  if (plan.attrs.scale32) {
    if (value < kLow || value > kHigh) fail_range("the value less its zero point", kLow, kHigh, value);
    if (value < -round || value >= round) fail_range("the value to be shifted", -round, round - 1, value);
    if (plan.attrs.rounding_mode == RoundingMode::kDoubleRound && shift > 31)
      round += value >= 0 ? int64_t{1} << 30 : -(int64_t{1} << 30);
  }
  const int64_t result = (value * multiplier + round) >> shift;
  if (result < kLow || result > kHigh) fail_range("the scaled value", kLow, kHigh, result);
  return result;
}

void run_rescale(const Rescale& plan, const std::byte* input, std::byte* output) {
  const TosaRescaleAttrs& a = plan.attrs;
  for (int64_t i = 0; i < plan.count; ++i) {
    const int64_t value = load(plan.from, a.input_unsigned, input, i) - a.input_zp;
    const int64_t moved = scaled(plan, value, static_cast<std::size_t>(i % plan.channels)) + a.output_zp;
    store(a.dtype, output, i, std::clamp(moved, plan.low, plan.high));
  }
}

Kernel rescale(const Request& request) {
  Rescale plan;
  plan.attrs = attrs_of<TosaRescaleAttrs>(request);
  plan.from = request.operands[0].dtype;
  plan.count = num_elements(request.results[0].shape);
  plan.channels = static_cast<int64_t>(plan.attrs.multiplier.size());
  const auto bits = static_cast<int>(byte_size(plan.attrs.dtype)) * 8;
  const bool is_unsigned = plan.attrs.output_unsigned;
  plan.low = is_unsigned ? 0 : -(int64_t{1} << (bits - 1));
  plan.high = (int64_t{1} << (is_unsigned ? bits : bits - 1)) - 1;
  Kernel kernel;
  kernel.in_place = 1;
  kernel.run = [plan = std::make_shared<const Rescale>(std::move(plan))](const Arrays& arrays) {
    run_rescale(*plan, arrays.operands[0], arrays.results[0]);
  };
  return kernel;
}

}  // namespace

Kernel prepare_requantize(const Request& request) {
  Kernel kernel;
  if (request.op == Op::kTosaTable) kernel = table(request);
  if (request.op == Op::kTosaRescale) kernel = rescale(request);
  if (kernel.run) kernel.name = std::string(info(request.op).name) + ".reference";
  return kernel;
}

}  // namespace tosaic::kernels
