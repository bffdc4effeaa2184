// rule_table: the rules of an analysis by operator.
#pragma once

#include <span>
#include <vector>

#include "tosaic/ir/op.h"

namespace tosaic::analysis {

// The rule of each operator. `Rule` is a pointer type; null means that the operator has no rule.
template <class Rule>
class RuleTable {
 public:
  struct Row {
    Op op;
    Rule rule;
  };
  // `first_operand` is the rule of the operators with trait kElementsOfInput.
  RuleTable(Rule first_operand, std::span<const Row> rows) : rules_(all_ops().size(), nullptr) {
    for (std::size_t op = 0; op < rules_.size(); ++op)
      if (all_ops()[op].has(kElementsOfInput)) rules_[op] = first_operand;
    for (const Row& row : rows) rules_[static_cast<std::size_t>(row.op)] = row.rule;
  }
  [[nodiscard]] Rule operator[](Op op) const { return rules_[static_cast<std::size_t>(op)]; }

 private:
  std::vector<Rule> rules_;
};

}  // namespace tosaic::analysis
