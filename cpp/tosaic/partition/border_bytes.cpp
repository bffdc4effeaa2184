#include "tosaic/partition/border_bytes.h"

#include <algorithm>
#include <utility>

#include "tosaic/base/error.h"
#include "tosaic/base/max_flow.h"
#include "tosaic/partition/quotient.h"

namespace tosaic::partition {
namespace {

constexpr std::uint32_t kNone = UINT32_MAX;

// Two groups, and what limits the moves of their nodes. Nodes have local numbers: their places in `nodes`.
struct Pair {
  std::vector<DagNode> nodes;  // ascending, so topological
  std::vector<char> second,
      fixed;  // by local number: whether it is in the second group, and may not leave its group
  std::vector<std::vector<std::uint32_t>> users, inputs;  // by local number, inside the pair
  // Values whose cost depends on the two groups, by local numbers.
  struct Value {
    std::uint32_t maker = 0;  // kNone: not a node of the two groups
    std::vector<std::uint32_t> readers;
    std::uint64_t bytes = 0;
  };
  std::vector<Value> values;

  [[nodiscard]] std::uint64_t cost(const std::vector<char>& sides) const {
    std::uint64_t sum = 0;
    for (const Value& value : values)
      for (const char side : {'\0', '\1'})
        if ((value.maker == kNone || sides[value.maker] != side) &&
            std::ranges::any_of(value.readers, [&](std::uint32_t reader) { return sides[reader] == side; }))
          sum += value.bytes;
    return sum;
  }
};

class Moving {
 public:
  Moving(const Dag& dag, Groups groups, std::span<const BorderValue> values, const BorderRules& rules)
      : dag_(dag),
        groups_(std::move(groups)),
        values_(values),
        rules_(rules),
        made_(dag.size()),
        read_(dag.size()),
        local_(dag.size(), kNone) {
    for (std::uint32_t i = 0; i < values.size(); ++i) {
      if (values[i].maker && !values[i].readers.empty()) made_[*values[i].maker].push_back(i);
      for (const DagNode reader : values[i].readers) read_[reader].push_back(i);
    }
  }

  Groups take() {
    bool gained = groups_.count > 1;
    while (gained && has_work()) gained = sweep();
    return numbered(groups_.of);
  }

 private:
  [[nodiscard]] bool has_work() const { return work_ < rules_.work; }

  // Looks at all pairs once. Returns true if one of them gained.
  bool sweep() {
    bool gained = false;
    arrange();
    for (std::uint32_t first = 0; first < by_block_.size(); ++first) {
      if (by_block_[first] == kNoGroup) continue;
      for (const std::uint32_t second : behind(first)) {
        if (!has_work()) return false;
        if (!improve(first, second)) continue;
        gained = true;
        arrange();  // blocks have other numbers now
        break;
      }
    }
    return gained;
  }

  // Computes the quotient of the current groups.
  void arrange() {
    groups_ = numbered(groups_.of);
    members_ = members_of(groups_);
    quotient_ = quotient(dag_, groups_);
    if (!quotient_.circle.empty())
      throw InternalError({.where = "partition", .what = "groups wait for each other"});
    by_block_.assign(quotient_.dag.size(), kNoGroup);
    for (DagNode node = 0; node < dag_.size(); ++node)
      if (groups_.of[node] != kNoGroup) by_block_[quotient_.of[node]] = groups_.of[node];
    mark_.assign(quotient_.dag.size(), 0);
    work_ += dag_.edges().size();
  }

  // The blocks of groups that read a group. Unless groups must be connected, also the next group in order.
  [[nodiscard]] std::vector<std::uint32_t> behind(std::uint32_t first) const {
    std::vector<std::uint32_t> found;
    for (const DagNode user : quotient_.dag.users(first))
      if (by_block_[user] != kNoGroup) found.push_back(user);
    if (!rules_.connected) {
      std::uint32_t next = first + 1;
      while (next < by_block_.size() && by_block_[next] == kNoGroup) ++next;
      if (next < by_block_.size() && std::ranges::find(found, next) == found.end()) found.push_back(next);
    }
    return found;
  }

