#include "tosaic/layout/placement.h"

#include <algorithm>

#include "tosaic/layout/order.h"

namespace tosaic::layout {
void append(Placement& placement, Run run) {
  if (run.extent == 1) return;
  if (!placement.empty() && placement.back().stride == run.extent * run.stride)
    placement[placement.size() - 1] = {placement.back().extent * run.extent, run.stride};
  else
    placement.push_back(run);
}

Placement placement_of(const Shape& shape, const DimOrder& order) {
  const Dims strides = contiguous_strides(shape);
  Placement out;
  for (std::size_t place = 0; place < shape.size(); ++place) {
    const std::size_t axis = order.axis(place);
    append(out, {shape[axis], strides[axis]});
  }
  return out;
}

std::optional<DimOrder> order_with(const Shape& shape, const Placement& placement) {
  const Dims strides = contiguous_strides(shape);
  Dims sequence;
  for (const Run& run : placement)
    for (std::size_t axis = 0; axis < shape.size(); ++axis)
      if (shape[axis] != 1 && run.stride <= strides[axis] && strides[axis] < run.stride * run.extent)
        sequence.push_back(static_cast<std::int64_t>(axis));
  const DimOrder order = completed(sequence, shape.size());
  return placement_of(shape, order) == placement ? std::optional(order) : std::nullopt;
}

std::optional<Placement> relabelled(const Shape& shape, const Placement& placement, const Dims& perm) {
  const Dims strides = contiguous_strides(shape);
  const std::optional<Cuts> cuts = merged(cuts_of(shape), cuts_of(placement, num_elements(shape)));
  if (!cuts) return std::nullopt;
  const Shape turned = permuted(shape, perm);
  const Dims turned_strides = contiguous_strides(turned);
  Placement out;
  for (const Run& part : split_at(*cuts, placement)) {
    for (std::size_t k = 0; k < perm.size(); ++k) {
      const auto axis = static_cast<std::size_t>(perm[k]);
      if (shape[axis] == 1 || part.stride < strides[axis] || part.stride >= strides[axis] * shape[axis])
        continue;
      append(out, {part.extent, part.stride / strides[axis] * turned_strides[k]});
    }
  }
  return out;
}

Cuts cuts_of(const Shape& shape) {
  Cuts cuts{1};
  for (std::size_t axis = shape.size(); axis-- > 0;)
    if (shape[axis] != 1) cuts.push_back(cuts.back() * shape[axis]);
  return cuts;
}

Cuts cuts_of(const Placement& placement, std::int64_t elements) {
  Cuts cuts{1};
  for (const Run& run : placement) cuts.push_back(run.stride);
  cuts.push_back(elements);
  std::sort(cuts.begin(), cuts.end());
  Cuts out;
  for (const std::int64_t cut : cuts)
    if (out.empty() || out.back() != cut) out.push_back(cut);
  return out;
}

std::optional<Cuts> merged(const Cuts& a, const Cuts& b) {
  Cuts out;
  for (std::size_t i = 0, k = 0; i < a.size() || k < b.size();) {
    const bool left = k == b.size() || (i < a.size() && a[i] <= b[k]);
    const std::int64_t cut = left ? a[i++] : b[k++];
    if (!out.empty() && out.back() == cut) continue;
    if (!out.empty() && cut % out.back() != 0) return std::nullopt;
    out.push_back(cut);
  }
  return out;
}

bool contains(const Cuts& cuts, std::int64_t cut) {
  return std::find(cuts.begin(), cuts.end(), cut) != cuts.end();
}

Placement split_at(const Cuts& cuts, const Placement& placement) {
  Placement out;
  for (const Run& run : placement)
    for (std::size_t i = cuts.size() - 1; i-- > 0;)
      if (run.stride <= cuts[i] && cuts[i] < run.stride * run.extent)
        out.push_back({cuts[i + 1] / cuts[i], cuts[i]});
  return out;
}

}  // namespace tosaic::layout
