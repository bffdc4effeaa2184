// Result types of convolutions, matrix products, attention and embedding.
#include <algorithm>

#include "tosaic/ir/einsum.h"
#include "tosaic/ir/infer.h"
#include "tosaic/ir/infer_rules.h"

namespace tosaic::rules {
namespace {

// The first `rank` extents.
Shape head(const Shape& shape, std::size_t rank) { return Shape(shape.span().first(rank)); }

void require_conv_attrs(const Call& call, const ConvAttrs& attrs, std::size_t spatial) {
  call.require_size("stride", attrs.stride, spatial);
  call.require_size("pad_before", attrs.pad_before, spatial);
  call.require_size("pad_after", attrs.pad_after, spatial);
  call.require_size("dilation", attrs.dilation, spatial);
  if (attrs.transposed || !attrs.output_padding.empty())
    call.require_size("output_padding", attrs.output_padding, spatial);
  call.require_at_least("stride", attrs.stride, 1);
  call.require_at_least("pad_before", attrs.pad_before, 0);
  call.require_at_least("pad_after", attrs.pad_after, 0);
  call.require_at_least("dilation", attrs.dilation, 1);
  call.require_at_least("output_padding", attrs.output_padding, 0);
  call.require_at_least("groups", attrs.groups, 1);
  for (const std::int64_t extra : attrs.output_padding)
    if (!attrs.transposed && extra != 0)
      call.fail("'output_padding' without 'transposed'", "zeros", to_string(attrs.output_padding));
}

// The number of input positions that a dilated kernel spans: dilation * (kernel - 1) + 1.
std::int64_t reach(const Call& call, const ConvAttrs& attrs, std::size_t s, std::int64_t kernel) {
  return call.plus(call.times(attrs.dilation[s], call.minus(kernel, 1)), 1);
}

std::int64_t conv_extent(const Call& call, const ConvAttrs& attrs, std::size_t s, std::int64_t in,
                         std::int64_t kernel) {
  const std::int64_t padded = call.plus(in, call.plus(attrs.pad_before[s], attrs.pad_after[s]));
  const std::int64_t room = call.minus(padded, reach(call, attrs, s, kernel));
  if (room < 0)
    call.fail("the kernel is larger than the padded input on spatial axis " + std::to_string(s),
              "at most " + std::to_string(padded), std::to_string(reach(call, attrs, s, kernel)));
  return room / attrs.stride[s] + 1;
}

// The extent of a transposed convolution: (in - 1) * stride + reach + output_padding - pads.
std::int64_t transposed_extent(const Call& call, const ConvAttrs& attrs, std::size_t s, std::int64_t in,
                               std::int64_t kernel) {
  if (attrs.output_padding[s] >= std::max(attrs.stride[s], attrs.dilation[s]))
    call.fail("'output_padding' is too large on spatial axis " + std::to_string(s),
              "less than stride or dilation", std::to_string(attrs.output_padding[s]));
  std::int64_t out = call.times(call.minus(in, 1), attrs.stride[s]);
  out = call.plus(out, reach(call, attrs, s, kernel));
  out = call.plus(out, attrs.output_padding[s]);
  out = call.minus(out, call.plus(attrs.pad_before[s], attrs.pad_after[s]));
  if (out < 1)
    call.unsupported("the result is empty on spatial axis " + std::to_string(s), "at least 1",
                     std::to_string(out));
  return out;
}

// The shape of torch.matmul: the broadcast batch extents, then the rows of a and the columns of b. A rank-1
// operand contributes no rows or columns.
Shape matmul_shape(const Call& call, const Shape& a, const Shape& b) {
  const std::int64_t inner_a = a.back();
  const std::int64_t inner_b = b.size() == 1 ? b[0] : b[b.size() - 2];
  if (inner_a != inner_b)
    call.fail("inner extents differ", std::to_string(inner_a) + " in " + to_string(a),
              std::to_string(inner_b) + " in " + to_string(b));
  Shape shape = broadcast(a.size() > 2 ? head(a, a.size() - 2) : Shape{},
                          b.size() > 2 ? head(b, b.size() - 2) : Shape{});
  if (a.size() > 1) shape.push_back(a[a.size() - 2]);
  if (b.size() > 1) shape.push_back(b.back());
  return shape;
}

// Requires that operand i broadcasts to `target` without changing it.
void require_expandable(const Call& call, std::size_t i, const Shape& target) {
  const Shape& shape = call.operand(i).shape;
  if (shape.size() > target.size() || !(broadcast(shape, target) == target))
    call.fail(call.operand_text(i) + " does not expand to the result", to_string(target), to_string(shape));
}

// addmm, baddbmm: input + mat1 @ mat2, where both matrices have rank `rank`.
Types infer_fused_product(const Call& call, std::size_t rank) {
  call.require_number(0);
  call.require_same_dtype(1, 0);
  call.require_same_dtype(2, 0);
  call.require_rank(1, rank);
  call.require_rank(2, rank);
  if (rank == 3) call.require_extent(2, 0, call.operand(1).shape[0]);
  const Shape shape = matmul_shape(call, call.operand(1).shape, call.operand(2).shape);
  require_expandable(call, 0, shape);
  return single_result(call.operand(0).dtype, shape);
}

// The shape of key or value after its heads are repeated to the number of query heads (grouped-query
// attention).
Shape repeated_heads(const Call& call, std::size_t i) {
  Shape shape = call.operand(i).shape;
  const std::size_t axis = shape.size() - 3;
  const Shape& query = call.operand(0).shape;
  const std::int64_t heads = query[query.size() - 3];
  if (shape[axis] < 1 || heads % shape[axis] != 0)
    call.fail("heads of " + call.operand_text(i) + " do not divide the heads of the query",
              "a divisor of " + std::to_string(heads), std::to_string(shape[axis]));
  shape[axis] = heads;
  return shape;
}

}  // namespace

namespace {

Shape convolved(const Call& call, const ConvAttrs& attrs) {
  call.require_rank_between(1, 3, 5);
  const Shape& input = call.operand(0).shape;
  const Shape& weight = call.operand(1).shape;
  const std::size_t spatial = weight.size() - 2;
  call.require_rank_between(0, spatial + 1, spatial + 2);
  require_conv_attrs(call, attrs, spatial);
  const std::size_t channel_axis = input.size() - spatial - 1;
  const std::int64_t channels = input[channel_axis];
  const std::int64_t out_channels = attrs.transposed ? call.times(weight[1], attrs.groups) : weight[0];
  call.require_extent(0, channel_axis, attrs.transposed ? weight[0] : call.times(weight[1], attrs.groups));
  if (channels % attrs.groups != 0 || out_channels % attrs.groups != 0)
    call.fail("'groups' does not divide the channels",
              "a divisor of " + std::to_string(channels) + " and " + std::to_string(out_channels),
              std::to_string(attrs.groups));
  call.require_shape(2, {out_channels});
  Shape shape = input;
  shape[channel_axis] = out_channels;
  for (std::size_t s = 0; s < spatial; ++s) {
    const std::size_t axis = channel_axis + 1 + s;
    call.require_nonempty_axis(0, axis);
    call.require_nonempty_axis(1, 2 + s);
    shape[axis] = attrs.transposed ? transposed_extent(call, attrs, s, input[axis], weight[2 + s])
                                   : conv_extent(call, attrs, s, input[axis], weight[2 + s]);
  }
  return shape;
}

void require_zero_point(const Call& call, const char* name, std::size_t i, std::int64_t value) {
  const DType dtype = call.operand(i).dtype;
  const ValueRange range = dtype == DType::kI8 ? *integer_limits(dtype) : ValueRange{0, 0};
  if (!range.contains(value))
    call.fail(std::string("attribute '") + name + "' for " + std::string(to_string(dtype)),
              std::to_string(range.low) + " to " + std::to_string(range.high), std::to_string(value));
}

}  // namespace

Types infer_conv(const Call& call) {
  call.require_number(0);
  call.require_same_dtype(1, 0);
  if (call.optional(2) != nullptr) call.require_same_dtype(2, 0);
  return single_result(call.operand(0).dtype, convolved(call, call.attrs<ConvAttrs>()));
}

// The input is i8 or i16, the weight i8 or i4. The result is i32 for i8 input and i48 for i16 input. The bias
// has the dtype of the result.
Types infer_integer_conv(const Call& call) {
  const auto& attrs = call.attrs<IntegerConvAttrs>();
  const DType input = call.operand(0).dtype, weight = call.operand(1).dtype;
  if (input != DType::kI8 && input != DType::kI16) call.fail_dtype(0, "i8 or i16");
  if (weight != DType::kI8 && weight != DType::kI4) call.fail_dtype(1, "i8 or i4");
  const DType sum = input == DType::kI8 ? DType::kI32 : DType::kI48;
  if (call.optional(2) != nullptr) call.require_dtype(2, sum);
  require_zero_point(call, "input_zp", 0, attrs.input_zp);
  require_zero_point(call, "weight_zp", 1, attrs.weight_zp);
  return single_result(sum, convolved(call, attrs.conv));
}

Types infer_linear(const Call& call) {
  call.require_number(0);
  call.require_same_dtype(1, 0);
  if (call.optional(2) != nullptr) call.require_same_dtype(2, 0);
  call.require_rank_between(0, 1, kMaxRank);
  if (call.operand(1).rank() == 1) call.unsupported("a weight of rank 1", "rank 2", "1");
  call.require_rank(1, 2);
  Shape shape = call.operand(0).shape;
  const std::size_t last = shape.size() - 1;
  call.require_extent(1, 1, shape[last]);
  shape[last] = call.operand(1).shape[0];
  call.require_shape(2, {shape[last]});
  return single_result(call.operand(0).dtype, shape);
}

Types infer_matmul(const Call& call) {
  call.require_number(0);
  call.require_same_dtype(1, 0);
  call.require_rank_between(0, 1, kMaxRank);
  call.require_rank_between(1, 1, kMaxRank);
  return single_result(call.operand(0).dtype,
                       matmul_shape(call, call.operand(0).shape, call.operand(1).shape));
}

Types infer_addmm(const Call& call) { return infer_fused_product(call, 2); }
Types infer_baddbmm(const Call& call) { return infer_fused_product(call, 3); }

Types infer_sdpa(const Call& call) {
  const auto& attrs = call.attrs<SdpaAttrs>();
  for (std::size_t i = 0; i < 3; ++i) {
    call.require_float(i);
    call.require_same_dtype(i, 0);
    call.require_rank_between(i, attrs.enable_gqa ? 3 : 2, kMaxRank);
  }
  const Shape query = call.operand(0).shape;
  Shape key = attrs.enable_gqa ? repeated_heads(call, 1) : call.operand(1).shape;
  const Shape value = attrs.enable_gqa ? repeated_heads(call, 2) : call.operand(2).shape;
  std::swap(key[key.size() - 1], key[key.size() - 2]);
  const Shape scores = matmul_shape(call, query, key);
  if (const TensorType* const mask = call.optional(3)) {
    if (attrs.is_causal) call.unsupported("a mask together with 'is_causal'", "one of them", "both");
    if (mask->dtype != DType::kBool && mask->dtype != DType::kF32) call.require_same_dtype(3, 0);
    call.require_rank_between(3, 2, kMaxRank);
    require_expandable(call, 3, scores);
  }
  return single_result(call.operand(0).dtype, matmul_shape(call, scores, value));
}

Types infer_embedding(const Call& call) {
  call.require_rank(0, 2);
  call.require_index(1);
  Shape shape = call.operand(1).shape;
  shape.push_back(call.operand(0).shape[1]);
  return single_result(call.operand(0).dtype, shape);
}

Types infer_einsum(const Call& call) {
  std::vector<Shape> shapes;
  for (std::size_t i = 0; i < call.count(); ++i) {
    call.require_number(i);
    shapes.push_back(call.operand(i).shape);
  }
  if (shapes.empty()) call.fail("no operands", "1 or more", "0");
  const Einsum einsum = parse_einsum(call.attrs<EinsumAttrs>().equation, shapes);
  return single_result(promoted_dtype(call.operands()), einsum.result_shape());
}

}  // namespace tosaic::rules
