// masks: sums that hide scores from a softmax, and rows of a softmax that are hidden as a whole.
//
//   %s = matmul(%q, %k)          scores: rounded as other activations
//   %m (an input)                a mask: 16 bits, and a range in which numbers that hide scores still do so
//   %a = add(%s, %m)             not rounded: 8 bits for a range of -1e9 would lose the details of the scores
//   %p = softmax(%a)
//
// A mask is a value that is computed from inputs only, by movement and arithmetic. It is added to something
// else before a softmax reads the sum, or it is the mask of an attention. A sum of masks, such as a bias and
// an input, is a mask.
//
//   %p = softmax(%a)             not rounded: if a row of %a is only -inf, the result is NaN, which integers
//                                do not have
//   %z = nan_to_num(%p)          rounded
#include <algorithm>
#include <limits>

#include "tosaic/ir/constant_value.h"
#include "tosaic/ir/op_table.h"
#include "tosaic/ir/quantized.h"
#include "tosaic/ir/softmax.h"
#include "tosaic/quant/planner/planning.h"

namespace tosaic::quant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLargestFactor = 16;  // of a mask; larger factors make a mask from zeros and ones
// Operators that may be between a mask and the softmax that reads it.
constexpr OpTable<bool> kKeepsMasks = {
    {Op::kAdd, true},     {Op::kSub, true},   {Op::kMul, true},   {Op::kDiv, true},     {Op::kMaximum, true},
    {Op::kMinimum, true}, {Op::kClamp, true}, {Op::kWhere, true}, {Op::kBaddbmm, true}, {Op::kAddmm, true}};
// Operators of which the result is a mask if their operands are. true: the second operand is a factor.
constexpr OpTable<bool> kPartsOfMasks = {{Op::kAdd, false},   {Op::kMaximum, false}, {Op::kMinimum, false},
                                         {Op::kClamp, false}, {Op::kWhere, false},   {Op::kCat, false},
                                         {Op::kMul, true},    {Op::kDiv, true}};

}  // namespace

// True if the result depends on the caller's floats by movement and elementwise arithmetic only.
bool Planner::is_plain(NodeIndex i) {
  const Call& c = call(i);
  if (c.dependence != Dependence::kFloats) return false;
  if (node(i).kind != CallKind::kCall) return is_float_value(i);
  switch (c.behaviour) {
    case Behaviour::kMovement:
    case Behaviour::kSelection:
    case Behaviour::kJoin:
    case Behaviour::kSignChange:
    case Behaviour::kArithmetic:
      break;
    default:
      return false;
  }
  return std::ranges::all_of(c.operands, [&](NodeIndex p) { return !is_data(p) || call(p).plain; });
}

// True if nothing but softmaxes reads the result, through movement and arithmetic, or if it is the mask of
// attentions. The positions of a sort do not count.
bool Planner::is_of_softmax(NodeIndex i) {
  std::vector<NodeIndex> users = node(i).users;
  if (call(i).sorts)
    std::erase_if(users, [&](NodeIndex user) {
      const bool is_unread = node(user).kind == CallKind::kCall && node(user).users.empty();
      return value(user).valid() ? !is_float_value(user) : is_unread;
    });
  return !users.empty() && std::ranges::all_of(users, [&](NodeIndex user) {
    const Call& u = call(user);
    if (node(user).kind != CallKind::kCall || u.main == nullptr) return false;
    if (u.unit && is_softmax(*u.unit)) return true;
    if (u.behaviour == Behaviour::kAttention) return mask_of(u) == i;
    if (u.nodes.size() == 1 && is_softmax(u.main->op)) return true;
    if (u.behaviour == Behaviour::kMovement) return u.of_softmax;
    return kKeepsMasks.contains(u.main->op) && u.of_softmax;
  });
}

// The operands that a sum adds: both operands of add, or the addend of a matrix product (addmm, baddbmm).
std::vector<NodeIndex> Planner::addends_of(const Call& c) {
  if (c.main == nullptr) return {};
  if (const ValueId addend = addend_of(c); addend.valid()) return {producer_among(c, addend)};
  if (c.main->op == Op::kAdd && c.nodes.size() == 1) return c.operands;
  return {};
}

void Planner::find_masks() {
  for (std::uint32_t i = 0; i < calls_.size(); ++i) calls_[i].plain = is_plain(NodeIndex(i));
  for (auto i = static_cast<std::uint32_t>(calls_.size()); i-- > 0;)
    calls_[i].of_softmax = is_of_softmax(NodeIndex(i));
  for (Call& c : calls_) {
    if (c.behaviour == Behaviour::kAttention && c.main != nullptr) {
      if (const NodeIndex mask = mask_of(c); mask.valid() && call(mask).plain) mark_mask(mask);
      continue;
    }
    if (!c.of_softmax || c.plain || c.within) continue;
    for (const NodeIndex addend : addends_of(c))
      if (addend.valid() && call(addend).plain) c.masked = true, c.large.low = true, mark_mask(addend);
  }
  for (Call& c : calls_) {
    // A quotient may hide scores as its dividend does, so it has the large numbers of the dividend.
    const bool is_quotient =
        c.of_softmax && c.main != nullptr && c.main->op == Op::kDiv && !c.operands.empty();
    if (is_quotient) c.large = c.large.with(call(c.operands[0]).large);
    c.large = c.large.with(large_numbers(c));
  }
}

