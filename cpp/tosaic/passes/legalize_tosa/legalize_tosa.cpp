// legalize-tosa: replaces canonical operators over values with dim orders by TOSA operators over physical
// shapes.
//
//   %y: f32[1,8,4,4] order(0,2,3,1) = conv(%x, %w, %b) {pad_before=[1,1] ...}
//     -> %w.t = tosa.transpose(%w)   %y: f32[1,4,4,8] = tosa.conv2d(%x.t, %w.t, %b) {pad=[1,1,1,1] ...}
//
// i64 becomes i32: the range analysis (narrow_integers.cpp) proves that every value fits, and a run checks
// i64 inputs against their ranges. The error has all problems of the graph.
//
// The rules work with values of any rank. At the end, join_axes rewrites values of more than 6 axes.

#include <algorithm>
#include <limits>

#include "tosaic/base/work.h"
#include "tosaic/exec/narrow_constant.h"
#include "tosaic/layout/options.h"
#include "tosaic/layout/order.h"
#include "tosaic/passes/legalize_tosa/f32_integers.h"
#include "tosaic/passes/legalize_tosa/join_axes.h"
#include "tosaic/passes/legalize_tosa/legalizer.h"
#include "tosaic/passes/match.h"
#include "tosaic/passes/pass.h"
#include "tosaic/passes/unsigned_bits.h"
#include "tosaic/target/layout_needs.h"

