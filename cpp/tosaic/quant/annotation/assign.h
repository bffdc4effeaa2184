// assign: changes the specs of tensors so that sharing stays as the quantizer meant it.
//
// Sharing between the operand and the result of an operator (views, pools) is a contract of the quantizer
// with its backend. A new spec therefore holds for all slots that share with the assigned ones:
//
//   x -> max_pool -> conv     output(max_pool) shares with edge(x -> max_pool)
//   a fixed spec for x        all three slots, and edge(max_pool -> conv), get its qparams
//
// A fixed spec does not pass a call that joins several operands, such as concat: its range would clip the
// others. The tensor is quantized a second time where the join reads it, with the scale of the others:
//
//   cat([image, features])         edge(image -> cat), output(features) and output(cat) share
//   a fixed spec for the image     output(image) has it; the others still share, and observe the image, too
//
// If all operands get the spec, the result gets it, too.
//
// If a slot among them has another fixed spec, or two new specs meet, nothing follows: only the assigned
// slots change, and those that referred to them share among themselves what they had. A tensor between them
// is then quantized twice.
#pragma once

#include <span>
#include <vector>

#include "tosaic/quant/annotation/plan.h"

namespace tosaic::quant {

struct Assignment {
  std::vector<Slot> slots;  // they get one instance of the spec
  QSpec spec;
  // All slots of a tensor are assigned. Otherwise `slots` is one edge, and other readers of the tensor do not
  // follow.
  bool whole_tensor = true;
  // Somebody named each of the slots. Otherwise the first one stands for its tensor.
  bool names_slots = false;
};

// Makes all assignments at once. Specs that are shared are set as they are, and nothing follows.
void assign(AnnotationPlan& plan, std::span<const Assignment> assignments, RuleId rule);

// How a slot becomes float.
enum class Withdrawal : std::uint8_t {
  kFloat,  // it gets a FloatSpec
  kErase,  // it has no spec any more
};

// Makes slots float. Slots that share with them share among themselves what they had. Slots whose specs are
// derived from them become float, too. Slots without a spec are passed over.
void withdraw(AnnotationPlan& plan, std::span<const Slot> slots, Withdrawal how, RuleId rule);

struct FloatOutput {
  NodeIndex node;
  NodeIndex reader = {};  // a user that reads the float tensor; none if invalid
};

// Users that have specs, but none for their edge from the node, read its quantized output. They get an edge
// that shares with the output.
void quantize_at_edges(AnnotationPlan& plan, const FloatOutput& output, RuleId rule);

// Makes outputs of nodes float, but not for those users that have specs: they quantize the tensor at their
// own edges, with the qparams that it had.
void withdraw_outputs(AnnotationPlan& plan, std::span<const FloatOutput> outputs, RuleId rule);

// The slots of a node's output that have quantized specs, its output slot always among them, as the first.
[[nodiscard]] std::vector<Slot> tensor_slots(const AnnotationPlan& plan, NodeIndex node);

// Where torchao would refuse the references of a group, because its first slot refers to a later one or
// because they lead in a circle, sets the spec of the group at its first slot and lets the others refer to
// that. Changes groups with one of `slots` only; empty: all groups.
void refer_to_first(AnnotationPlan& plan, std::span<const Slot> slots, RuleId rule);

}  // namespace tosaic::quant
