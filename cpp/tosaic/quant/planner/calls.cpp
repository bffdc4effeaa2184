// calls: reads the calls of a graph: what each call does, and on which inputs its result depends.
#include <algorithm>
#include <cmath>

#include "tosaic/ir/constant_value.h"
#include "tosaic/ir/op_table.h"
#include "tosaic/quant/planner/planning.h"

namespace tosaic::quant {
namespace {

// Arithmetic whose results are whole numbers if the operands are.
constexpr OpTable<bool> kClosedOnWholeNumbers = {
    {Op::kAdd, true},     {Op::kSub, true},     {Op::kMul, true}, {Op::kWhere, true},
    {Op::kMaximum, true}, {Op::kMinimum, true}, {Op::kSum, true}, {Op::kCumsum, true}};
// Operators that round each number to a whole one.
constexpr OpTable<bool> kRoundToWholeNumbers = {
    {Op::kRound, true}, {Op::kFloor, true}, {Op::kCeil, true}, {Op::kTrunc, true}};
// kHaveFloor: maxima, whose result is low only if all numbers are. kHaveCeiling: minima, likewise high.
constexpr OpTable<bool> kHaveFloor = {{Op::kAmax, true},
                                      {Op::kMaxPool, true},
                                      {Op::kAdaptiveMaxPool, true},
                                      {Op::kRelu, true},
                                      {Op::kMaximum, true}};
constexpr OpTable<bool> kHaveCeiling = {{Op::kAmin, true}, {Op::kMinimum, true}};

}  // namespace

// ---- reading ----

void Planner::read_calls() {
  std::unordered_map<std::string_view, std::uint32_t> by_name;
  by_name.reserve(calls_.size());
  for (std::uint32_t i = 0; i < calls_.size(); ++i) by_name.emplace(node(NodeIndex(i)).name, i);
  for (std::uint32_t i = 0; i < calls_.size(); ++i) {
    for (const std::string& alias : node(NodeIndex(i)).aliases) by_name.emplace(alias, i);
    for (const CallOperand& operand : node(NodeIndex(i)).operands)
      if (std::ranges::find(calls_[i].operands, operand.producer) == calls_[i].operands.end())
        calls_[i].operands.push_back(operand.producer);
  }
  const Origin* last = nullptr;
  std::uint32_t at = 0;
  call_of_.assign(graph_.nodes().size(), kNoCall);
  for (std::uint32_t n = 0; n < graph_.nodes().size(); ++n) {
    const Node& each = graph_.nodes()[n];
    if (!input_.call_of_node.empty()) {
      at = input_.call_of_node[n].index();
    } else if (!each.origin) {
      continue;
    } else if (each.origin.get() != last) {
      const auto found = by_name.find(each.origin->fx_name);
      last = each.origin.get();
      at = found == by_name.end() ? kNoCall : found->second;
    }
    call_of_[n] = at;
    if (at == kNoCall) continue;
    Call& owner = calls_[at];
    owner.nodes.push_back(&each);
    const Behaviour behaviour = node_behaviour(each);
    if (owner.main == nullptr || behaviour >= owner.behaviour)
      owner.main = &each, owner.behaviour = behaviour;
  }
  if (input_.for_arm) return;
  for (Call& c : calls_)
    if (const Node* const moved = sorted_elements(c)) {
      const bool has_all =
          graph_.type(graph_.result(*c.main)).shape == graph_.type(graph_.operands(*c.main)[0]).shape;
      c.behaviour = has_all ? Behaviour::kMovement : Behaviour::kSelection;
      c.main = moved, c.sorts = true;
    }
  if (!input_.every_operator) read_units(by_name);
}

// The gather node of a call that returns sorted elements, such as sort or topk; null for other calls.
const Node* Planner::sorted_elements(const Call& c) const {
  if (c.main == nullptr || c.main->op != Op::kArgsort) return nullptr;
  const ValueId from = graph_.operands(*c.main)[0], positions = graph_.result(*c.main);
  const auto moves = [&](const Node* each) {
    return each->op == Op::kGather && graph_.operands(*each)[0] == from &&
           graph_.operands(*each)[1] == positions;
  };
  const auto found = std::ranges::find_if(c.nodes, moves);
  return found == c.nodes.end() ? nullptr : *found;
}

Behaviour Planner::node_behaviour(const Node& node) {
  if (node.op == Op::kPad) {
    const auto& attrs = Graph::attrs<PadAttrs>(node);
    if (attrs.mode == PadMode::kConstant && !(attrs.value == Scalar(0.0)) &&
        !(attrs.value == Scalar(std::int64_t{0})))
      return Behaviour::kReduction;
  }
  return behaviour_of(node.op);
}

// A unit (one node of several calls) has the name of its last call; the other calls are marked as within it.
void Planner::read_units(const std::unordered_map<std::string_view, std::uint32_t>& by_name) {
  for (const Node& each : input_.recognized.nodes()) {
    if (!each.origin || each.origin->parents.empty()) continue;
    const std::string& name = input_.recognized.node_name(each);
    const auto result = by_name.find(name);
    if (result == by_name.end()) continue;
    // A node with several origins that makes no result of a call is no unit: for example one view of two.
    const ValueId made = value(NodeIndex(result->second));
    const bool is_result = !made.valid() || graph_.value(made).name == name;
    Call& whole = calls_[result->second];
    if (!is_result || whole.main == nullptr || whole.main->op == each.op) continue;
    for (const OriginRef& leaf : leaves(each.origin))
      if (const auto found = by_name.find(leaf->fx_name);
          found != by_name.end() && found->second < result->second)
        calls_[found->second].within = true, calls_[found->second].unit = each.op;
    whole.behaviour = node_behaviour(each);
  }
}

bool Planner::is_float_value(NodeIndex i) const {
  const ValueId id = value(i);
  return id.valid() && is_float(graph_.type(id).dtype);
}

bool Planner::is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF64;
}

