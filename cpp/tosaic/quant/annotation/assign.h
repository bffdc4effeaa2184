// assign: changes the specs of tensors so that sharing stays as the quantizer meant it.
//
// Sharing between the operand and the result of an operator (views, pools) is a contract of the quantizer
// with its backend. A new spec therefore holds for all slots that share with the assigned ones:
//
//   x -> max_pool -> conv     output(max_pool) shares with edge(x -> max_pool)
//   a fixed spec for x        all three slots, and edge(max_pool -> conv), get its qparams
//
// A fixed spec does not pass a call that joins several operands, such as concat: its range would clip the
// others. Instead, the join reads the tensor quantized a second time, with the scale of the other operands:
//
//   cat([image, features])         edge(image -> cat), output(features) and output(cat) share
//   a fixed spec for the image     output(image) has it; the others still share, and observe the image, too
//
// If all operands get the spec, the result gets it, too.
//
// If one of these slots has another fixed spec, or two assignments with different specs reach the same slot,
// no slot follows: only the assigned slots change. Slots that referred to them get the old spec and share it
// among themselves. A tensor between both kinds of slots is then quantized twice.
#pragma once

#include <span>
#include <vector>

#include "tosaic/quant/annotation/plan.h"

namespace tosaic::quant {

struct Assignment {
  std::vector<Slot> slots;  // they share one instance of the spec
  QSpec spec;
  // True: the assignment is for all slots of a tensor. False: `slots` is one edge, and other readers of the
  // tensor do not follow.
  bool whole_tensor = true;
  // True: the rule names each slot. False: it names the first one; the others are of the same tensor.
  bool names_slots = false;
};

// Makes all assignments at once. A SharedSpec is set only at the assigned slots; no other slot follows.
void assign(AnnotationPlan& plan, std::span<const Assignment> assignments, RuleId rule);

// What becomes of a slot whose spec is withdrawn.
enum class Withdrawal : std::uint8_t {
  kFloat,  // it gets a FloatSpec
  kErase,  // it has no spec any more
};

// Makes slots float. Slots that referred to them keep their old spec and share it among themselves. Slots
// with specs derived from them become float, too. Slots without a spec are passed over.
void withdraw(AnnotationPlan& plan, std::span<const Slot> slots, Withdrawal how, RuleId rule);

struct FloatOutput {
  NodeIndex node;
  NodeIndex reader = {};  // a user that reads the tensor as floats; invalid: none
};

// A user that quantizes, but has no spec for its edge from the node, reads the node's quantized output. Gives
// each such edge a spec that shares with the output.
void quantize_at_edges(AnnotationPlan& plan, const FloatOutput& output, RuleId rule);

// Makes the outputs of nodes float. Users that have specs quantize the tensor at their own edges, with the
// qparams that it had.
void withdraw_outputs(AnnotationPlan& plan, std::span<const FloatOutput> outputs, RuleId rule);

// The output slot of a node, and the edges from it that have quantized specs.
[[nodiscard]] std::vector<Slot> tensor_slots(const AnnotationPlan& plan, NodeIndex node);

// torchao refuses a group whose first slot refers to a later one, or whose references lead in a circle. For
// such groups, sets the spec of the group at its first slot and lets the others refer to the first. Changes
// only groups with one of `slots`, or all groups if `slots` is empty.
void refer_to_first(AnnotationPlan& plan, std::span<const Slot> slots, RuleId rule);

}  // namespace tosaic::quant
