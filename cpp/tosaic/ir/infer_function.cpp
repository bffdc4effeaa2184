// Result types of remainders, functions of two floats, shifts, lerp, addcmul and addcdiv, prelu, glu,
// quantizers, logsumexp and vector_norm.
#include <cmath>

#include "tosaic/ir/infer.h"
#include "tosaic/ir/infer_rules.h"

namespace tosaic::rules {
namespace {

DType function_dtype(DType dtype) { return is_float(dtype) ? dtype : DType::kF32; }

// Requires qmin <= qmax, and as many scales and zero points as `axis` and `groups` say.
template <class A>
void require_parameters(const Call& call, const A& attrs) {
  const Shape& shape = call.operand(0).shape;
  if (attrs.axis) static_cast<void>(call.axis(*attrs.axis, shape.size()));
  if (const char* const expected = scale_grid_fault(shape, attrs.axis, attrs.groups))
    call.fail("attributes 'axis' and 'groups' over " + to_string(shape), expected,
              "axis " + (attrs.axis ? std::to_string(*attrs.axis) : "none") + ", groups of " +
                  std::to_string(attrs.groups->size) + " on axis " + std::to_string(attrs.groups->axis));
  const std::int64_t expected = scale_count(shape, attrs.axis, attrs.groups);
  const std::size_t scales = attrs.scales.size(), zero_points = attrs.zero_points.size();
  for (const std::size_t count : {scales, zero_points})
    if (static_cast<std::int64_t>(count) != expected)
      call.fail("attributes 'scales' and 'zero_points'", std::to_string(expected) + " of each",
                std::to_string(scales) + " and " + std::to_string(zero_points));
  if (attrs.qmin > attrs.qmax)
    call.fail("attribute 'qmin' is above 'qmax'", "at most " + std::to_string(attrs.qmax),
              std::to_string(attrs.qmin));
}

void require_storage(const Call& call, DType dtype) {
  if (!is_integer(dtype) || byte_size(dtype) > 4)
    call.fail("quantized dtype", "an integer of at most 32 bits", std::string(to_string(dtype)));
}

}  // namespace

Types infer_remainder(const Call& call) {
  const DType dtype = promoted_dtype(call.operands());
  if (dtype == DType::kBool) call.fail("bool operands", "an integer or float dtype", "bool and bool");
  return single_result(dtype, broadcast_from(call, 0));
}

Types infer_binary_float_function(const Call& call) {
  return single_result(function_dtype(promoted_dtype(call.operands())), broadcast_from(call, 0));
}

Types infer_shift(const Call& call) {
  call.require_integer(0);
  call.require_integer(1);
  return single_result(promoted_dtype(call.operands()), broadcast_from(call, 0));
}

// The weight may have another float dtype than start and end: a weight that is a Python number stays f32
// next to f16 and bf16.
Types infer_lerp(const Call& call) {
  for (std::size_t i = 0; i < 3; ++i) call.require_float(i);
  call.require_same_dtype(1, 0);
  return single_result(call.operand(0).dtype, broadcast_from(call, 0));
}

Types infer_addc(const Call& call) {
  const DType dtype = promoted_dtype(call.operands());
  const bool divides = call.op() == Op::kAddcdiv;
  if (dtype == DType::kBool || (divides && !is_float(dtype)))
    call.fail("operands", divides ? "a float dtype" : "an integer or float dtype",
              std::string(to_string(dtype)));
  const Scalar& value = call.attrs<ValueAttrs>().value;
  if (!is_float(dtype) && std::holds_alternative<double>(value))
    call.fail("a float 'value' for an integer result", "an integer 'value'",
              std::to_string(as_double(value)));
  return single_result(dtype, broadcast_from(call, 0));
}

Types infer_prelu(const Call& call) {
  call.require_float(0);
  call.require_same_dtype(1, 0);
  const TensorType& input = call.operand(0);
  const TensorType& weight = call.operand(1);
  if (weight.rank() > 1) call.require_rank(1, 1);
  const std::int64_t count = num_elements(weight.shape);
  if (count != 1 && (input.rank() < 2 || count != input.shape[1]))
    call.fail("slopes", "one, or one for each position of axis 1 of " + to_string(input.shape),
              std::to_string(count));
  return single_result(input.dtype, input.shape);
}

Types infer_glu(const Call& call) {
  call.require_float(0);
  Shape shape = call.operand(0).shape;
  const std::size_t axis = call.axis(call.attrs<AxisAttrs>().axis, shape.size());
  if (shape[axis] % 2 != 0) call.fail("the extent to halve", "an even number", std::to_string(shape[axis]));
  shape[axis] /= 2;
  return single_result(call.operand(0).dtype, shape);
}

Types infer_logsumexp(const Call& call) {
  const auto& attrs = call.attrs<ReduceAttrs>();
  if (attrs.dtype) call.fail("attribute 'dtype' is not taken", "none", std::string(to_string(*attrs.dtype)));
  return single_result(function_dtype(call.operand(0).dtype), reduced(call, attrs.axes, attrs.keepdim));
}

Types infer_vector_norm(const Call& call) {
  const auto& attrs = call.attrs<VectorNormAttrs>();
  call.require_float(0);
  if (attrs.dtype && !is_float(*attrs.dtype))
    call.fail("attribute 'dtype'", "a float dtype", std::string(to_string(*attrs.dtype)));
  const Shape shape = reduced(call, attrs.axes, attrs.keepdim);
  if (attrs.ord < 0 || std::isinf(attrs.ord))
    for (const std::int64_t axis : attrs.axes) call.require_nonempty_axis(0, static_cast<std::size_t>(axis));
  return single_result(attrs.dtype.value_or(call.operand(0).dtype), shape);
}

Types infer_quantize(const Call& call) {
  const auto& attrs = call.attrs<QuantizeAttrs>();
  call.require_float(0);
  require_storage(call, attrs.dtype);
  require_parameters(call, attrs);
  return single_result(attrs.dtype, call.operand(0).shape);
}

Types infer_dequantize(const Call& call) {
  const auto& attrs = call.attrs<DequantizeAttrs>();
  require_storage(call, call.operand(0).dtype);
  if (!is_float(attrs.dtype))
    call.fail("attribute 'dtype'", "a float dtype", std::string(to_string(attrs.dtype)));
  require_parameters(call, attrs);
  return single_result(attrs.dtype, call.operand(0).shape);
}

}  // namespace tosaic::rules