// ---- classification ----

void Planner::classify(NodeIndex i) {
  Call& c = call(i);
  const CallNode& n = node(i);
  if (n.kind == CallKind::kPlaceholder || n.kind == CallKind::kGetAttr) {
    const ValueId id = value(i);
    if (!id.valid()) return;
    const bool is_constant = graph_.value(id).kind == ValueKind::kConstant;
    c.dependence = is_constant                       ? Dependence::kNothing
                   : is_float(graph_.type(id).dtype) ? Dependence::kFloats
                                                     : Dependence::kIntegers;
    c.whole = is_constant && !is_fractional(id);
    return;
  }
  for (const NodeIndex p : c.operands) c.dependence = std::max(c.dependence, call(p).dependence);
  if (c.main == nullptr && n.kind == CallKind::kCall && c.operands.size() == 1) {
    // An alias, or one result of a call with several results.
    const Call& from = call(c.operands[0]);
    if (!value(c.operands[0]).valid()) c.behaviour = from.behaviour, c.main = from.main;
  }
  // A table indexed by the caller's tokens is data like the caller's floats. One indexed by constants is not.
  if (c.behaviour == Behaviour::kLookup && c.dependence == Dependence::kIntegers)
    c.dependence = Dependence::kFloats;
  if (c.dependence == Dependence::kIntegers && is_weighted(c)) c.dependence = Dependence::kFloats;
  if (input_.for_arm && c.dependence == Dependence::kIntegers && is_float_value(i))
    c.dependence = Dependence::kFloats;
  c.large = large_numbers(c);
  c.whole = has_whole_numbers(c);
  c.counts = has_counts(i);
}

// True for floats that were cast from integers of 32 or 64 bits, possibly through other operators.
bool Planner::has_counts(NodeIndex i) {
  if (!is_float_value(i)) return false;
  return std::ranges::any_of(call(i).operands, [&](NodeIndex p) {
    if (call(p).dependence == Dependence::kNothing || !value(p).valid()) return false;
    const DType dtype = graph_.type(value(p)).dtype;
    return is_float_value(p) ? call(p).counts : dtype == DType::kI32 || dtype == DType::kI64;
  });
}

// True if the call rounds numbers to whole ones, or computes whole numbers from whole numbers, such as a mask
// of zeros and ones.
bool Planner::has_whole_numbers(const Call& c) {
  if (!c.nodes.empty() && kRoundToWholeNumbers.contains(c.nodes.back()->op)) return true;
  const auto is_whole_operand = [&](NodeIndex p) {
    return (value(p).valid() && !is_float_value(p)) || call(p).whole;  // no value: a tuple
  };
  return std::ranges::all_of(c.operands, is_whole_operand) &&
         std::ranges::all_of(c.nodes, [&](const Node* each) {
           return has_whole_results(*each) &&
                  std::ranges::all_of(graph_.operands(*each), [&](ValueId id) { return !is_fractional(id); });
         });
}