// Marks a mask, and the operands if the mask is a sum, a choice or a multiple of other masks.
void Planner::mark_mask(NodeIndex i) {
  Call& c = call(i);
  if (c.is_mask || !c.plain) return;
  if (node(i).kind == CallKind::kCall && !is_part_of_mask(c)) return;
  c.is_mask = true;
  if (node(i).kind != CallKind::kCall) return;
  c.large.low = true;
  for (const NodeIndex operand : c.operands) mark_mask(operand);
}

bool Planner::is_part_of_mask(const Call& c) {
  if (c.behaviour == Behaviour::kMovement) return true;
  if (c.main == nullptr || c.nodes.size() != 1) return false;
  const bool* const is_scaled = kPartsOfMasks.find(c.main->op);
  if (is_scaled == nullptr || !*is_scaled) return is_scaled != nullptr;
  // If the factor is large, the other operand consists of zeros and ones, which have their own scale.
  const std::optional<double> factor = splat_of(graph_, graph_.operands(*c.main)[1]);
  return factor && std::abs(*factor) <= kLargestFactor && *factor > 0;
}

// 16 bits represent both the numbers that hide scores and the details of a bias.
ObservedSpec Planner::mask_spec(const Precision& p) {
  ObservedSpec spec = in_16_bits(p);
  spec.observer = p.mask_observer;
  return spec;
}

// Rounds a mask at the input from which it is computed.
void Planner::round_mask(NodeIndex operand, NodeIndex user, const Precision& p) {
  if (call(operand).behaviour != Behaviour::kMovement && node(operand).kind == CallKind::kCall &&
      call(operand).rounding != Rounding::kTransparent)
    return;  // its own operands are rounded
  const Root root = root_of(operand, user);
  if (call(root.call).rounding != Rounding::kFloat || node(root.call).kind == CallKind::kCall) return;
  set(accepts(root.edge.node) ? root.edge : Slot::edge(operand, user), mask_spec(p), "mask");
}

// ---- rows without any visible key ----

// True if minus infinity, such as that of a masked_fill, reaches the result.
bool Planner::may_be_infinite(const Call& c) {
  if (std::ranges::any_of(c.operands, [&](NodeIndex p) { return call(p).infinite; })) return true;
  return std::ranges::any_of(c.nodes, [&](const Node* each) {
    if (each->op == Op::kFull) return scalar_of(Graph::attrs<FullAttrs>(*each).value) == -kInfinity;
    return std::ranges::any_of(graph_.operands(*each),
                               [&](ValueId id) { return splat_of(graph_, id) == -kInfinity; });
  });
}

// Finds softmaxes, and what is computed from them, that are NaN where a row has no visible key.
void Planner::find_hidden_rows() {
  for (Call& c : calls_) {
    if (c.main == nullptr) continue;
    const bool is_arithmetic = c.behaviour == Behaviour::kMovement || is_elementwise(c);
    const auto hides = [&](NodeIndex p) { return is_data(p) && call(p).may_hide_rows; };
    if (c.main->op == Op::kNanToNum || c.dependence == Dependence::kNothing) continue;
    if (c.main->op == Op::kSoftmax || c.main->op == Op::kLogSoftmax) {
      c.infinite = may_be_infinite(c);
      c.may_hide_rows =
          c.infinite || std::ranges::any_of(c.operands, [&](NodeIndex p) { return bool(call(p).large); });
    } else if (is_arithmetic) {
      c.infinite = may_be_infinite(c);
      c.may_hide_rows = std::ranges::any_of(c.operands, hides);
    } else if (c.behaviour == Behaviour::kWeighted) {
      for (const NodeIndex p : c.operands)
        if (hides(p) && call(p).infinite) c.infinite = c.may_hide_rows = true;
    }
  }
  for (auto i = static_cast<std::uint32_t>(calls_.size()); i-- > 0;) {
    Call& c = calls_[i];
    if (!c.may_hide_rows || !value(NodeIndex(i)).valid()) continue;
    const bool is_tested = is_tested_for_nan(graph_, value(NodeIndex(i)));
    c.nan_is_read = is_tested;
    c.nan_is_contracted = is_tested && c.behaviour == Behaviour::kWeighted;
    for (const NodeIndex user : node(NodeIndex(i)).users)
      c.nan_is_contracted = c.nan_is_contracted || call(user).nan_is_contracted;
  }
}

}  // namespace tosaic::quant