  // Of the blocks between two blocks, marks those that `first` reaches (1) and those that reach `second` (2).
  void mark_between(std::uint32_t first, std::uint32_t second) {
    marked_.clear();
    const auto visit = [&](std::uint32_t start, char bit, auto neighbours) {
      std::vector<std::uint32_t> open{start};
      while (!open.empty()) {
        const std::uint32_t block = open.back();
        open.pop_back();
        for (const DagNode next : neighbours(block)) {
          ++work_;
          if (next <= first || next >= second || (mark_[next] & bit)) continue;
          if (!mark_[next]) marked_.push_back(next);
          mark_[next] = static_cast<char>(mark_[next] | bit);
          open.push_back(next);
        }
      }
    };
    visit(first, 1, [&](std::uint32_t block) { return quotient_.dag.users(block); });
    visit(second, 2, [&](std::uint32_t block) { return quotient_.dag.inputs(block); });
  }

  [[nodiscard]] Pair pair_of(std::uint32_t first, std::uint32_t second) {
    Pair pair;
    std::ranges::merge(members_[by_block_[first]], members_[by_block_[second]],
                       std::back_inserter(pair.nodes));
    const auto count = static_cast<std::uint32_t>(pair.nodes.size());
    for (std::uint32_t i = 0; i < count; ++i) local_[pair.nodes[i]] = i;
    pair.second.resize(count);
    pair.fixed.resize(count);
    pair.users.resize(count);
    pair.inputs.resize(count);
    mark_between(first, second);
    for (std::uint32_t i = 0; i < count; ++i) {
      const DagNode node = pair.nodes[i];
      pair.second[i] = quotient_.of[node] == second;
      for (const DagNode user : dag_.users(node)) {
        ++work_;
        if (local_[user] != kNone) {
          pair.users[i].push_back(local_[user]);
          pair.inputs[local_[user]].push_back(i);
        } else if (!pair.second[i] && (mark_[quotient_.of[user]] & 2)) {
          pair.fixed[i] = 1;
        }
      }
      if (pair.second[i])
        for (const DagNode input : dag_.inputs(node))
          if (local_[input] == kNone && (mark_[quotient_.of[input]] & 1)) pair.fixed[i] = 1;
    }
    add_values(pair);
    for (const DagNode node : pair.nodes) local_[node] = kNone;
    for (const std::uint32_t block : marked_) mark_[block] = 0;
    return pair;
  }

  // Values that a node of the pair makes and another one reads, and values of other nodes that several of its
  // nodes read.
  void add_values(Pair& pair) {
    const auto add = [&](std::uint32_t index, std::uint32_t maker) {
      const BorderValue& value = values_[index];
      Pair::Value inside{.maker = maker, .readers = {}, .bytes = value.bytes};
      work_ += value.readers.size();
      for (const DagNode reader : value.readers)
        if (local_[reader] != kNone && local_[reader] != maker) inside.readers.push_back(local_[reader]);
      if (inside.readers.size() >= (maker == kNone ? 2U : 1U)) pair.values.push_back(std::move(inside));
    };
    std::vector<std::uint32_t> entering;
    for (std::uint32_t i = 0; i < pair.nodes.size(); ++i) {
      for (const std::uint32_t index : made_[pair.nodes[i]]) add(index, i);
      for (const std::uint32_t index : read_[pair.nodes[i]])
        if (const auto& maker = values_[index].maker; !maker || local_[*maker] == kNone)
          entering.push_back(index);
    }
    std::ranges::sort(entering);
    entering.erase(std::ranges::unique(entering).begin(), entering.end());
    for (const std::uint32_t index : entering) add(index, kNone);
  }

  bool improve(std::uint32_t first, std::uint32_t second) {
    const Pair pair = pair_of(first, second);
    const std::uint64_t before = pair.cost(pair.second);
    if (before == 0 || std::ranges::all_of(pair.fixed, [](char fixed) { return fixed; })) return false;
    std::vector<char> sides = minimum_cut(pair);
    if (pair.cost(sides) >= before) return false;
    if (!is_right(pair, sides)) {
      join_pieces(pair, sides);
      if (pair.cost(sides) >= before || !is_right(pair, sides)) {
        sides = best_move(pair, before);
        if (sides.empty()) return false;
      }
    }
    const std::uint32_t labels[] = {by_block_[first], by_block_[second]};
    for (std::size_t i = 0; i < pair.nodes.size(); ++i) groups_.of[pair.nodes[i]] = labels[sides[i] != 0];
    return true;
  }

