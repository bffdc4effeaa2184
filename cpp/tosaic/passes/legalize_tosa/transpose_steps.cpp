// Two steps transpose by way of an order of the axes in between. The first step has one axis fewer for each
// pair of axes that are neighbours both in the source and in between; the second step has one fewer for each
// pair that are neighbours both in between and in the result. So for n axes the order in between needs n -
// most pairs of the source and n - most pairs of the result. A set of pairs fits into one order if each axis
// has at most one neighbour in front and one after it, and if the pairs form no cycle.

#include "tosaic/passes/legalize_tosa/transpose_steps.h"

#include <array>
#include <bit>
#include <cstdint>
#include <optional>

#include "tosaic/base/error.h"

namespace tosaic::passes {
namespace {

// An order of axes under construction: the axis after each axis, and the axis in front of it.
class Chains {
 public:
  explicit Chains(std::size_t count) : count_(count) {
    behind_.fill(kNone);
    front_.fill(kNone);
  }

  // Puts `b` directly after `a`. Returns false if this contradicts an earlier pair.
  bool join(std::int64_t a, std::int64_t b) {
    if (behind_[at(a)] != kNone || front_[at(b)] != kNone) return false;
    for (std::int64_t end = b; end != kNone; end = behind_[at(end)])
      if (end == a) return false;
    behind_[at(a)] = b;
    front_[at(b)] = a;
    return true;
  }

  // All axes: the chains one after the other.
  [[nodiscard]] Dims order() const {
    Dims out;
    for (std::int64_t head = 0; head < static_cast<std::int64_t>(count_); ++head)
      if (front_[at(head)] == kNone)
        for (std::int64_t axis = head; axis != kNone; axis = behind_[at(axis)]) out.push_back(axis);
    return out;
  }

 private:
  static constexpr std::int64_t kNone = -1;
  static std::size_t at(std::int64_t axis) { return static_cast<std::size_t>(axis); }
  std::size_t count_;
  std::array<std::int64_t, kMaxRank> behind_{}, front_{};
};

// Joins the pairs of neighbours of `order` whose bits are set. Bit 0 is the innermost pair.
bool join_pairs(Chains& chains, const Dims& order, std::uint32_t pairs) {
  for (std::size_t i = 0; i + 1 < order.size(); ++i)
    if ((pairs >> i & 1) != 0) {
      const std::size_t last = order.size() - 1 - i;
      if (!chains.join(order[last - 1], order[last])) return false;
    }
  return true;
}

// An order in between with `count` pairs of neighbours of the source and of the result. Pairs that are
// innermost are preferred: they make long rows that move as a whole.
std::optional<Dims> order_in_between(const Dims& perm, std::size_t count) {
  const std::uint32_t all = std::uint32_t{1} << (perm.size() - 1);
  const auto wanted = static_cast<int>(count);
  for (std::uint32_t of_source = 0; of_source < all; ++of_source) {
    if (std::popcount(of_source) != wanted) continue;
    Chains chains(perm.size());
    if (!join_pairs(chains, Dims::iota(perm.size()), of_source)) continue;
    for (std::uint32_t of_result = 0; of_result < all; ++of_result) {
      if (std::popcount(of_result) != wanted) continue;
      Chains both = chains;
      if (join_pairs(both, perm, of_result)) return both.order();
    }
  }
  return std::nullopt;
}

}  // namespace

TransposeStep with_fewest_axes(const Shape& shape, const Dims& perm) {
  const auto extent = [&](std::int64_t axis) { return shape[static_cast<std::size_t>(axis)]; };
  // Joins axes of the result that are neighbours in the operand, too: the first axis and extent of each run.
  std::vector<std::int64_t> first, product;
  std::int64_t last = -1;
  for (const std::int64_t axis : perm) {
    if (extent(axis) == 1) continue;
    std::int64_t next = last + 1;
    while (last >= 0 && next < axis && extent(next) == 1) ++next;
    if (last >= 0 && next == axis) {
      product.back() *= extent(axis);
    } else {
      first.push_back(axis);
      product.push_back(extent(axis));
    }
    last = axis;
  }
  if (first.empty()) return {{1}, {0}};
  TransposeStep out;
  for (const std::int64_t axis : first) {
    std::int64_t place = 0;
    for (const std::int64_t other : first) place += other < axis ? 1 : 0;
    out.perm.push_back(place);
  }
  out.shape = Dims::filled(first.size(), 1);
  for (std::size_t i = 0; i < first.size(); ++i)
    out.shape[static_cast<std::size_t>(out.perm[i])] = product[i];
  return out;
}

std::vector<TransposeStep> transpose_steps(const Shape& shape, const Dims& perm, std::size_t most) {
  const TransposeStep whole = with_fewest_axes(shape, perm);
  const std::size_t axes = whole.shape.size();
  if (axes <= most) return {whole};
  const std::optional<Dims> middle = order_in_between(whole.perm, axes - most);
  if (!middle)
    throw InternalError({.where = "legalize-tosa",
                         .what = "two transposes do not suffice",
                         .expected = "at most " + std::to_string(most) + " axes each",
                         .got = to_string(whole.shape) + " perm " + to_string(whole.perm)});
  const Dims place = inverse_permutation(*middle);
  return {with_fewest_axes(whole.shape, *middle),
          with_fewest_axes(permuted(whole.shape, *middle), permuted(place, whole.perm))};
}

}  // namespace tosaic::passes
