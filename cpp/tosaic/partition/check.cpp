#include "tosaic/partition/check.h"

#include <algorithm>

namespace tosaic::partition {
namespace {

constexpr DagNode kNone = UINT32_MAX;

// Searches for a path from a group back to the same group.
class Search {
 public:
  Search(const Dag& dag, const Groups& groups, const std::vector<std::vector<DagNode>>& members)
      : dag_(dag), groups_(groups), members_(members) {}

  std::optional<std::vector<DagNode>> path_back(std::uint32_t group) {
    came_from_.assign(dag_.size(), kNone);
    std::vector<DagNode> todo;
    const auto reach = [&](DagNode node, DagNode from) {
      if (came_from_[node] != kNone) return;
      came_from_[node] = from;
      todo.push_back(node);
    };
    for (const DagNode member : members_[group])
      for (const DagNode user : dag_.users(member))
        if (groups_.of[user] != group) reach(user, member);
    while (!todo.empty()) {
      const DagNode node = todo.back();
      todo.pop_back();
      if (groups_.of[node] == group) return path_to(node, group);
      if (groups_.of[node] != kNoGroup)
        for (const DagNode other : members_[groups_.of[node]]) reach(other, node);
      for (const DagNode user : dag_.users(node)) reach(user, node);
    }
    return std::nullopt;
  }

 private:
  [[nodiscard]] std::vector<DagNode> path_to(DagNode node, std::uint32_t group) const {
    std::vector<DagNode> path{node};
    do path.push_back(node = came_from_[node]);
    while (groups_.of[node] != group);
    std::ranges::reverse(path);
    return path;
  }

  const Dag& dag_;
  const Groups& groups_;
  const std::vector<std::vector<DagNode>>& members_;
  std::vector<DagNode> came_from_;
};

}  // namespace

std::optional<std::vector<DagNode>> path_back(const Dag& dag, const Groups& groups) {
  const std::vector<std::vector<DagNode>> members = members_of(groups);
  Search search(dag, groups, members);
  for (std::uint32_t group = 0; group < groups.count; ++group)
    if (auto path = search.path_back(group)) return path;
  return std::nullopt;
}

std::optional<std::uint32_t> disconnected_group(const Dag& dag, const Groups& groups) {
  const std::vector<std::vector<DagNode>> members = members_of(groups);
  std::vector<bool> reached(dag.size(), false);
  for (std::uint32_t group = 0; group < groups.count; ++group) {
    std::vector<DagNode> todo{members[group].front()};
    std::size_t found = 0;
    reached[todo.front()] = true;
    while (!todo.empty()) {
      const DagNode node = todo.back();
      todo.pop_back();
      ++found;
      for (const auto neighbours : {dag.inputs(node), dag.users(node)})
        for (const DagNode other : neighbours)
          if (groups.of[other] == group && !reached[other]) reached[other] = true, todo.push_back(other);
    }
    if (found != members[group].size()) return group;
  }
  return std::nullopt;
}

}  // namespace tosaic::partition
