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

Types single_result(DType dtype, const Shape& shape) {
  Types types(1);
  types.front().dtype = dtype;
  types.front().shape = shape;
  return types;
}

namespace {

void check_attrs(const Call& call, const Attrs& attrs) {
  if (attrs.index() != info(call.op()).attrs_index)
    call.fail("an operator has the attributes of another",
              std::string(struct_name(info(call.op()).attrs_index)), std::string(struct_name(attrs.index())));
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

// Checks whether operand i is present, and its extents. TOSA has no empty tensors.
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

}  // namespace

// Throws InternalError: the node stores the types of its results, and has_inference() is false.
Types stored_types(const Call& call) {
  throw InternalError(
      {.where = "infer",
       .what = std::string(info(call.op()).name) + ": result types are stored, not inferred"});
}

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

// Promotes `all` with `dtype`. If `all` has no value yet, it becomes `dtype`.
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
  rules::Types types = rules::inference_of(op)(call);
  rules::check_results(call, types);
  return types;
}

bool has_inference(Op op) { return rules::inference_of(op) != rules::stored_types; }

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
