// Stacks, splits, selections, triangles and advanced indexing in terms of cat, slice, where and index_select.

#include "tosaic/passes/expansions.h"

namespace tosaic::passes {
namespace {

// Indices wrapped into [0, extent) as torch counts from the end.
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
  std::vector<double> keep;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c)
      keep.push_back((lower ? c - r <= diagonal : c - r >= diagonal) ? 1.0 : 0.0);
  return e.where(e.constant(DType::kBool, {rows, columns}, keep), e.operand(0),
                 e.number(0.0, e.result_type().dtype));
}

// x[.., i, j, ..] with index tensors on several axes: the indexed axes move to the front and merge, the index
// tensors broadcast to one linear index, and one index_select reads them. The indexed extents return where
// torch puts them: in place of adjacent index tensors, else in front.
ValueId expand_index(Emitter& e) {
  const ValueId x = e.operand(0);
  const Shape shape = e.type(x).shape;
  std::vector<std::size_t> indexed, kept;
  for (std::size_t i = 0; i < shape.size(); ++i) (e.has(i + 1) ? indexed : kept).push_back(i);
  Dims perm;
  Shape kept_shape;
  std::int64_t merged = 1;
  for (const std::size_t axis : indexed) {
    perm.push_back(static_cast<std::int64_t>(axis));
    merged *= shape[axis];
  }
  for (const std::size_t axis : kept) {
    perm.push_back(static_cast<std::int64_t>(axis));
    kept_shape.push_back(shape[axis]);
  }
  ValueId linear;
  for (const std::size_t axis : indexed) {
    ValueId index = e.operand(axis + 1);
    if (e.type(index).dtype != DType::kI64) index = e.cast(index, DType::kI64);
    index = wrapped(e, index, shape[axis]);
    linear = linear.valid() ? e.add(e.mul(linear, static_cast<double>(shape[axis])), index) : index;
  }
  const Shape index_shape = e.type(linear).shape;
  Shape front{merged}, picked = index_shape;
  for (const std::int64_t extent : kept_shape) {
    front.push_back(extent);
    picked.push_back(extent);
  }
  ValueId y = e.reshape(e.permute(x, perm), front);
  y = e.emit(Op::kIndexSelect, AxisAttrs{0}, {y, e.reshape(linear, {num_elements(index_shape)})});
  y = e.reshape(y, picked);
  const bool adjacent = indexed.back() - indexed.front() + 1 == indexed.size();
  if (!adjacent || indexed.front() == 0) return y;
  Dims back;  // kept axes before the indices, the index axes, kept axes behind
  const std::size_t index_rank = index_shape.size();
  for (std::size_t i = 0; i < indexed.front(); ++i) back.push_back(static_cast<std::int64_t>(index_rank + i));
  for (std::size_t i = 0; i < index_rank; ++i) back.push_back(static_cast<std::int64_t>(i));
  for (std::size_t i = indexed.front(); i < kept_shape.size(); ++i)
    back.push_back(static_cast<std::int64_t>(index_rank + i));
  return e.permute(y, back);
}

}  // namespace tosaic::passes
