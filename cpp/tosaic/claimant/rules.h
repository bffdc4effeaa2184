// rules: what the user allows a claimant, or denies it.
//
//   deny op=softmax          takes no softmax
//   allow module=head        takes a node of module head if it lowers, even if it exceeds the limits of the
//                            device
//
// If several rules match a node, the rules of the most specific kind count: name, then predicate, then
// module, then operator. A rule cannot allow what does not lower, or floats on a claimant of integers.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::claimant {

enum class Match : std::uint8_t { kName, kPredicate, kModule, kOp };  // the most specific first

struct Rule {
  Match match = Match::kOp;
  // The name of a node, of one of its results or of the FX call that it comes from; a module path, whose
  // inner modules match, too; the name of an operator, or the target of a foreign one. For a predicate, a
  // name for messages.
  std::string value;
  std::function<bool(const Graph&, const Node&)> predicate = {};  // only kPredicate
  bool allow = false;
  std::string text = {};  // why, for the reason of a denied node
};

// "deny(op='softmax')"
[[nodiscard]] std::string to_string(const Rule& rule);

// Whether rules that match no node are errors: not for the graph of a region, which is a part of a program.
enum class Unmatched : std::uint8_t { kRefused, kAllowed };

// Returns, for each node, the rule that decides about it, or null. Throws InvalidGraph if a rule matches no
// node, neither of the graph nor of its regions, or if two rules of one kind contradict each other: one
// allows a node, and the other denies it.
[[nodiscard]] std::vector<const Rule*> deciding_rules(const Graph& graph, std::span<const Rule> rules,
                                                      Unmatched unmatched = Unmatched::kRefused);

}  // namespace tosaic::claimant