namespace tosaic::passes {
namespace {

bool has_tosa_type(DType dtype) { return dtype != DType::kF64 && !is_unsigned(dtype); }

// An integer constant in another dtype. The caller has checked that the elements fit.
ConstantRef converted(const Constant& constant, DType dtype) {
  const Elements elements(constant);
  const std::size_t width = byte_size(dtype);
  auto out = std::make_shared<Constant>(constant);
  out->dtype = dtype;
  out->kind = ConstantKind::kFolded;
  out->storage = Storage::allocate(elements.size() * width);
  std::byte* to = out->storage.writable();
  for (std::size_t i = 0; i < elements.size(); ++i)
    store_element(dtype, to + i * width, static_cast<double>(elements.as_int(i)));
  return out;
}

// Unsigned integers as signed integers of the same bits.
ConstantRef bits_of(const Constant& constant) {
  auto out = std::make_shared<Constant>(constant);
  out->dtype = without_sign(constant.dtype);
  return out;
}

std::string more_axes(std::size_t count) {
  return std::to_string(count) + " axes, and TOSA allows " + std::to_string(kMostAxes);
}

// The axis of a TOSA reduction.
std::int64_t reduced_axis(const Node& node) {
  const auto* const with_nan = get_if<TosaAxisNanAttrs>(&*node.attrs);
  return with_nan != nullptr ? with_nan->axis : Graph::attrs<AxisAttrs>(node).axis;
}

// True for TOSA's reductions. Of the TOSA operators that a graph may have at stage integer, only elementwise
// operators and reductions of one axis take any order. A reduction retains its axis, with extent 1.
bool is_reduction(Op op) {
  return target::tosa_layout_needs().of(op).need == target::LayoutNeed::kAny && !info(op).has(kElementwise);
}

// Copies a TOSA operator that the graph has at stage integer already. An elementwise operator or reduction
// computes in the planned order. The table of TABLE, and an operand of another rank than the result, is read
// in row-major order. Every other operator computes in row-major order, to which its axis attributes refer.
Physical copy_tosa_op(Legalizer& l) {
  if (is_reduction(l.node().op)) {
    const DimOrder& order = l.planned_order();
    const std::size_t axis = physical_axis(order, l.result_type().rank(), reduced_axis(l.node()));
    return {reduce_axis(l, l.node().op, l.operand(0, order), axis), order};
  }
  const bool elementwise = info(l.node().op).has(kElementwise);
  const DimOrder order = elementwise ? l.planned_order() : DimOrder();
  const std::size_t rank = l.result_type().rank();
  std::vector<ValueId> operands;
  for (std::size_t i = 0; i < l.operand_count(); ++i) {
    const bool whole = elementwise && l.logical_type(i).rank() == rank && !info(l.node().op).is_table(i);
    operands.push_back(l.operand(i, whole ? order : DimOrder()));
  }
  return {l.emit(l.node().op, *l.node().attrs, operands), order};
}

}  // namespace

// If there is a multiplier per channel, the channel axis must be innermost. An i48 operand is read in the
// order in which it is stored: TOSA has no data movement for i48.
Physical legalize_rescale(Legalizer& l) {
  const auto& attrs = l.attrs<RescaleAttrs>();
  DimOrder order = l.logical_type(0).dtype == DType::kI48 ? l.order_of(0) : l.planned_order();
  if (attrs.axis) order = layout::with_innermost(order, l.result_type().rank(), *attrs.axis);
  return {l.emit(Op::kTosaRescale, attrs.rescale, {l.operand(0, order)}), order};
}

Physical legalize_tosa_op(Legalizer& l) {
  if (l.node().op == Op::kTosaAvgPool2d)
    if (std::optional<Physical> made = reduced_windows(l)) return *std::move(made);
  return copy_tosa_op(l);
}

Physical not_expanded(Legalizer& l) {
  l.refuse("operator '" + std::string(info(l.node().op).name) +
           "' has no TOSA counterpart and was not expanded");
}

// TOSA has no unsigned dtypes: a graph input of u8 is an i8 that RESCALE reads as unsigned. A target without
// profile INT has no RESCALE, so the input is i32, which CAST converts.
DType Legalizer::boundary_dtype(DType dtype) const {
  if (dtype == DType::kI64 || (is_unsigned(dtype) && !has_integers())) return DType::kI32;
  return without_sign(dtype);
}

DType Legalizer::physical_dtype(DType dtype) const {
  if ((is_signed_integer(dtype) || is_unsigned(dtype)) && !has_integers()) return DType::kF32;
  return dtype == DType::kI64 ? DType::kI32 : without_sign(dtype);
}

DType Legalizer::physical_dtype(ValueId logical) const {
  return is_set(plan_.wide_values, logical.index()) ? DType::kI32
                                                    : physical_dtype(source_.type(logical).dtype);
}

ValueId Legalizer::as_integer(ValueId x, DType dtype) {
  if (type(x).dtype == dtype) return x;
  const Node* producer = out_.producer(x);  // if x is a cast of a value of `dtype`, returns that value
  if (producer != nullptr && producer->op == Op::kTosaCast) {
    const ValueId before = out_.operands(*producer)[0];
    if (type(before).dtype == dtype) return before;
  }
  return cast(x, dtype);
}

std::size_t physical_axis(const DimOrder& order, std::size_t rank, std::int64_t axis) {
  const Dims axes = order.axes(rank);
  for (std::size_t i = 0; i < rank; ++i)
    if (axes[i] == axis) return i;
  throw InternalError(
      {.where = "legalize-tosa", .what = "axis " + std::to_string(axis) + " is not in the order"});
}

Legalizer::Legalizer(const Graph& source, const target::TargetSpec& target, Part part)
    : source_(source), target_(target), part_(part), physical_(source.values().size()) {
  out_.name = source.name;
  out_.stage = Stage::kTosa;
}

void Legalizer::refuse(std::string reason, std::string hint) const {
  ErrorParts parts{.where = "legalize-tosa", .what = std::move(reason), .hint = std::move(hint)};
  if (node_ == nullptr) throw UnsupportedOp(parts);  // the problem is an output that is a constant
  throw UnsupportedOp(located(std::move(parts), node_->origin, source_.node_name(*node_)));
}

Graph Legalizer::run() {
  if (part_ == Part::kRegion) {
    plan_ = narrow_region_integers(source_, has_integers());
    add_region_inputs();
  } else {
    plan_ = narrow_integers(source_, has_integers(), problems_);
    add_inputs();
  }
  for (const Node& node : source_.nodes()) {
    node_ = &node;
    work::add(1 + node.operand_count);
    bool reachable = true;
    for (const ValueId operand : source_.operands(node))
      reachable = reachable && (!operand.valid() || source_.value(operand).kind == ValueKind::kConstant ||
                                physical_[operand.index()].id.valid());
    if (!reachable) continue;  // the node depends on a node that was refused
    try {
      legalize_node(node);
    } catch (const Error& error) {
      problems_.push_back(located(error.parts(), node.origin, source_.node_name(node)));
    }
  }
  check_outputs();
  if (problems_.empty()) add_outputs();
  return std::move(out_);
}

void Legalizer::check_outputs() {
  for (const Output& output : source_.outputs()) {
    const Value& value = source_.value(output.value);
    const Shape& shape = value.type.shape;
    if (value.kind == ValueKind::kConstant && num_elements(shape) == 0)
      problems_.push_back({.where = "legalize-tosa",
                           .what = "output '" + output.path + "' of shape " + to_string(shape) +
                                   " has no elements, which TOSA does not allow",
                           .hint = "Do not return it"});
    if (shape.size() <= kMostAxes || part_ == Part::kRegion) continue;
    ErrorParts parts{.where = "legalize-tosa",
                     .what = "output '" + output.path + "' has " + more_axes(shape.size()),
                     .got = to_string(value.type),
                     .node = value.name,
                     .hint = "Join axes of what the module returns, e.g. by y.flatten(0, 1)"};
    if (const Node* producer = source_.producer(output.value))
      parts = located(std::move(parts), producer->origin, value.name);
    problems_.push_back(std::move(parts));
  }
}

ConstantRef Legalizer::physical_initial(const Input& input, const TensorType& type) const {
  if (!input.initial || input.initial->dtype == type.dtype) return input.initial;
  if (without_sign(input.initial->dtype) == type.dtype) return bits_of(*input.initial);
  return converted(*input.initial, type.dtype);
}

void Legalizer::add_inputs() {
  for (const Input& input : source_.inputs()) {
    const ValueRange& range = plan_.inputs[source_.value(input.value).result_index];
    const Value& value = source_.value(input.value);
    TensorType type;
    type.dtype = boundary_dtype(value.type.dtype);
    type.shape = physical_dims(value.type.shape, value.type.order);
    BoundaryFormat boundary = input.boundary;
    boundary.order = value.type.order;
    const bool narrowed =
        value.type.dtype == DType::kI32 && (range.low > std::numeric_limits<std::int32_t>::min() ||
                                            range.high < std::numeric_limits<std::int32_t>::max());
    // An input with qparams retains its dtype at the boundary, unless the dtype is unsigned.
    const bool may_convert = !boundary.qparams || is_unsigned(value.type.dtype);
    if (may_convert && (type.dtype != value.type.dtype || narrowed)) {
      const bool is_read = !source_.users(input.value).empty() || source_.is_output(input.value);
      boundary.source_dtype = value.type.dtype;
      boundary.range_min = is_read ? range.low : std::numeric_limits<std::int64_t>::min();
      boundary.range_max = is_read ? range.high : std::numeric_limits<std::int64_t>::max();
    }
    if (is_unsigned(value.type.dtype)) {
      boundary.range_min = integer_limits(value.type.dtype)->low;
      boundary.range_max = integer_limits(value.type.dtype)->high;
    }
    if (!is_representable(input.value))
      problems_.push_back({.where = "legalize-tosa",
                           .what = "input '" + input.path + "' has a dtype that TOSA lacks",
                           .expected = "bool, i8, i16, i32, i64, f16, bf16 or f32",
                           .got = std::string(to_string(value.type.dtype)),
                           .node = value.name,
                           .hint = is_unsigned(value.type.dtype)
                                       ? "Convert it first in the module, e.g. x.float() or x.int()"
                                       : "Cast the input or the module, e.g. module.float()"});
    if (type.rank() > kMostAxes)
      problems_.push_back({.where = "legalize-tosa",
                           .what = "input '" + input.path + "' has " + more_axes(type.rank()),
                           .got = to_string(value.type),
                           .node = value.name,
                           .hint = "Pass an array of fewer axes, and split them in the module, e.g. by "
                                   "x.unflatten(0, (2, 3))"});
    if (num_elements(type.shape) == 0) {
      problems_.push_back({.where = "legalize-tosa",
                           .what = "input '" + input.path + "' of shape " + to_string(value.type.shape) +
                                   " has no elements, which TOSA does not allow",
                           .node = value.name,
                           .hint = "Export the module with an input that has elements"});
      continue;  // nodes that depend on it are skipped
    }
    const ValueId id =
        out_.add_input(input.kind, value.name, type, input.path, boundary, physical_initial(input, type));
    out_.set_canonical_order(id, value.type.order);
    physical_[input.value.index()] = {cast(id, physical_dtype(input.value)), value.type.order};
  }
}

// The dtypes are those inside the enclosing TOSA graph: nothing is converted or range-checked.
void Legalizer::add_region_inputs() {
  for (const Input& input : source_.inputs()) {
    const Value& value = source_.value(input.value);
    TensorType type;
    type.dtype = physical_dtype(value.type.dtype);
    type.shape = physical_dims(value.type.shape, value.type.order);
    physical_[input.value.index()] = {out_.add_input(input.kind, value.name, type, input.path),
                                      value.type.order};
  }
}

void Legalizer::add_outputs() {
  for (const Output& output : source_.outputs()) {
    node_ = source_.producer(output.value);
    const TensorType& type = source_.type(output.value);
    const DimOrder& wanted = layout::boundary_order(source_, output);
    Output copy = output;
    copy.value = in_order(output.value, wanted, false);
    copy.boundary.order = wanted;
    if (part_ == Part::kRegion) {
      out_.add_output(std::move(copy));
      continue;
    }
    if (is_integer(type.dtype)) copy.value = as_integer(copy.value, boundary_dtype(type.dtype));
    const bool may_convert = !copy.boundary.qparams || is_unsigned(type.dtype);
    if (may_convert && boundary_dtype(type.dtype) != type.dtype) copy.boundary.source_dtype = type.dtype;
    out_.add_output(std::move(copy));
  }
}

// True if TOSA has the dtype, or if it is unsigned and only operators that work on its bits make or read the
// value.
bool Legalizer::is_representable(ValueId id) const {
  const TensorType& value = source_.type(id);
  if (!is_unsigned(value.dtype)) return has_tosa_type(value.dtype);
  const Node* producer = source_.producer(id);
  bool representable = producer == nullptr || takes_bits(*producer);
  for (const NodeId user : source_.users(id)) representable = representable && takes_bits(source_.node(user));
  return representable;
}

void Legalizer::check_dtype(ValueId id) const {
  const TensorType& value = source_.type(id);
  if (!is_representable(id))
    refuse("TOSA has no dtype " + std::string(to_string(value.dtype)),
           is_unsigned(value.dtype) ? "Compute with another dtype, e.g. x.float() or x.int()"
                                    : "Cast to a narrower dtype in the module");
  if (num_elements(value.shape) == 0)
    refuse("tensor of shape " + to_string(value.shape) + " has no elements, which TOSA does not allow");
}

void Legalizer::legalize_node(const Node& node) {
  for (std::uint32_t r = 0; r < node.result_count; ++r) check_dtype(source_.result(node, r));
  first_own_ = out_.values().size();
  const Legalization& rule = legalization_of(node.op);
  const std::vector<Physical> made = rule.one != nullptr ? std::vector{rule.one(*this)} : rule.all(*this);
  for (std::uint32_t r = 0; r < made.size(); ++r) settle(node, r, made[r]);
}

// Brings a result to its physical dtype and planned order, and names it.
void Legalizer::settle(const Node& node, std::uint32_t result, const Physical& made) {
  const ValueId value = source_.result(node, result);
  const TensorType& logical = source_.type(value);
  ValueId id = made.id;
  if (is_signed_integer(logical.dtype)) id = cast(id, physical_dtype(value));
  if (!(made.order == logical.order)) id = reordered(id, logical.shape, made.order, logical.order);
  const TensorType& type = out_.type(id);
  if (type.dtype != physical_dtype(value) || !(type.shape == physical_dims(logical.shape, logical.order)))
    throw InternalError({.where = "legalize-tosa",
                         .what = "rule for '" + std::string(info(node.op).name) + "' made another type",
                         .expected = to_string(logical),
                         .got = to_string(type)});
  // A forwarded operand, or a reordering made before, is not renamed, since other nodes share it.
  const Node* producer = out_.producer(id);
  const std::string& name = source_.value(value).name;
  const bool is_inside =
      producer != nullptr && is_inside_call(out_.value(id).name, producer->origin, name, node.origin);
  if (is_own(id) || is_inside) {
    out_.try_rename(id, name);
    if (node.op != Op::kClone) out_.set_canonical_order(id, logical.order);
  }
  physical_[value.index()] = {id, logical.order};
}

// True if the value was added for the node being legalized, and no result of the node has it yet.
bool Legalizer::is_own(ValueId physical) const {
  if (out_.value(physical).kind != ValueKind::kResult || physical.index() < first_own_) return false;
  for (std::uint32_t r = 0; r < node_->result_count; ++r)
    if (physical_[source_.result(*node_, r).index()].id == physical) return false;
  return true;
}

std::shared_ptr<const Graph> Legalizer::legalized_region(const Graph& region) {
  Legalizer inner(region, target_, Part::kRegion);
  Graph made = inner.run();
  problems_.insert(problems_.end(), inner.problems().begin(), inner.problems().end());
  if (!inner.problems().empty()) return nullptr;
  std::optional<Graph> clean = dead_code(made);
  return std::make_shared<const Graph>(clean ? std::move(*clean) : std::move(made));
}

ValueId Legalizer::physical_constant(ValueId id) {
  const Value& value = source_.value(id);
  const ConstantRef& constant = value.constant;
  if (num_elements(constant->shape) == 0)
    refuse("tensor of shape " + to_string(constant->shape) + " has no elements, which TOSA does not allow");
  if (!has_tosa_type(constant->dtype) && !is_representable(id))
    refuse("constant '" + value.name + "' has dtype " + std::string(to_string(constant->dtype)) +
           ", which TOSA lacks");
  const DType physical = physical_dtype(id);
  if (physical == constant->dtype) return out_.add_constant(constant);
  if (physical == without_sign(constant->dtype)) return out_.add_constant(bits_of(*constant));
  // In a program, narrow_integers plans the constant as i32 unless it fits 24 bits or only its value rounded
  // to f32 matters. In a region it plans every integer as f32, so the constant has to be exact there.
  const bool in_24_bits = is_float(physical) && part_ == Part::kRegion;
  const std::int64_t limit = std::int64_t{1} << (in_24_bits ? 24 : 31);
  const Elements elements(*constant);
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const std::int64_t element = elements.as_int(i);
    if (element < -limit || element >= limit)
      refuse("constant '" + value.name + "' holds " + std::to_string(element) + ", which does not fit " +
                 (in_24_bits ? "the 24 bits that f32 counts exactly" : "i32"),
             in_24_bits ? "Lower for a target with profile INT, e.g. TOSA-1.0+INT+FP" : "");
  }
  if (std::optional<Storage> made = exec::widened(constant, physical))
    return out_.add_constant(
        constant_over(constant->name, constant->kind, physical, constant->shape, *std::move(made)));
  return out_.add_constant(converted(*constant, physical));
}