// True if the numbers in the node's attributes are whole.
bool Planner::has_whole_numbers(const Node& node) {
  const auto is_whole = [](const Scalar& scalar) {
    return scalar_of(scalar) == std::trunc(scalar_of(scalar));
  };
  const Attrs& attrs = *node.attrs;
  if (const auto* const full = get_if<FullAttrs>(&attrs)) return is_whole(full->value);
  if (const auto* const pad = get_if<PadAttrs>(&attrs)) return is_whole(pad->value);
  if (const auto* const sum = get_if<AlphaAttrs>(&attrs)) return is_whole(sum->alpha);
  if (const auto* const clamp = get_if<ClampAttrs>(&attrs))
    return (!clamp->min || is_whole(*clamp->min)) && (!clamp->max || is_whole(*clamp->max));
  return true;
}

// True if the node computes whole numbers from whole operands.
bool Planner::has_whole_results(const Node& node) {
  if (!has_whole_numbers(node)) return false;
  if (node.op == Op::kFull) return true;
  if (node.op == Op::kResize) return Graph::attrs<ResizeAttrs>(node).mode == ResizeMode::kNearest;
  switch (behaviour_of(node.op)) {
    case Behaviour::kMovement:
    case Behaviour::kSelection:
    case Behaviour::kJoin:
    case Behaviour::kSource:
    case Behaviour::kSignChange:
    case Behaviour::kPredicate:
      return true;
    default:
      return kClosedOnWholeNumbers.contains(node.op);
  }
}

// True for a constant of floats that are not whole numbers.
bool Planner::is_fractional(ValueId id) const {
  if (!id.valid() || graph_.value(id).kind != ValueKind::kConstant || !is_float(graph_.type(id).dtype))
    return false;
  const Elements elements(*graph_.value(id).constant);
  if (static_cast<std::int64_t>(elements.size()) > kMostScanned) return true;
  for (std::size_t i = 0; i < elements.size(); ++i)
    if (elements.as_double(i) != std::trunc(elements.as_double(i))) return true;
  return false;
}

bool Planner::is_weighted(const Call& c) {
  return c.behaviour == Behaviour::kWeighted || c.behaviour == Behaviour::kAttention;
}

// The large numbers (beyond kLargestActivation) of constants that reach the result.
Large Planner::large_numbers(const Call& c) {
  if (const ValueId addend = addend_of(c); addend.valid()) {
    const NodeIndex producer = producer_among(c, addend);
    if (!producer.valid()) return constant_numbers(addend);
    const bool may_be_mask = c.main->op == Op::kBaddbmm && value(producer).valid();
    return may_be_mask ? call(producer).large.with(constant_numbers(value(producer))) : call(producer).large;
  }
  switch (c.behaviour) {
    case Behaviour::kMovement:
    case Behaviour::kSelection:
    case Behaviour::kJoin:
    case Behaviour::kSource:
    case Behaviour::kSignChange:
    case Behaviour::kArithmetic:
      break;
    case Behaviour::kReduction:  // also a pad with a number other than 0: see node_behaviour()
      if (c.main != nullptr && c.main->op == Op::kPad) break;
      return {};
    default:
      return {};
  }
  Large out;
  for (const NodeIndex p : c.operands)
    if (c.main == nullptr || !divides(*c.main)) out = out.with(call(p).large);
  if (out && c.main != nullptr) {
    if (c.sorts)
      out = without_hidden(out, c);
    else if (c.main->op == Op::kAbs)
      out = {false, true};
    else if (may_turn(*c.main))
      out = out.with(out.negated());
    else if (c.nodes.size() == 1)
      out = without_bounded(out, c);
  }
  for (const Node* each : c.nodes) out = out.with(large_numbers_of(c, *each));
  return out;
}

// True if the operator may change the sign of an operand.
bool Planner::may_turn(const Node& node) const {
  if (node.op == Op::kNeg || node.op == Op::kSub) return true;
  if (node.op != Op::kMul) return false;
  const auto is_positive = [&](ValueId id) {
    const std::optional<double> number = splat_of(graph_, id);
    return number && *number > 0;
  };
  return std::ranges::none_of(graph_.operands(node), is_positive);
}

