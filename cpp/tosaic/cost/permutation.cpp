#include "tosaic/cost/permutation.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tosaic::cost {
namespace {

using Axes = std::vector<std::int64_t>;

std::int64_t product(const Axes& axes, std::size_t first, std::size_t last) {
  return std::accumulate(axes.begin() + static_cast<std::ptrdiff_t>(first),
                         axes.begin() + static_cast<std::ptrdiff_t>(last), std::int64_t{1},
                         std::multiplies<>());
}

struct Reduced {
  Axes extents;                     // of the operand
  std::vector<std::size_t> places;  // axis i of the result is axis places[i] of the operand
};

// Drops axes of extent 1. If more than three are left, merges axes that stay together.
Reduced reduced(const Shape& shape, const Dims& permutation) {
  Reduced out;
  std::vector<std::size_t> order;  // axes of the operand, in the order of the result
  for (const std::int64_t axis : permutation)
    if (const auto i = static_cast<std::size_t>(axis); shape[i] != 1) order.push_back(i);
  std::vector<std::vector<std::size_t>> groups;
  const auto follows = [&](std::size_t a, std::size_t b) {
    for (std::size_t i = a + 1; i < b; ++i)
      if (shape[i] != 1) return false;
    return a < b;
  };
  const bool merges = order.size() > 3;
  for (const std::size_t axis : order)
    if (merges && !groups.empty() && follows(groups.back().back(), axis))
      groups.back().push_back(axis);
    else
      groups.push_back({axis});
  std::vector<std::size_t> sorted(groups.size());
  std::iota(sorted.begin(), sorted.end(), std::size_t{0});
  std::ranges::sort(sorted, {}, [&](std::size_t i) { return groups[i].front(); });
  out.places.resize(groups.size());
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    std::int64_t extent = 1;
    for (const std::size_t axis : groups[sorted[i]]) extent *= shape[axis];
    out.extents.push_back(extent);
    out.places[sorted[i]] = i;
  }
  return out;
}

// One pass that swaps neighbouring groups of axes: those before `middle` and those from it on, in [first,
// last).
Pass exchange(Axes& axes, std::size_t first, std::size_t middle, std::size_t last) {
  const std::int64_t before = product(axes, 0, first), after = product(axes, last, axes.size());
  const std::int64_t left = product(axes, first, middle), right = product(axes, middle, last);
  std::rotate(axes.begin() + static_cast<std::ptrdiff_t>(first),
              axes.begin() + static_cast<std::ptrdiff_t>(middle),
              axes.begin() + static_cast<std::ptrdiff_t>(last));
  if (first == 0) return {{left, right, after}, {right, left, after}};
  return {{before, left, right}, {before, right, left}, Axis::kWidth};
}

void swap_axes(Axes& axes, std::size_t a, std::size_t b, std::vector<Pass>& out) {
  const std::size_t last = axes.size() - 1;
  if ((a == 0 && b == 1) || (a + 1 == last && b == last)) {
    out.push_back(exchange(axes, a, b, b + 1));
  } else if (a != 0) {
    out.push_back(exchange(axes, 0, a, a + 1));
    swap_axes(axes, 0, b, out);
    out.push_back(exchange(axes, 0, 1, a + 1));
  } else if (b != last) {
    out.push_back(exchange(axes, b, b + 1, axes.size()));
    swap_axes(axes, 0, last, out);
    out.push_back(exchange(axes, b, last, axes.size()));
  } else {
    const std::int64_t middle = product(axes, 1, last);
    out.push_back({{axes[0], middle, axes[last]}, {axes[last], middle, axes[0]}, Axis::kHeight});
    std::swap(axes[0], axes[last]);
  }
}

}  // namespace

std::vector<Pass> passes_of(const Shape& shape, const Dims& permutation) {
  std::vector<Pass> out;
  Reduced rest = reduced(shape, permutation);
  Axes& axes = rest.extents;
  if (std::ranges::is_sorted(rest.places)) return out;
  if (axes.size() <= 3) {
    Axes from(3 - axes.size(), 1), to = from;
    for (std::size_t i = 0; i < axes.size(); ++i) {
      from.push_back(axes[i]);
      to.push_back(axes[rest.places[i]]);
    }
    bool moves_all = axes.size() == 3;
    for (std::size_t i = 0; i < axes.size(); ++i) moves_all &= rest.places[i] != i;
    const std::size_t channels = 3 - axes.size() + rest.places.back();
    return {{{from[0], from[1], from[2]}, {to[0], to[1], to[2]}, static_cast<Axis>(channels), moves_all}};
  }
  // Selection sort: goal[i] is the place to which axis i has to go.
  std::vector<std::size_t> goal(axes.size());
  for (std::size_t i = 0; i < axes.size(); ++i) goal[rest.places[i]] = i;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const auto found = std::ranges::find(goal, i);
    const auto at = static_cast<std::size_t>(found - goal.begin());
    if (at == i) continue;
    swap_axes(axes, i, at, out);
    std::swap(goal[i], goal[at]);
  }
  return out;
}

}  // namespace tosaic::cost