ValueId Legalizer::physical_of(ValueId logical, bool counted) {
  Physical& stored = physical_[logical.index()];
  if (!stored.id.valid()) stored = {physical_constant(logical), DimOrder()};
  if (has_integers() || !counted || type(stored.id).dtype != DType::kI32) return stored.id;
  const auto it = counted_.find(stored.id);
  if (it != counted_.end()) return it->second;
  const ValueId made = cast(stored.id, DType::kF32);
  counted_.emplace(stored.id, made);
  return made;
}

ValueId Legalizer::in_order(ValueId logical, const DimOrder& order, bool counted) {
  const ValueId stored = physical_of(logical, counted);
  const DimOrder from = physical_[logical.index()].order;
  if (from == order) return stored;
  const Shape& shape = source_.type(logical).shape;
  const Dims axes = order.axes(shape.size());
  const auto key = std::make_tuple(logical, counted, std::vector<std::int64_t>(axes.begin(), axes.end()));
  const auto it = reordered_.find(key);
  if (it != reordered_.end()) return it->second;
  const ValueId made = reordered(stored, shape, from, order);
  reordered_.emplace(key, made);
  return made;
}

ValueId Legalizer::reordered(ValueId x, const Shape& logical_shape, const DimOrder& from,
                             const DimOrder& to) {
  const std::size_t rank = logical_shape.size();
  if (layout::same_in_memory(logical_shape, from, to)) return reshape(x, physical_dims(logical_shape, to));
  return transpose(x, permuted(inverse_permutation(from.axes(rank)), to.axes(rank)));
}

