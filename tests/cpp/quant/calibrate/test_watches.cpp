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

std::vector<Range> ranges_of(const std::vector<Watch>& watches, std::size_t count) {
  Net net;
  Calibration calibration(exec::prepare(net.b.graph), watches, std::vector<Statistic>(count, Range()));
  const std::vector<exec::ArrayView> inputs{view(kSample, {1, 1, 2, 2})};
  calibration.run(inputs);
  std::vector<Range> found;
  for (const Statistic& each : calibration.take()) found.push_back(bounds_of(each));
  return found;
}

}  // namespace

TEST_CASE("inputs, constants and results are observed, inside of a fused chain, too", "[quant]") {
  const std::vector<Range> all = ranges_of({{"x", 0}, {"conv", 1}, {"relu", 2}, {"sum", 3}}, 4);
  CHECK(all == std::vector<Range>{{-3, 2, 4, 0, 0}, {-4, 6, 4, 0, 0}, {0, 6, 4, 0, 0}, {1, 7, 4, 0, 0}});
  CHECK(ranges_of({{"relu", 0}}, 1) == std::vector<Range>{{0, 6, 4, 0, 0}});
  CHECK(ranges_of({{"conv", 0}}, 1) == std::vector<Range>{{-4, 6, 4, 0, 0}});
}

TEST_CASE("several tensors feed one statistic, and one tensor several", "[quant]") {
  CHECK(ranges_of({{"x", 0}, {"relu", 0}, {"relu", 1}}, 2) ==
        std::vector<Range>{{-3, 6, 8, 0, 0}, {0, 6, 4, 0, 0}});
}

TEST_CASE("a constant is observed once in each run", "[quant]") {
  CHECK(ranges_of({{"w", 0}, {"relu", 0}}, 1) == std::vector<Range>{{-2, 6, 5, 0, 0}});
}

TEST_CASE("what was taken is not in the statistics of later samples", "[quant]") {
  Net net;
  Calibration calibration(exec::prepare(net.b.graph), {{"relu", 0}, {"conv", 1}, {"sum", 2}},
                          {Histogram(), Range(), MovingRange(0.5F, true)});
  const std::vector<exec::ArrayView> inputs{view(kSample, {1, 1, 2, 2})};
  calibration.run(inputs);
  const std::vector<Statistic> first = calibration.take();
  CHECK(bounds_of(first[0]).finite == 4);
  calibration.run(inputs);
  CHECK(calibration.take() == first);
  CHECK(bounds_of(calibration.take()[0]).finite == 0);
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
