// expand_movement: expresses stacks, splits, selections, triangles and advanced indexing by cat, slice, where
// and index_select.

#include "tosaic/passes/decompose/expansions.h"

namespace tosaic::passes {
namespace {

// Adds `extent` to negative indices, which count from the end in torch.
ValueId wrapped(Emitter& e, ValueId index, std::int64_t extent) {
  const DType dtype = e.type(index).dtype;
  const ValueId negative = e.binary(Op::kLt, index, e.number(0.0, dtype));
  return e.where(negative, e.add(index, static_cast<double>(extent)), index);
}

}  // namespace

ValueId expand_stack(Emitter& e) {
  const std::int64_t axis = e.attrs<AxisAttrs>().axis;
  std::vector<ValueId> parts;
  for (const ValueId operand : e.operands()) {
    Shape shape = e.type(operand).shape;
    shape.insert(static_cast<std::size_t>(axis), 1);
    parts.push_back(e.emit(Op::kReshape, ShapeAttrs{shape}, {operand}));
  }
  return e.emit(Op::kCat, AxisAttrs{axis}, parts);
}

std::vector<ValueId> expand_split(Emitter& e) {
  const auto& attrs = e.attrs<SplitAttrs>();
  std::vector<ValueId> parts;
  std::int64_t start = 0;
  for (const std::int64_t size : attrs.sizes) {
    parts.push_back(e.slice(e.operand(0), static_cast<std::size_t>(attrs.axis), start, start + size));
    start += size;
  }
  return parts;
}

std::vector<ValueId> expand_unbind(Emitter& e) {
  const auto axis = static_cast<std::size_t>(e.attrs<AxisAttrs>().axis);
  std::vector<ValueId> parts;
  for (std::uint32_t i = 0; i < e.node().result_count; ++i)
    parts.push_back(
        e.emit(Op::kReshape, ShapeAttrs{e.result_type(i).shape}, {e.slice(e.operand(0), axis, i, i + 1)}));
  return parts;
}

ValueId expand_select(Emitter& e) {
  const auto& attrs = e.attrs<SelectAttrs>();
  const ValueId part =
      e.slice(e.operand(0), static_cast<std::size_t>(attrs.axis), attrs.index, attrs.index + 1);
  return e.emit(Op::kReshape, ShapeAttrs{e.result_type().shape}, {part});
}

ValueId expand_triangle(Emitter& e) {
  const std::int64_t diagonal = e.attrs<DiagonalAttrs>().diagonal;
  const Shape& shape = e.result_type().shape;
  const std::int64_t rows = shape[shape.size() - 2], columns = shape.back();
  const bool lower = e.node().op == Op::kTril;
  std::vector<double> inside;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c)
      inside.push_back((lower ? c - r <= diagonal : c - r >= diagonal) ? 1.0 : 0.0);
  return e.where(e.constant(DType::kBool, {rows, columns}, inside), e.operand(0),
                 e.number(0.0, e.result_type().dtype));
}

IndexedRows indexed_rows(Emitter& e, std::size_t first) {
  const ValueId x = e.operand(0);
  const Shape shape = e.type(x).shape;
  IndexedRows out;
  std::vector<std::size_t> indexed, kept;
  for (std::size_t i = 0; i < shape.size(); ++i) (e.has(i + first) ? indexed : kept).push_back(i);
  std::int64_t merged = 1;
  for (const std::size_t axis : indexed) {
    out.perm.push_back(static_cast<std::int64_t>(axis));
    merged *= shape[axis];
  }
  Shape rows{merged};
  for (const std::size_t axis : kept) {
    out.perm.push_back(static_cast<std::int64_t>(axis));
    out.kept.push_back(shape[axis]);
    rows.push_back(shape[axis]);
  }
  for (const std::size_t axis : indexed) {
    ValueId index = e.operand(axis + first);
    if (e.type(index).dtype != DType::kI64) index = e.cast(index, DType::kI64);
    index = wrapped(e, index, shape[axis]);
    out.index = out.index.valid() ? e.add(e.mul(out.index, static_cast<double>(shape[axis])), index) : index;
  }
  out.index_shape = e.type(out.index).shape;
  out.index = e.reshape(out.index, {num_elements(out.index_shape)});
  out.rows = e.reshape(e.permute(x, out.perm), rows);
  const bool adjacent = indexed.back() - indexed.front() + 1 == indexed.size();
  out.kept_before = adjacent ? indexed.front() : 0;
  return out;
}

// One index_select reads the merged axes. A permute then moves the index axes to where torch puts them.
ValueId expand_index(Emitter& e) {
  const IndexedRows plan = indexed_rows(e, 1);
  Shape picked = plan.index_shape;
  for (const std::int64_t extent : plan.kept) picked.push_back(extent);
  ValueId y = e.emit(Op::kIndexSelect, AxisAttrs{0}, {plan.rows, plan.index});
  y = e.reshape(y, picked);
  return plan.kept_before == 0 ? y : e.permute(y, inverse_permutation(plan.to_front()));
}

// The permutation of (kept axes before, index axes, kept axes after) that moves the index axes to the front.
Dims IndexedRows::to_front() const {
  Dims order;
  for (std::size_t i = 0; i < index_shape.size(); ++i)
    order.push_back(static_cast<std::int64_t>(kept_before + i));
  for (std::size_t i = 0; i < kept.size(); ++i)
    order.push_back(static_cast<std::int64_t>(i < kept_before ? i : index_shape.size() + i));
  return order;
}

}  // namespace tosaic::passes
