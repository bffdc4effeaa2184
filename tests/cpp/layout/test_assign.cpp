#include "passes/pass_case.h"
#include "tosaic/layout/assign.h"

namespace tosaic::layout {
namespace {

using passes::Case;

const DimOrder kLast = DimOrder::channels_last(4);

ValueId pooled(Case& c, ValueId x) {
  return c.add(Op::kMaxPool, {x}, PoolAttrs{{1, 1}, {1, 1}, {0, 0}, {1, 1}, false, true, {}});
}

DimOrder order_of(const Case& c, ValueId id) { return assign(c.graph).order[id.index()]; }

TEST_CASE("pools make channels-last values, and elementwise operators follow", "[layout]") {
  Case c;
  const ValueId x = c.input("x", {1, 3, 4, 5}), y = pooled(c, x);
  const ValueId sum = c.add(Op::kAdd, {x, y}), scaled = c.add(Op::kMul, {c.weights("s", {3, 1, 1}), sum});
  CHECK(order_of(c, x).is_identity());
  CHECK(order_of(c, sum) == kLast);
  CHECK(order_of(c, scaled) == kLast);
}

TEST_CASE("an operand of another shape does not decide", "[layout]") {
  Case c;
  const ValueId y = pooled(c, c.input("x", {1, 3, 1, 1}));
  CHECK(order_of(c, c.add(Op::kAdd, {y, c.input("z", {1, 3, 4, 5})})).is_identity());
}

TEST_CASE("concat and reductions that keep axes follow, a reshape does not", "[layout]") {
  Case c;
  const ValueId y = pooled(c, c.input("x", {1, 3, 4, 5}));
  CHECK(order_of(c, c.add(Op::kCat, {c.input("z", {1, 2, 4, 5}), y}, AxisAttrs{1})) == kLast);
  CHECK(order_of(c, c.add(Op::kSum, {y}, ReduceAttrs{{2, 3}, true, {}})) == kLast);
  CHECK(order_of(c, c.add(Op::kSum, {y}, ReduceAttrs{{2, 3}, false, {}})).is_identity());
  CHECK(order_of(c, c.add(Op::kReshape, {y}, ShapeAttrs{{1, 60, 1, 1}})).is_identity());
}

TEST_CASE("a permute to channels-first of a row-major image costs nothing", "[layout]") {
  Case c;
  CHECK(order_of(c, c.add(Op::kPermute, {c.input("x", {1, 4, 5, 3})}, PermuteAttrs{{0, 3, 1, 2}})) == kLast);
}

TEST_CASE("orders are relabelled, shortened and compared in memory", "[layout]") {
  CHECK(relabelled(kLast, {0, 2, 3, 1}).is_identity());
  CHECK(without_axes(kLast, 4, {1}).is_identity());
  CHECK(without_axes(kLast, 4, {0, 3}) == DimOrder({1, 0}));
  CHECK(same_in_memory({1, 3, 1, 1}, kLast, DimOrder()));
  CHECK_FALSE(same_in_memory({1, 3, 1, 2}, kLast, DimOrder()));
}

}  // namespace
}  // namespace tosaic::layout
