// Result types of canonical elementwise operators, with torch's promotion and broadcasting.
#include "tosaic/ir/infer.h"
#include "tosaic/ir/infer_rules.h"

namespace tosaic::rules {
namespace {

Types like_operand(const Call& call) { return single_result(call.operand(0).dtype, call.operand(0).shape); }

Types promoted(const Call& call) {
  return single_result(promoted_dtype(call.operands()), broadcast_from(call, 0));
}

bool is_bool(const Scalar& value) { return std::holds_alternative<bool>(value); }
bool is_double(const Scalar& value) { return std::holds_alternative<double>(value); }

}  // namespace

Shape broadcast_from(const Call& call, std::size_t first) {
  Shape shape = call.operand(first).shape;
  for (std::size_t i = first + 1; i < call.count(); ++i) shape = broadcast(shape, call.operand(i).shape);
  return shape;
}

// abs, ceil, neg, relu ...: not bool
Types infer_same_number_dtype(const Call& call) {
  call.require_number(0);
  return like_operand(call);
}

// sign, nan_to_num: also bool
Types infer_same_dtype(const Call& call) { return like_operand(call); }

// Integers and bool become f32.
Types infer_float_function(const Call& call) {
  const TensorType& input = call.operand(0);
  return single_result(is_float(input.dtype) ? input.dtype : DType::kF32, input.shape);
}

// floats only
Types infer_activation(const Call& call) {
  call.require_float(0);
  return like_operand(call);
}

// Bounds are Python numbers, which may raise the category of the result: integers and bool with a float bound
// become f32, and bool with an integer bound becomes i64. bool with bool bounds only is refused.
Types infer_clamp(const Call& call) {
  const auto& attrs = call.attrs<ClampAttrs>();
  if (!attrs.min && !attrs.max) call.fail("neither 'min' nor 'max' is given", "at least one bound", "none");
  bool any_double = false, all_bool = true;
  for (const std::optional<Scalar>& bound : {attrs.min, attrs.max}) {
    if (!bound) continue;
    any_double = any_double || is_double(*bound);
    all_bool = all_bool && is_bool(*bound);
  }
  DType dtype = call.operand(0).dtype;
  if (any_double && !is_float(dtype)) dtype = DType::kF32;
  if (dtype == DType::kBool) {
    if (all_bool) call.require_number(0);
    dtype = DType::kI64;
  }
  return single_result(dtype, call.operand(0).shape);
}

Types infer_logical_not(const Call& call) { return single_result(DType::kBool, call.operand(0).shape); }

Types infer_bitwise_not(const Call& call) {
  call.require_integer_or_bool(0);
  return like_operand(call);
}

Types infer_cast(const Call& call) {
  return single_result(call.attrs<CastAttrs>().dtype, call.operand(0).shape);
}

Types infer_add_sub(const Call& call) {
  Types types = promoted(call);
  const DType dtype = types.front().dtype;
  const Scalar& alpha = call.attrs<AlphaAttrs>().alpha;
  for (std::size_t i = 0; call.op() == Op::kSub && i < 2; ++i) call.require_number(i);
  if (!is_float(dtype) && is_double(alpha))
    call.fail("a float 'alpha' for an integer result", "an integer 'alpha'",
              std::to_string(as_double(alpha)));
  if (dtype != DType::kBool && is_bool(alpha))
    call.fail("a bool 'alpha' for a number", "an integer or float 'alpha'", "bool");
  return types;
}

Types infer_promoting(const Call& call) { return promoted(call); }

Types infer_div(const Call& call) {
  Types types = promoted(call);
  DType& dtype = types.front().dtype;
  if (call.attrs<DivAttrs>().rounding == DivRounding::kNone) {
    if (!is_float(dtype)) dtype = DType::kF32;
  } else if (dtype == DType::kBool) {
    call.fail("bool operands", "an integer or float dtype", "bool and bool");
  }
  return types;
}

Types infer_pow(const Call& call) {
  Types types = promoted(call);
  if (types.front().dtype == DType::kBool)
    call.fail("bool operands", "an integer or float dtype", "bool and bool");
  return types;
}

Types infer_compare(const Call& call) {
  Types types = promoted(call);
  types.front().dtype = DType::kBool;
  return types;
}

Types infer_logical(const Call& call) { return single_result(DType::kBool, broadcast_from(call, 0)); }

Types infer_bitwise(const Call& call) {
  call.require_integer_or_bool(0);
  call.require_integer_or_bool(1);
  return promoted(call);
}

Types infer_gcd(const Call& call) {
  for (std::size_t i = 0; i < 2; ++i) {
    call.require_integer_or_bool(i);
    if (call.operand(i).dtype == DType::kBool)
      call.fail("the dtype of an operand", "an integer dtype", "bool");
  }
  return promoted(call);
}

Types infer_where(const Call& call) {
  call.require_dtype(0, DType::kBool);
  return single_result(promoted_dtype(call.operands().subspan(1)), broadcast_from(call, 0));
}

}  // namespace tosaic::rules
