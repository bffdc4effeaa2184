#include "tosaic/partition/claims.h"

#include <algorithm>
#include <string>
#include <utility>

#include "tosaic/base/error.h"
#include "tosaic/partition/connected.h"
#include "tosaic/partition/levels.h"
#include "tosaic/partition/quotient.h"

namespace tosaic::partition {
namespace {

std::string text_of(const std::vector<Edge>& circle) {
  std::string text;
  for (const Edge& edge : circle) {
    if (!text.empty()) text += ", ";
    text += std::to_string(edge.from) + " -> " + std::to_string(edge.to);
  }
  return text;
}

// The sets of nodes that stay together, as groups.
Groups sets_of(const Dag& dag, std::span<const std::vector<DagNode>> together) {
  std::vector<std::uint32_t> labels(dag.size(), kNoGroup);
  for (std::uint32_t set = 0; set < together.size(); ++set)
    for (const DagNode node : together[set]) {
      if (node >= dag.size() || labels[node] != kNoGroup)
        throw InvalidGraph({.where = "partition",
                            .what = "node " + std::to_string(node) + " cannot stay together with others",
                            .expected = "each node of the graph in one set at most"});
      labels[node] = set;
    }
  return numbered(labels);
}

class Claiming {
 public:
  Claiming(const Dag& dag, std::span<const std::vector<DagNode>> together,
           std::span<const BorderValue> values)
      : dag_(dag), sets_(sets_of(dag, together)), values_(values), group_(dag.size(), kNoGroup) {
    if (const std::vector<Edge> circle = quotient(dag, sets_).circle; !circle.empty())
      throw InvalidGraph({.where = "partition",
                          .what = "nodes that have to stay together wait for each other",
                          .got = "edges " + text_of(circle)});
  }

  void add(const Claim& claim) {
    if (claim.supported.size() != dag_.size() || (!claim.size.empty() && claim.size.size() != dag_.size()))
      throw InvalidGraph({.where = "partition",
                          .what = "a claimant speaks of another number of nodes",
                          .expected = std::to_string(dag_.size()),
                          .got = std::to_string(claim.supported.size())});
    std::vector<bool> free = free_nodes(claim);
    for (;;) {
      const auto [groups, at_least] = sweep(claim, free);
      if (!refuse(claim, groups, free)) {
        finish(groups, at_least);
        return;
      }
    }
  }

  Claimed take() {
    Claimed out{.groups = numbered(group_), .claimant = {}, .at_least = std::move(at_least_), .refused = {}};
    out.claimant.resize(out.groups.count);
    for (DagNode node = 0; node < dag_.size(); ++node)
      if (group_[node] != kNoGroup) out.claimant[out.groups.of[node]] = claimant_[group_[node]];
    out.refused = std::move(refused_);
    return out;
  }

 private:
  // The supported nodes that no claimant has. Excludes nodes of sets that are supported only in part.
  std::vector<bool> free_nodes(const Claim& claim) {
    std::vector<bool> whole(sets_.count, true), free(dag_.size());
    for (DagNode node = 0; node < dag_.size(); ++node) {
      free[node] = claim.supported[node] && group_[node] == kNoGroup;
      if (!free[node] && sets_.of[node] != kNoGroup) whole[sets_.of[node]] = false;
    }
    for (DagNode node = 0; node < dag_.size(); ++node)
      if (free[node] && sets_.of[node] != kNoGroup && !whole[sets_.of[node]])
        take_away(node, Refusal::kSplit, free);
    return free;
  }

  void take_away(DagNode node, Refusal why, std::vector<bool>& free) {
    free[node] = false;
    refused_.push_back({node, static_cast<std::uint32_t>(at_least_.size()), why});
  }

