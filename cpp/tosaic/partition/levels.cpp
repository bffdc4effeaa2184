#include "tosaic/partition/levels.h"

#include <algorithm>

namespace tosaic::partition {

Levels levels(const Dag& dag, const std::vector<bool>& supported) {
  const std::uint32_t size = dag.size();
  Levels out{.lowest = std::vector<std::uint32_t>(size, 0), .highest = std::vector<std::uint32_t>(size, 0)};
  for (DagNode node = 0; node < size; ++node) {
    for (const DagNode input : dag.inputs(node)) {
      const std::uint32_t leaves = supported[input] && !supported[node] ? 1 : 0;
      out.lowest[node] = std::max(out.lowest[node], out.lowest[input] + leaves);
    }
    if (supported[node]) out.count = std::max(out.count, out.lowest[node] + 1);
  }
  // The same from the end. `highest` counts levels from the last one.
  for (DagNode node = size; node-- > 0;)
    for (const DagNode user : dag.users(node)) {
      const std::uint32_t enters = !supported[node] && supported[user] ? 1 : 0;
      out.highest[node] = std::max(out.highest[node], out.highest[user] + enters);
    }
  const std::uint32_t last = out.count == 0 ? 0 : out.count - 1;
  for (DagNode node = 0; node < size; ++node)
    out.highest[node] = supported[node] ? last - out.highest[node] : out.count - out.highest[node];
  return out;
}

Groups level_groups(const Levels& levels, const std::vector<bool>& supported) {
  std::vector<std::uint32_t> labels(supported.size(), kNoGroup);
  for (std::size_t node = 0; node < supported.size(); ++node)
    if (supported[node]) labels[node] = levels.lowest[node];
  return numbered(labels);
}

std::vector<DagNode> least_proof(const Dag& dag, const std::vector<bool>& supported) {
  const Levels found = levels(dag, supported);
  std::vector<DagNode> proof;
  if (found.count == 0) return proof;
  DagNode node = 0;
  while (!supported[node] || found.lowest[node] + 1 != found.count) ++node;
  proof.push_back(node);
  // Back along inputs that explain the level.
  while (found.lowest[node] > 0) {
    for (const DagNode input : dag.inputs(node)) {
      const std::uint32_t leaves = supported[input] && !supported[node] ? 1 : 0;
      if (found.lowest[input] + leaves != found.lowest[node]) continue;
      node = input;
      if (leaves == 1) proof.push_back(node);
      break;
    }
  }
  std::ranges::reverse(proof);
  return proof;
}

}  // namespace tosaic::partition