const analysis::FloatRange& Legalizer::range_of(std::size_t i) {
  if (!ranges_) ranges_.emplace(source_);
  return ranges_->of(logical(i));
}

const ValueRange& Legalizer::integer_range_of(std::size_t i) {
  if (!integer_ranges_)
    integer_ranges_.emplace(source_, analysis::initial_integer_ranges(source_), analysis::IntegerWidth{});
  return integer_ranges_->of(logical(i));
}

ValueId Legalizer::aligned(std::size_t i, std::size_t rank, const DimOrder& order) {
  const TensorType& type = logical_type(i);
  if (type.rank() == rank) return operand(i, order);
  Shape shape = type.shape;
  const DimOrder own = layout::trailing(order, rank, shape.size());
  while (shape.size() < rank) shape.insert(0, 1);
  return reshape(operand(i, own), physical_dims(shape, order));
}

namespace {

// True for data movement and views: on a target without profile INT they take only floats and bool.
bool moves_elements(Op op) { return info(op).has(kMovement) || info(op).has(kView); }

}  // namespace

// x = 2^16 * high + low modulo 2^32, with high and low from 0 to 2^16 - 1, as f32.
Legalizer::Halves Legalizer::halves(ValueId x) {
  const auto known = halves_.find(x);
  if (known != halves_.end()) return known->second;
  const ValueId bits = number_like(x, 16.0);
  const ValueId low = add_node(Op::kTosaLogicalRightShift, NoAttrs{},
                               {add_node(Op::kTosaLogicalLeftShift, NoAttrs{}, {x, bits}), bits});
  const Halves made{cast(add_node(Op::kTosaLogicalRightShift, NoAttrs{}, {x, bits}), DType::kF32),
                    cast(low, DType::kF32)};
  halves_.emplace(x, made);
  return made;
}

