// rule_table: the rules of an analysis by operator.
#pragma once

#include <span>
#include <vector>

#include "tosaic/ir/op.h"

namespace tosaic::analysis {

// Operators of which every element of the result is an element of operand 0, possibly behind a cast.
inline constexpr Op kTakesElements[] = {Op::kCast,    Op::kAmax,   Op::kAmin,        Op::kReshape, Op::kClone,
                                        Op::kPermute, Op::kExpand, Op::kRepeat,      Op::kSlice,   Op::kFlip,
                                        Op::kGather,  Op::kIndex,  Op::kIndexSelect, Op::kMaxPool};

// `Rule` is a pointer; null for operators without a rule.
template <class Rule>
class RuleTable {
 public:
  struct Row {
    Op op;
    Rule rule;
  };
  // `first_operand`: the rule of the operators of kTakesElements.
  RuleTable(Rule first_operand, std::span<const Row> rows) : rules_(all_ops().size(), nullptr) {
    for (const Op op : kTakesElements) rules_[static_cast<std::size_t>(op)] = first_operand;
    for (const Row& row : rows) rules_[static_cast<std::size_t>(row.op)] = row.rule;
  }
  [[nodiscard]] Rule operator[](Op op) const { return rules_[static_cast<std::size_t>(op)]; }

 private:
  std::vector<Rule> rules_;
};

}  // namespace tosaic::analysis
