#include "tosaic/partition/quotient.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

namespace tosaic::partition {
namespace {

// The nodes of the quotient in the order of their first nodes, which need not be topological, and its edges.
struct Contracted {
  std::vector<DagNode> of;
  std::vector<std::vector<Edge>> users;  // by node of the quotient: edges of the dag that leave it
  std::vector<std::uint32_t> inputs;     // by node of the quotient: how many edges enter it
};

Contracted contracted(const Dag& dag, const Groups& groups) {
  Contracted out{.of = std::vector<DagNode>(dag.size()), .users = {}, .inputs = {}};
  std::vector<DagNode> of_group(groups.count, kNoGroup);
  DagNode count = 0;
  for (DagNode node = 0; node < dag.size(); ++node) {
    const std::uint32_t group = groups.of[node];
    if (group == kNoGroup) {
      out.of[node] = count++;
    } else {
      if (of_group[group] == kNoGroup) of_group[group] = count++;
      out.of[node] = of_group[group];
    }
  }
  out.users.resize(count);
  out.inputs.assign(count, 0);
  for (const Edge& edge : dag.edges()) {
    if (out.of[edge.from] == out.of[edge.to]) continue;
    out.users[out.of[edge.from]].push_back(edge);
    ++out.inputs[out.of[edge.to]];
  }
  return out;
}

// A circle among the nodes with inputs that are not in the order yet. Each of these nodes has such an input.
std::vector<Edge> circle_among(const Contracted& contracted, const std::vector<std::uint32_t>& left) {
  std::vector<Edge> into(left.size());
  std::vector<bool> has_input(left.size(), false);
  DagNode start = kNoGroup;
  for (DagNode node = 0; node < left.size(); ++node) {
    if (left[node] == 0) continue;
    start = node;
    for (const Edge& edge : contracted.users[node]) {
      const DagNode to = contracted.of[edge.to];
      if (left[to] != 0) into[to] = edge, has_input[to] = true;
    }
  }
  // Walks against the edges until a node occurs for the second time.
  std::vector<bool> seen(left.size(), false);
  DagNode node = start;
  for (; !seen[node]; node = contracted.of[into[node].from]) seen[node] = true;
  std::vector<Edge> circle;
  const DagNode first = node;
  do {
    circle.push_back(into[node]);
    node = contracted.of[into[node].from];
  } while (node != first);
  std::ranges::reverse(circle);
  return circle;
}

}  // namespace

Quotient quotient(const Dag& dag, const Groups& groups) {
  const Contracted all = contracted(dag, groups);
  const std::size_t count = all.users.size();
  std::vector<std::uint32_t> left = all.inputs;
  std::priority_queue<DagNode, std::vector<DagNode>, std::greater<>> ready;
  for (DagNode node = 0; node < count; ++node)
    if (left[node] == 0) ready.push(node);
  std::vector<DagNode> place(count, kNoGroup);
  DagNode taken = 0;
  while (!ready.empty()) {
    const DagNode node = ready.top();
    ready.pop();
    place[node] = taken++;
    for (const Edge& edge : all.users[node]) {
      const DagNode to = all.of[edge.to];
      if (--left[to] == 0) ready.push(to);
    }
  }
  if (taken != count) return {.dag = {}, .of = {}, .circle = circle_among(all, left)};
  Quotient out{.dag = {}, .of = std::vector<DagNode>(dag.size()), .circle = {}};
  std::vector<Edge> edges;
  for (DagNode node = 0; node < dag.size(); ++node) out.of[node] = place[all.of[node]];
  for (const Edge& edge : dag.edges())
    if (out.of[edge.from] != out.of[edge.to]) edges.push_back({out.of[edge.from], out.of[edge.to]});
  out.dag = Dag(taken, std::move(edges));
  return out;
}

}  // namespace tosaic::partition