ValueId Legalizer::move_halves(Op op, const Attrs& attributes, const std::vector<ValueId>& operands) {
  std::vector<ValueId> high = operands, low = operands;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (info(op).is_index(i)) continue;
    const Halves parts = halves(operands[i]);
    high[i] = parts.high;
    low[i] = parts.low;
  }
  Attrs above = attributes, below = attributes;
  if (const auto* pad = get_if<TosaPadAttrs>(&attributes)) {
    const auto value = static_cast<std::uint32_t>(as_int(pad->value));
    get<TosaPadAttrs>(above).value = static_cast<double>(value >> 16);
    get<TosaPadAttrs>(below).value = static_cast<double>(value & 0xffffu);
  }
  const Halves moved{add_node(op, above, high), add_node(op, below, low)};
  const ValueId top = cast(moved.high, DType::kI32);
  const ValueId joined =
      add_node(Op::kTosaAdd, NoAttrs{},
               {add_node(Op::kTosaLogicalLeftShift, NoAttrs{}, {top, number_like(top, 16.0)}),
                cast(moved.low, DType::kI32)});
  halves_.emplace(joined, moved);
  return joined;
}

ValueId Legalizer::emit(Op op, Attrs attributes, const std::vector<ValueId>& operands) {
  if (!has_integers() && moves_elements(op) && out_.type(operands[0]).dtype == DType::kI32)
    return move_halves(op, attributes, operands);
  return add_node(op, std::move(attributes), operands);
}

