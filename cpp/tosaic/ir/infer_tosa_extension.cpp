// Result types of the TOSA operators of the extensions (FFT, variables) and of the integer profile (TABLE,
// RESCALE), and of the canonical `rescale`. The rules check the specification's ERROR_IF clauses, and that
// multipliers, shifts and zero points are in the ranges for which the specification defines the result.
#include <string>

#include "tosaic/ir/infer_rules.h"

namespace tosaic::rules {
namespace {

std::string text_of(DType dtype) { return std::string(to_string(dtype)); }

TensorType typed(DType dtype, const Shape& shape) {
  TensorType type;
  type.dtype = dtype;
  type.shape = shape;
  return type;
}

bool is_power_of_two(std::int64_t extent) { return extent > 0 && (extent & (extent - 1)) == 0; }

// Requires a float (N, H, W) where H and W are powers of two.
void require_transformable(const Call& call) {
  call.require_float(0);
  call.require_rank(0, 3);
  const Shape& shape = call.operand(0).shape;
  for (std::size_t axis = 1; axis < 3; ++axis)
    if (!is_power_of_two(shape[axis]))
      call.fail(axis == 1 ? "the height is no power of two" : "the width is no power of two",
                "1, 2, 4, 8, ...", std::to_string(shape[axis]) + " in " + to_string(shape));
}

// ---- rescale ----

// The zero point may be any value for i8 and u8, 0 or 32768 for u16, and only 0 for other dtypes.
void require_rescale_zero_point(const Call& call, const char* name, DType dtype, bool is_unsigned,
                                std::int64_t value) {
  if (value == 0) return;
  const std::string subject = std::string("attribute '") + name + "'";
  if (dtype == DType::kI16 && is_unsigned) {
    if (value != 32768) call.fail(subject + " for u16", "0 or 32768", std::to_string(value));
    return;
  }
  if (dtype != DType::kI8) call.fail(subject + " for " + text_of(dtype), "0", std::to_string(value));
  const ValueRange range = *integer_limits(is_unsigned ? DType::kU8 : DType::kI8);
  if (!range.contains(value))
    call.fail(subject + (is_unsigned ? " for u8" : " for i8"),
              std::to_string(range.low) + " to " + std::to_string(range.high), std::to_string(value));
}

bool has_sign(DType dtype) { return without_sign(dtype) == dtype; }

void require_rescale_dtypes(const Call& call, const TosaRescaleAttrs& attrs) {
  const DType from = without_sign(call.operand(0).dtype);
  const DType to = attrs.dtype;
  if (from != DType::kI8 && from != DType::kI16 && from != DType::kI32 && from != DType::kI48)
    call.fail("wrong dtype of " + call.operand_text(0), "i8, i16, i32 or i48", text_of(from));
  if (to != DType::kI8 && to != DType::kI16 && to != DType::kI32)
    call.fail("wrong dtype of the result", "i8, i16 or i32", text_of(to));
  if (attrs.input_unsigned && attrs.output_unsigned)
    call.fail("input and output are both unsigned", "at most one of them", "both");
  if (attrs.input_unsigned && from != DType::kI8 && from != DType::kI16)
    call.fail("'input_unsigned' for " + text_of(from), "false", "true");
  if (attrs.input_unsigned && to == DType::kI32)
    call.fail("'input_unsigned' with a result of i32", "false", "true");
  if (attrs.output_unsigned && to != DType::kI8 && to != DType::kI16)
    call.fail("'output_unsigned' for " + text_of(to), "false", "true");
  if (attrs.output_unsigned && (from == DType::kI32 || from == DType::kI48))
    call.fail("'output_unsigned' with an input of " + text_of(from), "false", "true");
}

void require_scales(const Call& call, const TosaRescaleAttrs& attrs, std::int64_t channels) {
  const auto count = static_cast<std::int64_t>(attrs.multiplier.size());
  if (count != channels)
    call.fail("wrong number of entries in 'multiplier'", std::to_string(channels), std::to_string(count));
  if (attrs.shift.size() != attrs.multiplier.size())
    call.fail("wrong number of entries in 'shift'", std::to_string(channels),
              std::to_string(attrs.shift.size()));
  const std::int64_t largest = attrs.scale32 ? 2147483647 : 32767;
  for (const std::int64_t multiplier : attrs.multiplier)
    if (multiplier < 0 || multiplier > largest)
      call.fail("an entry of 'multiplier' is out of range", "0 to " + std::to_string(largest),
                std::to_string(multiplier));
  for (const std::int64_t shift : attrs.shift)
    if (shift < 2 || shift > 62)
      call.fail("an entry of 'shift' is out of range", "2 to 62", std::to_string(shift));
}

void require_type(const Call& call, const TensorType& expected) {
  call.require_dtype(0, expected.dtype);
  call.require_shape(0, expected.shape);
}

void require_variable(const Call& call, const std::string& name, const Shape& shape) {
  if (name.empty()) call.fail("the variable has no name");
  call.require_sane("the variable", shape);
}

}  // namespace

Types infer_tosa_fft2d(const Call& call) {
  require_transformable(call);
  call.require_same_dtype(1, 0);
  call.require_rank(1, 3);
  call.require_shape(1, call.operand(0).shape);
  return Types(2, typed(call.operand(0).dtype, call.operand(0).shape));
}

// The last axis of the result has extent W / 2 + 1: the spectrum of real values is symmetric, so the rest is
// redundant.
Types infer_tosa_rfft2d(const Call& call) {
  require_transformable(call);
  Shape shape = call.operand(0).shape;
  shape[2] = shape[2] / 2 + 1;
  return Types(2, typed(call.operand(0).dtype, shape));
}

// For i8, the table has 256 entries, one per value, and the result is i8. For i16, it has 513 entries;
// interpolation between them adds 7 bits, so the result is i32.
Types infer_tosa_table(const Call& call) {
  const DType dtype = call.operand(0).dtype;
  if (dtype != DType::kI8 && dtype != DType::kI16)
    call.fail("wrong dtype of " + call.operand_text(0), "i8 or i16", text_of(dtype));
  call.require_same_dtype(1, 0);
  call.require_shape(1, Shape{dtype == DType::kI8 ? 256 : 513});
  return single_result(dtype == DType::kI8 ? DType::kI8 : DType::kI32, call.operand(0).shape);
}

namespace {

// `channels` is the required number of multipliers.
Types rescaled(const Call& call, const TosaRescaleAttrs& attrs, std::int64_t channels) {
  TensorType input = call.operand(0);
  input.dtype = without_sign(input.dtype);
  require_rescale_dtypes(call, attrs);
  require_rescale_zero_point(call, "input_zp", input.dtype, attrs.input_unsigned, attrs.input_zp);
  require_rescale_zero_point(call, "output_zp", attrs.dtype, attrs.output_unsigned, attrs.output_zp);
  if (attrs.scale32 && input.dtype == DType::kI48) call.fail("'scale32' for i48", "false", "true");
  if (!attrs.scale32 && attrs.rounding_mode == RoundingMode::kDoubleRound)
    call.fail("'rounding_mode' without 'scale32'", "single_round or inexact_round", "double_round");
  require_scales(call, attrs, channels);
  return single_result(attrs.dtype, input.shape);
}

}  // namespace

Types infer_tosa_rescale(const Call& call) {
  const auto& attrs = call.attrs<TosaRescaleAttrs>();
  if (!has_sign(call.operand(0).dtype)) call.fail_dtype(0, "a dtype with a sign");
  if (attrs.per_channel) call.require_rank_between(0, 1, kMaxRank);
  return rescaled(call, attrs, attrs.per_channel ? call.operand(0).shape.back() : 1);
}

Types infer_rescale(const Call& call) {
  const auto& attrs = call.attrs<RescaleAttrs>();
  if (attrs.rescale.per_channel != attrs.axis.has_value())
    call.fail("'per_channel' and 'axis' disagree", "both or neither", attrs.axis ? "an axis" : "no axis");
  if (!has_sign(call.operand(0).dtype) != attrs.rescale.input_unsigned)
    call.fail("'input_unsigned' for " + text_of(call.operand(0).dtype),
              has_sign(call.operand(0).dtype) ? "false" : "true",
              attrs.rescale.input_unsigned ? "true" : "false");
  const Shape& shape = call.operand(0).shape;
  Types types = rescaled(call, attrs.rescale, attrs.axis ? shape[call.axis(*attrs.axis, shape.size())] : 1);
  if (attrs.rescale.output_unsigned)
    types.front().dtype = attrs.rescale.dtype == DType::kI8 ? DType::kU8 : DType::kU16;
  return types;
}

Types infer_tosa_variable(const Call& call) {
  const auto& attrs = call.attrs<TosaVariableAttrs>();
  require_variable(call, attrs.name, attrs.shape);
  if (call.optional(0) != nullptr) require_type(call, typed(attrs.dtype, attrs.shape));
  return {};
}

Types infer_tosa_variable_write(const Call& call) {
  const auto& attrs = call.attrs<TosaVariableAccessAttrs>();
  require_variable(call, attrs.name, attrs.shape);
  require_type(call, typed(attrs.dtype, attrs.shape));
  return {};
}

Types infer_tosa_variable_read(const Call& call) {
  const auto& attrs = call.attrs<TosaVariableAccessAttrs>();
  require_variable(call, attrs.name, attrs.shape);
  return single_result(attrs.dtype, attrs.shape);
}

}  // namespace tosaic::rules