  // Groups of the free nodes. In the dag that is grouped, each finished group and each set is one node.
  [[nodiscard]] std::pair<Groups, std::uint32_t> sweep(const Claim& claim,
                                                       const std::vector<bool>& free) const {
    std::vector<std::uint32_t> labels = group_;
    for (DagNode node = 0; node < dag_.size(); ++node)
      if (labels[node] == kNoGroup && sets_.of[node] != kNoGroup) labels[node] = groups_ + sets_.of[node];
    const Quotient contracted = quotient(dag_, numbered(labels));
    if (!contracted.circle.empty())  // finished groups and sets are acyclic together: see finish()
      throw InternalError({.where = "partition", .what = "groups wait for each other"});
    std::vector<bool> supported(contracted.dag.size(), false);
    for (DagNode node = 0; node < dag_.size(); ++node)
      if (free[node]) supported[contracted.of[node]] = true;
    Groups found;
    std::uint32_t at_least = 0;
    if (claim.connected) {
      ConnectedGroups connected = connected_groups(contracted.dag, supported);
      found = std::move(connected.groups);
      at_least = connected.at_least;
    } else {
      found = level_groups(levels(contracted.dag, supported), supported);
      at_least = found.count;
    }
    if (!values_.empty()) found = with_fewer_bytes(claim, contracted, std::move(found));
    std::vector<std::uint32_t> of(dag_.size(), kNoGroup);
    for (DagNode node = 0; node < dag_.size(); ++node)
      if (free[node]) of[node] = found.of[contracted.of[node]];
    return {numbered(of), at_least};
  }

  [[nodiscard]] Groups with_fewer_bytes(const Claim& claim, const Quotient& contracted, Groups groups) const {
    std::vector<BorderValue> values(values_.begin(), values_.end());
    for (BorderValue& value : values) {
      if (value.maker) value.maker = contracted.of[*value.maker];
      for (DagNode& reader : value.readers) reader = contracted.of[reader];
      std::ranges::sort(value.readers);
      value.readers.erase(std::ranges::unique(value.readers).begin(), value.readers.end());
    }
    BorderRules rules{.connected = claim.connected, .size = {}, .least_size = claim.least_size};
    rules.size.resize(contracted.dag.size());
    for (DagNode node = 0; node < dag_.size(); ++node)
      rules.size[contracted.of[node]] += claim.size.empty() ? 1 : claim.size[node];
    return with_fewer_border_bytes(contracted.dag, std::move(groups), values, rules);
  }

  // Takes the nodes of refused groups away from the claimant. Returns false if it keeps all nodes.
  bool refuse(const Claim& claim, const Groups& groups, std::vector<bool>& free) {
    const std::size_t before = refused_.size();
    for (const std::vector<DagNode>& group : members_of(groups)) {
      std::uint64_t size = 0;
      for (const DagNode node : group) size += claim.size.empty() ? 1 : claim.size[node];
      if (size < claim.least_size) {
        for (const DagNode node : group) take_away(node, Refusal::kTooSmall, free);
      } else if (claim.rejected) {
        for (const DagNode node : claim.rejected(group, free)) reject(node, group, free);
      }
    }
    return refused_.size() != before;
  }

  void reject(DagNode node, const std::vector<DagNode>& group, std::vector<bool>& free) {
    if (!std::ranges::binary_search(group, node))
      throw InvalidGraph(
          {.where = "partition",
           .what = "a claimant rejects node " + std::to_string(node) + ", which is not in its group"});
    if (free[node]) take_away(node, Refusal::kRejected, free);
    if (sets_.of[node] == kNoGroup) return;
    for (const DagNode other : group)
      if (sets_.of[other] == sets_.of[node] && free[other]) take_away(other, Refusal::kSplit, free);
  }

  void finish(const Groups& groups, std::uint32_t at_least) {
    for (DagNode node = 0; node < dag_.size(); ++node)
      if (groups.of[node] != kNoGroup) group_[node] = groups_ + groups.of[node];
    claimant_.resize(groups_ + groups.count, static_cast<std::uint32_t>(at_least_.size()));
    groups_ += groups.count;
    at_least_.push_back(at_least);
  }

  const Dag& dag_;
  Groups sets_;
  std::span<const BorderValue> values_;
  std::vector<std::uint32_t> group_;     // by node
  std::vector<std::uint32_t> claimant_;  // by group
  std::uint32_t groups_ = 0;
  std::vector<std::uint32_t> at_least_;  // by claimant
  std::vector<Refused> refused_;
};

}  // namespace

Claimed claim(const Dag& dag, std::span<const Claim> claims, std::span<const std::vector<DagNode>> together,
              std::span<const BorderValue> values) {
  Claiming claiming(dag, together, values);
  for (const Claim& each : claims) claiming.add(each);
  return claiming.take();
}

}  // namespace tosaic::partition
