// simplify: removes and merges nodes. Each function is one rule. The rules are applied front to back until
// none matches.
//
//   clone(x)                ->  x                   reshape(reshape(x))   ->  reshape(x)
//   cast to the same dtype  ->  x                   permute(permute(x))   ->  permute(x)
//   slice of everything     ->  x                   add(linear(x, W), b)  ->  linear(x, W, b)
//   pad by nothing          ->  x                   conv(pad(x))          ->  conv(x) that pads
//   mul(x, 1)               ->  x                   add(expand(x), y)     ->  add(x, y), if the shape stays
//   where(true, a, b)       ->  a                   slice(cat(x, y))      ->  slice(x), if it reads x only
//   cast to f64 and back    ->  x                   cast(reciprocal(f64(x)))  ->  reciprocal(x)
//   select(stack(x, y))     ->  x or y              slice(slice_scatter(x, y)) -> slice(x) or slice(y)
//
// All rules preserve every bit of the result, signed zeros included, except that a bias added inside a
// contraction preserves it within the contraction's tolerance.

#include <algorithm>

#include "tosaic/ir/op_table.h"
#include "tosaic/ir/quantized.h"
#include "tosaic/ir/rewriter.h"
#include "tosaic/passes/match.h"
#include "tosaic/passes/pass.h"

namespace tosaic::passes {
namespace {

constexpr std::int64_t kMostTruths = std::int64_t{1} << 20;

// The node that is being rewritten. `operands` are ids of rewriter.current().
struct Site {
  Rewriter& rewriter;
  const Node& node;
  std::vector<ValueId> operands;