  std::vector<char> minimum_cut(const Pair& pair) {
    const auto count = static_cast<std::uint32_t>(pair.nodes.size());
    std::int64_t infinite = 1;
    for (const Pair::Value& value : pair.values) infinite += 2 * static_cast<std::int64_t>(value.bytes);
    flow_.reset(count);
    for (std::uint32_t node = 0; node < count; ++node) {
      if (pair.fixed[node]) flow_.feed(node, pair.second[node] ? -infinite : infinite);
      for (const std::uint32_t user : pair.users[node]) flow_.add_arc(user, node, infinite);
      work_ += pair.users[node].size();
    }
    for (const Pair::Value& value : pair.values) {
      const auto bytes = static_cast<std::int64_t>(value.bytes);
      // A node that is on the side of the sink (the second group) if a reader is. If the maker is not on that
      // side, or is in neither group, the value enters the second group.
      const std::uint32_t second = flow_.add_node();
      for (const std::uint32_t reader : value.readers) flow_.add_arc(second, reader, infinite);
      if (value.maker != kNone) {
        flow_.add_arc(value.maker, second, bytes);
        continue;  // a maker in the second group has no readers in the first one
      }
      flow_.feed(second, bytes);
      // A node that is on the side of the source (the first group) if a reader is.
      const std::uint32_t first = flow_.add_node();
      for (const std::uint32_t reader : value.readers) flow_.add_arc(reader, first, infinite);
      flow_.feed(first, -bytes);
    }
    flow_.solve();
    std::vector<char> sides = flow_.source_side();
    sides.resize(count);
    for (char& side : sides) side = !side;
    return sides;
  }

  // By node: the number of its piece. A piece is a connected set of nodes on one side.
  [[nodiscard]] std::vector<std::uint32_t> pieces(const Pair& pair, const std::vector<char>& sides) {
    std::vector<std::uint32_t> piece(pair.nodes.size(), kNone), open;
    std::uint32_t count = 0;
    for (std::uint32_t start = 0; start < piece.size(); ++start) {
      if (piece[start] != kNone) continue;
      piece[start] = count;
      open.push_back(start);
      while (!open.empty()) {
        const std::uint32_t node = open.back();
        open.pop_back();
        for (const auto* neighbours : {&pair.users[node], &pair.inputs[node]})
          for (const std::uint32_t next : *neighbours) {
            ++work_;
            if (piece[next] != kNone || sides[next] != sides[start]) continue;
            piece[next] = count;
            open.push_back(next);
          }
      }
      ++count;
    }
    return piece;
  }

  // Whether the two sides are allowed as groups: each is connected and large enough, or empty.
  [[nodiscard]] bool is_right(const Pair& pair, const std::vector<char>& sides) {
    if (rules_.connected) {
      const std::vector<std::uint32_t> piece = pieces(pair, sides);
      std::uint32_t of_side[] = {kNone, kNone};
      for (std::size_t i = 0; i < piece.size(); ++i) {
        std::uint32_t& expected = of_side[sides[i] != 0];
        if (expected == kNone) expected = piece[i];
        if (expected != piece[i]) return false;
      }
    }
    std::uint64_t size[] = {0, 0}, old[] = {0, 0};
    bool used[] = {false, false};
    for (std::size_t i = 0; i < sides.size(); ++i) {
      const std::uint32_t own = rules_.size.empty() ? 1 : rules_.size[pair.nodes[i]];
      size[sides[i] != 0] += own;
      used[sides[i] != 0] = true;
      old[pair.second[i] != 0] += own;
    }
    for (const int side : {0, 1})
      if (used[side] && size[side] < rules_.least_size && old[side] >= rules_.least_size) return false;
    return true;
  }

  // Moves the pieces of each side to the other side. Pieces with fixed nodes stay; if no node of the pair is
  // fixed, the largest piece stays. A piece may move as a whole, since no node of another piece of its side
  // reads it or is read by it.
  void join_pieces(const Pair& pair, std::vector<char>& sides) {
    for (const char side : {'\0', '\1'}) {
      const std::vector<std::uint32_t> piece = pieces(pair, sides);
      std::vector<std::uint32_t> size(piece.size(), 0);  // by piece
      std::vector<char> stays(piece.size(), 0);
      for (std::size_t i = 0; i < piece.size(); ++i) {
        if (sides[i] == side) ++size[piece[i]];
        if (pair.fixed[i]) stays[piece[i]] = 1;
      }
      if (std::ranges::none_of(pair.fixed, [](char fixed) { return fixed; }))
        stays[static_cast<std::size_t>(std::ranges::max_element(size) - size.begin())] = 1;
      for (std::size_t i = 0; i < piece.size(); ++i)
        if (sides[i] == side && !stays[piece[i]]) sides[i] = static_cast<char>(!side);
    }
  }

