#include "tosaic/quant/annotation/plan.h"

#include <algorithm>
#include <utility>

namespace tosaic::quant {

AnnotationPlan::AnnotationPlan(std::shared_ptr<const CallGraph> graph)
    : graph_(std::move(graph)), nodes_(graph_->size()) {}

RuleId AnnotationPlan::add_rule(std::string name) {
  rules_.push_back({.name = std::move(name)});
  return RuleId(static_cast<std::uint32_t>(rules_.size() - 1));
}

AnnotationPlan::NodeAnnotation& AnnotationPlan::make(NodeIndex node) {
  NodeAnnotation& annotation = nodes_[node.index()];
  if (!annotation.present) annotation.present = annotation.annotated = true;
  return annotation;
}

PlanEntry* AnnotationPlan::entry(Slot slot) {
  NodeAnnotation& annotation = nodes_[slot.node.index()];
  if (!slot.is_edge()) return annotation.output ? &*annotation.output : nullptr;
  const auto found = std::find_if(annotation.edges.begin(), annotation.edges.end(),
                                  [&](const PlanEntry& each) { return each.slot == slot; });
  return found == annotation.edges.end() ? nullptr : &*found;
}

const PlanEntry* AnnotationPlan::find(Slot slot) const {
  return const_cast<AnnotationPlan*>(this)->entry(slot);
}

const PlanEntry* AnnotationPlan::output(NodeIndex node) const {
  const NodeAnnotation& annotation = at(node);
  return annotation.output ? &*annotation.output : nullptr;
}

void AnnotationPlan::set(Slot slot, QSpec spec, RuleId rule, std::string reason) {
  NodeAnnotation& annotation = make(slot.node);
  if (PlanEntry* const known = entry(slot)) {
    if (known->spec == spec) return;
    ++edits_;
    history_.push_back({slot, std::move(known->spec), known->rule, spec, rule, std::move(reason)});
    known->spec = std::move(spec);
    known->rule = rule;
    return;
  }
  ++size_;
  ++edits_;
  if (slot.is_edge())
    annotation.edges.push_back({slot, std::move(spec), rule});
  else
    annotation.output = PlanEntry{slot, std::move(spec), rule};
}

bool AnnotationPlan::erase(Slot slot, RuleId rule, std::string reason) {
  PlanEntry* const known = entry(slot);
  if (known == nullptr) return false;
  ++edits_;
  history_.push_back({slot, std::move(known->spec), known->rule, std::nullopt, rule, std::move(reason)});
  NodeAnnotation& annotation = nodes_[slot.node.index()];
  if (slot.is_edge())
    annotation.edges.erase(annotation.edges.begin() + (known - annotation.edges.data()));
  else
    annotation.output.reset();
  --size_;
  return true;
}

void AnnotationPlan::clear(NodeIndex node, RuleId rule, const std::string& reason) {
  NodeAnnotation& annotation = nodes_[node.index()];
  for (PlanEntry& each : annotation.edges)
    history_.push_back({each.slot, std::move(each.spec), each.rule, std::nullopt, rule, reason});
  if (annotation.output)
    history_.push_back({annotation.output->slot, std::move(annotation.output->spec), annotation.output->rule,
                        std::nullopt, rule, reason});
  const std::size_t removed = annotation.edges.size() + (annotation.output ? 1 : 0);
  size_ -= removed;
  edits_ += removed;
  annotation = {};
}

std::vector<Slot> AnnotationPlan::slots() const {
  std::vector<Slot> slots;
  slots.reserve(size_);
  for (const NodeAnnotation& annotation : nodes_) {
    for (const PlanEntry& each : annotation.edges) slots.push_back(each.slot);
    if (annotation.output) slots.push_back(annotation.output->slot);
  }
  return slots;
}

void AnnotationPlan::set_annotated(NodeIndex node, bool value) { make(node).annotated = value; }

void AnnotationPlan::set_allow_implicit_sharing(NodeIndex node, bool value) {
  make(node).allow_implicit_sharing = value;
}

}  // namespace tosaic::quant
