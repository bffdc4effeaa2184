#include "tosaic/partition/groups.h"

#include <unordered_map>

namespace tosaic::partition {

Groups numbered(const std::vector<std::uint32_t>& labels) {
  Groups groups{.of = std::vector<std::uint32_t>(labels.size(), kNoGroup)};
  std::unordered_map<std::uint32_t, std::uint32_t> known;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] == kNoGroup) continue;
    const auto [at, is_new] = known.emplace(labels[i], groups.count);
    if (is_new) ++groups.count;
    groups.of[i] = at->second;
  }
  return groups;
}

std::vector<std::vector<DagNode>> members_of(const Groups& groups) {
  std::vector<std::vector<DagNode>> members(groups.count);
  for (DagNode node = 0; node < groups.of.size(); ++node)
    if (groups.of[node] != kNoGroup) members[groups.of[node]].push_back(node);
  return members;
}

}  // namespace tosaic::partition
