#include "tosaic/partition/contraction.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tosaic::partition {
namespace {

constexpr DagNode kNone = UINT32_MAX;

}  // namespace

Contraction::Contraction(const Dag& dag)
    : parent_(dag.size()),
      users_(dag.size()),
      inputs_(dag.size()),
      at_(dag.size()),
      place_(dag.size()),
      mark_(dag.size(), 0) {
  std::iota(parent_.begin(), parent_.end(), 0);
  std::iota(at_.begin(), at_.end(), 0);
  std::iota(place_.begin(), place_.end(), 0);
  for (DagNode node = 0; node < dag.size(); ++node) {
    users_[node].assign(dag.users(node).begin(), dag.users(node).end());
    inputs_[node].assign(dag.inputs(node).begin(), dag.inputs(node).end());
  }
}

DagNode Contraction::block_of(DagNode node) const {
  while (parent_[node] != node) node = parent_[node] = parent_[parent_[node]];
  return node;
}

// Replaces neighbours by their blocks, each once, without the block itself.
void Contraction::tidy(std::vector<DagNode>& neighbours, DagNode block) {
  for (DagNode& each : neighbours) each = block_of(each);
  std::ranges::sort(neighbours);
  neighbours.erase(std::ranges::unique(neighbours).begin(), neighbours.end());
  std::erase(neighbours, block);
  work_ += neighbours.size();
}

bool Contraction::reaches_around(DagNode first, DagNode last) {
  ++search_;
  reached_.clear();
  tidy(users_[first], first);
  const std::uint32_t end = place_[last];
  bool around = false;
  const auto reach = [&](DagNode block) {
    if (mark_[block] == search_ || place_[block] > end) return;
    mark_[block] = search_;
    reached_.push_back(block);
  };
  for (const DagNode user : users_[first])
    if (user != last) reach(user);
  for (std::size_t i = 0; i < reached_.size() && !around; ++i)
    for (const DagNode each : users_[reached_[i]]) {
      const DagNode user = block_of(each);
      ++work_;
      if (user == last) {
        around = true;
        break;
      }
      reach(user);
    }
  return around;
}

bool Contraction::can_merge(DagNode a, DagNode b) {
  DagNode first = block_of(a), last = block_of(b);
  if (first == last) return false;
  if (place_[first] > place_[last]) std::swap(first, last);
  return !reaches_around(first, last);
}

void Contraction::merge(DagNode a, DagNode b) {
  DagNode first = block_of(a), last = block_of(b);
  if (place_[first] > place_[last]) std::swap(first, last);
  static_cast<void>(reaches_around(first, last));  // marks what has to come after the merged block
  const std::uint32_t begin = place_[first], end = place_[last];
  DagNode into = first, from = last;
  if (users_[into].size() + inputs_[into].size() < users_[from].size() + inputs_[from].size())
    std::swap(into, from);

  std::vector<DagNode> before, after;
  for (std::uint32_t place = begin; place <= end; ++place) {
    const DagNode block = at_[place];
    if (block == kNone || block == first || block == last) continue;
    (mark_[block] == search_ ? after : before).push_back(block);
  }
  work_ += end - begin + 1;
  std::uint32_t place = begin;
  const auto put = [&](DagNode block) {
    at_[place] = block;
    place_[block] = place++;
  };
  for (const DagNode block : before) put(block);
  put(into);
  for (const DagNode block : after) put(block);
  while (place <= end) at_[place++] = kNone;

  parent_[from] = into;
  for (auto* const lists : {&users_, &inputs_}) {
    std::vector<DagNode>& list = (*lists)[into];
    std::vector<DagNode>& more = (*lists)[from];
    list.insert(list.end(), more.begin(), more.end());
    more = {};
    tidy(list, into);
  }
}

std::vector<DagNode> Contraction::order() const {
  std::vector<DagNode> order;
  for (const DagNode block : at_)
    if (block != kNone) order.push_back(block);
  return order;
}

}  // namespace tosaic::partition
