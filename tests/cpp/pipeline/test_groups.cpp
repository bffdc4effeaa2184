#include <random>

#include "passes/pass_case.h"
#include "tosaic/pipeline/executable.h"
#include "tosaic/pipeline/lower.h"

namespace tosaic::pipeline {
namespace {

using passes::Case;

// A program of one contraction over quantized values, whose weight has groups.
class Program {
 public:
  explicit Program(std::uint32_t seed) : random_(seed) {}

  // x with a scale for the tensor.
  ValueId quantized(ValueId x, DType dtype, double scale, std::int64_t zero_point) {
    const std::int64_t top = dtype == DType::kI8 ? 127 : 32767;
    const QuantizeAttrs attrs{dtype, {}, -top - 1, top, {scale}, {zero_point}, {}};
    const DequantizeAttrs back{DType::kF32, {}, -top - 1, top, {scale}, {zero_point}, {}};
    return c.add(Op::kDequantize, {c.add(Op::kQuantize, {x}, attrs, "q")}, back, "dq");
  }

  // Integers from -bound to bound with random scales and zero points.
  ValueId weight(const Shape& shape, std::int64_t axis, Groups groups, std::int64_t bound, bool zeros) {
    const auto count = static_cast<std::size_t>(scale_count(shape, axis, groups));
    DequantizeAttrs attrs{DType::kF32, axis, -128, 127, {}, {}, groups};
    for (std::size_t k = 0; k < count; ++k) {
      attrs.scales.push_back(static_cast<float>(std::exp(uniform(-6, 0))));
      attrs.zero_points.push_back(zeros ? std::llround(uniform(-8, 8)) : 0);
    }
    std::vector<double> values;
    for (std::int64_t k = 0; k < num_elements(shape); ++k)
      values.push_back(std::round(uniform(static_cast<double>(-bound), static_cast<double>(bound))));
    return c.add(Op::kDequantize, {c.constant("w", shape, values, DType::kI8)}, attrs, "dq_weight");
  }

  std::vector<double> floats(std::int64_t count, double bound) {
    std::vector<double> out;
    for (std::int64_t k = 0; k < count; ++k) out.push_back(static_cast<float>(uniform(-bound, bound)));
    return out;
  }

  Case c;

 private:
  double uniform(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_);
  }
  std::mt19937 random_;
};

// Lowers the program to integers. Returns the largest difference from the exported graph, in `unit`.
double units_off(const Case& c, const char* target, const std::vector<double>& x, double unit) {
  const auto graph = std::make_shared<const Graph>(c.graph);
  const Lowered lowered = lower(graph, default_pipeline(target::parse_target(target)));
  for (const Value& value : lowered.tosa->values()) REQUIRE_FALSE(is_float(value.type.dtype));
  const auto expected = passes::results_of(*executable(graph), {x}).front();
  const auto found = passes::results_of(*lowered.tosa, {x}).front();
  REQUIRE(expected.size() == found.size());
  double most = 0, moved = 0;
  for (std::size_t k = 0; k < found.size(); ++k) {
    most = std::max(most, std::abs(expected[k] - found[k]) / unit);
    moved = std::max(moved, std::abs(expected[k]) / unit);
  }
  CHECK(moved > 2);  // the results are not zeros
  return most;
}

TEST_CASE("a linear layer with groups is within one unit of its float meaning", "[groups]") {
  for (std::uint32_t seed = 0; seed < 24; ++seed) {
    const bool wide = seed % 3 == 2;
    const std::int64_t size = 2 + seed % 5, groups = 1 + seed % 4, out = 1 + seed % 7;
    CAPTURE(seed, size, groups, out);
    Program p(seed);
    const ValueId x = p.quantized(p.c.input("x", {3, groups * size}), wide ? DType::kI16 : DType::kI8,
                                  wide ? 0.0002 : 0.04, wide ? 0 : 5);
    const ValueId w = p.weight({out, groups * size}, 0, {1, size}, seed % 2 == 0 ? 8 : 120, seed % 4 == 1);
    const ValueId bias = seed % 5 == 0 ? ValueId() : p.c.weights("b", {out});
    const double unit = wide ? 0.002 : 0.5;
    const ValueId y = p.c.add(Op::kLinear, {x, w, bias}, "linear");
    p.c.output(p.quantized(y, wide ? DType::kI16 : DType::kI8, unit, wide ? 0 : -3));
    CHECK(units_off(p.c, wide ? "TOSA-1.0+INT+int16" : "TOSA-1.0+INT", p.floats(3 * groups * size, 5),
                    unit) <= (wide ? 2.01 : 1.01));
  }
}

TEST_CASE("a product with a matrix of groups is within one unit of its float meaning", "[groups]") {
  for (std::uint32_t seed = 0; seed < 8; ++seed) {
    CAPTURE(seed);
    Program p(seed);
    const ValueId x = p.quantized(p.c.input("x", {2, 3, 12}), DType::kI8, 0.04, 5);
    p.c.output(
        p.quantized(p.c.add(Op::kMatmul, {x, p.weight({12, 5}, 1, {0, 4}, 8, seed % 2 == 0)}, "matmul"),
                    DType::kI8, 0.5, 0));
    CHECK(units_off(p.c, "TOSA-1.0+INT", p.floats(72, 5), 0.5) <= 1.01);
  }
}

TEST_CASE("a convolution with groups of input channels is within one unit of its float meaning", "[groups]") {
  for (std::uint32_t seed = 0; seed < 12; ++seed) {
    const bool wide = seed % 3 == 2;
    const std::int64_t blocks = seed % 4 == 3 ? 2 : 1;
    CAPTURE(seed, blocks);
    Program p(seed);
    const ValueId x = p.quantized(p.c.input("x", {1, 8 * blocks, 5, 4}), wide ? DType::kI16 : DType::kI8,
                                  wide ? 0.0002 : 0.04, wide ? 0 : 5);
    const ValueId w = p.weight({4, 8, 3, 3}, 0, {1, 4}, seed % 2 == 0 ? 8 : 120, seed % 4 == 1);
    const ConvAttrs attrs{{1, 1}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, blocks, false};
    const double unit = wide ? 0.002 : 0.5;
    p.c.output(p.quantized(p.c.add(Op::kConv, {x, w, p.c.weights("b", {4})}, attrs, "conv"),
                           wide ? DType::kI16 : DType::kI8, unit, wide ? 0 : -3));
    CHECK(units_off(p.c, wide ? "TOSA-1.0+INT+int16" : "TOSA-1.0+INT", p.floats(160 * blocks, 5), unit) <=
          (wide ? 2.01 : 1.01));
  }
}

TEST_CASE("groups along another axis than the input channels lower too", "[groups]") {
  Program p(1);
  const ValueId x = p.quantized(p.c.input("x", {3, 8}), DType::kI8, 0.04, 5);
  p.c.output(
      p.quantized(p.c.add(Op::kLinear, {x, p.weight({6, 8}, 1, {0, 3}, 8, false), ValueId()}, "linear"),
                  DType::kI8, 0.5, 0));
  CHECK(units_off(p.c, "TOSA-1.0+INT", p.floats(24, 5), 0.5) <= 1.01);
}

}  // namespace
}  // namespace tosaic::pipeline
