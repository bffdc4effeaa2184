// returned: the scales of numbers that the program returns unchanged, or through calls that only move or
// bound them.
//
//   x -> linear -> output             x is observed at the edge x -> linear,
//   x -> reshape -> output            and read with the same scale at the edge x -> reshape
//   y -> output                       y is observed at the edge y -> output
//   z -> clamp -> output              z is observed at the edge z -> clamp, and the edge clamp -> output
//                                     has the same scale: the bounds of a clamp need not be integers
//   table -> index -> output          a constant is rounded at the edge table -> index. If it has numbers
//                                     beyond the numbers of activations, it has up to 32 bits, so that its
//                                     other numbers are exact enough, too
//
// An input that is returned stays float if an operator reads it as floats, or if a call that is not selected
// moves or bounds it. A call of torch that stores a value in a state or an input is treated as an output. A
// value that is stored in an input has the dtype with which the program reads the input, so a clamp before
// the store is rounded.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tosaic/ir/constant_value.h"
#include "tosaic/ir/quantized.h"
#include "tosaic/quant/planner/planning.h"

namespace tosaic::quant {
namespace {

constexpr const char* kReturnedInput = "returned input";
constexpr const char* kReturnedConstant = "returned constant";
constexpr const char* kStored = "large numbers that an input holds";
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLargestStored = 1 << 17;  // with 26 bits, units of 2^-9
constexpr std::int64_t kWide = 1 << 26;

}  // namespace

void Planner::round_returned_numbers() {
  for (std::uint32_t n = 0; n < calls_.size(); ++n) {
    const NodeIndex i(n);
    const bool is_output = node(i).kind == CallKind::kOutput;
    if ((!is_output && !stores(i)) || (plan_.has_annotation(i) && plan_.annotated(i))) continue;
    for (const NodeIndex operand : std::span(call(i).operands).subspan(is_output ? 0 : 1))
      if (is_float_value(operand)) round_returned(operand, i);
  }
}

// True for a torch call that stores its second operand in a state or in an input. In graphs of tosaic,
// outputs do this.
bool Planner::stores(NodeIndex i) const {
  const std::vector<NodeIndex>& operands = calls_[i.index()].operands;
  return node(i).target.starts_with("aten.copy_") && operands.size() == 2 &&
         node(operands[0]).kind != CallKind::kCall;
}

// True if the program writes the result of call p into an input of the caller. Then both have integers of one
// dtype.
bool Planner::is_stored_in_input(NodeIndex p, NodeIndex output) const {
  if (node(output).kind != CallKind::kOutput)
    return node(calls_[output.index()].operands[0]).kind == CallKind::kPlaceholder;
  return std::ranges::any_of(graph_.outputs(), [&](const Output& each) {
    return each.kind == OutputKind::kMutation && each.value == value(p) &&
           graph_.inputs()[each.mutated_input].kind == InputKind::kUser;
  });
}

// True for a constant whose elements are 0, c or -c for one finite c: one scale represents them exactly.
bool Planner::has_one_magnitude(ValueId id) {
  const Node* const made = id.valid() ? graph_.producer(id) : nullptr;
  if (made != nullptr && made->op == Op::kFull)
    return std::isfinite(scalar_of(Graph::attrs<FullAttrs>(*made).value));
  if (!id.valid() || graph_.value(id).kind != ValueKind::kConstant) return false;
  const Elements elements(*graph_.value(id).constant);
  if (elements.size() == 0 || static_cast<std::int64_t>(elements.size()) > kMostScanned) return false;
  double magnitude = 0;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const double x = std::abs(elements.as_double(i));
    if (!std::isfinite(x) || (x != 0 && magnitude != 0 && x != magnitude)) return false;
    if (x != 0) magnitude = x;
  }
  return true;
}

