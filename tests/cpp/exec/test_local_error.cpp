// Checks how far integers may be off that were rounded from numbers near a tie.
#include "tosaic/exec/local_error.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "exec/chain.h"
#include "tosaic/ir/attributes.h"

namespace tosaic::exec {
namespace {

constexpr std::int64_t kCount = 4000;

// z = reshape(quantize(x + y)), with a scale of 1.
struct Sum {
  Builder b;
  ValueId x = b.input("x", f32({kCount})), y = b.input("y", f32({kCount}));
  ValueId moved;
  Sum() {
    const ValueId sum = b.add(Op::kAdd, {x, y}, "sum");
    const ValueId rounded =
        b.add(Op::kQuantize, {sum}, "rounded", QuantizeAttrs{.axis = {}, .scales = {1}, .zero_points = {0}});
    moved = b.add(Op::kReshape, {rounded}, "moved", ShapeAttrs{.shape = {2, kCount / 2}});
    b.output(moved);
  }
};

// Sums that are `off` units above a tie, give or take a few units in the last place.
std::vector<float> near_ties(double off) {
  std::vector<float> sums;
  for (std::int64_t i = 0; i < kCount; ++i)
    sums.push_back(static_cast<float>(static_cast<double>(i % 100) - 49.5 + off +
                                      1e-6 * static_cast<double>(i % 7 - 3)));
  return sums;
}

// The share of integers each of which is rounded to the other side of the tie.
double share_of_others(double off) {
  const Sum net;
  const std::vector<float> x = near_ties(off), y(kCount, 0.0F);
  PrepareOptions options;
  options.overrides = with_quantizers({});
  LocalReference local(*net.b.graph, options);
  local.set_input(net.x, {view(x, {kCount}), {}});
  local.set_input(net.y, {view(y, {kCount}), {}});
  for (const Node& node : net.b.graph->nodes()) REQUIRE(local.run(node));
  const ArrayView made = local.made(net.moved);
  std::vector<std::int8_t> other;
  for (std::int64_t i = 0; i < kCount; ++i) {
    const auto rounded = static_cast<double>(reinterpret_cast<const std::int8_t*>(made.data)[i]);
    const double exact = x[static_cast<std::size_t>(i)];
    other.push_back(static_cast<std::int8_t>(rounded + (exact >= rounded ? 1 : -1)));
  }
  return local.share(net.moved, view(other, DType::kI8, {2, kCount / 2}), nullptr);
}

}  // namespace

TEST_CASE("integers that are moved before they are compared may be rounded otherwise near a tie", "[exec]") {
  // Noise alone carries some of these sums over the tie.
  CHECK(share_of_others(0) <= 1);
  CHECK(share_of_others(0.001) <= 1);
  CHECK(std::isinf(share_of_others(0.1)));
}

}  // namespace tosaic::exec