  // The cheapest of the right groupings in which one node changes sides, with the nodes that have to come
  // along. Empty if none is cheaper than `before`.
  [[nodiscard]] std::vector<char> best_move(const Pair& pair, std::uint64_t before) {
    std::vector<char> best;
    for (std::uint32_t node = 0; node < pair.nodes.size() && has_work(); ++node) {
      std::vector<char> sides = pair.second;
      if (!move(pair, node, sides)) continue;
      const std::uint64_t cost = pair.cost(sides);
      work_ += pair.nodes.size() + pair.values.size();
      if (cost >= before || !is_right(pair, sides)) continue;
      before = cost;
      best = std::move(sides);
    }
    return best;
  }

  // Moves a node of the first group and the nodes after it, or a node of the second group and the nodes
  // before it, to the other group. Returns false if one of these nodes may not move.
  [[nodiscard]] bool move(const Pair& pair, std::uint32_t node, std::vector<char>& sides) {
    const char from = sides[node];
    std::vector<std::uint32_t> open{node};
    sides[node] = static_cast<char>(!from);
    while (!open.empty()) {
      const std::uint32_t at = open.back();
      open.pop_back();
      if (pair.fixed[at]) return false;
      for (const std::uint32_t next : from ? pair.inputs[at] : pair.users[at]) {
        ++work_;
        if (sides[next] != from) continue;
        sides[next] = static_cast<char>(!from);
        open.push_back(next);
      }
    }
    return true;
  }

  const Dag& dag_;
  Groups groups_;
  std::span<const BorderValue> values_;
  const BorderRules& rules_;
  std::vector<std::vector<std::uint32_t>> made_, read_;  // by node: the values that it makes, and reads
  std::vector<std::uint32_t> local_;                     // by node: its local number in the pair, or kNone
  std::uint64_t work_ = 0;
  MaxFlow flow_;
  // For the current groups:
  Quotient quotient_;
  std::vector<std::vector<DagNode>> members_;  // by group
  std::vector<std::uint32_t> by_block_;        // by node of the quotient: its group, or kNoGroup
  std::vector<char> mark_;                     // by node of the quotient, see mark_between
  std::vector<std::uint32_t> marked_;
};

}  // namespace

std::vector<BorderValue> border_values(const Graph& graph) {
  std::vector<BorderValue> values;
  for (std::uint32_t v = 0; v < graph.values().size(); ++v) {
    const ValueId id(v);
    const Value& value = graph.value(id);
    if (value.kind == ValueKind::kConstant) continue;
    BorderValue made{
        .maker = {}, .readers = {}, .bytes = value.type.bytes(), .is_output = graph.is_output(id)};
    if (value.kind == ValueKind::kResult) made.maker = value.producer.index();
    for (const NodeId user : graph.users(id)) made.readers.push_back(user.index());
    if (!made.readers.empty() || made.is_output) values.push_back(std::move(made));
  }
  return values;
}

std::uint64_t border_bytes(std::span<const BorderValue> values, const Groups& groups) {
  std::uint64_t sum = 0;
  std::vector<std::uint32_t> parts;  // kNoGroup is the host
  for (const BorderValue& value : values) {
    const std::uint32_t maker = value.maker ? groups.of[*value.maker] : kNoGroup;
    parts.clear();
    if (value.is_output) parts.push_back(kNoGroup);
    for (const DagNode reader : value.readers) parts.push_back(groups.of[reader]);
    std::ranges::sort(parts);
    const auto end = std::ranges::unique(parts).begin();
    sum += value.bytes * static_cast<std::uint64_t>(std::count_if(
                             parts.begin(), end, [&](std::uint32_t part) { return part != maker; }));
  }
  return sum;
}

Groups with_fewer_border_bytes(const Dag& dag, Groups groups, std::span<const BorderValue> values,
                               const BorderRules& rules) {
  return Moving(dag, std::move(groups), values, rules).take();
}

}  // namespace tosaic::partition
