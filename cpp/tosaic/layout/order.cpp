#include "tosaic/layout/order.h"

#include <algorithm>
#include <vector>

namespace tosaic::layout {
namespace {

Dims significant(const Shape& shape, const DimOrder& order) {
  Dims axes;
  for (const std::int64_t axis : order.axes(shape.size()))
    if (shape[static_cast<std::size_t>(axis)] != 1) axes.push_back(axis);
  return axes;
}

// Neighbouring axes in front of a reshape and the neighbouring axes after it that have the same elements:
// the products of their extents are equal. A group has as few axes as possible. Axes of extent 1 are omitted.
struct Group {
  std::vector<std::int64_t> from, to;
};

std::optional<std::vector<Group>> groups_of(const Shape& from, const Shape& to) {
  std::vector<Group> groups;
  std::size_t i = 0, k = 0;
  const auto skip = [](const Shape& shape, std::size_t& at) {
    while (at < shape.size() && shape[at] == 1) ++at;
  };
  for (;;) {
    skip(from, i);
    skip(to, k);
    if (i == from.size() || k == to.size()) break;
    Group group;
    std::int64_t left = from[i], right = to[k];
    group.from.push_back(static_cast<std::int64_t>(i++));
    group.to.push_back(static_cast<std::int64_t>(k++));
    while (left != right) {
      const bool shorter = left < right;
      const Shape& shape = shorter ? from : to;
      std::size_t& at = shorter ? i : k;
      skip(shape, at);
      if (at == shape.size()) return std::nullopt;
      (shorter ? left : right) *= shape[at];
      (shorter ? group.from : group.to).push_back(static_cast<std::int64_t>(at++));
    }
    groups.push_back(std::move(group));
  }
  return i == from.size() && k == to.size() ? std::optional(std::move(groups)) : std::nullopt;
}

}  // namespace

DimOrder relabelled(const DimOrder& order, const Dims& perm) {
  const Dims inverse = inverse_permutation(perm);
  Dims axes = order.axes(perm.size());
  for (std::int64_t& axis : axes) axis = inverse[static_cast<std::size_t>(axis)];
  return DimOrder(axes);
}

DimOrder completed(Dims sequence, std::size_t rank) {
  for (std::size_t axis = 0; axis < rank; ++axis) {
    const auto label = static_cast<std::int64_t>(axis);
    if (sequence.contains(label)) continue;
    std::size_t at = 0;
    if (axis > 0)
      at = static_cast<std::size_t>(std::find(sequence.begin(), sequence.end(), label - 1) -
                                    sequence.begin()) +
           1;
    sequence.insert(at, label);
  }
  return DimOrder(sequence);
}

DimOrder without_axes(const DimOrder& order, std::size_t rank, const Dims& axes) {
  Dims rest;
  for (const std::int64_t axis : order.axes(rank)) {
    if (axes.contains(axis)) continue;
    std::int64_t label = axis;
    for (const std::int64_t removed : axes) label -= removed < axis ? 1 : 0;
    rest.push_back(label);
  }
  return DimOrder(rest);
}

DimOrder with_axes(const DimOrder& order, std::size_t rank, const Dims& axes) {
  Dims kept;
  for (std::size_t axis = 0; axis < rank; ++axis)
    if (!axes.contains(static_cast<std::int64_t>(axis))) kept.push_back(static_cast<std::int64_t>(axis));
  Dims sequence;
  for (const std::int64_t label : order.axes(kept.size()))
    sequence.push_back(kept[static_cast<std::size_t>(label)]);
  return completed(sequence, rank);
}

DimOrder with_innermost(const DimOrder& order, std::size_t rank, std::int64_t axis) {
  Dims axes;
  for (const std::int64_t each : order.axes(rank))
    if (each != axis) axes.push_back(each);
  axes.push_back(axis);
  return DimOrder(axes);
}

DimOrder trailing(const DimOrder& order, std::size_t from, std::size_t rank) {
  const auto dropped = static_cast<std::int64_t>(from - rank);
  Dims axes;
  for (const std::int64_t axis : order.axes(from))
    if (axis >= dropped) axes.push_back(axis - dropped);
  return DimOrder(axes);
}

bool same_in_memory(const Shape& shape, const DimOrder& a, const DimOrder& b) {
  if (a == b) return true;
  const std::size_t rank = shape.size();
  for (std::size_t i = 0, k = 0;; ++i, ++k) {
    while (i < rank && shape[a.axis(i)] == 1) ++i;
    while (k < rank && shape[b.axis(k)] == 1) ++k;
    if (i == rank || k == rank) return true;  // then both i and k are `rank`: both skip the same axes
    if (a.axis(i) != b.axis(k)) return false;
  }
}

std::optional<DimOrder> reshaped(const Shape& from, const DimOrder& order, const Shape& to) {
  const Dims lying = significant(from, order);
  if (std::is_sorted(lying.begin(), lying.end())) return DimOrder();
  const std::optional<std::vector<Group>> groups = groups_of(from, to);
  if (!groups) return std::nullopt;
  Dims sequence;
  for (std::size_t at = 0; at < lying.size();) {
    const auto group = std::find_if(groups->begin(), groups->end(),
                                    [&](const Group& g) { return g.from.front() == lying[at]; });
    if (group == groups->end() || at + group->from.size() > lying.size() ||
        !std::equal(group->from.begin(), group->from.end(), lying.begin() + at))
      return std::nullopt;
    at += group->from.size();
    for (const std::int64_t axis : group->to) sequence.push_back(axis);
  }
  return completed(sequence, to.size());
}

Dims physical_dims(const Dims& dims, const DimOrder& order) {
  return permuted(dims, order.axes(dims.size()));
}

}  // namespace tosaic::layout
