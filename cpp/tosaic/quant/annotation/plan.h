// plan: slot -> spec, with the rule that set it, and a history of replaced specs.
//
// The slots of a plan have an order, which decides ties of sharing: nodes in the order of the graph; within a
// node its edges in the order in which they were first set, then its output.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tosaic/quant/annotation/call_graph.h"
#include "tosaic/quant/annotation/spec.h"

namespace tosaic::quant {

// Who set a spec: a quantizer, or a rule. An index into AnnotationPlan::rules().
using RuleId = Id<struct AnnotationRuleTag>;

struct RuleRecord {
  std::string name;
  std::optional<std::size_t> matches = {};  // places that the rule matched; none for quantizers
  std::vector<std::string> notes = {};      // what the reader of a report should know: "... was split"
};

struct PlanEntry {
  Slot slot;
  QSpec spec;
  RuleId rule;
};

// A spec that was replaced (`after` is set) or removed.
struct PlanChange {
  Slot slot;
  QSpec before;
  RuleId set_by;
  std::optional<QSpec> after;
  RuleId changed_by;
  std::string reason = {};  // empty: the rule is about this slot
};

class AnnotationPlan {
 public:
  explicit AnnotationPlan(std::shared_ptr<const CallGraph> graph);

  [[nodiscard]] const CallGraph& graph() const { return *graph_; }
  [[nodiscard]] const std::shared_ptr<const CallGraph>& shared_graph() const { return graph_; }

  RuleId add_rule(std::string name);
  [[nodiscard]] RuleRecord& rule(RuleId rule) { return rules_[rule.index()]; }
  [[nodiscard]] const RuleRecord& rule(RuleId rule) const { return rules_[rule.index()]; }
  [[nodiscard]] const std::vector<RuleRecord>& rules() const { return rules_; }

  // Sets or replaces the spec of a slot, and adds an annotation to the node if it has none. Changes nothing
  // if the slot has an equal spec. An edge need not be in the graph: an annotation that was read from torch
  // may have such edges.
  void set(Slot slot, QSpec spec, RuleId rule, std::string reason = {});
  // Removes the spec of a slot. Returns false if there is none.
  bool erase(Slot slot, RuleId rule, std::string reason = {});
  // Removes the annotation of a node: its specs and its flags.
  void clear(NodeIndex node, RuleId rule, const std::string& reason = {});

  // Null if the slot has no spec. Valid until the plan changes.
  [[nodiscard]] const PlanEntry* find(Slot slot) const;
  [[nodiscard]] std::span<const PlanEntry> edges(NodeIndex user) const { return at(user).edges; }
  [[nodiscard]] const PlanEntry* output(NodeIndex node) const;
  [[nodiscard]] std::vector<Slot> slots() const;
  [[nodiscard]] std::size_t size() const { return size_; }

  // True if the node has an annotation, possibly without specs.
  [[nodiscard]] bool has_annotation(NodeIndex node) const { return at(node).present; }
  // Flags of an annotation in torch. annotated: other quantizers pass over the node. allow_implicit_sharing:
  // if false, the edges of the node share qparams only where a spec says so.
  [[nodiscard]] bool annotated(NodeIndex node) const { return at(node).annotated; }
  [[nodiscard]] bool allow_implicit_sharing(NodeIndex node) const { return at(node).allow_implicit_sharing; }
  // Both make an annotation if the node has none.
  void set_annotated(NodeIndex node, bool value);
  void set_allow_implicit_sharing(NodeIndex node, bool value);

  [[nodiscard]] const std::vector<PlanChange>& history() const { return history_; }
  // The number of times that a spec was set, replaced or removed.
  [[nodiscard]] std::size_t edits() const { return edits_; }

 private:
  struct NodeAnnotation {
    std::vector<PlanEntry> edges = {};
    std::optional<PlanEntry> output = {};
    bool present = false, annotated = false, allow_implicit_sharing = true;
  };
  [[nodiscard]] const NodeAnnotation& at(NodeIndex node) const { return nodes_[node.index()]; }
  [[nodiscard]] NodeAnnotation& make(NodeIndex node);
  [[nodiscard]] PlanEntry* entry(Slot slot);

  std::shared_ptr<const CallGraph> graph_;
  std::vector<NodeAnnotation> nodes_;
  std::vector<RuleRecord> rules_;
  std::vector<PlanChange> history_;
  std::size_t size_ = 0, edits_ = 0;
};

}  // namespace tosaic::quant
