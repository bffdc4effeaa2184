// Result types of reductions, scans, normalisations and softmax.
#include <algorithm>

#include "tosaic/ir/infer.h"
#include "tosaic/ir/infer_rules.h"

namespace tosaic::rules {
namespace {

void require_no_dtype(const Call& call, const ReduceAttrs& attrs) {
  if (attrs.dtype) call.fail("attribute 'dtype' is not taken", "none", std::string(to_string(*attrs.dtype)));
}

// The dtype of a sum: the requested one or, if there is none, the operand's for floats and i64 for integers
// and bool.
DType accumulated(const Call& call, const std::optional<DType>& asked) {
  if (asked) return *asked;
  const DType dtype = call.operand(0).dtype;
  return is_float(dtype) ? dtype : DType::kI64;
}

// The requested dtype or, if there is none, the operand's. It must be a float dtype.
DType float_dtype(const Call& call, const std::optional<DType>& asked) {
  if (!asked) {
    call.require_float(0);
    return call.operand(0).dtype;
  }
  if (!is_float(*asked)) call.fail("attribute 'dtype'", "a float dtype", std::string(to_string(*asked)));
  return *asked;
}

// Checks scale, shift or statistics: they have the input's dtype. f32 is allowed too if the input is narrower
// than f32, and always for rms_norm.
void require_parameter(const Call& call, std::size_t i, const Shape& shape) {
  const TensorType* const type = call.optional(i);
  if (type == nullptr) return;
  const bool narrow = call.op() == Op::kRmsNorm || byte_size(call.operand(0).dtype) < byte_size(DType::kF32);
  if (!narrow || type->dtype != DType::kF32) call.require_same_dtype(i, 0);
  call.require_shape(i, shape);
}

}  // namespace

Shape reduced(const Call& call, const Dims& axes, bool keepdim) {
  const Shape& input = call.operand(0).shape;
  call.require_axes(axes, input.size());
  Shape shape;
  for (std::size_t i = 0; i < input.size(); ++i) {
    if (!axes.contains(static_cast<std::int64_t>(i)))
      shape.push_back(input[i]);
    else if (keepdim)
      shape.push_back(1);
  }
  return shape;
}

Types infer_sum_prod(const Call& call) {
  const auto& attrs = call.attrs<ReduceAttrs>();
  return single_result(accumulated(call, attrs.dtype), reduced(call, attrs.axes, attrs.keepdim));
}

Types infer_mean(const Call& call) {
  const auto& attrs = call.attrs<ReduceAttrs>();
  return single_result(float_dtype(call, attrs.dtype), reduced(call, attrs.axes, attrs.keepdim));
}

Types infer_extremum(const Call& call) {
  const auto& attrs = call.attrs<ReduceAttrs>();
  require_no_dtype(call, attrs);
  const Shape shape = reduced(call, attrs.axes, attrs.keepdim);
  for (const std::int64_t axis : attrs.axes) call.require_nonempty_axis(0, static_cast<std::size_t>(axis));
  return single_result(call.operand(0).dtype, shape);
}

// The result is bool, except that a u8 operand has a u8 result, as in torch.
Types infer_any_all(const Call& call) {
  const auto& attrs = call.attrs<ReduceAttrs>();
  require_no_dtype(call, attrs);
  const DType dtype = call.operand(0).dtype == DType::kU8 ? DType::kU8 : DType::kBool;
  return single_result(dtype, reduced(call, attrs.axes, attrs.keepdim));
}

Types infer_var(const Call& call) {
  const auto& attrs = call.attrs<VarAttrs>();
  call.require_float(0);
  return single_result(call.operand(0).dtype, reduced(call, attrs.axes, attrs.keepdim));
}

Types infer_arg(const Call& call) {
  const auto& attrs = call.attrs<ArgAttrs>();
  call.require_number(0);
  const TensorType& input = call.operand(0);
  if (attrs.axis && input.rank() == 0) {
    static_cast<void>(call.axis(*attrs.axis, 1));
    return single_result(DType::kI64, {});
  }
  if (attrs.axis) {
    call.require_nonempty_axis(0, call.axis(*attrs.axis, input.rank()));
    return single_result(DType::kI64, reduced(call, {*attrs.axis}, attrs.keepdim));
  }
  if (num_elements(input.shape) == 0)
    call.fail("the input is empty", "at least 1 element", to_string(input.shape));
  return single_result(DType::kI64, attrs.keepdim ? Shape::filled(input.rank(), 1) : Shape{});
}

Types infer_positions(const Call& call) {
  const auto* sorted = get_if<SortAttrs>(&call.attributes());
  const std::int64_t axis = sorted != nullptr ? sorted->axis : call.attrs<AxisAttrs>().axis;
  Shape shape = call.operand(0).shape;
  const std::size_t at = call.axis(axis, std::max<std::size_t>(1, shape.size()));
  if (sorted != nullptr && sorted->count) {
    call.require_at_least("count", *sorted->count, 0);
    const std::int64_t extent = shape.empty() ? 1 : shape[at];
    if (*sorted->count > extent || shape.empty())
      call.fail("attribute 'count'", shape.empty() ? "none for rank 0" : "at most " + std::to_string(extent),
                std::to_string(*sorted->count));
    shape[at] = *sorted->count;
  }
  return single_result(DType::kI64, shape);
}

Types infer_cumsum(const Call& call) {
  const auto& attrs = call.attrs<AxisDtypeAttrs>();
  static_cast<void>(call.axis(attrs.axis, std::max<std::size_t>(1, call.operand(0).rank())));
  const DType dtype = accumulated(call, attrs.dtype);
  if (dtype == DType::kBool) call.fail("attribute 'dtype'", "an integer or float dtype", "bool");
  return single_result(dtype, call.operand(0).shape);
}

// The n-th difference of cat(prepend, input, append).
Types infer_diff(const Call& call) {
  const auto& attrs = call.attrs<DiffAttrs>();
  Shape shape = call.operand(0).shape;
  const std::size_t axis = call.axis(attrs.axis, shape.size());
  call.require_at_least("n", attrs.n, 0);
  for (std::size_t i = 1; i < 3; ++i) {
    if (call.optional(i) == nullptr) continue;
    Shape expected = call.operand(0).shape;
    call.require_rank(i, expected.size());
    expected[axis] = call.operand(i).shape[axis];
    call.require_shape(i, expected);
    shape[axis] = call.plus(shape[axis], expected[axis]);
  }
  if (attrs.n == 0) return single_result(call.operand(0).dtype, call.operand(0).shape);
  shape[axis] = std::max<std::int64_t>(0, call.minus(shape[axis], attrs.n));
  return single_result(promoted_dtype(call.operands()), shape);
}

Types infer_batch_norm(const Call& call) {
  call.require_float(0);
  call.require_rank_between(0, 2, kMaxRank);
  const TensorType& input = call.operand(0);
  for (std::size_t i = 1; i < 5; ++i) require_parameter(call, i, {input.shape[1]});
  return single_result(input.dtype, input.shape);
}

Types infer_trailing_norm(const Call& call) {
  const std::int64_t normalized = call.attrs<NormAttrs>().normalized_rank;
  call.require_float(0);
  const TensorType& input = call.operand(0);
  if (normalized < 1 || normalized > static_cast<std::int64_t>(input.rank()))
    call.fail("attribute 'normalized_rank'", "1 to the rank " + std::to_string(input.rank()),
              std::to_string(normalized));
  const Shape trailing(input.shape.span().last(static_cast<std::size_t>(normalized)));
  require_parameter(call, 1, trailing);
  if (call.op() == Op::kLayerNorm) require_parameter(call, 2, trailing);
  return single_result(input.dtype, input.shape);
}

Types infer_group_norm(const Call& call) {
  const std::int64_t groups = call.attrs<GroupNormAttrs>().groups;
  call.require_float(0);
  call.require_rank_between(0, 2, kMaxRank);
  call.require_at_least("groups", groups, 1);
  const TensorType& input = call.operand(0);
  if (input.shape[1] % groups != 0)
    call.fail("'groups' does not divide the channels", "a divisor of " + std::to_string(input.shape[1]),
              std::to_string(groups));
  require_parameter(call, 1, {input.shape[1]});
  require_parameter(call, 2, {input.shape[1]});
  return single_result(input.dtype, input.shape);
}

Types infer_softmax(const Call& call) {
  const auto& attrs = call.attrs<AxisDtypeAttrs>();
  static_cast<void>(call.axis(attrs.axis, std::max<std::size_t>(1, call.operand(0).rank())));
  return single_result(float_dtype(call, attrs.dtype), call.operand(0).shape);
}

}  // namespace tosaic::rules
