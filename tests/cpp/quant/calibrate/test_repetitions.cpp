// Checks that tensors which repeat the elements of others count as if they were observed.
#include "tosaic/quant/calibrate/calibration.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <limits>
#include <random>

#include "exec/chain.h"
#include "tosaic/base/error.h"

namespace tosaic::quant {
namespace {

using exec::Builder;
using exec::f32;
using exec::view;

constexpr std::uint32_t kSamples = 3;

// A chain of tensors that repeat the elements of x: y = 2x is the last one.
struct Chain {
  Builder b;
  std::vector<std::string> names{"x"};

  Chain() {
    ValueId v = b.input("x", f32({2, 3, 4}));
    const auto add = [&](Op op, const std::string& name, auto attrs) {
      v = b.add(op, {v}, name, attrs);
      names.push_back(name);
    };
    add(Op::kPermute, "permute", PermuteAttrs{{2, 0, 1}});
    add(Op::kPad, "pad", PadAttrs{.before = {1, 0, 0}, .after = {0, 2, 0}, .value = -7.5});
    add(Op::kReshape, "reshape", ShapeAttrs{{60, 1}});
    add(Op::kExpand, "expand", ShapeAttrs{{60, 3}});
    add(Op::kFlip, "flip", AxesAttrs{.axes = {0}});
    add(Op::kPad, "crop", PadAttrs{.before = {-3, 0}, .after = {0, 1}, .value = 0.25});
    b.output(v);
  }
};

std::vector<std::vector<float>> samples() {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> found(kSamples, std::vector<float>(24));
  for (std::vector<float>& each : found)
    for (float& value : each) value = normal(random);
  return found;
}

// One statistic of the tensors of these names.
Statistic observed(const Chain& chain, const std::vector<std::string>& names, const Statistic& empty,
                   const exec::PrepareOptions& options = {}) {
  std::vector<Watch> watches;
  for (const std::string& name : names) watches.push_back({name, 0});
  Calibration calibration(exec::prepare(chain.b.graph, options), watches, {empty});
  for (const std::vector<float>& each : samples()) {
    const std::vector<exec::ArrayView> inputs{view(each, {2, 3, 4})};
    calibration.run(inputs);
  }
  return calibration.take().at(0);
}

// The same, each tensor observed on its own.
Statistic merged(const Chain& chain, const Statistic& empty) {
  Statistic sum = empty;
  for (const std::string& name : chain.names) merge(sum, observed(chain, {name}, empty));
  return sum;
}

}  // namespace

TEST_CASE("tensors that repeat the elements of another one count as if they were observed", "[quant]") {
  const Chain chain;
  for (const Statistic& empty : {Statistic(Histogram()), Statistic(Range())}) {
    const Statistic found = observed(chain, chain.names, empty);
    CHECK(found == merged(chain, empty));
    CHECK(bounds_of(found).finite == kSamples * (24 + 24 + 60 + 60 + 180 + 180 + 228));
    CHECK(bounds_of(found).least == -7.5F);
  }
}

TEST_CASE("a repetition is observed where its operand feeds another statistic", "[quant]") {
  const Chain chain;
  Calibration calibration(exec::prepare(chain.b.graph), {{"x", 0}, {"permute", 1}, {"pad", 0}},
                          {Histogram(), Histogram()});
  for (const std::vector<float>& each : samples()) {
    const std::vector<exec::ArrayView> inputs{view(each, {2, 3, 4})};
    calibration.run(inputs);
  }
  const std::vector<Statistic> found = calibration.take();
  CHECK(bounds_of(found[0]).finite == kSamples * (24 + 60));
  CHECK(bounds_of(found[1]).finite == kSamples * 24);
}

TEST_CASE("an operator that the caller replaces is observed", "[quant]") {
  const Chain chain;
  exec::PrepareOptions options;
  options.overrides.nodes["permute"] = [](const exec::NodeCall& call) {
    const std::vector<float> tens(24, 10.0F);
    std::memcpy(call.results[0].data, tens.data(), 24 * sizeof(float));
  };
  CHECK(bounds_of(observed(chain, {"x", "permute"}, Range(), options)).greatest == 10.0F);
}

TEST_CASE("a moving average moves once for each tensor", "[quant]") {
  const Chain chain;
  const Statistic found = observed(chain, {"x", "permute", "pad"}, MovingRange(0.5F));
  MovingRange expected(0.5F);
  for (const std::vector<float>& each : samples()) {
    expected.observe(each);
    expected.observe(each);
    std::vector<float> padded = each;
    padded.push_back(-7.5F);
    expected.observe(padded);
  }
  CHECK(bounds_of(found).least == expected.range().least);
  CHECK(bounds_of(found).greatest == expected.range().greatest);
}

TEST_CASE("a number that is not finite is refused with its tensor", "[quant]") {
  const Chain chain;
  Calibration calibration(exec::prepare(chain.b.graph), {{"permute", 0}, {"pad", 0}}, {Histogram()});
  std::vector<float> data(24, 1.0F);
  data[5] = std::numeric_limits<float>::infinity();
  const std::vector<exec::ArrayView> inputs{view(data, {2, 3, 4})};
  CHECK_THROWS_WITH(calibration.run(inputs), Catch::Contains("tensor 'permute'") &&
                                                 Catch::Contains("1 infinities and 0 NaN among 24"));
}

}  // namespace tosaic::quant