// The spec of a constant that is returned, possibly after calls that move some of its elements. Returns
// nothing if no unit represents its numbers.
std::optional<QSpec> Planner::spec_of_constant(NodeIndex p, const ObservedSpec& activation) {
  ValueId id = value(p);
  const auto moves = [](const Node& node) {
    return node.operand_count == 1 && (rearranges(node) || behaviour_of(node.op) == Behaviour::kMovement);
  };
  for (const Node* node = id.valid() ? graph_.producer(id) : nullptr; node != nullptr && moves(*node);
       node = graph_.producer(id))
    id = graph_.operands(*node)[0];
  const Constant* const constant = constant_of(graph_, id);
  const bool is_large = call(p).large || (constant != nullptr && constant_numbers(id));
  if (!is_large || has_one_magnitude(id)) return activation;
  const bool has_16_bits = bits_of(activation.dtype) == 16;
  const std::optional<ConstantUnit> unit =
      constant == nullptr ? std::nullopt : unit_of_constant(*constant, has_16_bits ? 0x1p14 : 0x1p6);
  if (!unit) return std::nullopt;
  FixedSpec spec{.dtype = std::string(unit->dtype), .scale = unit->scale, .scheme = "per_tensor_symmetric"};
  spec.qmin = -unit->largest;
  spec.qmax = unit->largest;
  return spec;
}

void Planner::round_returned(NodeIndex p, NodeIndex output) {
  if (call(p).dependence == Dependence::kIntegers && call(p).counts && call(p).whole && !call(p).large) {
    if (const Precision* const wanted = precision(output); wanted != nullptr && !has_doubles(p)) {
      set(Slot::edge(p, output), in_16_bits(*wanted), kCounts);
      round_counts(p, *wanted);
    }
    return;
  }
  const bool is_constant = call(p).dependence == Dependence::kNothing;
  if (!is_constant && !is_data(p)) return;
  Root root = is_constant ? Root{p, Slot::edge(p, output)} : root_of(p, output);
  if (const NodeIndex table = table_of(root.call); table.valid())
    root = {table, Slot::edge(table, root.call)};
  const Call& from = call(root.call);
  if (from.rounding == Rounding::kRounded && is_stored_in_input(p, output))
    return round_bounded(p, output, Slot::output(root.call), kReturnedInput);
  if (from.rounding == Rounding::kLarge && is_stored_in_input(p, output)) return store_large(p, output);
  const bool computes = is_elementwise(from) && from.main->op != Op::kWhere;
  if (from.rounding == Rounding::kLarge && from.counts && computes) {
    // Without an observed scale, the unit would have to fit all integers of 32 bits.
    if (const Precision* const wanted = precision(output); wanted != nullptr && !has_doubles(p))
      set(Slot::edge(p, output), in_16_bits(*wanted), "large numbers of counts");
    return;
  }
  const bool is_known = from.dependence == Dependence::kNothing;
  const bool is_leaf = node(root.call).kind != CallKind::kCall;
  if (!is_known && (!is_leaf || from.rounding != Rounding::kFloat)) return;
  if (has_doubles(p) || (node(root.edge.node).kind == CallKind::kCall && has_doubles(root.edge.node))) return;
  const Slot slot = accepts(root.edge.node) ? root.edge : Slot::edge(p, output);
  const Precision* const wanted = precision(slot.node);
  if (plan_.find(slot) == nullptr && is_known) {
    const std::optional<QSpec> spec =
        wanted == nullptr ? std::nullopt : spec_of_constant(root.call, wanted->activation);
    if (!spec) return;
    set(slot, *spec, kReturnedConstant);
  } else if (plan_.find(slot) == nullptr) {
    if (wanted == nullptr && node(slot.node).kind == CallKind::kCall) return;
    if (const PlanEntry* const read = spec_of_readers(root.call))
      set(slot, SharedSpec{scale_of_slot(read->slot)}, kReturnedInput);
    else if (wanted != nullptr && !is_read_as_float(root.call))
      set(slot, wanted->activation, kReturnedInput);
    else
      return;
  }
  if (!is_constant) round_bounded(p, output, slot, kReturnedInput);
}

// The largest magnitude of the constants that reach a value with large numbers.
double Planner::largest_constant(NodeIndex i) {
  const Call& c = call(i);
  double out = 0;
  const auto add = [&](double x) { out = std::isnan(x) ? kInfinity : std::max(out, std::abs(x)); };
  const auto add_elements = [&](ValueId id) {
    const Constant* const constant = constant_of(graph_, id);
    if (constant == nullptr || !is_float(constant->dtype)) return;
    const Elements elements(*constant);
    for (std::size_t k = 0; k < elements.size(); ++k) add(elements.as_double(k));
  };
  for (const Node* each : c.nodes) {
    if (each->op == Op::kFull) add(scalar_of(Graph::attrs<FullAttrs>(*each).value));
    if (each->op == Op::kPad) add(scalar_of(Graph::attrs<PadAttrs>(*each).value));
    for (const ValueId operand : graph_.operands(*each)) add_elements(operand);
  }
  for (const NodeIndex p : c.operands)
    if (call(p).large) add(largest_constant(p));
  return out;
}

