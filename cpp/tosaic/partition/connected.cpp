#include "tosaic/partition/connected.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <random>
#include <utility>

#include "tosaic/partition/contraction.h"
#include "tosaic/partition/levels.h"
#include "tosaic/partition/quotient.h"

namespace tosaic::partition {
namespace {

constexpr int kShuffles = 64;

std::uint32_t find(std::vector<std::uint32_t>& parent, std::uint32_t i) {
  while (parent[i] != i) i = parent[i] = parent[parent[i]];
  return i;
}

// A state of the search: supported nodes that were joined into blocks, and pairs of nodes that are known to
// be in different groups.
class State {
 public:
  State(const Dag& dag, const std::vector<bool>& supported) : contraction_(dag), supported_(&supported) {}

  [[nodiscard]] const Contraction& contraction() const { return contraction_; }
  [[nodiscard]] bool is_supported(DagNode node) const { return (*supported_)[node]; }
  [[nodiscard]] bool joins(const Edge& edge) const {
    return is_supported(edge.from) && is_supported(edge.to);
  }

  // True if the ends of an edge may become one group.
  bool can_merge(const Edge& edge) { return !is_apart(edge) && contraction_.can_merge(edge.from, edge.to); }
  void merge(const Edge& edge) { contraction_.merge(edge.from, edge.to); }
  void keep_apart(const Edge& edge) { apart_.push_back(edge); }
  [[nodiscard]] bool is_apart(const Edge& edge) const {
    const DagNode from = contraction_.block_of(edge.from), to = contraction_.block_of(edge.to);
    return std::ranges::any_of(apart_, [&](const Edge& each) {
      const DagNode a = contraction_.block_of(each.from), b = contraction_.block_of(each.to);
      return (a == from && b == to) || (a == to && b == from);
    });
  }

  [[nodiscard]] Groups groups() const {
    std::vector<std::uint32_t> labels(supported_->size(), kNoGroup);
    for (DagNode node = 0; node < labels.size(); ++node)
      if (is_supported(node)) labels[node] = contraction_.block_of(node);
    return numbered(labels);
  }

  // No grouping that follows from this state by merges has fewer groups.
  [[nodiscard]] std::uint32_t at_least() const;

