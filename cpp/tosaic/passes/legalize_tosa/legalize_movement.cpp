// Legalizes views and data movement. The axes of attributes are translated to positions in the dim order of
// the value. Indexed reads become GATHER of values (N, K, C).

#include <algorithm>

#include "tosaic/layout/order.h"
#include "tosaic/passes/legalize_tosa/join_axes.h"
#include "tosaic/passes/legalize_tosa/legalizer.h"

namespace tosaic::passes {
namespace {

// No element moves if the axes that the reshape joins are neighbours in the operand's dim order. If they are
// not, the operand is first transposed to row-major order.
Physical reshape(Legalizer& l) {
  const DimOrder& order = l.order_of(0);
  const Shape& shape = l.result_type().shape;
  if (const std::optional<DimOrder> after = layout::reshaped(l.logical_type(0).shape, order, shape))
    return {l.reshape(l.operand(0, order), physical_dims(shape, *after)), *after};
  return {l.reshape(l.operand(0), shape), DimOrder()};
}

Physical permute(Legalizer& l) {
  const Dims& perm = l.attrs<PermuteAttrs>().perm;
  const DimOrder free = layout::relabelled(l.order_of(0), perm);
  if (free == l.planned_order()) return {l.operand(0, l.order_of(0)), free};
  // One transpose from the stored order to the planned one: `wanted` is the order of the operand that becomes
  // the planned order of the result when the permutation relabels the axes.
  const DimOrder wanted = layout::relabelled(l.planned_order(), inverse_permutation(perm));
  return {l.operand(0, wanted), l.planned_order()};
}

Physical expand(Legalizer& l) {
  const Shape& shape = l.result_type().shape;
  const DimOrder order = l.planned_order();
  const ValueId x = l.aligned(0, shape.size(), order);
  Dims multiples = physical_dims(shape, order);
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (l.type(x).shape[i] == multiples[i]) multiples[i] = 1;
  return {l.tile(x, multiples), order};
}

Physical repeat(Legalizer& l) {
  const Dims& repeats = l.attrs<ShapeAttrs>().shape;
  const DimOrder order = l.planned_order();
  return {l.tile(l.aligned(0, repeats.size(), order), physical_dims(repeats, order)), order};
}

Physical cat(Legalizer& l) {
  const DimOrder order = l.planned_order();
  const std::size_t rank = l.result_type().rank();
  std::vector<ValueId> parts;
  for (std::size_t i = 0; i < l.operand_count(); ++i) {
    if (num_elements(l.logical_type(i).shape) == 0) continue;
    parts.push_back(l.cast(l.operand(i, order),
                           l.computes_wide() ? DType::kI32 : l.physical_dtype(l.result_type().dtype)));
  }
  return {l.concat(parts, physical_axis(order, rank, l.attrs<AxisAttrs>().axis)), order};
}

// Every step-th element of an axis: slice, pad to a multiple of the step, reshape the axis to (count, step)
// and slice the first element of each step.
ValueId strided_slice(Legalizer& l, ValueId x, std::size_t axis, const SliceAttrs& attrs) {
  const std::int64_t count = (attrs.end - attrs.start + attrs.step - 1) / attrs.step;
  if (attrs.step == 1) return l.slice_axis(x, axis, attrs.start, count);
  const std::int64_t available = std::min(l.type(x).shape[axis] - attrs.start, count * attrs.step);
  x = l.slice_axis(x, axis, attrs.start, available);
  Dims after = Dims::filled(l.type(x).rank(), 0);
  after[axis] = count * attrs.step - available;
  x = l.pad(x, Dims::filled(after.size(), 0), after, 0.0);
  Shape split = l.type(x).shape, merged = split;
  merged[axis] = count;
  if (split.size() >= kMostAxes) {  // the split adds an axis: merge all axes in front, and all after it
    std::int64_t lead = 1, rest = 1;
    for (std::size_t k = 0; k < split.size(); ++k)
      if (k != axis) (k < axis ? lead : rest) *= split[k];
    split = {lead, count, rest};
    axis = 1;
  }
  split[axis] = count;
  split.insert(axis + 1, attrs.step);
  return l.reshape(l.slice_axis(l.reshape(x, split), axis + 1, 0, 1), merged);
}

Physical slice(Legalizer& l) {
  const auto& attrs = l.attrs<SliceAttrs>();
  const DimOrder order = l.planned_order();
  const std::size_t axis = physical_axis(order, l.result_type().rank(), attrs.axis);
  return {strided_slice(l, l.operand(0, order), axis, attrs), order};
}

// Ethos-U55 reverses the height and the width of bytes, but no axis in front of them. The axes around such an
// axis are merged, so that it becomes the height:
//
//   i8[4,5,6,8]  reverse axis 0   ->   reshape to [1,4,30,8], reverse axis 1, reshape to [4,5,6,8]
ValueId reversed(Legalizer& l, ValueId x, std::size_t axis) {
  const Shape shape = l.type(x).shape;
  const auto emit = [&](ValueId from, std::size_t at) {
    return l.emit(Op::kTosaReverse, AxisAttrs{static_cast<std::int64_t>(at)}, {from});
  };
  if (byte_size(l.type(x).dtype) > 2 || is_float(l.type(x).dtype) || axis + 3 >= shape.size())
    return emit(x, axis);
  std::int64_t lead = 1, rest = 1;
  for (std::size_t k = 0; k + 1 < shape.size(); ++k)
    if (k != axis) (k < axis ? lead : rest) *= shape[k];
  return l.reshape(emit(l.reshape(x, {lead, shape[axis], rest, shape.back()}), 1), shape);
}

Physical flip(Legalizer& l) {
  const DimOrder order = l.planned_order();
  ValueId x = l.operand(0, order);
  for (const std::int64_t axis : l.attrs<AxesAttrs>().axes)
    x = reversed(l, x, physical_axis(order, l.type(x).rank(), axis));
  return {x, order};
}

// Pads one axis in a mode other than constant: concat(elements before, x, elements after).
ValueId pad_axis(Legalizer& l, ValueId x, std::size_t axis, std::int64_t before, std::int64_t after,
                 PadMode mode) {
  const std::int64_t extent = l.type(x).shape[axis];
  const auto edge = [&](std::int64_t start, std::int64_t size, std::int64_t copies) {
    Dims multiples = Dims::filled(l.type(x).rank(), 1);
    multiples[axis] = copies;
    return l.tile(l.slice_axis(x, axis, start, size), multiples);
  };
  std::vector<ValueId> parts;
  if (before > 0) {
    if (mode == PadMode::kReplicate) parts.push_back(edge(0, 1, before));
    if (mode == PadMode::kReflect) parts.push_back(reversed(l, edge(1, before, 1), axis));
    if (mode == PadMode::kCircular) parts.push_back(edge(extent - before, before, 1));
  }
  parts.push_back(x);
  if (after > 0) {
    if (mode == PadMode::kReplicate) parts.push_back(edge(extent - 1, 1, after));
    if (mode == PadMode::kReflect) parts.push_back(reversed(l, edge(extent - 1 - after, after, 1), axis));
    if (mode == PadMode::kCircular) parts.push_back(edge(0, after, 1));
  }
  return l.concat(parts, axis);
}

Physical pad(Legalizer& l) {
  const auto& attrs = l.attrs<PadAttrs>();
  const DimOrder order = l.planned_order();
  ValueId x = l.operand(0, order);
  Dims before = physical_dims(attrs.before, order), after = physical_dims(attrs.after, order);
  for (std::size_t i = 0; i < before.size(); ++i) {  // negative padding slices elements off
    const std::int64_t front = std::max<std::int64_t>(-before[i], 0),
                       back = std::max<std::int64_t>(-after[i], 0);
    if (front + back > 0) x = l.slice_axis(x, i, front, l.type(x).shape[i] - front - back);
    before[i] = std::max<std::int64_t>(before[i], 0);
    after[i] = std::max<std::int64_t>(after[i], 0);
  }
  if (attrs.mode == PadMode::kConstant) return {l.pad(x, before, after, attrs.value), order};
  for (std::size_t i = 0; i < before.size(); ++i) x = pad_axis(l, x, i, before[i], after[i], attrs.mode);
  return {x, order};
}

// Gathers values (N, K, C) at indices (N, W), which results in (N, W, C). GATHER takes no bool, so bool is
// cast.
ValueId gather(Legalizer& l, ValueId values, ValueId indices) {
  if (l.type(values).dtype == DType::kBool)
    return l.to_bool(gather(l, l.cast(values, l.has_integers() ? DType::kI8 : DType::kF32), indices));
  return l.binary(Op::kTosaGather, values, l.as_integer(indices, DType::kI32));
}

std::int64_t product(const Shape& shape, std::size_t first, std::size_t last) {
  return num_elements(Dims(shape.span().subspan(first, last - first)));
}

// index_select: selects positions of one axis by a list of indices. In GATHER, K is this axis, N the product
// of the axes in front of it, and C the product of the axes after it.
Physical index_select(Legalizer& l) {
  const DimOrder order = l.planned_order();
  const Shape shape = physical_dims(l.logical_type(0).shape, order);
  const std::size_t axis = physical_axis(order, shape.size(), l.attrs<AxisAttrs>().axis);
  const std::int64_t before = product(shape, 0, axis), behind = product(shape, axis + 1, shape.size());
  const std::int64_t width = num_elements(l.logical_type(1).shape);
  const ValueId list = l.tile(l.reshape(l.operand(1), {1, width}), {before, 1});
  const ValueId rows = gather(l, l.reshape(l.operand(0, order), {before, shape[axis], behind}), list);
  return {l.reshape(rows, physical_dims(l.result_type().shape, order)), order};
}

Physical embedding(Legalizer& l) {
  const Shape& table = l.logical_type(0).shape;
  const ValueId list = l.reshape(l.operand(1), {1, num_elements(l.logical_type(1).shape)});
  const ValueId rows = gather(l, l.reshape(l.operand(0), {1, table[0], table[1]}), list);
  return {l.reshape(rows, l.result_type().shape), DimOrder()};
}

// torch.gather. The axis is innermost. Every position of the other axes is a batch entry N of GATHER, and C
// is 1.
Physical gather_elements(Legalizer& l) {
  const Shape index_shape = l.logical_type(1).shape;
  const std::size_t rank = index_shape.size();
  if (rank == 0) return {l.operand(0), DimOrder()};
  const std::int64_t axis = l.attrs<AxisAttrs>().axis;
  const DimOrder order = layout::with_innermost(l.planned_order(), rank, axis);
  const Shape positions = physical_dims(index_shape, order);
  Shape size = positions;
  size[rank - 1] = physical_dims(l.logical_type(0).shape, order)[rank - 1];
  const ValueId x = l.slice(l.operand(0, order), Dims::filled(rank, 0), size);
  const std::int64_t width = positions[rank - 1], batch = num_elements(index_shape) / width;
  const ValueId picked =
      gather(l, l.reshape(x, {batch, size[rank - 1], 1}), l.reshape(l.operand(1, order), {batch, width}));
  return {l.reshape(picked, positions), order};
}

// Values (1, K, C), in which the input (1, W, C) replaces the rows at indices (1, W). No row is written
// twice.
ValueId scatter(Legalizer& l, ValueId values, ValueId indices, ValueId input) {
  if (l.type(values).dtype == DType::kBool) {
    const DType number = l.has_integers() ? DType::kI8 : DType::kF32;
    return l.to_bool(scatter(l, l.cast(values, number), indices, l.cast(input, number)));
  }
  if (l.type(values).dtype != l.type(input).dtype) {  // integers, one represented in f32 and one in i32
    values = l.as_integer(values, DType::kI32);
    input = l.as_integer(input, DType::kI32);
  }
  return l.emit(Op::kTosaScatter, NoAttrs{}, {values, l.as_integer(indices, DType::kI32), input});
}

Physical index_put(Legalizer& l) {
  const Shape& rows = l.logical_type(0).shape;
  const std::int64_t count = num_elements(l.logical_type(2).shape);
  const ValueId written =
      scatter(l, l.reshape(l.operand(0), {1, rows[0], rows[1]}), l.reshape(l.operand(2), {1, count}),
              l.reshape(l.operand(1), {1, count, rows[1]}));
  return {l.reshape(written, rows), DimOrder()};
}

Physical clone(Legalizer& l) { return {l.operand(0, l.planned_order()), l.planned_order()}; }

// `decompose` expands every index that is not boolean.
[[noreturn]] Physical boolean_index(Legalizer& l) {
  l.refuse("operator 'index' has no TOSA counterpart", "A boolean index gives a shape that depends on data");
}

constexpr OpTable<Legalization::One> kRules = {
    {Op::kReshape, reshape},
    {Op::kClone, clone},
    {Op::kPermute, permute},
    {Op::kExpand, expand},
    {Op::kRepeat, repeat},
    {Op::kCat, cat},
    {Op::kSlice, slice},
    {Op::kFlip, flip},
    {Op::kPad, pad},
    {Op::kIndexSelect, index_select},
    {Op::kEmbedding, embedding},
    {Op::kGather, gather_elements},
    {Op::kIndexPut, index_put},
    {Op::kIndex, boolean_index},
};
static_assert(complete<kRules.mismatch(is_legalized_by<legalize_movement>)>);

}  // namespace

Physical legalize_movement(Legalizer& l) { return (*kRules.find(l.node().op))(l); }

}  // namespace tosaic::passes
