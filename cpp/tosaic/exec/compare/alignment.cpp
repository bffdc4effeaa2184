#include "tosaic/exec/compare/alignment.h"

#include <algorithm>

namespace tosaic::exec {
namespace {

std::vector<std::int64_t> non_unit(const Shape& shape) {
  std::vector<std::int64_t> out;
  for (const std::int64_t extent : shape)
    if (extent != 1) out.push_back(extent);
  return out;
}

// True if, as far as the shapes show, `to` is a reshape of `from`: the same elements in the same order.
// Shapes that have the same extents in another order are a permutation, so the result is false.
bool is_regrouping(const Shape& from, const Shape& to) {
  std::vector<std::int64_t> a = non_unit(from), b = non_unit(to);
  if (num_elements(from) != num_elements(to)) return false;
  if (a == b) return true;
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  return a != b;
}

Held as_dense(Held value) {
  const DType dtype = value.view.dtype;
  return as_dtype(std::move(value), dtype);
}

// The axes that have more than one element, in the order of the permutation. Alignments with equal lists are
// the same.
std::vector<std::int64_t> visible(const Shape& shape, const Dims& permutation) {
  std::vector<std::int64_t> out;
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (shape[i] != 1) out.push_back(permutation.empty() ? static_cast<std::int64_t>(i) : permutation[i]);
  return out;
}

constexpr std::size_t kMaxPermutedRank = 6;  // permutations are only tried for values of at most this rank

// Adds alignments in which b has permuted a's axes and then joined or split some. For example, a's [8,3,5] in
// the order (1,0,2) is [3,8,5], which b holds as [24,5].
void add_regrouped(const Shape& from, const Shape& to, std::vector<Alignment>& out) {
  if (to.size() < 2 || to.size() > kMaxPermutedRank) return;
  std::vector<std::int64_t> a = non_unit(from), b = non_unit(to);
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  if (a == b) return;
  std::vector<std::vector<std::int64_t>> seen{visible(to, {})};
  Dims permutation = DimOrder().axes(to.size());
  while (std::next_permutation(permutation.begin(), permutation.end())) {
    std::vector<std::int64_t> key;
    for (const std::int64_t axis : permutation)
      if (to[static_cast<std::size_t>(axis)] != 1) key.push_back(axis);
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) continue;
    seen.push_back(std::move(key));
    if (is_regrouping(from, permuted(to, permutation))) out.push_back({permutation, true});
  }
}

}  // namespace

Held aligned(const ArrayView& view, const Shape& shape, const Alignment& alignment) {
  ArrayView out = view;
  if (alignment.regrouped_first) {
    const Shape turned = permuted(shape, alignment.permutation);
    if (!is_regrouping(view.shape, turned)) return {};
    Held held = as_dense({view, {}});
    held.view = permuted(ArrayView::dense(held.view.data, held.view.dtype, turned),
                         inverse_permutation(alignment.permutation));
    return as_dense(std::move(held));
  }
  if (!alignment.permutation.empty()) {
    if (!is_permutation_of_axes(alignment.permutation, view.shape.size())) return {};
    out = permuted(view, inverse_permutation(alignment.permutation));
  }
  if (out.shape == shape) return {out, {}};
  if (!alignment.reshaped && !is_regrouping(out.shape, shape)) return {};
  Held held = as_dense({out, {}});
  held.view = ArrayView::dense(held.view.data, held.view.dtype, shape);
  return held;
}

bool is_same_permutation(const Shape& shape, const Dims& a, const Dims& b) {
  return visible(shape, a) == visible(shape, b);
}

std::vector<Alignment> alignments(const Shape& from, const Shape& to) {
  std::vector<Alignment> out;
  if (num_elements(from) != num_elements(to)) return out;
  std::vector<std::vector<std::int64_t>> seen;
  const auto add = [&](const Dims& permutation) {
    Shape shape = from;
    if (!permutation.empty()) shape = permuted(from, inverse_permutation(permutation));
    if (!(shape == to) && !is_regrouping(shape, to)) return;
    std::vector<std::int64_t> key = visible(from, permutation);
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) return;
    seen.push_back(std::move(key));
    out.push_back({permutation});
  };
  add({});
  if (from.size() < 2 || from.size() > kMaxPermutedRank) {
    add_regrouped(from, to, out);
    return out;
  }
  add(DimOrder::channels_last(from.size()).axes(from.size()));
  Dims permutation = DimOrder().axes(from.size());
  while (std::next_permutation(permutation.begin(), permutation.end())) add(permutation);
  add_regrouped(from, to, out);
  if (from.size() != to.size() && non_unit(from) != non_unit(to) && !is_regrouping(from, to))
    out.push_back({.permutation = {}, .reshaped = true});
  return out;
}

std::vector<Alignment> alignments_among(const std::vector<Dims>& orders, const Shape& from, const Shape& to) {
  std::vector<Alignment> out;
  for (const Dims& order : orders) {
    Shape shape = from;
    if (!order.empty() && !is_permutation_of_axes(order, from.size())) continue;
    if (!order.empty()) shape = permuted(from, inverse_permutation(order));
    if (shape == to || is_regrouping(shape, to)) out.push_back({order});
  }
  return out.empty() ? alignments(from, to) : out;
}

}  // namespace tosaic::exec
