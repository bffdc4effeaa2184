// Checks which tensors a calibration observes, and that fused chains do not hide them.
#include "tosaic/quant/calibrate/calibration.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "exec/chain.h"
#include "tosaic/base/error.h"

namespace tosaic::quant {
namespace {

using exec::Builder;
using exec::f32;
using exec::view;

Range range_of(Calibration& calibration, std::size_t i) { return bounds_of(calibration.statistics()[i]); }

// y = relu(conv(x, w)), z = y + 1. The kernel of the convolution also computes the relu.
struct Net {
  Builder b;
  Net() {
    const ValueId x = b.input("x", f32({1, 1, 2, 2}));
    const ValueId w =
        b.graph->add_constant(make_constant("w", DType::kF32, {1, 1, 1, 1}, std::vector<double>{-2}));
    const ValueId c = b.add(Op::kConv, {x, w, ValueId()}, "conv",
                            ConvAttrs{.stride = {1, 1},
                                      .pad_before = {0, 0},
                                      .pad_after = {0, 0},
                                      .dilation = {1, 1},
                                      .output_padding = {0, 0}});
    const ValueId y = b.add(Op::kRelu, {c}, "relu");
    const ValueId one = b.graph->add_constant(make_constant("one", DType::kF32, {}, std::vector<double>{1}));
    b.output(b.add(Op::kAdd, {y, one}, "sum"));
  }
};

const std::vector<float> kSample{1, -3, 0.5F, 2};

Calibration run(const std::vector<Watch>& watches, std::size_t count) {
  Net net;
  Calibration calibration(exec::prepare(net.b.graph), watches, std::vector<Statistic>(count, Range()));
  const std::vector<exec::ArrayView> inputs{view(kSample, {1, 1, 2, 2})};
  calibration.run(inputs);
  return calibration;
}

}  // namespace

TEST_CASE("inputs, constants and results are observed, inside of a fused chain, too", "[quant]") {
  Calibration all = run({{"x", 0}, {"conv", 1}, {"relu", 2}, {"sum", 3}}, 4);
  CHECK(range_of(all, 0) == Range{-3, 2, 4, 0, 0});
  CHECK(range_of(all, 1) == Range{-4, 6, 4, 0, 0});
  CHECK(range_of(all, 2) == Range{0, 6, 4, 0, 0});
  CHECK(range_of(all, 3) == Range{1, 7, 4, 0, 0});
  Calibration behind = run({{"relu", 0}}, 1), inside = run({{"conv", 0}}, 1);
  CHECK(range_of(behind, 0) == Range{0, 6, 4, 0, 0});
  CHECK(range_of(inside, 0) == Range{-4, 6, 4, 0, 0});
}

TEST_CASE("several tensors feed one statistic, and one tensor several", "[quant]") {
  Calibration shared = run({{"x", 0}, {"relu", 0}, {"relu", 1}}, 2);
  CHECK(range_of(shared, 0) == Range{-3, 6, 8, 0, 0});
  CHECK(range_of(shared, 1) == Range{0, 6, 4, 0, 0});
}

TEST_CASE("a constant is observed once in each run", "[quant]") {
  Calibration with = run({{"w", 0}, {"relu", 0}}, 1);
  CHECK(range_of(with, 0) == Range{-2, 6, 5, 0, 0});
}

TEST_CASE("a tensor with infinities or NaN is refused by name", "[quant]") {
  Net net;
  Calibration calibration(exec::prepare(net.b.graph), {{"relu", 0}}, {Range()});
  const std::vector<float> sample{1, -INFINITY, 0.5F, NAN};
  const std::vector<exec::ArrayView> inputs{view(sample, {1, 1, 2, 2})};
  CHECK_THROWS_WITH(calibration.run(inputs),
                    Catch::Contains("tensor 'relu'") && Catch::Contains("1 infinities"));
}

TEST_CASE("a watch of a tensor that does not exist is refused", "[quant]") {
  Net net;
  CHECK_THROWS_AS(Calibration(exec::prepare(net.b.graph), {{"rleu", 0}}, {Range()}), InvalidGraph);
  CHECK_THROWS_AS(Calibration(exec::prepare(net.b.graph), {{"relu", 1}}, {Range()}), InternalError);
}

}  // namespace tosaic::quant
