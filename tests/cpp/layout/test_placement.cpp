// A placement does not depend on the shape in which its elements are seen. The tests compare placements,
// their orders, permutes and cuts with the list of the elements in memory.

#include "tosaic/layout/placement.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <vector>

#include "tosaic/layout/order.h"

namespace tosaic::layout {
namespace {

// The counts of all elements (their row-major indices), in the order in which the elements are in memory.
std::vector<std::int64_t> in_memory(const Shape& shape, const Dims& axes) {
  const Dims strides = contiguous_strides(shape);
  std::vector<std::int64_t> out{0};
  for (const std::int64_t axis : axes) {
    std::vector<std::int64_t> next;
    for (const std::int64_t start : out)
      for (std::int64_t i = 0; i < shape[static_cast<std::size_t>(axis)]; ++i)
        next.push_back(start + i * strides[static_cast<std::size_t>(axis)]);
    out = std::move(next);
  }
  return out;
}

std::vector<std::int64_t> in_memory(const Placement& placement) {
  std::vector<std::int64_t> out{0};
  for (const Run& run : placement) {
    std::vector<std::int64_t> next;
    for (const std::int64_t start : out)
      for (std::int64_t i = 0; i < run.extent; ++i) next.push_back(start + i * run.stride);
    out = std::move(next);
  }
  return out;
}

const std::vector<Shape> kShapes = {{2, 2, 6}, {4, 6}, {6, 4}, {1, 3, 1, 8}, {24}, {2, 3, 2, 2}, {3, 2, 4}};

template <class Visit>
void for_each_order(const Shape& shape, Visit visit) {
  std::vector<std::int64_t> axes(shape.size());
  std::iota(axes.begin(), axes.end(), 0);
  do visit(DimOrder(Dims(std::span<const std::int64_t>(axes))));
  while (std::next_permutation(axes.begin(), axes.end()));
}

TEST_CASE("placements are equal exactly if the elements have the same places in memory", "[layout]") {
  std::vector<std::pair<Placement, std::vector<std::int64_t>>> known;
  for (const Shape& shape : kShapes) {
    for_each_order(shape, [&](const DimOrder& order) {
      const Placement placement = placement_of(shape, order);
      const std::vector<std::int64_t> elements = in_memory(shape, order.axes(shape.size()));
      CHECK(in_memory(placement) == elements);
      for (const auto& [other, others] : known) CHECK((placement == other) == (elements == others));
      known.emplace_back(placement, elements);
    });
  }
}

TEST_CASE("order_with finds an order exactly if one of the shape's orders has the placement", "[layout]") {
  for (const Shape& from : kShapes) {
    for_each_order(from, [&](const DimOrder& order) {
      const Placement placement = placement_of(from, order);
      for (const Shape& shape : kShapes) {
        bool any = false;
        for_each_order(shape, [&](const DimOrder& each) { any |= placement_of(shape, each) == placement; });
        const std::optional<DimOrder> found = order_with(shape, placement);
        CHECK(found.has_value() == any);
        if (found) CHECK(placement_of(shape, *found) == placement);
      }
    });
  }
}

TEST_CASE("a permute relabels a placement and moves no element", "[layout]") {
  for (const Shape& from : kShapes) {
    for_each_order(from, [&](const DimOrder& order) {
      const Placement placement = placement_of(from, order);
      const Shape shape{4, 6};
      const Dims perm{1, 0};
      const std::optional<Placement> behind = relabelled(shape, placement, perm);
      CHECK(behind.has_value() == merged(cuts_of(shape), cuts_of(placement, 24)).has_value());
      if (!behind) return;
      std::vector<std::int64_t> expected = in_memory(placement);
      for (std::int64_t& element : expected) element = element % 6 * 4 + element / 6;
      CHECK(in_memory(*behind) == expected);
      CHECK(relabelled({6, 4}, *behind, perm) == placement);
    });
  }
}

TEST_CASE("cuts are merged if a shape can have both", "[layout]") {
  CHECK(cuts_of(Shape{2, 1, 3, 4}) == Cuts{1, 4, 12, 24});
  CHECK(merged(cuts_of(Shape{2, 12}), cuts_of(Shape{6, 4})) == Cuts{1, 4, 12, 24});
  CHECK_FALSE(merged(cuts_of(Shape{4, 6}), cuts_of(Shape{6, 4})));
  CHECK(split_at(Cuts{1, 4, 12, 24}, {{4, 1}, {6, 4}}) == Placement{{4, 1}, {2, 12}, {3, 4}});
}

}  // namespace
}  // namespace tosaic::layout
