#include "tosaic/layout/order.h"

#include <catch2/catch.hpp>

namespace tosaic::layout {
namespace {

const DimOrder kLast = DimOrder::channels_last(4);

TEST_CASE("dim orders are relabelled, shortened and compared in memory", "[layout]") {
  CHECK(relabelled(kLast, {0, 2, 3, 1}).is_identity());
  CHECK(without_axes(kLast, 4, {1}).is_identity());
  CHECK(without_axes(kLast, 4, {0, 3}) == DimOrder({1, 0}));
  CHECK(with_axes(DimOrder({1, 0}), 4, {0, 3}) == DimOrder({0, 2, 3, 1}));
  CHECK(trailing(kLast, 4, 3) == DimOrder({1, 2, 0}));
  CHECK(same_in_memory({1, 3, 1, 1}, kLast, DimOrder()));
  CHECK_FALSE(same_in_memory({1, 3, 1, 2}, kLast, DimOrder()));
}

TEST_CASE("a reshape has a dim order if its groups of axes stay together", "[layout]") {
  CHECK(reshaped({2, 6, 4, 5}, kLast, {2, 6, 20}) == DimOrder({0, 2, 1}));
  CHECK(reshaped({2, 6, 4, 5}, kLast, {2, 2, 3, 4, 5}) == DimOrder({0, 3, 4, 1, 2}));
  CHECK(reshaped({2, 6, 20}, DimOrder({0, 2, 1}), {2, 6, 4, 5}) == kLast);
  CHECK(reshaped({2, 6, 4, 5}, DimOrder(), {240}) == DimOrder());
}

TEST_CASE("a reshape that would split a group of axes has no dim order", "[layout]") {
  CHECK_FALSE(reshaped({2, 6, 4, 5}, kLast, {2, 120}));
  CHECK_FALSE(reshaped({2, 6, 4, 5}, kLast, {12, 4, 5}));
  CHECK_FALSE(reshaped({2, 6, 4, 5}, DimOrder({0, 3, 2, 1}), {2, 6, 20}));
  CHECK_FALSE(reshaped({0, 6, 4}, DimOrder({0, 2, 1}), {6, 0, 4}));
}

TEST_CASE("axes of extent 1 may be anywhere in memory", "[layout]") {
  const auto squeezed = reshaped({1, 6, 1, 5}, kLast, {6, 5});
  REQUIRE(squeezed);
  CHECK(*squeezed == DimOrder({1, 0}));
  const auto widened = reshaped({6, 5}, DimOrder({1, 0}), {1, 6, 1, 5});
  REQUIRE(widened);
  CHECK(same_in_memory({1, 6, 1, 5}, *widened, kLast));
  CHECK(reshaped({1, 3, 1, 1}, kLast, {3}) == DimOrder());
}

}  // namespace
}  // namespace tosaic::layout
