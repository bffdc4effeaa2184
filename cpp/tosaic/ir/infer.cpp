// infer: the checks that apply to every operator, then the rule of the operator's family (infer_rules.h).
#include "tosaic/ir/infer.h"

#include <algorithm>

#include "tosaic/base/error.h"
#include "tosaic/ir/infer_rules.h"
#include "tosaic/ir/origin.h"

namespace tosaic {
namespace rules {
namespace {

std::string dtype_text(DType dtype) { return std::string(to_string(dtype)); }

ErrorParts parts_of(Op op, const std::string& what, const std::string& expected, const std::string& got) {
  return {
      .where = "infer", .what = std::string(info(op).name) + ": " + what, .expected = expected, .got = got};
}

}  // namespace

void Call::fail(const std::string& what, const std::string& expected, const std::string& got) const {
  throw InvalidGraph(parts_of(op_, what, expected, got));
}

void Call::unsupported(const std::string& what, const std::string& expected, const std::string& got) const {
  throw UnsupportedOp(parts_of(op_, what, expected, got));
}

std::string Call::operand_text(std::size_t i) const {
  std::string text = "operand '" + std::string(info(op_).operand_name(i)) + "'";
  if (info(op_).max_operands == 255) text += " (number " + std::to_string(i) + ")";
  return text;
}

void Call::fail_dtype(std::size_t i, const char* expected) const {
  fail("wrong dtype of " + operand_text(i), expected, dtype_text(operand(i).dtype));
}

void Call::require_float(std::size_t i) const {
  if (!is_float(operand(i).dtype)) fail_dtype(i, "a float dtype");
}

void Call::require_integer(std::size_t i) const {
  if (!is_integer(operand(i).dtype)) fail_dtype(i, "an integer dtype");
}

void Call::require_integer_or_bool(std::size_t i) const {
  if (is_float(operand(i).dtype)) fail_dtype(i, "an integer dtype or bool");
}

void Call::require_number(std::size_t i) const {
  if (operand(i).dtype == DType::kBool) fail_dtype(i, "an integer or float dtype");
}

void Call::require_dtype(std::size_t i, DType dtype) const {
  if (operand(i).dtype != dtype) fail_dtype(i, std::string(to_string(dtype)).c_str());
}

void Call::require_same_dtype(std::size_t i, std::size_t as) const {
  if (operand(i).dtype != operand(as).dtype)
    fail("dtypes of " + operand_text(as) + " and " + operand_text(i) + " differ",
         dtype_text(operand(as).dtype), dtype_text(operand(i).dtype));
}

void Call::require_index(std::size_t i) const {
  const DType dtype = operand(i).dtype;
  if (dtype != DType::kI32 && dtype != DType::kI64) fail_dtype(i, "i32 or i64");
}

void Call::require_rank(std::size_t i, std::size_t rank) const { require_rank_between(i, rank, rank); }

void Call::require_rank_between(std::size_t i, std::size_t low, std::size_t high) const {
  const std::size_t rank = operand(i).rank();
  if (rank >= low && rank <= high) return;
  const std::string expected = low == high ? "rank " + std::to_string(low)
                               : high >= kMaxRank
                                   ? "rank " + std::to_string(low) + " or more"
                                   : "rank " + std::to_string(low) + " to " + std::to_string(high);
  fail("wrong rank of " + operand_text(i), expected,
       std::to_string(rank) + " " + to_string(operand(i).shape));
}

void Call::require_shape(std::size_t i, const Shape& shape) const {
  const TensorType* const type = optional(i);
  if (type != nullptr && type->shape != shape)
    fail("wrong shape of " + operand_text(i), to_string(shape), to_string(type->shape));
}

void Call::require_extent(std::size_t i, std::size_t axis, std::int64_t extent) const {
  if (operand(i).shape[axis] != extent)
    fail("wrong extent of " + operand_text(i) + " on axis " + std::to_string(axis), std::to_string(extent),
         std::to_string(operand(i).shape[axis]) + " in " + to_string(operand(i).shape));
}

void Call::require_nonempty_axis(std::size_t i, std::size_t axis) const {
  if (operand(i).shape[axis] < 1)
    fail("axis " + std::to_string(axis) + " of " + operand_text(i) + " is empty", "an extent of at least 1",
         to_string(operand(i).shape));
}

std::size_t Call::axis(std::int64_t value, std::size_t rank) const {
  if (value < 0 || value >= static_cast<std::int64_t>(rank))
    fail("axis out of range", "an axis in [0, " + std::to_string(rank) + ")", std::to_string(value));
  return static_cast<std::size_t>(value);
}

void Call::require_size(const char* name, const Dims& dims, std::size_t size) const {
  if (dims.size() != size)
    fail(std::string("wrong number of entries in '") + name + "'", std::to_string(size), to_string(dims));
}

void Call::require_at_least(const char* name, std::int64_t value, std::int64_t low) const {
  if (value < low)
    fail(std::string("attribute '") + name + "' is too small", "at least " + std::to_string(low),
         std::to_string(value));
}

void Call::require_at_least(const char* name, const Dims& dims, std::int64_t low) const {
  for (const std::int64_t value : dims)
    if (value < low)
      fail(std::string("attribute '") + name + "' is too small", "entries of at least " + std::to_string(low),
           to_string(dims));
}

void Call::require_axes(const Dims& axes, std::size_t rank) const {
  std::uint32_t seen = 0;
  for (const std::int64_t value : axes) {
    const std::uint32_t bit = 1u << axis(value, rank);
    if ((seen & bit) != 0) fail("an axis is named twice", "distinct axes", to_string(axes));
    seen |= bit;
  }
}

std::int64_t Call::plus(std::int64_t a, std::int64_t b) const {
  std::int64_t out = 0;
  if (__builtin_add_overflow(a, b, &out)) fail("an extent does not fit 63 bits");
  return out;
}

std::int64_t Call::minus(std::int64_t a, std::int64_t b) const {
  std::int64_t out = 0;
  if (__builtin_sub_overflow(a, b, &out)) fail("an extent does not fit 63 bits");
  return out;
}

std::int64_t Call::times(std::int64_t a, std::int64_t b) const {
  std::int64_t out = 0;
  if (__builtin_mul_overflow(a, b, &out)) fail("an extent does not fit 63 bits");
  return out;
}

void Call::require_sane(const std::string& subject, const Shape& shape) const {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    if (extent < 0) fail(subject + " has a negative extent", "extents of at least 0", to_string(shape));
    if (__builtin_mul_overflow(count, std::max<std::int64_t>(extent, 1), &count) || count > kMaxElements)
      fail(subject + " is too large", "at most 2^56 elements", to_string(shape));
  }
}

Types one(DType dtype, const Shape& shape) {
  Types types(1);
  types.front().dtype = dtype;
  types.front().shape = shape;
  return types;
}

namespace {

void check_attrs(const Call& call, const Attrs& attrs) {
  if (attrs.index() != info(call.op()).attrs_index)
    call.fail("the attributes are of another operator's kind",
              "kind " + std::to_string(info(call.op()).attrs_index), "kind " + std::to_string(attrs.index()));
}

void check_count(const Call& call) {
  const OpInfo& row = info(call.op());
  const bool variadic = row.max_operands == 255;
  if (call.count() >= row.min_operands && (variadic || call.count() <= row.max_operands)) return;
  std::string expected = std::to_string(row.min_operands);
  if (variadic)
    expected += " or more";
  else if (row.max_operands != row.min_operands)
    expected += " to " + std::to_string(row.max_operands);
  call.fail("wrong number of operands", expected, std::to_string(call.count()));
}

// Presence and extents of operand i. TOSA has no empty tensors.
void check_operand(const Call& call, std::size_t i) {
  const OpInfo& row = info(call.op());
  const TensorType* const type = call.operands()[i];
  if (type == nullptr) {
    if (!row.operand_optional(i)) call.fail(call.operand_text(i) + " is absent");
    return;
  }
  call.require_sane(call.operand_text(i), type->shape);
  if (!row.is_tosa) return;
  for (const std::int64_t extent : type->shape)
    if (extent == 0)
      call.fail(call.operand_text(i) + " is empty", "extents of at least 1", to_string(type->shape));
}

void check_results(const Call& call, const Types& types) {
  for (const TensorType& type : types) call.require_sane("the result", type.shape);
}

Types infer_by_op(const Call& call) {
  switch (call.op()) {
    case Op::kConv:
      return infer_conv(call);
    case Op::kIntegerConv:
      return infer_integer_conv(call);
    case Op::kRescale:
      return infer_rescale(call);
    case Op::kLinear:
      return infer_linear(call);
    case Op::kMatmul:
      return infer_matmul(call);
    case Op::kAddmm:
      return infer_addmm(call);
    case Op::kBaddbmm:
      return infer_baddbmm(call);
    case Op::kSdpa:
      return infer_sdpa(call);
    case Op::kEinsum:
      return infer_einsum(call);

    case Op::kAbs:
    case Op::kCeil:
    case Op::kFloor:
    case Op::kNeg:
    case Op::kRound:
    case Op::kTrunc:
    case Op::kRelu:
      return infer_rounding(call);
    case Op::kSign:
    case Op::kNanToNum:
      return infer_sign(call);
    case Op::kCos:
    case Op::kErf:
    case Op::kExp:
    case Op::kLog:
    case Op::kReciprocal:
    case Op::kRsqrt:
    case Op::kSqrt:
    case Op::kSigmoid:
    case Op::kSin:
    case Op::kTanh:
    case Op::kAcos:
    case Op::kAcosh:
    case Op::kAsin:
    case Op::kAsinh:
    case Op::kAtan:
    case Op::kAtanh:
    case Op::kCosh:
    case Op::kErfinv:
    case Op::kExpm1:
    case Op::kLog10:
    case Op::kLog1p:
    case Op::kLog2:
    case Op::kSinh:
    case Op::kTan:
    case Op::kLogit:
      return infer_float_function(call);
    case Op::kLeakyRelu:
    case Op::kElu:
    case Op::kGelu:
    case Op::kSilu:
    case Op::kHardsigmoid:
    case Op::kHardswish:
    case Op::kMish:
    case Op::kLogSigmoid:
    case Op::kSoftplus:
    case Op::kSoftshrink:
    case Op::kHardshrink:
      return infer_activation(call);
    case Op::kClamp:
      return infer_clamp(call);
    case Op::kLogicalNot:
    case Op::kIsinf:
      return infer_logical_not(call);
    case Op::kBitwiseNot:
      return infer_bitwise_not(call);
    case Op::kCast:
      return infer_cast(call);

    case Op::kAdd:
    case Op::kSub:
      return infer_add_sub(call);
    case Op::kMul:
    case Op::kMaximum:
    case Op::kMinimum:
      return infer_promoting(call);
    case Op::kDiv:
      return infer_div(call);
    case Op::kPow:
      return infer_pow(call);
    case Op::kEq:
    case Op::kNe:
    case Op::kLt:
    case Op::kLe:
    case Op::kGt:
    case Op::kGe:
      return infer_compare(call);
    case Op::kLogicalAnd:
    case Op::kLogicalOr:
    case Op::kLogicalXor:
      return infer_logical(call);
    case Op::kBitwiseAnd:
    case Op::kBitwiseOr:
    case Op::kBitwiseXor:
      return infer_bitwise(call);
    case Op::kWhere:
      return infer_where(call);

    case Op::kSum:
    case Op::kProd:
      return infer_sum(call);
    case Op::kMean:
      return infer_mean(call);
    case Op::kAmax:
    case Op::kAmin:
      return infer_extremum(call);
    case Op::kAny:
    case Op::kAll:
      return infer_any_all(call);
    case Op::kVar:
    case Op::kStd:
      return infer_var(call);
    case Op::kArgmax:
    case Op::kArgmin:
      return infer_arg(call);
    case Op::kCumsum:
      return infer_cumsum(call);
    case Op::kDiff:
      return infer_diff(call);

    case Op::kBatchNorm:
      return infer_batch_norm(call);
    case Op::kLayerNorm:
    case Op::kRmsNorm:
      return infer_trailing_norm(call);
    case Op::kGroupNorm:
      return infer_group_norm(call);
    case Op::kSoftmax:
    case Op::kSafeSoftmax:
    case Op::kLogSoftmax:
      return infer_softmax(call);

    case Op::kAvgPool:
    case Op::kMaxPool:
      return infer_pool(call);
    case Op::kAdaptiveAvgPool:
    case Op::kAdaptiveMaxPool:
      return infer_adaptive_avg_pool(call);
    case Op::kResize:
      return infer_resize(call);
    case Op::kGridSample:
      return infer_grid_sample(call);
    case Op::kAffineGrid:
      return infer_affine_grid(call);

    case Op::kReshape:
      return infer_reshape(call);
    case Op::kClone:
      return infer_clone(call);
    case Op::kPermute:
      return infer_permute(call);
    case Op::kExpand:
      return infer_expand(call);
    case Op::kRepeat:
      return infer_repeat(call);
    case Op::kCat:
      return infer_cat(call);
    case Op::kStack:
      return infer_stack(call);
    case Op::kSplit:
      return infer_split(call);
    case Op::kUnbind:
      return infer_unbind(call);
    case Op::kSelect:
      return infer_select(call);
    case Op::kSlice:
      return infer_slice(call);
    case Op::kFlip:
      return infer_flip(call);
    case Op::kPad:
      return infer_pad(call);
    case Op::kTril:
    case Op::kTriu:
      return infer_triangle(call);
    case Op::kGather:
      return infer_gather(call);
    case Op::kIndexSelect:
      return infer_index_select(call);
    case Op::kIndex:
      return infer_index(call);
    case Op::kEmbedding:
      return infer_embedding(call);
    case Op::kScatter:
      return infer_scatter(call);
    case Op::kIndexPut:
      return infer_index_put(call);
    case Op::kSliceScatter:
      return infer_slice_scatter(call);
    case Op::kArange:
      return infer_arange(call);
    case Op::kFull:
      return infer_full(call);

    case Op::kRecurrent:
      return infer_recurrent(call);
    case Op::kFft2:
      return infer_fft2(call);
    case Op::kRfft2:
      return infer_rfft2(call);
    case Op::kRemainder:
    case Op::kFmod:
      return infer_remainder(call);
    case Op::kAtan2:
      return infer_atan2(call);
    case Op::kLeftShift:
    case Op::kRightShift:
      return infer_shift(call);
    case Op::kLerp:
      return infer_lerp(call);
    case Op::kAddcmul:
    case Op::kAddcdiv:
      return infer_addc(call);
    case Op::kPrelu:
      return infer_prelu(call);
    case Op::kGlu:
      return infer_glu(call);
    case Op::kLogsumexp:
      return infer_logsumexp(call);
    case Op::kVectorNorm:
      return infer_vector_norm(call);
    case Op::kQuantize:
      return infer_quantize(call);
    case Op::kDequantize:
      return infer_dequantize(call);

    case Op::kOpaque:
    case Op::kCond:
    case Op::kWhileLoop:
      throw InternalError(
          {.where = "infer",
           .what = std::string(info(call.op()).name) + ": result types are stored, not inferred"});

#define TOSAIC_OP(Name, text, AttrsT, operands, results, traits, int16)
#define TOSAIC_TOSA_OP(Name, text, AttrsT, operands, results, traits) case Op::Name:
#include "tosaic/ir/ops.def"
      return infer_tosa(call);
  }
  throw InternalError({.where = "infer", .what = "not an operator"});
}

}  // namespace
}  // namespace rules