ValueId Legalizer::add_node(Op op, Attrs attributes, const std::vector<ValueId>& operands) {
  const std::string base = node_ != nullptr ? source_.node_name(*node_) : "border";
  return out_.add(op, std::move(attributes), operands, node_ != nullptr ? node_->origin : nullptr,
                  base + "." + std::string(info(op).name.substr(5)));
}

std::vector<ValueId> Legalizer::emit_all(Op op, Attrs attributes, const std::vector<ValueId>& operands,
                                         const std::vector<TensorType>& results,
                                         std::vector<std::shared_ptr<const Graph>> regions) {
  const NodeId made = out_.add_node(op, share(std::move(attributes)), operands, results, node_->origin,
                                    source_.node_name(*node_) + "." + std::string(info(op).name.substr(5)),
                                    std::move(regions));
  std::vector<ValueId> ids;
  for (std::uint32_t r = 0; r < results.size(); ++r) ids.push_back(out_.result(out_.node(made), r));
  return ids;
}

ValueId Legalizer::unary(Op op, ValueId x) { return emit(op, default_attrs(op), {x}); }

ValueId Legalizer::reshape(ValueId x, const Shape& shape) {
  return type(x).shape == shape ? x : emit(Op::kTosaReshape, ShapeAttrs{shape}, {x});
}

ValueId Legalizer::transpose(ValueId x, const Dims& perm) {
  if (is_identity_permutation(perm)) return x;
  return emit(Op::kTosaTranspose, PermuteAttrs{perm}, {x});
}

ValueId Legalizer::slice(ValueId x, const Dims& start, const Dims& size) {
  return type(x).shape == size ? x : emit(Op::kTosaSlice, TosaSliceAttrs{start, size}, {x});
}

ValueId Legalizer::slice_axis(ValueId x, std::size_t axis, std::int64_t start, std::int64_t size) {
  Dims starts = Dims::filled(type(x).rank(), 0), sizes = type(x).shape;
  starts[axis] = start;
  sizes[axis] = size;
  return slice(x, starts, sizes);
}

