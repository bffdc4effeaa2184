// run_kernel: runs one operator on plain arrays with the kernels that prepare() returns. These are the
// reference, and the fast kernel of every usable instruction set. Each runs with several numbers of threads,
// too.
#pragma once

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "tosaic/ir/storage.h"
#include "tosaic/kernels/kernel.h"

namespace tosaic::kernels::testing {

// An operand or result. Its elements are doubles, which represent every value of the tests exactly.
struct Array {
  DType dtype = DType::kF32;
  Shape shape = {};
  std::vector<double> values = {};
  bool constant = false;
  bool present = true;
};

inline const Array kAbsent{
    .dtype = DType::kF32, .shape = {}, .values = {}, .constant = false, .present = false};

inline Array array(DType dtype, const Shape& shape, std::vector<double> values) {
  if (static_cast<std::int64_t>(values.size()) != num_elements(shape))
    throw std::logic_error("array: wrong count");
  return {dtype, shape, std::move(values)};
}

inline Array constant(Array array) {
  array.constant = true;
  return array;
}

// Random elements: multiples of 1/8 from -2 to 2 for floats, and integers from -16 to 16 for other dtypes.
// Floats other than f8e5m2 represent these values exactly.
inline Array random_array(std::mt19937& random, DType dtype, const Shape& shape) {
  std::uniform_int_distribution<int> numbers(-16, 16);
  std::vector<double> values(static_cast<std::size_t>(num_elements(shape)));
  for (double& value : values) value = is_float(dtype) ? numbers(random) / 8.0 : numbers(random);
  return {dtype, shape, std::move(values)};
}

// Random elements of f32 with a normal distribution.
inline Array normal_array(std::mt19937& random, const Shape& shape) {
  std::normal_distribution<float> numbers;
  std::vector<double> values(static_cast<std::size_t>(num_elements(shape)));
  for (double& value : values) value = numbers(random);
  return {DType::kF32, shape, std::move(values)};
}

inline Array absolute(Array array) {
  for (double& value : array.values) value = std::abs(value);
  return array;
}

// 64-byte aligned memory of exactly this size, so that sanitizers see an overrun.
class Bytes {
 public:
  explicit Bytes(std::size_t size)
      : data_(static_cast<std::byte*>(::operator new(size, kAlign))), size_(size) {}
  [[nodiscard]] std::byte* data() const { return data_.get(); }
  void fill(unsigned char value) { std::memset(data_.get(), value, size_); }

 private:
  static constexpr std::align_val_t kAlign{64};
  struct Free {
    void operator()(std::byte* data) const { ::operator delete(data, kAlign); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t size_;
};

inline Bytes stored(const Array& array) {
  const std::size_t size = byte_size(array.dtype);
  Bytes bytes(array.values.size() * size);
  for (std::size_t i = 0; i < array.values.size(); ++i)
    store_element(array.dtype, bytes.data() + i * size, array.values[i]);
  return bytes;
}

struct Call {
  Op op;
  Attrs attrs;
  std::vector<Array> operands = {};
  DType dtype = DType::kF32;  // dtype of the result
  Shape shape = {};
};

struct Outcome {
  std::vector<double> values;
  std::string name;
  std::optional<std::size_t> form_row;
};

// Requires that a run of several threads has the bytes of `expected`. The calls take turns with 2, 3 and 8
// threads.
inline void check_threads(const Request& request, std::span<const std::byte* const> operands,
                          const Bytes& expected, std::size_t size) {
  static std::size_t calls = 0;
  constexpr std::uint32_t kThreads[] = {2, 3, 8};
  const std::uint32_t threads = kThreads[calls++ % std::size(kThreads)];
  Request shared = request;
  shared.options.threads = {threads, true};
  const Kernel kernel = prepare(shared);
  Bytes result(size), scratch(kernel.scratch_bytes);
  scratch.fill(0xff);
  std::byte* results[] = {result.data()};
  Team team(threads, true);
  kernel.run({operands, results, scratch.data(), &team});
  INFO(kernel.name << " by " << threads << " threads");
  REQUIRE(std::memcmp(result.data(), expected.data(), size) == 0);
}

inline Outcome run(const Call& call, const Options& options) {
  std::vector<Bytes> bytes;
  for (const Array& array : call.operands) bytes.push_back(stored(array));
  std::vector<Operand> operands;
  std::vector<const std::byte*> pointers;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const Array& array = call.operands[i];
    pointers.push_back(array.present ? bytes[i].data() : nullptr);
    operands.push_back({array.dtype, array.shape, array.constant ? bytes[i].data() : nullptr, array.present});
  }
  const std::vector<Operand> results{{call.dtype, call.shape, nullptr, true}};
  const Request request{call.op, &call.attrs, operands, results, options};
  const Kernel kernel = prepare(request);

  const std::size_t size = byte_size(call.dtype);
  const auto count = static_cast<std::size_t>(num_elements(call.shape));
  Bytes result(count * size);
  Bytes again(count * size);
  Bytes scratch(kernel.scratch_bytes);
  for (Bytes* to : {&result, &again}) {
    scratch.fill(0xff);  // NaNs show if a kernel reads scratch that it did not write
    std::byte* results_at[] = {to->data()};
    kernel.run({pointers, results_at, scratch.data()});
  }
  REQUIRE(std::memcmp(result.data(), again.data(), count * size) == 0);
  check_threads(request, pointers, result, count * size);
  Outcome outcome{{}, kernel.name, kernel.form_row};
  for (std::size_t i = 0; i < count; ++i)
    outcome.values.push_back(load_element(call.dtype, result.data() + i * size));
  return outcome;
}

inline std::vector<double> reference(const Call& call) { return run(call, {.reference = true}).values; }

// The distance from |value|, rounded to f32, to the next larger f32.
inline double spacing(double value) {
  const auto magnitude = static_cast<float>(std::abs(value));
  return static_cast<double>(std::nextafter(magnitude, INFINITY)) - static_cast<double>(magnitude);
}

// Compares a fast kernel with the reference, within the tolerance of the operator. `scales` has the `scale`
// of Tolerance (kernel.h) for each element. Integers must be equal.
inline void check_outcome(const Call& call, const Outcome& fast, const std::vector<double>& expected,
                          const std::vector<double>& scales) {
  const Tolerance allowed = tolerance(call.op, call.dtype);
  INFO(fast.name);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double bound =
        is_float(call.dtype) ? allowed.ulp * spacing(expected[i]) + allowed.relative * scales[i] : 0;
    const bool same =
        fast.values[i] == expected[i] || (std::isnan(fast.values[i]) && std::isnan(expected[i]));
    if (same || std::abs(fast.values[i] - expected[i]) <= bound) continue;
    INFO("element " << i);
    CHECK(fast.values[i] == expected[i]);
    return;
  }
  SUCCEED();
}

// Runs the fast kernel of every instruction set, and lets check_outcome() compare its result with that of the
// reference kernel.
inline void check_fast_paths(const Call& call, const std::vector<double>& scales) {
  const std::vector<double> expected = reference(call);
  for (const Isa isa : usable_isas())
    check_outcome(call, run(call, {.reference = false, .isa = isa}), expected, scales);
}

// The same comparison, with the results of the call on absolute values as scales.
inline void check_fast_paths(const Call& call) {
  Call absolutes = call;
  for (Array& operand : absolutes.operands) operand = absolute(operand);
  check_fast_paths(call, reference(absolutes));
}

}  // namespace tosaic::kernels::testing