namespace {

// The operand types as `op` sees them (dtype_seen_by). Types that differ from the stored ones are appended to
// `numbers`, and the result points into it.
std::vector<const TensorType*> types_of(const Graph& graph, Op op, std::span<const ValueId> operands,
                                        std::vector<TensorType>& numbers) {
  std::vector<const TensorType*> types;
  types.reserve(operands.size());
  for (const ValueId id : operands) {
    if (id.valid() && id.index() >= graph.values().size())
      throw InvalidGraph({.where = "infer",
                          .what = std::string(info(op).name) + ": an operand does not exist",
                          .expected = "a value id below " + std::to_string(graph.values().size()),
                          .got = std::to_string(id.index())});
    const TensorType* type = id.valid() ? &graph.type(id) : nullptr;
    if (type != nullptr && dtype_seen_by(graph, op, *type) != type->dtype) {
      numbers.reserve(operands.size());  // so that pointers stay valid
      type = &numbers.emplace_back(*type);
      numbers.back().dtype = dtype_seen_by(graph, op, *type);
    }
    types.push_back(type);
  }
  return types;
}

// Promotes `all` with `dtype`; without a value yet, `all` becomes `dtype`.
void promote_into(std::optional<DType>& all, DType dtype) { all = all ? promote(*all, dtype) : dtype; }

int category(DType dtype) { return dtype == DType::kBool ? 0 : is_integer(dtype) ? 1 : 2; }

}  // namespace

