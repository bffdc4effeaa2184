// Checks that the loops of each instruction set quantize floats as ir/quantized_value.h defines it.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tosaic/ir/quantized_value.h"
#include "tosaic/kernels/quantize_block.h"

namespace tosaic::kernels {
namespace {

struct Bounds {
  std::int64_t zero_point, low, high;
};

std::vector<float> numbers(float scale, std::mt19937& random) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<float> values{0, -0.0F, kInf, -kInf, std::nanf(""), 1e30F, -1e30F, 1e-40F, 4194304.5F * scale};
  for (int q = -40; q <= 40; ++q) values.push_back((static_cast<float>(q) + 0.5F) * scale);  // ties
  std::normal_distribution<float> near(0, 100 * scale), far(0, 1e6F * scale);
  for (int i = 0; i < 500; ++i) {
    values.push_back(near(random));
    values.push_back(far(random));
  }
  return values;
}

// Quantizes all values in runs of 0 to 70 elements, and returns how many integers are wrong, or written after
// a run.
template <class T>
std::int64_t count_wrong(void (*quantize)(const float*, std::int64_t, const NarrowQuantization&, T*),
                         float scale, const Bounds& bounds, const std::vector<float>& values) {
  const float inverse = inverse_scale(scale);
  const NarrowQuantization by{inverse, static_cast<float>(bounds.zero_point), static_cast<float>(bounds.low),
                              static_cast<float>(bounds.high)};
  constexpr T kUntouched = 99;
  std::int64_t wrong = 0;
  std::size_t begin = 0;
  for (std::size_t length = 0; begin + length <= values.size(); begin += length, length = (length + 1) % 71) {
    std::vector<T> found(length + 64, kUntouched);
    quantize(values.data() + begin, static_cast<std::int64_t>(length), by, found.data());
    for (std::size_t i = 0; i < length; ++i)
      wrong += found[i] != bound_quantized(quantize_unbounded(values[begin + i], inverse, bounds.zero_point),
                                           bounds.low, bounds.high);
    for (std::size_t i = length; i < found.size(); ++i) wrong += found[i] != kUntouched;
  }
  return wrong;
}

}  // namespace

TEST_CASE("all instruction sets quantize floats as the definition says", "[kernels]") {
  std::mt19937 random(5);
  for (const Isa isa : usable_isas())
    for (const float scale : {1.0F, 0.0173F, 3.5e-5F, 40.0F}) {
      const std::vector<float> values = numbers(scale, random);
      INFO(to_string(isa) << ", scale " << scale);
      const QuantizeKernels& kernels = quantize_kernels(isa);
      for (const Bounds& bounds : {Bounds{0, -128, 127}, Bounds{-128, -128, 127}, Bounds{5, -20, 30}})
        CHECK(count_wrong(kernels.to_bytes, scale, bounds, values) == 0);
      for (const Bounds& bounds : {Bounds{0, -32768, 32767}, Bounds{-1234, -32768, 100}})
        CHECK(count_wrong(kernels.to_words, scale, bounds, values) == 0);
    }
}

}  // namespace tosaic::kernels