 private:
  Contraction contraction_;
  const std::vector<bool>* supported_;
  std::vector<Edge> apart_;
};

// The blocks of a state in topological order, and what they read.
struct Blocks {
  std::vector<bool> supported;                      // by place
  std::vector<std::vector<std::uint32_t>> inputs;   // by place: places
  std::vector<std::uint32_t> component;             // by place: of supported blocks that may become one group
  std::vector<std::vector<std::uint32_t>> members;  // by component: places, ascending
};

Blocks blocks_of(const State& state) {
  const Contraction& contraction = state.contraction();
  const std::vector<DagNode> order = contraction.order();
  std::vector<std::uint32_t> place(order.empty() ? 0 : *std::ranges::max_element(order) + std::size_t{1});
  for (std::uint32_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  Blocks out;
  out.supported.resize(order.size());
  out.inputs.resize(order.size());
  std::vector<std::uint32_t> parent(order.size());
  std::iota(parent.begin(), parent.end(), 0);
  for (std::uint32_t i = 0; i < order.size(); ++i) {
    out.supported[i] = state.is_supported(order[i]);
    for (const DagNode each : contraction.inputs(order[i])) {
      const std::uint32_t input = place[contraction.block_of(each)];
      if (input == i) continue;
      out.inputs[i].push_back(input);
      const Edge edge{each, order[i]};
      if (out.supported[i] && out.supported[input] && !state.is_apart(edge))
        parent[find(parent, i)] = find(parent, input);
    }
  }
  out.component.assign(order.size(), kNoGroup);
  for (std::uint32_t i = 0; i < order.size(); ++i) {
    if (!out.supported[i]) continue;
    const std::uint32_t root = find(parent, i);
    if (out.component[root] == kNoGroup) {
      out.component[root] = static_cast<std::uint32_t>(out.members.size());
      out.members.emplace_back();
    }
    out.component[i] = out.component[root];
    out.members[out.component[i]].push_back(i);
  }
  return out;
}

// The number of levels if only the blocks of `component` are supported.
std::uint32_t levels_of(const Blocks& blocks, std::uint32_t component, std::vector<std::uint32_t>& level) {
  const std::vector<std::uint32_t>& members = blocks.members[component];
  std::uint32_t count = 1;
  for (std::uint32_t i = members.front(); i <= members.back(); ++i) {
    level[i] = 0;
    const bool inside = blocks.component[i] == component;
    for (const std::uint32_t input : blocks.inputs[i]) {
      if (input < members.front()) continue;
      const std::uint32_t leaves = blocks.component[input] == component && !inside ? 1 : 0;
      level[i] = std::max(level[i], level[input] + leaves);
    }
    if (inside) count = std::max(count, level[i] + 1);
  }
  return count;
}

std::uint32_t State::at_least() const {
  const Blocks blocks = blocks_of(*this);
  std::vector<std::uint32_t> level(blocks.supported.size());
  std::uint32_t sum = 0;
  for (std::uint32_t component = 0; component < blocks.members.size(); ++component)
    sum += blocks.members[component].size() == 1 ? 1 : levels_of(blocks, component, level);
  return sum;
}

// ---- reduce ----

// The blocks next to a block, up to two, and how many of them are supported.
struct Side {
  std::array<DagNode, 2> blocks{};
  std::uint32_t count = 0;      // up to 2
  std::uint32_t supported = 0;  // up to 2, among all neighbours
};

Side side_of(const State& state, DagNode block, const std::vector<DagNode>& neighbours) {
  Side side;
  std::array<DagNode, 2> found{};
  for (const DagNode each : neighbours) {
    const DagNode other = state.contraction().block_of(each);
    const auto is_known = [&](const std::array<DagNode, 2>& known, std::uint32_t count) {
      return std::find(known.begin(), known.begin() + count, other) != known.begin() + count;
    };
    if (other == block) continue;
    if (side.count < 2 && !is_known(side.blocks, side.count)) side.blocks[side.count++] = other;
    if (side.supported < 2 && state.is_supported(other) && !is_known(found, side.supported))
      found[side.supported++] = other;
    if (side.count == 2 && side.supported == 2) break;
  }
  return side;
}

void reduce(State& state, std::uint32_t size) {
  std::vector<DagNode> todo(size);
  std::iota(todo.rbegin(), todo.rend(), 0);
  while (!todo.empty()) {
    const DagNode block = state.contraction().block_of(todo.back());
    todo.pop_back();
    if (!state.is_supported(block)) continue;
    const Side inputs = side_of(state, block, state.contraction().inputs(block));
    const Side users = side_of(state, block, state.contraction().users(block));
    std::optional<Edge> edge;
    if (users.count == 1 && state.is_supported(users.blocks[0]) && inputs.supported < 2)
      edge = {block, users.blocks[0]};
    else if (inputs.count == 1 && state.is_supported(inputs.blocks[0]) && users.supported < 2)
      edge = {inputs.blocks[0], block};
    if (!edge) continue;
    state.merge(*edge);
    const DagNode merged = state.contraction().block_of(block);
    todo.push_back(merged);
    for (const auto* const neighbours :
         {&state.contraction().inputs(merged), &state.contraction().users(merged)})
      todo.insert(todo.end(), neighbours->begin(), neighbours->end());
  }
}

// ---- greedy ----

// Merges the ends of edges, in this order, until no edge can be merged.
void merge_all(State& state, const std::vector<Edge>& edges) {
  std::vector<Edge> left = edges;
  for (bool changed = true; changed;) {
    changed = false;
    std::vector<Edge> blocked;
    for (const Edge& edge : left) {
      if (state.contraction().block_of(edge.from) == state.contraction().block_of(edge.to)) continue;
      if (state.can_merge(edge)) {
        state.merge(edge);
        changed = true;
      } else {
        blocked.push_back(edge);
      }
    }
    left = std::move(blocked);
  }
}

// Edges between supported nodes, in orders in which greedy merging is good for different graphs.
std::vector<std::vector<Edge>> orders(const Dag& dag, const std::vector<bool>& supported) {
  std::vector<Edge> edges;
  for (const Edge& edge : dag.edges())
    if (supported[edge.from] && supported[edge.to]) edges.push_back(edge);
  const Levels found = levels(dag, supported);
  std::vector<std::vector<Edge>> out;
  const auto add = [&](auto key) {
    out.push_back(edges);
    std::ranges::stable_sort(out.back(), {}, key);
  };
  add([&](const Edge& e) { return std::pair(found.lowest[e.from] != found.lowest[e.to], e.to); });
  add([&](const Edge& e) { return std::pair(found.highest[e.from] != found.highest[e.to], ~e.from); });
  add([&](const Edge& e) { return std::pair(e.to, ~e.from); });
  add([&](const Edge& e) { return std::pair(~e.from, e.to); });
  return out;
}

// ---- branch ----

class Search {
 public:
  Search(ConnectedGroups& best, const std::vector<Edge>& edges, std::uint64_t work)
      : best_(best), edges_(edges), left_(work) {}

  // True if the work suffices for a search that may prove something. On large graphs it does not.
  [[nodiscard]] bool is_worthwhile(const State& state) const {
    constexpr std::uint64_t kStates = 10'000;
    return kStates * cost_of(state) <= left_;
  }

  // True if the whole tree was searched.
  bool run(State state) {
    for (;;) {
      if (!spend(state)) return false;
      if (state.at_least() >= best_.groups.count) return true;
      const std::optional<Edge> edge = next(state);
      if (!edge) {
        Groups found = state.groups();
        if (found.count < best_.groups.count) best_.groups = std::move(found);
        return true;
      }
      State merged = state;
      merged.merge(*edge);
      if (!run(std::move(merged))) return false;
      if (best_.proven()) return true;
      state.keep_apart(*edge);
    }
  }

 private:
  [[nodiscard]] std::uint64_t cost_of(const State& state) const {
    return 4 * (state.contraction().order().size() + edges_.size());
  }
  bool spend(const State& state) {
    const std::uint64_t cost = cost_of(state);
    if (cost > left_) return false;
    left_ -= cost;
    return true;
  }

  std::optional<Edge> next(State& state) const {
    for (const Edge& edge : edges_)
      if (state.contraction().block_of(edge.from) != state.contraction().block_of(edge.to) &&
          state.can_merge(edge))
        return edge;
    return std::nullopt;
  }

  ConnectedGroups& best_;
  const std::vector<Edge>& edges_;
  std::uint64_t left_;
};

// connected_groups() for a dag that reduce() cannot make smaller.
ConnectedGroups of_reduced(const Dag& dag, const std::vector<bool>& supported, std::uint64_t work) {
  const State start(dag, supported);
  ConnectedGroups best{.groups = start.groups(), .at_least = start.at_least()};
  const std::vector<std::vector<Edge>> tried = orders(dag, supported);
  const auto try_order = [&](const std::vector<Edge>& edges) {
    if (best.proven()) return;
    State state = start;
    merge_all(state, edges);
    if (Groups found = state.groups(); found.count < best.groups.count) best.groups = std::move(found);
  };
  std::ranges::for_each(tried, try_order);
  Search search(best, tried.front(), work);
  if (best.proven() || !search.is_worthwhile(start)) return best;
  std::mt19937 random;  // always the same numbers
  std::vector<Edge> shuffled = tried.front();
  for (int i = 0; i < kShuffles; ++i) {
    for (std::size_t end = shuffled.size(); end > 1; --end)
      std::swap(shuffled[end - 1], shuffled[random() % end]);
    try_order(shuffled);
  }
  if (!best.proven() && search.run(start)) best.at_least = best.groups.count;
  return best;
}

}  // namespace

ConnectedGroups connected_groups(const Dag& dag, const std::vector<bool>& supported, std::uint64_t work) {
  State state(dag, supported);
  reduce(state, dag.size());
  const Quotient reduced = quotient(dag, state.groups());
  std::vector<bool> block_supported(reduced.dag.size(), false);
  for (DagNode node = 0; node < dag.size(); ++node)
    if (supported[node]) block_supported[reduced.of[node]] = true;
  const ConnectedGroups found = of_reduced(reduced.dag, block_supported, work);
  std::vector<std::uint32_t> labels(dag.size(), kNoGroup);
  for (DagNode node = 0; node < dag.size(); ++node)
    if (supported[node]) labels[node] = found.groups.of[reduced.of[node]];
  return {.groups = numbered(labels), .at_least = found.at_least};
}

}  // namespace tosaic::partition