// Finds the large numbers in the attributes and constant operands of a node, as far as they can occur in its
// result.
Large Planner::large_numbers_of(const Call& c, const Node& node) {
  if (node.op == Op::kFull) return large_number(scalar_of(Graph::attrs<FullAttrs>(node).value));
  if (node.op == Op::kPad) return large_number(scalar_of(Graph::attrs<PadAttrs>(node).value));
  if (node.op == Op::kClamp || divides(node)) return {};
  Large out;
  for (const ValueId operand : graph_.operands(node))
    if (operand.valid() && graph_.value(operand).kind == ValueKind::kConstant)
      out = out.with(constant_numbers(operand));
  // A minimum has the low numbers of its operands. It has no high number if another operand is not large.
  if (node.op == Op::kMinimum) return {out.low, false};
  if (node.op == Op::kMaximum) return {false, out.high};
  const bool is_sub = node.op == Op::kSub, is_mul = node.op == Op::kMul;
  if (is_sub && graph_.value(graph_.operands(node)[1]).kind == ValueKind::kConstant) return out.negated();
  // The product of a constant and truth values, or other whole numbers, has the sign of the constant.
  const auto is_whole = [&](NodeIndex p) {
    return !is_float_value(p) || (call(p).whole && call(p).dependence != Dependence::kFloats);
  };
  return is_mul && !std::ranges::all_of(c.operands, is_whole) ? out.with(out.negated()) : out;
}

// Removes the large numbers that an extremum or a bound keeps out of its result if other numbers are present.
Large Planner::without_bounded(Large numbers, const Call& c) {
  const Node& node = *c.main;
  const auto* const clamp = node.op == Op::kClamp ? &Graph::attrs<ClampAttrs>(node) : nullptr;
  bool has_floor = kHaveFloor.contains(node.op) || (clamp != nullptr && clamp->min);
  bool has_ceiling = kHaveCeiling.contains(node.op) || (clamp != nullptr && clamp->max);
  // max(x, finfo.min) bounds nothing but minus infinity.
  Large bounds;
  if (clamp != nullptr && clamp->min) bounds = bounds.with(large_number(scalar_of(*clamp->min)));
  if (clamp != nullptr && clamp->max) bounds = bounds.with(large_number(scalar_of(*clamp->max)));
  if (node.op == Op::kMaximum || node.op == Op::kMinimum) {
    for (const ValueId operand : graph_.operands(node)) bounds = bounds.with(constant_numbers(operand));
    for (const NodeIndex p : c.operands)
      if (call(p).dependence == Dependence::kNothing && value(p).valid())
        bounds = bounds.with(call(p).large).with(constant_numbers(value(p)));
  }
  has_floor = has_floor && !bounds.low;
  has_ceiling = has_ceiling && !bounds.high;
  return {numbers.low && !has_floor, numbers.high && !has_ceiling};
}

// Numbers that hide scores are not among the best elements that topk chooses, as long as there are others.
Large Planner::without_hidden(Large numbers, const Call& c) const {
  if (c.behaviour != Behaviour::kSelection) return numbers;
  const bool has_largest = Graph::attrs<SortAttrs>(*graph_.producer(graph_.operands(*c.main)[1])).descending;
  return {numbers.low && !has_largest, numbers.high && has_largest};
}

// The operand that is added to a product of matrices, such as the mask of attention; invalid for other calls.
ValueId Planner::addend_of(const Call& c) const {
  if (c.main == nullptr || (c.main->op != Op::kAddmm && c.main->op != Op::kBaddbmm)) return {};
  return graph_.operands(*c.main)[0];
}

double Planner::scalar_of(const Scalar& scalar) {
  return std::visit([](auto x) { return static_cast<double>(x); }, scalar);
}

Large Planner::constant_numbers(ValueId id) {
  const Value& value = graph_.value(id);
  if (value.kind != ValueKind::kConstant || !is_float(value.type.dtype)) return {};
  const auto [entry, added] = large_constants_.try_emplace(id.index());
  if (!added) return entry->second;
  const Elements elements(*value.constant);
  if (static_cast<std::int64_t>(elements.size()) > kMostScanned) return {};
  for (std::size_t i = 0; i < elements.size(); ++i)
    entry->second = entry->second.with(large_number(elements.as_double(i)));
  return entry->second;
}

}  // namespace tosaic::quant