  [[nodiscard]] const Graph& now() const { return rewriter.current(); }
  [[nodiscard]] const TensorType& operand_type(std::size_t i) const { return now().type(operands[i]); }
  [[nodiscard]] const TensorType& result_type() const {
    return rewriter.source().type(rewriter.source().result(node));
  }
  [[nodiscard]] bool same_type(std::size_t i) const {
    return operand_type(i).dtype == result_type().dtype && operand_type(i).shape == result_type().shape;
  }
  // Replaces the node by its operand i. Returns false if the types or dim orders differ.
  [[nodiscard]] bool forward(std::size_t i) {
    if (!same_type(i) || !(operand_type(i).order == result_type().order)) return false;
    static_cast<void>(rewriter.begin_output(node));
    rewriter.replace(node, rewriter.map(original(i)));
    return true;
  }
  [[nodiscard]] ValueId original(std::size_t i) const { return rewriter.source().operands(node)[i]; }
  // Replaces the node by `op` over values of now().
  [[nodiscard]] bool become(Op op, Attrs attrs, std::vector<ValueId> values,
                            const OriginRef& extra = nullptr) {
    static_cast<void>(rewriter.begin_output(node));  // copies a prefix: ids of now() stay valid
    const DimOrder order = result_type().order;
    const ValueId result = rewriter.emit(node, op, std::move(attrs), values, extra);
    rewriter.begin_output(node).set_order(result, order);
    rewriter.begin_output(node).set_qparams(result, result_type().qparams);
    rewriter.replace(node, result);
    return true;
  }
};

bool is_tosa(const Site& site) { return info(site.node.op).is_tosa; }

bool is_zero(const Dims& dims) {
  return std::all_of(dims.begin(), dims.end(), [](auto v) { return v == 0; });
}

// The functions below are conditions for a node whose operand 0 has the type of the result. They are true if
// the node changes no element.
bool always(const Site& /*site*/) { return true; }
bool has_elements(const Site& site) { return num_elements(site.result_type().shape) > 0; }
bool has_no_axes(const Site& site) { return Graph::attrs<AxesAttrs>(site.node).axes.empty(); }
bool has_one_operand(const Site& site) { return site.operands.size() == 1; }
bool is_in_order(const Site& site) {
  return is_identity_permutation(Graph::attrs<PermuteAttrs>(site.node).perm);
}
template <class A>
bool pads_nothing(const Site& site) {
  const A& attrs = Graph::attrs<A>(site.node);
  return is_zero(attrs.before) && is_zero(attrs.after);
}

constexpr OpTable<bool (*)(const Site&)> kIdentities = {
    {Op::kClone, always},
    {Op::kTosaIdentity, always},
    {Op::kReshape, always},
    {Op::kTosaReshape, always},
    {Op::kExpand, always},
    {Op::kCast, always},
    {Op::kTosaCast, always},
    {Op::kRepeat, has_elements},
    {Op::kTosaTile, has_elements},
    {Op::kSlice, has_elements},
    {Op::kTosaSlice, has_elements},
    {Op::kPermute, is_in_order},
    {Op::kTosaTranspose, is_in_order},
    {Op::kPad, pads_nothing<PadAttrs>},
    {Op::kTosaPad, pads_nothing<TosaPadAttrs>},
    {Op::kFlip, has_no_axes},
    {Op::kCat, has_one_operand},
    {Op::kTosaConcat, has_one_operand},
};

// Removes a view, movement or cast that changes no element.
bool drops_identity(Site& site) {
  const auto* const is_identity = kIdentities.find(site.node.op);
  return is_identity != nullptr && (*is_identity)(site) && site.forward(0);
}

// True if the node is the last link of a chain of one operator. Only the last link is rewritten, and it
// replaces the whole chain in one step: to merge origins link by link would take time and memory quadratic in
// the length.
bool ends_chain(const Site& site) {
  const Graph& source = site.rewriter.source();
  const ValueId result = source.result(site.node);
  const std::span<const NodeId> users = source.users(result);
  const auto ends = [&](NodeId user) { return source.node(user).op != site.node.op; };
  return source.is_output(result) || users.empty() || std::any_of(users.begin(), users.end(), ends);
}

struct Chain {
  ValueId input;                   // what the first link reads
  Dims perm;                       // of all links together, for permutes
  std::vector<OriginRef> origins;  // last link first
};

// The chain of producers, from operand 0 backwards, that have the node's operator.
Chain chain_of_producers(const Site& site) {
  Chain chain{site.operands[0], {}, {}};
  const auto* own = get_if<PermuteAttrs>(site.node.attrs.get());
  if (own != nullptr) chain.perm = own->perm;
  while (const Node* link = produced_by(site.now(), chain.input, site.node.op)) {
    if (own != nullptr) chain.perm = permuted(Graph::attrs<PermuteAttrs>(*link).perm, chain.perm);
    chain.origins.push_back(link->origin);
    chain.input = site.now().operands(*link)[0];
  }
  return chain;
}

bool merges_chain(Site& site) {
  const Op op = site.node.op;
  const bool permute = op == Op::kPermute || op == Op::kTosaTranspose;
  if ((!permute && op != Op::kReshape && op != Op::kTosaReshape) || !ends_chain(site)) return false;
  Chain chain = chain_of_producers(site);
  if (chain.origins.empty()) return false;
  std::reverse(chain.origins.begin(), chain.origins.end());
  Attrs attrs = permute ? Attrs(PermuteAttrs{chain.perm}) : *site.node.attrs;
  return site.become(op, std::move(attrs), {chain.input}, merge(chain.origins));
}

// Turns a transpose that moves only axes of extent 1 into a reshape.
bool moves_only_unit_axes(Site& site) {
  if (site.node.op != Op::kTosaTranspose) return false;
  const Shape& shape = site.operand_type(0).shape;
  std::int64_t last = -1;
  for (const std::int64_t axis : Graph::attrs<PermuteAttrs>(site.node).perm) {
    if (shape[static_cast<std::size_t>(axis)] == 1) continue;
    if (axis < last) return false;
    last = axis;
  }
  return site.become(Op::kTosaReshape, ShapeAttrs{site.result_type().shape}, {site.operands[0]});
}

// True if the wide dtype has every number of the narrow one, so that a cast to it and back changes nothing.
bool holds_all(DType wide, DType narrow) {
  if (is_float(narrow))
    return wide == DType::kF64 || (wide == DType::kF32 && byte_size(narrow) < byte_size(DType::kF32));
  if (!is_integer(narrow) || narrow == DType::kI4 || narrow == DType::kI48) return false;
  const std::size_t bytes = byte_size(narrow);
  if (is_float(wide)) return (wide == DType::kF32 && bytes <= 2) || (wide == DType::kF64 && bytes <= 4);
  return is_integer(wide) && wide != DType::kI4 && wide != DType::kI48 && byte_size(wide) > bytes;
}

// cast(cast(x: f32) to f64) to f32 -> x.
bool drops_cast_and_back(Site& site) {
  if (site.node.op != Op::kCast) return false;
  const Node* wide = produced_by(site.now(), site.operands[0], Op::kCast);
  if (wide == nullptr) return false;
  const ValueId source = site.now().operands(*wide)[0];
  const TensorType &type = site.now().type(source), &own = site.result_type();
  if (type.dtype != own.dtype || type.shape != own.shape || !(type.order == own.order) ||
      !holds_all(site.operand_type(0).dtype, own.dtype))
    return false;
  static_cast<void>(site.rewriter.begin_output(site.node));
  site.rewriter.replace(site.node, source);
  return true;
}

// cast(reciprocal(cast(x: f32) to f64)) to f32 -> reciprocal(x). Rounding a quotient, product or sum of two
// f32 first to f64 and then to f32 has the result of rounding it once: f64 has more than twice as many bits
// as f32, and 2 more.
bool narrows_arithmetic(Site& site) {
  if (site.node.op != Op::kCast || site.result_type().dtype != DType::kF32 ||
      site.operand_type(0).dtype != DType::kF64)
    return false;
  const Node* node = site.now().producer(site.operands[0]);
  if (node == nullptr || (node->op != Op::kReciprocal && node->op != Op::kMul)) return false;
  std::vector<ValueId> sources;
  for (const ValueId operand : site.now().operands(*node)) {
    const Node* cast = produced_by(site.now(), operand, Op::kCast);
    const ValueId source = cast != nullptr ? site.now().operands(*cast)[0] : ValueId();
    if (!source.valid() || site.now().type(source).dtype != DType::kF32) return false;
    sources.push_back(source);
  }
  return site.become(node->op, *node->attrs, std::move(sources), node->origin);
}

// Turns an expand that adds only axes of extent 1 into a reshape.
bool expands_to_a_view(Site& site) {
  if (site.node.op != Op::kExpand) return false;
  if (num_elements(site.operand_type(0).shape) != num_elements(site.result_type().shape)) return false;
  return site.become(Op::kReshape, ShapeAttrs{site.result_type().shape}, {site.operands[0]});
}

// add(expand(x), y) -> add(x, y): elementwise operators broadcast by themselves. Rank-0 operands stay
// expanded, because they take part in type promotion differently.
bool drops_broadcast(Site& site) {
  if (!info(site.node.op).has(kElementwise) || is_tosa(site) || site.operands.size() < 2) return false;
  std::vector<ValueId> operands = site.operands;
  bool any = false;
  OriginRef extra;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const Node* expand = produced_by(site.now(), operands[i], Op::kExpand);
    if (expand == nullptr) continue;
    const ValueId input = site.now().operands(*expand)[0];
    if (site.now().type(input).rank() == 0) continue;
    const ValueId kept = operands[i];
    operands[i] = input;
    Shape shape = site.now().type(operands[0]).shape;
    for (std::size_t k = 1; k < operands.size(); ++k)
      shape = broadcast(shape, site.now().type(operands[k]).shape);
    if (shape == site.result_type().shape) {
      any = true;
      extra = merge({extra, expand->origin});
    } else {
      operands[i] = kept;
    }
  }
  return any && site.become(site.node.op, *site.node.attrs, operands, extra);
}

bool has_unit_alpha(const Node& node) {
  const auto* alpha = get_if<AlphaAttrs>(node.attrs.get());
  return alpha == nullptr || as_double(alpha->alpha) == 1.0;
}

// True if all elements of the constant operand i are `value`.
bool is_splat(const Site& site, std::size_t i, double value) {
  return splat_of(site.now(), site.operands[i]) == value;
}

// Replaces a commutative operator by one operand if the other operand is the constant `neutral`.
bool drops_either(Site& site, double neutral) {
  return (is_splat(site, 1, neutral) && site.forward(0)) || (is_splat(site, 0, neutral) && site.forward(1));
}

bool has_integer_result(const Site& site) { return !is_float(site.result_type().dtype); }

bool drops_factor_one(Site& site) { return drops_either(site, 1.0); }

bool drops_unshifted_factor_one(Site& site) {
  return Graph::attrs<TosaMulAttrs>(site.node).shift == 0 && drops_either(site, 1.0);
}

bool drops_divisor_one(Site& site) {
  const bool exact = Graph::attrs<DivAttrs>(site.node).rounding == DivRounding::kNone;
  return exact && !has_integer_result(site) && is_splat(site, 1, 1.0) && site.forward(0);
}

bool drops_zero_addend(Site& site) {
  return has_integer_result(site) && has_unit_alpha(site.node) && drops_either(site, 0.0);
}

bool drops_zero_subtrahend(Site& site) {
  return has_integer_result(site) && is_splat(site, 1, 0.0) && site.forward(0);
}

template <bool neutral>
bool drops_truth(Site& site) {
  return site.operand_type(0).dtype == DType::kBool && drops_either(site, neutral ? 1.0 : 0.0);
}

bool drops_constant_condition(Site& site) {
  const std::optional<double> condition = splat_of(site.now(), site.operands[0], 1u << 20);
  return condition && site.forward(*condition != 0.0 ? 1 : 2);
}

constexpr OpTable<bool (*)(Site&)> kNeutralOperands = {
    {Op::kMul, drops_factor_one},         {Op::kTosaMul, drops_unshifted_factor_one},
    {Op::kDiv, drops_divisor_one},        {Op::kAdd, drops_zero_addend},
    {Op::kSub, drops_zero_subtrahend},    {Op::kLogicalAnd, drops_truth<true>},
    {Op::kLogicalOr, drops_truth<false>}, {Op::kWhere, drops_constant_condition},
};

// Replaces a node by its operand x if the other operand has no effect: x * 1, x / 1, true && x, false || x,
// and for integers x + 0 and x - 0. Also replaces a `where` with a constant condition by the operand that it
// selects.
bool drops_neutral_operand(Site& site) {
  const auto* const rule = kNeutralOperands.find(site.node.op);
  return rule != nullptr && (*rule)(site);
}

constexpr OpTable<bool> kOfItself = {
    {Op::kEq, true},
    {Op::kLe, true},
    {Op::kGe, true},
    {Op::kTosaEqual, true},
    {Op::kTosaGreaterEqual, true},
    {Op::kNe, false},
    {Op::kLt, false},
    {Op::kGt, false},
    {Op::kTosaGreater, false},
};

// Replaces the comparison of a value with itself by its truth, unless an element may be NaN.
bool compares_with_itself(Site& site) {
  const bool* const truth = kOfItself.find(site.node.op);
  const Shape& shape = site.result_type().shape;
  if (truth == nullptr || site.operands[0] != site.operands[1] || is_float(site.operand_type(0).dtype) ||
      !site.result_type().order.is_identity() || num_elements(shape) > kMostTruths)
    return false;
  const std::vector<double> truths(static_cast<std::size_t>(num_elements(shape)), *truth ? 1.0 : 0.0);
  site.rewriter.replace(site.node,
                        site.rewriter.constant(site.node, make_constant("", DType::kBool, shape, truths)));
  return true;
}

// add(linear(x, W), b) -> linear(x, W, b), and the same for conv, if b has one number per output channel.
bool folds_bias(Site& site) {
  if (site.node.op != Op::kAdd || !has_unit_alpha(site.node)) return false;
  for (std::size_t i = 0; i < 2; ++i) {
    const ValueId product = site.operands[i], addend = site.operands[1 - i];
    const Node* node = site.now().producer(product);
    if (node == nullptr || (node->op != Op::kLinear && node->op != Op::kConv)) continue;
    const std::span<const ValueId> inner = site.now().operands(*node);
    const ValueId old = site.original(i);
    const Graph& source = site.rewriter.source();
    if ((inner.size() > 2 && inner[2].valid()) || source.users(old).size() != 1 || source.is_output(old))
      continue;
    const Constant* bias = constant_of(site.now(), addend);
    const TensorType& type = site.now().type(product);
    if (bias == nullptr || !bias->storage.bound() || bias->dtype != type.dtype) continue;
    if (!(type.shape == site.result_type().shape) || bias->shape.size() > type.rank()) continue;
    const std::size_t channel_axis = node->op == Op::kLinear ? type.rank() - 1 : 1;
    const std::int64_t channels = type.shape[channel_axis];
    const std::size_t offset = type.rank() - bias->shape.size();
    bool per_channel = channel_axis >= offset && bias->shape[channel_axis - offset] == channels;
    for (std::size_t a = 0; a < bias->shape.size(); ++a)
      per_channel = per_channel && (a + offset == channel_axis || bias->shape[a] == 1);
    if (!per_channel) continue;
    auto flat = std::make_shared<Constant>(*bias);
    flat->shape = {channels};
    const std::vector<ValueId> first{inner[0], inner[1]};
    const Op op = node->op;
    const Attrs attrs = *node->attrs;
    const OriginRef origin = node->origin;
    const ValueId bias_value = site.rewriter.constant(site.node, flat);
    return site.become(op, attrs, {first[0], first[1], bias_value}, origin);
  }
  return false;
}

// conv(pad(x)) -> a convolution that pads, if the pad's value is the convolution's zero: 0, or its input zero
// point.
bool takes_padding(Site& site) {
  const auto* floats = get_if<ConvAttrs>(site.node.attrs.get());
  const auto* integers = get_if<IntegerConvAttrs>(site.node.attrs.get());
  if (floats == nullptr && integers == nullptr) return false;
  ConvAttrs conv = floats != nullptr ? *floats : integers->conv;
  const double zero = floats != nullptr ? 0.0 : static_cast<double>(integers->input_zp);
  const Node* pad = produced_by(site.now(), site.operands[0], Op::kPad);
  const Graph& source = site.rewriter.source();
  if (conv.transposed || pad == nullptr || source.users(site.original(0)).size() != 1 ||
      source.is_output(site.original(0)))
    return false;
  const auto& attrs = Graph::attrs<PadAttrs>(*pad);
  if (attrs.mode != PadMode::kConstant || as_double(attrs.value) != zero) return false;
  const std::size_t spatial = conv.stride.size(), first = attrs.before.size() - spatial;
  for (std::size_t axis = 0; axis < attrs.before.size(); ++axis) {
    const bool nothing = attrs.before[axis] == 0 && attrs.after[axis] == 0;
    if (attrs.before[axis] < 0 || attrs.after[axis] < 0 || (axis < first && !nothing)) return false;
  }
  for (std::size_t i = 0; i < spatial; ++i) {
    conv.pad_before[i] += attrs.before[first + i];
    conv.pad_after[i] += attrs.after[first + i];
  }
  std::vector<ValueId> operands = site.operands;
  operands[0] = site.now().operands(*pad)[0];
  const OriginRef origin = pad->origin;
  Attrs made = integers == nullptr ? Attrs(conv)
                                   : Attrs(IntegerConvAttrs{conv, integers->input_zp, integers->weight_zp});
  return site.become(site.node.op, std::move(made), operands, origin);
}

// The elements of an axis that a node reads; empty for nodes that read all of them.
struct Read {
  std::size_t axis = 0;
  std::int64_t first = 0, last = -1;
};

Read read_of(const Site& site) {
  if (const auto* select = get_if<SelectAttrs>(site.node.attrs.get()))
    return {static_cast<std::size_t>(select->axis), select->index, select->index};
  const auto* slice = get_if<SliceAttrs>(site.node.attrs.get());
  if (slice == nullptr || site.node.op != Op::kSlice || !has_elements(site)) return {};
  const auto axis = static_cast<std::size_t>(slice->axis);
  const std::int64_t count = site.result_type().shape[axis];
  return {axis, slice->start, slice->start + (count - 1) * slice->step};
}

// True if an element of the part has the same dim order and the same qparams as an element of the whole.
bool is_read_as(const TensorType& part, const TensorType& whole) {
  return part.order == whole.order && same_qparams(part.qparams, whole.qparams) &&
         !(part.qparams && part.qparams->axis);
}

// The part of `from` from which a node reads all of its elements, if `from` is a concatenation along the
// axis, or the result of a slice_scatter. Translates `read` to positions in the part.
std::optional<ValueId> part_read(const Graph& graph, ValueId from, Read& read) {
  const Node* node = graph.producer(from);
  if (node == nullptr) return std::nullopt;
  const std::span<const ValueId> operands = graph.operands(*node);
  const auto extent = [&](ValueId id) { return graph.type(id).shape[read.axis]; };
  if (node->op == Op::kCat && static_cast<std::size_t>(Graph::attrs<AxisAttrs>(*node).axis) == read.axis) {
    std::int64_t begin = 0;
    for (const ValueId part : operands) {
      const std::int64_t end = begin + extent(part);
      if (read.first < end) {
        if (read.last >= end || !is_read_as(graph.type(part), graph.type(from))) return std::nullopt;
        read.first -= begin;
        read.last -= begin;
        return part;
      }
      begin = end;
    }
  }
  const std::optional<AxisRange> written = written_range(graph, node);
  if (!written || written->axis != read.axis) return std::nullopt;
  const bool is_inside = written->start <= read.first && read.last < written->end;
  const bool is_outside = read.last < written->start || written->end <= read.first;
  const ValueId part = operands[is_inside ? 1 : 0];
  if (!(is_inside || is_outside) || !is_read_as(graph.type(part), graph.type(from))) return std::nullopt;
  if (is_inside) {
    read.first -= written->start;
    read.last -= written->start;
  }
  return part;
}

// slice(cat(x, y)) -> slice(x), slice(slice_scatter(x, y)) -> slice(x) or slice(y), and the same for select,
// if only elements of one operand are read. A loop that writes and reads rows has many of these in a row.
bool reads_one_part(Site& site) {
  Read read = read_of(site);
  if (read.last < read.first) return false;
  const std::int64_t before = read.first;
  ValueId from = site.operands[0];
  while (const std::optional<ValueId> part = part_read(site.now(), from, read)) from = *part;
  if (from == site.operands[0]) return false;
  if (site.node.op == Op::kSelect)
    return site.become(Op::kSelect, SelectAttrs{static_cast<std::int64_t>(read.axis), read.first}, {from});
  SliceAttrs attrs = Graph::attrs<SliceAttrs>(site.node);
  attrs.start += read.first - before;
  attrs.end = read.last + 1;
  return site.become(Op::kSlice, attrs, {from});
}

// select(stack(x, y)) -> x or y.
bool reads_one_of_a_stack(Site& site) {
  if (site.node.op != Op::kSelect) return false;
  const auto& select = Graph::attrs<SelectAttrs>(site.node);
  const Graph& graph = site.now();
  const Node* const stack = graph.producer(site.operands[0]);
  if (stack == nullptr || stack->op != Op::kStack || Graph::attrs<AxisAttrs>(*stack).axis != select.axis)
    return false;
  const ValueId part = graph.operands(*stack)[static_cast<std::size_t>(select.index)];
  const bool is_whole = graph.type(part).order == site.result_type().order &&
                        same_qparams(graph.type(part).qparams, site.result_type().qparams);
  if (!is_whole) return false;
  static_cast<void>(site.rewriter.begin_output(site.node));
  site.rewriter.replace(site.node, part);
  return true;
}

std::optional<Graph> simplify_once(const Graph& graph) {
  Rewriter rewriter(graph);
  for (const Node& node : graph.nodes()) {
    if (node.op == Op::kOpaque || !node.regions.empty() || node.operand_count == 0 ||
        node.result_count != 1) {
      rewriter.copy(node);
      continue;
    }
    Site site{rewriter, node, rewriter.map_operands(node)};
    const bool rewritten = drops_identity(site) || merges_chain(site) || moves_only_unit_axes(site) ||
                           drops_cast_and_back(site) || narrows_arithmetic(site) || expands_to_a_view(site) ||
                           drops_broadcast(site) || drops_neutral_operand(site) ||
                           compares_with_itself(site) || folds_bias(site) || takes_padding(site) ||
                           reads_one_part(site) || reads_one_of_a_stack(site);
    if (!rewritten) rewriter.copy(node);
  }
  return std::move(rewriter).finish();
}

}  // namespace

std::optional<Graph> simplify(const Graph& graph) {
  std::optional<Graph> result;
  for (;;) {
    std::optional<Graph> next = simplify_once(result ? *result : graph);
    if (!next) return result;
    std::optional<Graph> clean = dead_code(*next);
    result = clean ? std::move(clean) : std::move(next);
  }
}

}  // namespace tosaic::passes
