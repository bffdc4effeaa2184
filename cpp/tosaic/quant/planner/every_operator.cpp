// every_operator: decisions where each operator has a scale of its own, as Arm's flow needs them.
#include <algorithm>
#include <iterator>

#include "tosaic/ir/constant_factor.h"
#include "tosaic/ir/op_table.h"
#include "tosaic/quant/planner/planning.h"

namespace tosaic::quant {
namespace {

// Operators other than movement, selection and joins that Arm's lowering takes with one scale only.
constexpr OpTable<bool> kOneScale = {
    {Op::kNeg, true},         {Op::kWhere, true},           {Op::kMean, true},
    {Op::kAvgPool, true},     {Op::kAdaptiveAvgPool, true}, {Op::kResize, true},
    {Op::kEmbedding, true},   {Op::kIndexPut, true},        {Op::kScatter, true},
    {Op::kSliceScatter, true}};

}  // namespace

void Planner::decide_alone(NodeIndex i) {
  Call& c = call(i);
  if (is_settled(i)) return;
  // An exported module begins with a call that checks all inputs. It computes nothing, and gets no specs.
  if (c.nodes.empty() && !value(i).valid() && node(i).users.empty()) return;
  if (!input_.for_arm && c.dependence == Dependence::kIntegers) return decide_by_integers(i);
  std::vector<NodeIndex> floats;
  for (const NodeIndex operand : c.operands)
    if (is_float_value(operand) || is_data(operand)) floats.push_back(operand);
  const bool has_float_result = is_float_value(i) || (!value(i).valid() && !floats.empty());
  if (floats.empty() && !has_float_result) return;
  const Precision* p = precision(i);
  if (p == nullptr) return leave(i, Rounding::kFloat, "it is not selected");
  const Precision narrow = *p;  // of the weight and the data of a contraction
  Precision wide = *p;
  if (c.stream) wide.activation = of_stream(*p), p = &wide;
  if (c.behaviour == Behaviour::kFloatOnly)
    return leave(i, Rounding::kFloat, "the operator has no integer form");
  if (!accepts(i))
    return leave(i, Rounding::kFloat, "torch refuses annotations of calls with tensors by keyword");
  if (has_doubles(i)) return leave(i, Rounding::kFloat, "torch quantizes no float64");
  if (floats.empty()) return convert_integers(i);
  const bool is_norm_of_conv = c.behaviour == Behaviour::kNormalize;
  if (is_norm_of_conv && call(c.operands[0]).rounding != Rounding::kWithin)
    return leave(i, Rounding::kFloat, "a batch norm is computed with the convolution before it only");
  plan_.set_annotated(i, true);
  const bool is_predicate = c.behaviour == Behaviour::kPredicate;
  if (c.large && !is_predicate) {
    for (const NodeIndex operand : floats)
      if (call(operand).is_mask && (c.masked || c.is_mask)) {
        if (node(operand).kind != CallKind::kCall) set(Slot::edge(operand, i), mask_spec(*p), "mask");
      } else if (is_data(operand) && !call(operand).large) {
        read_operand(operand, i, *p);
      }
    return leave(i, Rounding::kLarge, "it may hold numbers that leave no precision to the others");
  }
  if (is_predicate || shares_scale(c)) {
    share_scale(i, floats, *p, has_float_result && !is_predicate);
    return;
  }
  const NodeIndex mask = c.behaviour == Behaviour::kAttention ? mask_of(c) : NodeIndex();
  if (mask.valid() && call(mask).is_mask && node(mask).kind != CallKind::kCall)
    set(Slot::edge(mask, i), mask_spec(*p), "mask");
  for (const NodeIndex operand : floats)
    if (operand != mask && !is_norm_of_conv &&
        (!has_weight(c) || call(operand).dependence != Dependence::kNothing))
      read_operand(operand, i, c.behaviour == Behaviour::kWeighted || !is_call(operand) ? narrow : *p);
  if (has_weight(c)) round_contraction(i, narrow);
  if (!has_float_result) return;
  if (const char* reason = computed_with_activation(i, *p)) return leave(i, Rounding::kWithin, reason);
  c.rounding = Rounding::kRounded;
  if (c.stream) return set(Slot::output(i), p->activation, kStream);
  set_output(i, *p);
  note_scaled(i, *p);
}

// Notes a product or quotient by a number.
void Planner::note_scaled(NodeIndex i, const Precision& p) {
  const Call& c = call(i);
  if (c.nodes.size() != 1 || c.whole) return;
  const std::optional<ConstantFactor> found = constant_factor(graph_, *c.nodes[0]);
  if (!found) return;
  const NodeIndex operand = producer_among(c, graph_.operands(*c.nodes[0])[found->data]);
  const PlanEntry* const entry = plan_.output(i);
  if (!operand.valid() || entry == nullptr || !std::holds_alternative<ObservedSpec>(entry->spec)) return;
  const Slot slot = scale_of(operand, i, p);
  if (const PlanEntry* const from = plan_.find(slot);
      from != nullptr && dtype_of(from->spec) == p.activation.dtype)
    scaled_.push_back({slot, Slot::output(i), found->factor});
}

// The products and quotients by a number whose result shares its scale with no other value.
std::vector<ScaledResult> Planner::scaled_results() {
  std::vector<ScaledResult> out;
  std::ranges::copy_if(scaled_, std::back_inserter(out),
                       [this](const ScaledResult& each) { return !group_of_.contains(each.result); });
  return out;
}

// A cast of integers to floats: the result gets the same integers, with scale 1.
void Planner::convert_integers(NodeIndex i) {
  Call& c = call(i);
  const DType from = c.operands.empty() || !value(c.operands[0]).valid()
                         ? DType::kI64
                         : graph_.type(value(c.operands[0])).dtype;
  FixedSpec spec{.dtype = "", .scale = 1.0, .scheme = "per_tensor_symmetric"};
  if (from == DType::kI8)
    spec.dtype = "i8", spec.qmin = -128, spec.qmax = 127;
  else if (from == DType::kI16)
    spec.dtype = "i16", spec.qmin = -32768, spec.qmax = 32767;
  else if (from == DType::kI32)
    spec.dtype = "i32", spec.qmin = -(std::int64_t{1} << 31), spec.qmax = (std::int64_t{1} << 31) - 1;
  if (c.main == nullptr || c.main->op != Op::kCast || spec.dtype.empty())
    return leave(i, Rounding::kFloat, "it depends on integers only: positions or a mask");
  c.rounding = Rounding::kRounded;
  set(Slot::output(i), spec, "the same integers");
}

// True for calls with a weight per channel and a derived bias. Other products multiply two activations.
bool Planner::has_weight(const Call& c) {
  if (c.main == nullptr) return false;
  return c.main->op == Op::kConv || c.main->op == Op::kLinear || is_linear_layer(c);
}

// True for addmm of a constant matrix and a constant row, which lowers to a linear layer. With a scale of 8
// bits for all elements of the row, one far element would leave no bits to the others.
bool Planner::is_linear_layer(const Call& c) {
  if (c.main->op != Op::kAddmm) return false;
  const auto& attrs = Graph::attrs<AddmmAttrs>(*c.main);
  const auto operands = graph_.operands(*c.main);
  const auto is_constant = [&](ValueId id) {
    const NodeIndex producer = producer_among(c, id);
    return producer.valid() && call(producer).dependence == Dependence::kNothing;
  };
  return as_double(attrs.alpha) == 1 && as_double(attrs.beta) == 1 && graph_.type(operands[0]).rank() == 1 &&
         graph_.type(operands[0]).shape[0] == graph_.type(operands[2]).shape[1] && is_constant(operands[0]) &&
         is_constant(operands[2]);
}

// True if the result has the scale of the operands.
bool Planner::shares_scale(const Call& c) {
  switch (c.behaviour) {
    case Behaviour::kMovement:
    case Behaviour::kSelection:
    case Behaviour::kJoin:
      return true;
    default:
      break;
  }
  return c.main != nullptr && kOneScale.contains(c.main->op);
}

// All operands, and the result if it is a float tensor, get one scale.
void Planner::share_scale(NodeIndex i, const std::vector<NodeIndex>& floats, const Precision& p,
                          bool result) {
  Call& c = call(i);
  if (!value(i).valid() && c.sorts) {   // a tuple, of which one result has the scale
    if (call(floats[0]).large) return;  // the largest numbers may not be among the results
    c.rounding = Rounding::kTransparent;
    c.base = floats[0];
    return read_operand(floats[0], i, p);
  }
  const bool is_sorted_anew =
      is_result_of_tuple(i) && call(floats[0]).sorts && call(floats[0]).rounding != Rounding::kTransparent;
  if (is_sorted_anew && !result) return;
  const bool is_cast = c.main != nullptr && c.main->op == Op::kCast && !result;
  if (is_cast && floats.size() == 1 && is_unrounded_leaf(floats[0])) return round_cast(floats[0], i, p);
  if (is_sorted_anew || (floats.size() == 1 && call(floats[0]).rounding == Rounding::kWithin)) {
    c.rounding = Rounding::kRounded;
    return set_output(i, p);
  }
  std::vector<Slot> slots;
  for (const NodeIndex operand : floats) {
    const Slot slot = scale_of(operand, i, p);
    const PlanEntry* entry = plan_.find(slot);
    const bool is_shareable = entry == nullptr || std::holds_alternative<ObservedSpec>(entry->spec);
    slots.push_back(is_shareable || floats.size() == 1 ? slot : Slot::edge(operand, i));
    set(slots.back(), p.activation, "operand");
  }
  for (const Slot slot : slots)
    if (slot != slots[0]) unite(slots[0], slot);
  if (!result) return;
  c.rounding = Rounding::kRounded;
  set(Slot::output(i), SharedSpec{find(slots[0])}, "one scale with the operand");
}

// The slot with the scale of an operand: the edge, if the operand has no scale or integers of other bits.
Slot Planner::scale_of(NodeIndex operand, NodeIndex i, const Precision& p) {
  for (; call(operand).rounding == Rounding::kTransparent; operand = call(operand).base) i = operand;
  const Slot edge = Slot::edge(operand, i);
  if (call(operand).rounding != Rounding::kRounded && call(operand).rounding != Rounding::kForeign)
    return edge;
  Slot slot = Slot::output(operand);
  const PlanEntry* entry = plan_.find(slot);
  for (; entry != nullptr && std::holds_alternative<SharedSpec>(entry->spec); entry = plan_.find(slot))
    slot = std::get<SharedSpec>(entry->spec).with;
  return entry != nullptr && dtype_of(entry->spec) == p.activation.dtype ? slot : edge;
}

std::string_view Planner::dtype_of(const QSpec& spec) {
  if (const auto* observed = std::get_if<ObservedSpec>(&spec)) return observed->dtype;
  if (const auto* fixed = std::get_if<FixedSpec>(&spec)) return fixed->dtype;
  return {};
}

void Planner::read_operand(NodeIndex operand, NodeIndex i, const Precision& p) {
  if (call(operand).dependence == Dependence::kIntegers) return round_table(operand, i, p);
  const Rounding rounding = call(operand).rounding;
  if (rounding == Rounding::kWithin || (rounding == Rounding::kLarge && !is_weighted(call(i)))) return;
  if (call(operand).stream && reads_wide(i)) return;
  if (const Slot slot = scale_of(operand, i, p); slot.is_edge()) set(slot, p.activation, "operand");
}

// Why the result of a convolution or linear layer is not rounded before a batch norm or activation.
const char* Planner::computed_with_activation(NodeIndex i, const Precision& p) {
  const Call& c = call(i);
  const NodeIndex user = only_user(i);
  if (!user.valid() || (!has_weight(c) && c.behaviour != Behaviour::kNormalize)) return nullptr;
  const Call& u = call(user);
  if (u.behaviour == Behaviour::kNormalize && c.main->op == Op::kConv)
    return "the batch norm after it is a part of it";
  // With a zero point, the integers of the result begin at 0, so that saturation computes the activation.
  const bool is_affine = p.activation.scheme && *p.activation.scheme == "per_tensor_affine";
  // Arm's lowering omits ReLU and hardtanh after a convolution, but not clamp.
  const std::string_view target = node(user).target;
  const bool begins_at_zero =
      target.starts_with("aten.relu") ||
      (target.starts_with("aten.hardtanh") && u.main != nullptr && u.main->op == Op::kClamp &&
       Graph::attrs<ClampAttrs>(*u.main).min && scalar_of(*Graph::attrs<ClampAttrs>(*u.main).min) == 0);
  return is_affine && begins_at_zero ? "the activation after it bounds it" : nullptr;
}

}  // namespace tosaic::quant
