// results: whether a result is rounded where it is computed, and with which spec.
#include <algorithm>

#include "tosaic/quant/planner/planning.h"

namespace tosaic::quant {

// Why only the reader rounds, and not this result; null if the result itself is rounded.
const char* Planner::computed_with_user(NodeIndex i) {
  const Call& c = call(i);
  if (c.nan_is_read) return "what reads it replaces the NaN of rows without a visible key";
  if (c.behaviour == Behaviour::kWeighted || c.behaviour == Behaviour::kNormalize ||
      c.behaviour == Behaviour::kArithmetic || c.behaviour == Behaviour::kReduction) {
    const NodeIndex user = only_user(i);
    if (user.valid()) {
      const Call& u = call(user);
      if (u.behaviour == Behaviour::kNormalize && c.main->op == Op::kConv)
        return "the batch norm after it is a part of it";
      if (u.behaviour == Behaviour::kSelection && u.main != nullptr && bounds(*u.main))
        return "the activation after it bounds it";
    }
  }
  if (c.behaviour == Behaviour::kWeighted || c.behaviour == Behaviour::kNormalize) {
    const NodeIndex reader = only_reader(i);
    const bool is_in_sum = reader.valid() && is_sum(reader) && stream_rounding(i) == StreamRounding::kNone;
    if (is_in_sum || (reader.valid() && is_exact_step(reader))) return "what reads it is rounded";
    if (has_function_behind(i)) return "the function that reads it is rounded";
  }
  if (c.position && samplers_of(i).empty() &&
      (is_position_step(i) || c.behaviour == Behaviour::kWeighted || c.behaviour == Behaviour::kNormalize))
    return "positions are computed from it with 32 bits";
  if (is_part_of_function(i)) return "it is a part of a function of one tensor";
  if (is_exact_step(i)) return "it is exact, and its only user rounds";
  return nullptr;
}

// The only call that reads the result and is quantized in the same way; invalid if there are others.
NodeIndex Planner::only_user(NodeIndex i) {
  const auto& users = node(i).users;
  if (users.size() != 1 || node(users[0]).kind != CallKind::kCall || call(users[0]).within) return {};
  if (!are_alike(i, users[0])) return {};
  return users[0];
}

// True if all readers are functions of one rounded tensor, so that a table computes them from that tensor.
bool Planner::is_part_of_function(NodeIndex i) {
  const Call& c = call(i);
  if (!c.function_of.valid() || node(i).users.empty()) return false;
  // A tensor that stays float is rounded by each reader, in the same way.
  const Rounding from = call(c.function_of).rounding;
  if (from != Rounding::kRounded && from != Rounding::kTransparent && from != Rounding::kFloat) return false;
  return std::ranges::all_of(node(i).users, [&](NodeIndex user) {
    return call(user).function_of == c.function_of && precision(user) != nullptr;
  });
}

// True if the only reader of an 8-bit contraction is a function of it alone, and wide functions are enabled.
// Lowering then computes the function from 16 bits: rounding to 8 bits both before and after the function
// would double the error.
bool Planner::has_function_behind(NodeIndex i) {
  const Precision& p = *precision(i);
  if (!p.wide_functions) return false;
  const NodeIndex user = only_user(i);
  return bits_of(p.activation.dtype) == 8 && user.valid() && call(user).behaviour == Behaviour::kFunction &&
         call(user).function_of == i && call(user).nodes.size() == 1 && accepts(user);
}

// True for a product with a table whose only reader is a sum, such as x * cos in x * cos + rotated(x) * sin:
// the product is exact, and the sum rounds.
bool Planner::is_exact_step(NodeIndex i) {
  const Call& c = call(i);
  const bool is_product = c.main != nullptr && c.main->op == Op::kMul && c.nodes.size() == 1 && has_table(c);
  if (!is_product) return false;
  const NodeIndex user = only_reader(i);
  if (!user.valid() || call(user).within) return false;
  const Call& u = call(user);
  return u.main != nullptr && (u.main->op == Op::kAdd || u.main->op == Op::kSub) && u.nodes.size() == 1;
}

bool Planner::has_table(const Call& c) {
  return std::ranges::any_of(c.operands, [&](NodeIndex p) {
    return call(p).dependence != Dependence::kFloats && is_float_value(p);
  });
}

void Planner::set_output(NodeIndex i, const Precision& p) {
  // A function becomes a table, whose results have 16 bits only for targets with that extension.
  const Behaviour behaviour = call(i).behaviour;
  const bool is_function = behaviour == Behaviour::kFunction || behaviour == Behaviour::kUnit ||
                           behaviour == Behaviour::kSymmetricUnit;
  const bool is_table = is_function || call(i).function_of.valid();
  if (call(i).position && !is_table)
    if (const std::vector<NodeIndex> samplers = samplers_of(i); !samplers.empty())
      return set(Slot::output(i), grid_spec(samplers, p), "positions");
  if (call(i).counts && call(i).whole && behaviour == Behaviour::kMovement)
    return set(Slot::output(i), in_16_bits(p), kCounts);
  if (call(i).of_integers && is_elementwise(call(i)) && !is_function)
    return set(Slot::output(i), in_16_bits(p), kWholeNumbers);
  if (p.fixed_ranges)
    if (const std::optional<FixedSpec> fixed = range_of(behaviour, p.activation))
      return set(Slot::output(i), *fixed, "known range");
  const char* const rule = call(i).whole           ? kWholeNumbers
                           : reader_is_function(i) ? kBeforeFunction
                                                   : "activation";
  set(Slot::output(i), p.activation, rule);
}

// True if only an elementwise function reads the result: only the error after the function counts.
bool Planner::reader_is_function(NodeIndex i) {
  const NodeIndex user = only_user(i);
  return user.valid() && call(user).function_of == i && call(user).nodes.size() == 1 &&
         call(user).operands.size() == 1;
}

std::optional<FixedSpec> Planner::range_of(Behaviour behaviour, const ObservedSpec& activation) {
  const bool is_unit = behaviour == Behaviour::kUnit;
  if (!is_unit && behaviour != Behaviour::kSymmetricUnit) return {};
  FixedSpec spec{.dtype = activation.dtype, .scheme = activation.scheme};
  spec.qmin = activation.qmin;
  spec.qmax = activation.qmax;
  if (activation.dtype == "i16")
    spec.scale = 1.0 / 32767;
  else if (activation.dtype == "i8")
    spec.scale = is_unit ? 1.0 / 256 : 1.0 / 128, spec.zero_point = is_unit ? -128 : 0;
  else if (activation.dtype == "u8")
    spec.scale = is_unit ? 1.0 / 256 : 1.0 / 128, spec.zero_point = is_unit ? 0 : 128;
  else
    return {};
  return spec;
}

void Planner::set(Slot slot, QSpec spec, const char* rule) {
  if (plan_.find(slot) != nullptr) return;
  const auto [entry, added] = rules_.try_emplace(rule, RuleId());
  if (added) entry->second = plan_.add_rule(rule);
  plan_.set(slot, std::move(spec), entry->second);
}

}  // namespace tosaic::quant
