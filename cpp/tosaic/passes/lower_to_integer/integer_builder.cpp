#include "tosaic/passes/lower_to_integer/integer_builder.h"

#include <algorithm>
#include <cstring>

#include "tosaic/exec/fold.h"
#include "tosaic/passes/lower_to_integer/rule_result.h"

namespace tosaic::passes {

ValueId IntegerBuilder::emit(Op op, Attrs attributes, const std::vector<ValueId>& operands) {
  Graph& out = made_->graph;
  std::string suffix(info(op).name);
  if (info(op).is_tosa) suffix = suffix.substr(5);
  const ValueId made = out.add(op, std::move(attributes), operands, origin_, name_ + "." + suffix);
  const bool moves = info(op).has(kMovement) || info(op).has(kView);
  const auto is_known = [&](ValueId id) {
    if (!id.valid()) return false;  // an absent operand
    const ConstantRef& constant = known(id);
    return constant && constant->storage.bound();
  };
  if (!moves || !std::all_of(operands.begin(), operands.end(), is_known)) return made;
  std::vector<ConstantRef> constants;
  for (const ValueId id : operands) constants.push_back(known(id));
  const auto moved = exec::evaluate(out, *out.producer(made), constants);
  return moved ? constant(moved->front()) : made;
}

ValueId IntegerBuilder::elementwise(Op op, Attrs attributes, std::vector<ValueId> operands) {
  std::size_t rank = 0;
  for (const ValueId id : operands) rank = std::max(rank, type(id).rank());
  for (ValueId& id : operands) {
    Shape shape = type(id).shape;
    while (shape.size() < rank) shape.insert(0, 1);
    id = reshape(id, shape);
  }
  return emit(op, std::move(attributes), operands);
}

ValueId IntegerBuilder::binary(Op op, ValueId a, ValueId b) {
  return elementwise(op, default_attrs(op), {a, b});
}

ValueId IntegerBuilder::reshape(ValueId x, const Shape& shape) {
  return type(x).shape == shape ? x : emit(Op::kReshape, ShapeAttrs{shape}, {x});
}

ValueId IntegerBuilder::expand(ValueId x, const Shape& shape) {
  return type(x).shape == shape ? x : emit(Op::kExpand, ShapeAttrs{shape}, {x});
}

ValueId IntegerBuilder::cast(ValueId x, DType dtype) {
  return type(x).dtype == dtype ? x : emit(Op::kTosaCast, CastAttrs{dtype}, {x});
}

ValueId IntegerBuilder::broadcast_to(ValueId x, const Shape& shape) {
  Shape own = type(x).shape;
  while (own.size() < shape.size()) own.insert(0, 1);
  return expand(reshape(x, own), shape);
}

ValueId IntegerBuilder::constant(DType dtype, const Shape& shape, const std::vector<std::int64_t>& values) {
  const std::size_t width = byte_size(dtype);
  Storage storage = Storage::allocate(values.size() * width);
  std::byte* to = storage.writable();
  for (std::size_t i = 0; i < values.size(); ++i)  // little endian: the low bytes
    std::memcpy(to + i * width, &values[i], width);
  return constant(constant_over(name_ + ".const", ConstantKind::kFolded, dtype, shape, std::move(storage)));
}

ValueId IntegerBuilder::number(std::int64_t value, std::size_t rank, DType dtype) {
  return constant(dtype, Dims::filled(rank, 1), {value});
}

ValueId IntegerBuilder::bounded(ValueId x, ValueRange range, ValueRange to) {
  const DType dtype = type(x).dtype;
  if (range.low >= to.low && range.high <= to.high) return x;
  if (dtype == DType::kI16 && !rules().wide_integers)  // CLAMP has i16 only with int16
    return cast(bounded(cast(x, DType::kI32), range, to), dtype);
  if (dtype == DType::kI48)
    throw NoIntegerForm("its sums of 48 bits may be far beyond its result, and TOSA bounds no such integers");
  if (dtype != DType::kI32)
    return emit(Op::kTosaClamp, TosaClampAttrs{to.low, to.high, NanMode::kPropagate}, {x});
  if (range.low < to.low) x = binary(Op::kTosaMaximum, x, number(to.low, type(x).rank()));
  if (range.high > to.high) x = binary(Op::kTosaMinimum, x, number(to.high, type(x).rank()));
  return x;
}

std::optional<ValueId> IntegerBuilder::either(const std::optional<ValueId>& a,
                                              const std::optional<ValueId>& b) {
  if (!a || !b || *a == *b) return a ? a : b;
  return binary(Op::kTosaLogicalOr, *a, *b);
}

std::optional<ValueId> IntegerBuilder::both(const std::optional<ValueId>& a,
                                            const std::optional<ValueId>& b) {
  if (!a || !b) return std::nullopt;
  return *a == *b ? a : binary(Op::kTosaLogicalAnd, *a, *b);
}

}  // namespace tosaic::passes
