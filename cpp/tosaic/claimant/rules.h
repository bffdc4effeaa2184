// rules: what the user allows a claimant, or denies it.
//
//   deny op=softmax          no softmax
//   allow module=head        but every node of module head that lowers, whatever the limits of the device are
//
// Of the rules that match a node, those of the most specific kind count: name, then predicate, then module, then
// operator. A rule cannot allow what does not lower, or floats on a claimant of integers.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::claimant {

enum class Match : std::uint8_t { kName, kPredicate, kModule, kOp };  // the most specific first

struct Rule {
  Match match = Match::kOp;
  // The name of a node, of one of its results or of the FX call that it comes from; a module path, whose inner modules
  // match, too; the name of an operator, or the target of a foreign one. For a predicate, a name for messages.
  std::string value;
  std::function<bool(const Graph&, const Node&)> predicate = {};  // only kPredicate
  bool allow = false;
  std::string text = {};  // why, for the reason of a denied node
};

// "deny(op='softmax')"
[[nodiscard]] std::string to_string(const Rule& rule);

// By node: the rule that decides, or null. Throws InvalidGraph for a rule that matches no node, an operator that nobody
// has, and two rules of one kind of which one allows a node and the other denies it.
[[nodiscard]] std::vector<const Rule*> deciding_rules(const Graph& graph, std::span<const Rule> rules);

}  // namespace tosaic::claimant
