// numbers_of_integers: floats that follow from integers of the caller only.
//
//   %p = cast(%positions)         whole numbers: exact
//   %a = mul(%p, 0.01)            tabulated: each call that reads it also reads data; it is rounded at the
//                                 edges to these calls
//   %y = mul(%x, cos(%a))
//
//   %q = mul(%p, 0.5)             rounded as data is, since it is returned, or read by an operator that
//   return %q                     computes with several elements
//
// Masks and whole numbers get no scale here: they stay exact until a call adds data to them or multiplies
// data by them. The scales are powers of two, so that half of a whole number is exact, and a cast of it finds
// the same integer.
#include <algorithm>

#include "tosaic/quant/planner/planning.h"

namespace tosaic::quant {
// True if an operand is a tensor of floats, or a tuple, that depends on inputs.
bool Planner::reads_floats(NodeIndex i) {
  return std::ranges::any_of(call(i).operands, [&](NodeIndex p) {
    return call(p).dependence != Dependence::kNothing && (is_float_value(p) || !value(p).valid());
  });
}

// True if each reader of the floats also reads data, or is tabulated itself.
bool Planner::is_tabulated(NodeIndex i) {
  const Call& c = call(i);
  if (!is_float_value(i) || !(is_elementwise(c) || c.behaviour == Behaviour::kMovement)) return false;
  return std::ranges::all_of(node(i).users, [&](NodeIndex user) {
    if (node(user).kind != CallKind::kCall || stores(user)) return false;
    return call(user).dependence == Dependence::kFloats || call(user).tabulated;
  });
}

void Planner::find_numbers_of_integers() {
  for (auto i = static_cast<std::uint32_t>(calls_.size()); i-- > 0;)
    if (calls_[i].dependence == Dependence::kIntegers) calls_[i].tabulated = is_tabulated(NodeIndex(i));
  for (std::uint32_t n = 0; n < calls_.size(); ++n) {
    const NodeIndex i(n);
    Call& c = call(i);
    if (c.dependence != Dependence::kIntegers || node(i).kind != CallKind::kCall) continue;
    for (const NodeIndex p : c.operands) c.dependence = std::max(c.dependence, call(p).dependence);
    const bool is_number = is_float_value(i) || (!value(i).valid() && reads_floats(i));
    if (is_number && !c.tabulated && (!c.whole || c.large)) c.dependence = Dependence::kFloats;
    c.of_integers = c.dependence == Dependence::kFloats;
  }
}

// Gives scales to the constants of a call that reads no data, such as an attention of constants under a mask.
void Planner::round_constants(NodeIndex i, const Precision& p) {
  const Call& c = call(i);
  const NodeIndex mask = c.behaviour == Behaviour::kAttention ? mask_of(c) : NodeIndex();
  const auto has_scale = [&](NodeIndex each) { return each != mask && is_data(each); };
  if (c.dependence != Dependence::kFloats || std::ranges::any_of(c.operands, has_scale)) return;
  for (const NodeIndex operand : c.operands)
    if (operand != mask && call(operand).dependence == Dependence::kNothing && is_float_value(operand) &&
        !constant_numbers(value(operand)))
      set(Slot::edge(operand, i), p.activation, "operand");
}

}  // namespace tosaic::quant