ValueId Legalizer::pad(ValueId x, const Dims& before, const Dims& after, const Scalar& value) {
  const auto nothing = [](const Dims& dims) {
    return std::all_of(dims.begin(), dims.end(), [](auto v) { return v == 0; });
  };
  if (nothing(before) && nothing(after)) return x;
  const DType dtype = type(x).dtype;
  const Scalar typed = dtype == DType::kBool ? Scalar(as_double(value) != 0.0)
                       : is_float(dtype)     ? Scalar(as_double(value))
                                             : Scalar(as_int(value));
  return emit(Op::kTosaPad, TosaPadAttrs{before, after, typed}, {x});
}

// Concatenates the parts. If there are more parts than the target's level allows in a list of tensors,
// CONCATs form a tree.
ValueId Legalizer::concat(const std::vector<ValueId>& parts, std::size_t axis) {
  const auto most = static_cast<std::size_t>(target::limits(target_.level).max_tensor_list_size);
  if (parts.size() == 1) return parts.front();
  const AxisAttrs attrs{static_cast<std::int64_t>(axis)};
  const DType dtype = type(parts.front()).dtype;
  if (dtype == DType::kI16 && !has_wide_integers()) {  // CONCAT takes i16 only with extension int16
    std::vector<ValueId> wide;
    for (const ValueId part : parts) wide.push_back(cast(part, DType::kI32));
    return cast(concat(wide, axis), dtype);
  }
  if (parts.size() <= most) return emit(Op::kTosaConcat, attrs, parts);
  std::vector<ValueId> joined;
  for (std::size_t start = 0; start < parts.size(); start += most) {
    const std::size_t end = std::min(parts.size(), start + most);
    joined.push_back(concat({parts.begin() + static_cast<std::ptrdiff_t>(start),
                             parts.begin() + static_cast<std::ptrdiff_t>(end)},
                            axis));
  }
  return concat(joined, axis);
}

ValueId Legalizer::tile(ValueId x, const Dims& multiples) {
  const bool once = std::all_of(multiples.begin(), multiples.end(), [](auto v) { return v == 1; });
  return once ? x : emit(Op::kTosaTile, ShapeAttrs{multiples}, {x});
}

ValueId Legalizer::cast(ValueId x, DType dtype) {
  const DType from = type(x).dtype;
  if (from == dtype) return x;
  if (dtype == DType::kBool) return to_bool(x);
  if (from == DType::kBool && is_float(dtype)) {
    const Shape one = Dims::filled(type(x).rank(), 1);
    const ValueId yes = constant(dtype, one, {1.0}), no = constant(dtype, one, {0.0});
    return select(x, yes, no);
  }
  const bool through_floats = !has_integers() && !is_float(from) && !is_float(dtype);
  if (through_floats) return cast(cast(x, DType::kF32), dtype);
  return emit(Op::kTosaCast, CastAttrs{dtype}, {x});
}

ValueId Legalizer::to_bool(ValueId x) {
  const DType from = type(x).dtype;
  if (from == DType::kBool) return x;
  if (!is_float(from) && !has_integers()) return to_bool(cast(x, DType::kF32));
  if (!is_float(from)) return emit(Op::kTosaCast, CastAttrs{DType::kBool}, {x});
  return logical_not(binary(Op::kTosaEqual, x, number_like(x, 0.0)));
}

ValueId Legalizer::constant(DType dtype, const Shape& shape, const std::vector<double>& values) {
  const std::string base = node_ != nullptr ? source_.node_name(*node_) : "border";
  return out_.add_constant(make_constant(base + ".const", dtype, shape, values));
}

ValueId Legalizer::number_like(ValueId x, double value) {
  return constant(type(x).dtype, Dims::filled(type(x).rank(), 1), {value});
}

std::optional<Graph> legalize_tosa(const Graph& graph, const PassOptions& options) {
  if (graph.stage == Stage::kTosa) return std::nullopt;
  Legalizer legalizer(graph, options.target);
  Graph out = legalizer.run();
  if (!legalizer.problems().empty())
    throw UnsupportedOp("legalize-tosa", "problems keep this graph from TOSA", legalizer.problems());
  if (std::optional<Graph> clean = dead_code(out)) out = std::move(*clean);
  if (std::optional<Graph> joined = join_axes(out, options.target)) out = std::move(*joined);
  return out;
}

}  // namespace tosaic::passes
