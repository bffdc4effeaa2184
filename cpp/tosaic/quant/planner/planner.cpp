// planner: decides for each call, in the order of the graph, which of its tensors are rounded.
#include <algorithm>

#include "tosaic/ir/op_table.h"
#include "tosaic/ir/quantized.h"
#include "tosaic/quant/planner/planning.h"

namespace tosaic::quant {

PlannedSpecs Planner::run() {
  read_calls();
  for (std::uint32_t i = 0; i < calls_.size(); ++i) classify(NodeIndex(i));
  if (!input_.for_arm) find_numbers_of_integers();
  find_masks();
  if (input_.every_operator) {
    find_streams();
    for (std::uint32_t i = 0; i < calls_.size(); ++i) decide_alone(NodeIndex(i));
  } else {
    find_functions();
    find_streams();
    find_positions();
    find_hidden_rows();
    for (std::uint32_t i = 0; i < calls_.size(); ++i) decide(NodeIndex(i));
  }
  emit_groups();
  if (!input_.for_arm) round_returned_numbers();
  leave_moved_floats();
  return {std::move(left_), std::move(joins_), scaled_results()};
}

// ---- decisions, in the order of the graph ----

const Precision* Planner::precision(NodeIndex i) const {
  const auto& index = input_.precision[i.index()];
  return index ? &input_.precisions[*index] : nullptr;
}

// True if the results of both calls are rounded in the same way, or both stay float.
bool Planner::are_alike(NodeIndex a, NodeIndex b) const {
  const Precision *x = precision(a), *y = precision(b);
  return x == y || (x != nullptr && y != nullptr && x->activation == y->activation);
}

// Torch refuses annotations of calls that have tensors by keyword.
bool Planner::accepts(NodeIndex i) const {
  return std::ranges::none_of(node(i).operands,
                              [](const CallOperand& each) { return each.path.starts_with("kwargs"); });
}

// True if the call computes float64, which torch's quantize operators refuse.
bool Planner::has_doubles(NodeIndex i) {
  const auto is_double = [this](NodeIndex n) {
    return value(n).valid() && graph_.type(value(n)).dtype == DType::kF64;
  };
  return is_double(i) || std::ranges::any_of(call(i).operands, is_double);
}

// Records what needs no decision: constants, inputs, and calls that another quantizer annotated.
bool Planner::is_settled(NodeIndex i) {
  Call& c = call(i);
  const CallNode& n = node(i);
  if (n.kind == CallKind::kOutput || c.dependence == Dependence::kNothing) return true;
  if (plan_.has_annotation(i) && plan_.annotated(i))
    c.rounding = plan_.output(i) != nullptr ? Rounding::kForeign : Rounding::kFloat;
  else if (n.kind != CallKind::kCall)
    c.rounding = c.dependence == Dependence::kFloats ? Rounding::kFloat : Rounding::kNone;
  else
    return false;
  return true;
}

void Planner::decide(NodeIndex i) {
  Call& c = call(i);
  if (is_settled(i)) return;
  const bool is_tuple = !value(i).valid();
  if (c.dependence == Dependence::kIntegers) return decide_by_integers(i);
  if (c.within) {
    if (const Precision* p = precision(i); p != nullptr && accepts(i) && !has_doubles(i))
      round_operands(i, *p);
    return leave(i, Rounding::kWithin, "it is a part of a unit that is computed at once");
  }
  if (has_doubles(i)) return leave(i, Rounding::kFloat, "torch quantizes no float64");
  const Precision* p = precision(i);
  if (passes_through(i)) {
    if (c.sorts && p != nullptr && accepts(i)) round_operands(i, *p);  // the positions follow from integers
    return;
  }
  if (p == nullptr) return leave(i, Rounding::kFloat, "it is not selected");
  if (c.behaviour == Behaviour::kFloatOnly)
    return leave(i, Rounding::kFloat, "the operator has no integer form");
  if (!accepts(i))
    return leave(i, Rounding::kFloat, "torch refuses annotations of calls with tensors by keyword");
  if (c.nan_is_contracted)
    return leave(i, Rounding::kFloat,
                 "what replaces NaN reads rows without a visible key after a contraction");
  const bool is_join = c.behaviour == Behaviour::kJoin;
  if (is_join && joins_one_scale(i)) return;
  const Join join = is_join ? join_of(i) : Join{};
  if (!is_result_of_tuple(i)) round_operands(i, *p);
  if (is_tuple || !is_float_value(i)) return;
  if (c.large) return leave(i, Rounding::kLarge, "it may hold numbers that leave no precision to the others");
  if (c.wide) return leave(i, Rounding::kWide, "norms and sums read it with 32 bits");
  if (const char* reason = computed_with_user(i)) return leave(i, Rounding::kWithin, reason);
  c.rounding = Rounding::kRounded;
  if (c.stream) return set(Slot::output(i), of_stream(*p), kStream);
  set_output(i, *p);
  if (is_join) share_with_result(join, *p);
}

// A call that depends on integers of the caller only.
void Planner::decide_by_integers(NodeIndex i) {
  if (is_float_value(i))
    leave(i, Rounding::kNone, "it depends on integers only: positions or a mask");
  else if (const Precision* p = precision(i); p != nullptr && reads_floats(i) && accepts(i))
    round_operands(i, *p);
}

void Planner::leave(NodeIndex i, Rounding rounding, std::string_view reason) {
  call(i).rounding = rounding;
  left_.push_back({i, reason, rounding == Rounding::kFloat});
}

// Reports calls that only move floats, if no slot on the way is rounded.
void Planner::leave_moved_floats() {
  for (std::uint32_t n = 0; n < calls_.size(); ++n) {
    const NodeIndex i(n);
    if (call(i).rounding != Rounding::kTransparent || !is_float_value(i)) continue;
    NodeIndex from = i;
    bool is_rounded = false;
    for (; call(from).rounding == Rounding::kTransparent; from = call(from).base)
      is_rounded = is_rounded || plan_.find(Slot::edge(call(from).base, from)) != nullptr;
    if (!is_rounded && call(from).rounding == Rounding::kFloat)
      left_.push_back({i, "it moves numbers that stay float", true});
  }
}

bool Planner::is_result_of_tuple(NodeIndex i) {
  const Call& c = call(i);
  return c.nodes.empty() && c.operands.size() == 1 && !value(c.operands[0]).valid();
}

// The first operand that is a constant of floats; invalid if there is none.
NodeIndex Planner::float_constant_of(const Call& c) {
  const auto found = std::ranges::find_if(c.operands, [this](NodeIndex p) {
    return call(p).dependence == Dependence::kNothing && is_float_value(p);
  });
  return found == c.operands.end() ? NodeIndex() : *found;
}

// Movement and selection of the elements of one operand.
bool Planner::passes_through(NodeIndex i) {
  Call& c = call(i);
  if (c.behaviour != Behaviour::kMovement && c.behaviour != Behaviour::kSelection) return false;
  NodeIndex base;
  for (const NodeIndex p : c.operands)
    if (call(p).dependence == Dependence::kFloats && (is_float_value(p) || !value(p).valid())) {
      base = p;
      break;
    }
  if (!base.valid() && c.dependence == Dependence::kFloats && is_float_value(i)) {
    base = float_constant_of(c);  // integers choose its elements, which are rounded as an input is
    if (base.valid()) call(base).rounding = Rounding::kFloat;
  }
  if (!base.valid()) {
    c.rounding = Rounding::kNone;
    if (c.counts && c.whole) return false;
    return !is_float_value(i) || c.behaviour == Behaviour::kMovement;
  }
  if (call(base).rounding == Rounding::kWithin && c.behaviour == Behaviour::kSelection) return false;
  // An extremum may remove large numbers, and a pad may add them.
  if (bool(call(base).large) != bool(c.large)) return false;
  if (value(i).valid() && !is_float_value(i)) {
    if (const Precision* p = precision(i);
        p != nullptr && accepts(i) && c.main != nullptr && c.main->op == Op::kCast)
      round_cast(base, i, *p);
    return true;
  }
  // A result of a topk whose results have another scale than its operand.
  if (is_result_of_tuple(i) && call(base).sorts && call(base).rounding != Rounding::kTransparent)
    return false;
  c.rounding = Rounding::kTransparent;
  c.base = base;
  return true;
}

Planner::Root Planner::root_of(NodeIndex p, NodeIndex user) {
  while (call(p).rounding == Rounding::kTransparent) {
    user = p;
    p = call(p).base;
  }
  return {p, Slot::edge(p, user)};
}

bool Planner::is_data(NodeIndex p) {
  return call(p).dependence == Dependence::kFloats && (is_float_value(p) || !value(p).valid());
}

void Planner::round_operands(NodeIndex i, const Precision& p) {
  Call& c = call(i);
  const bool is_narrow = is_weighted(c);
  if (c.behaviour == Behaviour::kWeighted && c.main != nullptr) return round_contraction(i, p);
  const NodeIndex mask = c.behaviour == Behaviour::kAttention ? mask_of(c) : NodeIndex();
  for (const NodeIndex operand : c.operands) {
    if (operand == mask && call(operand).dependence != Dependence::kFloats) continue;
    if (call(operand).is_mask && (c.masked || c.is_mask || operand == mask))
      round_mask(operand, i, p);
    else if (operand == mask && is_data(operand))
      round_operand(operand, i, p, false);
    else if (is_grid(operand, i))
      round_grid(operand, i, p);
    else if (is_data(operand))
      round_operand(operand, i, p, is_narrow);
    else
      round_table(operand, i, p);
  }
  round_constants(i, p);
}

// True for an input that is not rounded where it is produced.
bool Planner::is_unrounded_leaf(NodeIndex i) {
  return call(i).rounding == Rounding::kFloat && node(i).kind != CallKind::kCall;
}

// Rounds an input that is cast to integers, in a unit of which the whole numbers are multiples.
void Planner::round_cast(NodeIndex operand, NodeIndex cast, const Precision& p) {
  const Root root = root_of(operand, cast);
  if (!is_unrounded_leaf(root.call)) return;
  const bool is_written = std::ranges::any_of(graph_.outputs(), [&](const Output& each) {
    return each.kind == OutputKind::kMutation &&
           graph_.inputs()[each.mutated_input].value == value(root.call);
  });
  const Slot slot = accepts(root.edge.node) ? root.edge : Slot::edge(operand, cast);
  // A tensor that the program also writes has one scale for all of its readers.
  if (is_written) return set(slot, p.activation, "operand");
  set(slot, in_16_bits(p), kWholeNumbers);
}

// Rounds numbers that the program computes from integers, such as the cosines of rotary angles, at the edge
// where a call reads them together with data. They are not rounded earlier, since the angles may be large.
// Masks and whole numbers from integers of few bits need no scale: they are exact.
void Planner::round_table(NodeIndex operand, NodeIndex user, const Precision& p) {
  const Call& c = call(operand);
  if (c.dependence != Dependence::kIntegers || !is_float_value(operand) || c.large) return;
  if ((c.whole && !c.counts) || (call(user).dependence != Dependence::kFloats && is_float_value(user)) ||
      call(user).within)
    return;
  const Call& reader = call(user);
  const bool has_range =
      reader.behaviour == Behaviour::kAttention || (reader.of_integers && !is_linear(reader));
  set(Slot::edge(operand, user), in_16_bits(p), !c.whole ? "table" : has_range ? kWholeNumbers : kCounts);
  if (c.counts) round_counts(operand, p);
}

// True for sums, movement and selection, whose results need no finer units than their operands.
bool Planner::is_linear(const Call& c) {
  static constexpr OpTable<bool> kLinear = {
      {Op::kCast, true}, {Op::kAdd, true}, {Op::kSub, true}, {Op::kNeg, true}, {Op::kClamp, true}};
  if (c.behaviour == Behaviour::kSelection) return true;
  return std::ranges::all_of(
      c.nodes, [](const Node* each) { return rearranges(*each) || kLinear.contains(each->op); });
}

// Call i is computed from integers. Rounds these integers where they become floats. If only movement and sums
// read them, they get scale 1, so that all integers of 16 bits are exact. For products and functions, scale 1
// would leave few bits to small numbers: these get the range of the samples.
void Planner::round_counts(NodeIndex i, const Precision& p, const char* rule) {
  if (!accepts(i) || call(i).behaviour == Behaviour::kFloatOnly || call(i).within) return;
  const auto is_count = [this](NodeIndex each) {
    return !is_float_value(each) && call(each).dependence != Dependence::kNothing;
  };
  if (!is_linear(call(i))) rule = kWholeNumbers;
  for (const NodeIndex operand : call(i).operands) {
    const Call& c = call(operand);
    if (!c.counts || c.large || plan_.find(Slot::edge(operand, i)) != nullptr) continue;
    if (std::ranges::none_of(c.operands, is_count))
      round_counts(operand, p, rule);
    else if (c.whole)
      set(Slot::edge(operand, i), in_16_bits(p), rule);
  }
}

// The call that makes the mask of an attention.
NodeIndex Planner::mask_of(const Call& c) {
  const auto operands = graph_.operands(*c.main);
  return operands.size() > 3 && operands[3].valid() ? producer_among(c, operands[3]) : NodeIndex();
}

// The operand of the call from which the call gets this value, by movement only.
NodeIndex Planner::producer_among(const Call& c, ValueId id) {
  while (id.valid()) {
    for (const NodeIndex p : c.operands)
      if (value(p) == id) return p;
    const Node* producer = graph_.producer(id);
    if (producer == nullptr || std::ranges::find(c.nodes, producer) == c.nodes.end()) break;
    const auto operands = graph_.operands(*producer);
    if (operands.empty() || (!rearranges(*producer) && producer->op != Op::kCast)) break;
    if (is_float(graph_.type(operands[0]).dtype) != is_float(graph_.type(id).dtype)) break;
    id = operands[0];
  }
  return {};
}

// Rounds the operand unless it is rounded where it is computed. `is_narrow`: the operator multiplies
// integers of few bits, so even numbers within a unit must be rounded.
void Planner::round_operand(NodeIndex operand, NodeIndex user, const Precision& p, bool is_narrow) {
  const Root root = root_of(operand, user);
  const Rounding rounding = call(root.call).rounding;
  if (rounding == Rounding::kRounded) {
    const PlanEntry* entry = plan_.output(root.call);
    const bool is_exact = !is_narrow && (!call(root.call).stream || reads_wide(user) || call(user).stream);
    if (is_exact || entry == nullptr || narrower(entry->spec, p.activation)) return;
    return set(Slot::edge(operand, user), p.activation, "operand");
  }
  if (rounding == Rounding::kForeign || call(root.call).nan_is_contracted) return;
  if (rounding == Rounding::kWide) {
    if (!reads_wide(user) && !is_sum(user)) set(Slot::edge(operand, user), p.activation, "operand");
    return;
  }
  if (rounding == Rounding::kWithin || rounding == Rounding::kLarge || rounding == Rounding::kNone) {
    if (is_narrow) set(Slot::edge(operand, user), p.activation, "operand");
    if (is_narrow && call(operand).counts) round_counts(operand, p);
    return;
  }
  set(accepts(root.edge.node) ? root.edge : Slot::edge(operand, user), p.activation, "operand");
}

// True if integers of the first spec have at most as many bits as integers of the second.
bool Planner::narrower(const QSpec& spec, const ObservedSpec& than) {
  if (const auto* observed = std::get_if<ObservedSpec>(&spec))
    return bits_of(observed->dtype) <= bits_of(than.dtype);
  if (const auto* fixed = std::get_if<FixedSpec>(&spec)) return bits_of(fixed->dtype) <= bits_of(than.dtype);
  return true;
}

int Planner::bits_of(std::string_view dtype) {
  return dtype.ends_with("32") ? 32 : dtype.ends_with("16") ? 16 : 8;
}

// ---- joins ----

// The slot with the scale of an operand, if this plan observes the operand. None if the operand has a known
// scale, is rounded in another way or is not data.
std::optional<Slot> Planner::observed_operand(NodeIndex operand, NodeIndex i) {
  if (!is_data(operand)) return std::nullopt;
  const Root root = root_of(operand, i);
  const Rounding rounding = call(root.call).rounding;
  Slot slot = root.edge;
  if (rounding == Rounding::kRounded && are_alike(root.call, i))
    slot = Slot::output(root.call);
  else if (rounding != Rounding::kFloat || !accepts(root.edge.node))
    return std::nullopt;
  const PlanEntry* entry = plan_.find(slot);
  if (entry != nullptr && !std::holds_alternative<ObservedSpec>(entry->spec)) return std::nullopt;
  return slot;
}

// True if all readers of the result are this call, possibly through calls that move or select its elements.
bool Planner::feeds_only(NodeIndex from, NodeIndex i) {
  return std::ranges::all_of(node(from).users, [&](NodeIndex user) {
    return user == i || (call(user).rounding == Rounding::kTransparent && feeds_only(user, i));
  });
}

// An operand that only the join reads shares the scale of the result: its numbers are rounded to that scale
// anyway. An operand with other readers has its own scale, so that the ranges of the other operands cost its
// readers no precision; lowering rescales it.
Planner::Join Planner::join_of(NodeIndex i) {
  Join join{i, {}, {}};
  for (const NodeIndex operand : call(i).operands)
    if (const std::optional<Slot> slot = observed_operand(operand, i))
      (feeds_only(root_of(operand, i).call, i) ? join.shared : join.own).push_back(*slot);
  return join;
}

void Planner::share_with_result(const Join& join, const Precision& p) {
  const Slot result = Slot::output(join.call);
  const PlanEntry* entry = plan_.find(result);
  if (entry == nullptr || entry->spec != QSpec(p.activation)) return;
  for (const Slot slot : join.shared) {
    set(slot, p.activation, "operand");
    unite(slot, result);
  }
  for (const Slot slot : join.own) joins_.push_back({slot, result});
}

// True if all operands have the same known scale. The result then has their integers.
bool Planner::joins_one_scale(NodeIndex i) {
  Call& c = call(i);
  const QSpec* common = nullptr;
  NodeIndex base;
  for (const NodeIndex operand : c.operands) {
    if (!is_data(operand)) {
      if (is_float_value(operand)) return false;
      continue;
    }
    const NodeIndex root = root_of(operand, i).call;
    const PlanEntry* entry = call(root).rounding == Rounding::kRounded ? plan_.output(root) : nullptr;
    if (entry == nullptr || !std::holds_alternative<FixedSpec>(entry->spec)) return false;
    if (common != nullptr && *common != entry->spec) return false;
    common = &entry->spec;
    base = base.valid() ? base : operand;
  }
  if (common == nullptr) return false;
  c.rounding = Rounding::kTransparent;
  c.base = base;
  return true;
}

PlannedSpecs plan_specs(const PlannerInput& input, AnnotationPlan& plan) {
  return Planner(input, plan).run();
}

}  // namespace tosaic::quant