std::vector<TensorType> infer(Op op, const Attrs& attrs, std::span<const TensorType* const> operands) {
  const rules::Call call(op, attrs, operands);
  rules::check_attrs(call, attrs);
  if (has_inference(op)) {
    rules::check_count(call);
    for (std::size_t i = 0; i < operands.size(); ++i) rules::check_operand(call, i);
  }
  rules::Types types = rules::infer_by_op(call);
  rules::check_results(call, types);
  return types;
}

bool has_inference(Op op) {
  return op != Op::kOpaque && op != Op::kCond && op != Op::kWhileLoop && op != Op::kTosaCustom &&
         op != Op::kTosaCondIf && op != Op::kTosaWhileLoop;
}

std::vector<TensorType> infer_node(const Graph& graph, Op op, const Attrs& attrs,
                                   std::span<const ValueId> operands, const OriginRef& origin,
                                   const std::string& name) {
  const std::string node_name = name.empty() ? std::string(info(op).name) : name;
  try {
    std::vector<TensorType> numbers;
    return infer(op, attrs, types_of(graph, op, operands, numbers));
  } catch (const InvalidGraph& error) {
    throw InvalidGraph(located(error.parts(), origin, node_name));
  } catch (const UnsupportedOp& error) {
    throw UnsupportedOp(located(error.parts(), origin, node_name));
  }
}

DType dtype_seen_by(const Graph& graph, Op op, const TensorType& type) {
  const bool over_integers = op == Op::kQuantize || op == Op::kDequantize;
  return graph.stage == Stage::kQuantized && type.qparams && !over_integers ? DType::kF32 : type.dtype;
}

DType promoted_dtype(std::span<const TensorType* const> operands) {
  std::optional<DType> ranked, scalar;
  for (const TensorType* const type : operands)
    if (type != nullptr) promote_into(type->rank() == 0 ? scalar : ranked, type->dtype);
  if (!ranked && !scalar) throw InternalError({.where = "infer", .what = "promotion of no operands"});
  if (!ranked || !scalar) return ranked ? *ranked : *scalar;
  return category(*scalar) > category(*ranked) ? promote(*ranked, *scalar) : *ranked;
}

}  // namespace tosaic