// The program writes the result of call p into an input of the caller. If the result has large numbers, the
// result gets 32 bits, and all calls that read the input read it with 32 bits.
void Planner::store_large(NodeIndex p, NodeIndex output) {
  const Precision* const wanted = precision(output);
  if (wanted == nullptr || node(output).kind != CallKind::kOutput || !accepts(output)) return;
  if (largest_constant(root_of(p, output).call) > kLargestStored) return;
  const Slot stored = Slot::edge(p, output);
  ObservedSpec spec = in_16_bits(*wanted);
  spec.dtype = "i32", spec.qmin = -kWide, spec.qmax = kWide;
  set(stored, spec, kStored);
  for (const Output& each : graph_.outputs()) {
    if (each.kind != OutputKind::kMutation || each.value != value(p)) continue;
    for (std::uint32_t n = 0; n < calls_.size(); ++n)
      if (value(NodeIndex(n)) == graph_.inputs()[each.mutated_input].value)
        for (const NodeIndex user : node(NodeIndex(n)).users) read_as(Slot::edge(NodeIndex(n), user), stored);
  }
}

// If the scale of a slot is observed, the slot and all slots that share it get the scale of another slot.
void Planner::read_as(Slot slot, Slot other) {
  const PlanEntry* const entry = plan_.find(slot);
  if (entry == nullptr || tosaic::quant::is_float(entry->spec)) return;
  const Slot own = scale_of_slot(slot);
  const PlanEntry* const decider = plan_.find(own);
  if (own != other && decider != nullptr && std::holds_alternative<ObservedSpec>(decider->spec))
    plan_.set(own, SharedSpec{other}, decider->rule);
}

// The constant with large numbers whose elements a call moves; invalid for other calls.
NodeIndex Planner::table_of(NodeIndex i) {
  const Call& c = call(i);
  if (c.rounding != Rounding::kLarge ||
      (c.behaviour != Behaviour::kMovement && c.behaviour != Behaviour::kLookup))
    return {};
  return float_constant_of(c);
}

// Rounds the result of the last clamp between a rounded value and a user to the scale of the value.
void Planner::round_bounded(NodeIndex p, NodeIndex user, Slot rounded, const char* rule) {
  for (; call(p).rounding == Rounding::kTransparent; user = p, p = call(p).base) {
    const Node* const main = call(p).main;
    if (main == nullptr || main->op != Op::kClamp || Slot::edge(p, user) == rounded || !accepts(user))
      continue;
    return set(Slot::edge(p, user), SharedSpec{scale_of_slot(rounded)}, rule);
  }
}

// The slot to which the references of `slot` lead, and whose spec it therefore has.
Slot Planner::scale_of_slot(Slot slot) const {
  const PlanEntry* const entry = plan_.find(slot);
  const auto* const shared = entry == nullptr ? nullptr : std::get_if<SharedSpec>(&entry->spec);
  return shared == nullptr ? slot : scale_of_slot(shared->with);
}

// The spec with which the first quantized call reads an input; null if there is none.
const PlanEntry* Planner::spec_of_readers(NodeIndex p) const {
  for (const NodeIndex user : node(p).users) {
    const PlanEntry* const entry = plan_.find(Slot::edge(p, user));
    if (entry != nullptr && !tosaic::quant::is_float(entry->spec)) return entry;
  }
  return nullptr;
}

// True if a call that stays float reads the numbers, possibly through movement.
bool Planner::is_read_as_float(NodeIndex p) {
  return std::ranges::any_of(node(p).users, [&](NodeIndex user) {
    if (node(user).kind != CallKind::kCall || plan_.find(Slot::edge(p, user)) != nullptr) return false;
    return call(user).rounding == Rounding::kTransparent ? is_read_as_float(user)
                                                         : call(user).rounding == Rounding::kFloat;
  });
}

}  // namespace tosaic::quant
