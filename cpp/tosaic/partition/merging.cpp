#include "tosaic/partition/merging.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tosaic::partition {

Merging::Merging(const Dag& dag)
    : dag_(dag), part_of_(dag.size(), kNoPart), root_(dag.size()), own_(dag.size()), reads_(dag.size()) {
  std::iota(root_.begin(), root_.end(), 0);
}

// Whether the node sees the partition. The root of the node is in the same partition, or sees the same.
bool Merging::node_sees(DagNode node, Part part) const {
  const DagNode root = root_[node];
  const Part own = part_of_[root];
  if (own != kNoPart && (own == part || parts_[own].notes.has(part))) return true;
  return own_[root].has(part);
}

IdSet Merging::seen_by_users(DagNode node) const {
  IdSet seen;
  for (const DagNode user : dag_.users(node)) {
    const DagNode root = root_[user];
    seen.unite(own_[root]);
    if (const Part part = part_of_[root]; part != kNoPart) {
      seen.unite(parts_[part].notes);
      seen.add(part);
    }
  }
  seen.trim(living_, next_part_ / 64);
  return seen;
}

void Merging::register_reader(DagNode node) {
  for (const DagNode user : dag_.users(node)) {
    const DagNode root = root_[user];
    reads_[root].push_back({.reader = node, .node = user});
    if (const Part part = part_of_[root]; part != kNoPart) parts_[part].readers.push_back(node);
  }
}

Part Merging::add(DagNode node, bool supported) {
  const std::span<const DagNode> users = dag_.users(node);
  if (!supported) {
    if (users.size() == 1) {
      root_[node] = root_[users[0]];
    } else {
      own_[node] = seen_by_users(node);
      register_reader(node);
    }
    return kNoPart;
  }
  const Part part = next_part_;
  if (part == parts_.size()) parts_.emplace_back();
  if (part / 64 == living_.size()) living_.push_back(0);
  living_[part / 64] |= std::uint64_t{1} << (part % 64);
  parts_[part] = {.id = next_id_,
                  .nodes = {node},
                  .users = {users.begin(), users.end()},
                  .readers = {},
                  .notes = seen_by_users(node),
                  .late = {}};
  ++next_id_;
  part_of_[node] = part;
  register_reader(node);
  return part;
}

void Merging::finish(DagNode node) {
  const Part part = part_of_[node];
  if (part == kNoPart) return;
  if (part == next_part_) ++next_part_;
  const std::span<const DagNode> users = dag_.users(node);
  if (users.size() != 1 || part_of_[users[0]] != part) return;
  root_[node] = root_[users[0]];
  reads_[root_[node]].pop_back();  // the one that `add` registered: no node came after this one
  own_[node].clear();
}

bool Merging::outside_user_sees(Part users_of, Part other) const {
  return std::ranges::any_of(parts_[users_of].users, [&](DagNode user) {
    const Part part = part_of_[user];
    return part != users_of && part != other && (node_sees(user, users_of) || node_sees(user, other));
  });
}

bool Merging::mergeable(Part a, Part b) const {
  // The sets of the partitions answer most questions. The rest are users in the other partition: they do not count.
  const Partition& first = parts_[a];
  const Partition& second = parts_[b];
  if ((first.sees(a) || first.sees(b)) && outside_user_sees(a, b)) return false;
  return !((second.sees(a) || second.sees(b)) && outside_user_sees(b, a));
}

Part Merging::merge(Part self, Part other) {
  const bool into_other = parts_[self].nodes.size() < parts_[other].nodes.size();
  const Part kept = into_other ? other : self;
  const Part gone = into_other ? self : other;
  if (kept == next_part_) ++next_part_;  // from now on, others see it
  living_[gone / 64] &= ~(std::uint64_t{1} << (gone % 64));

  IdSet notes = parts_[kept].notes;
  notes.unite(parts_[kept].late);
  notes.unite(parts_[gone].notes);
  notes.unite(parts_[gone].late);
  notes.remove(kept);
  notes.remove(gone);
  notes.trim(living_, next_part_ / 64);

  // Readers of what was inside `kept` see what its notes gain. Readers of what was inside `gone` see `kept`, too.
  std::vector<DagNode> readers_of_kept = std::exchange(parts_[kept].readers, {});
  std::vector<DagNode> readers_of_gone = std::exchange(parts_[gone].readers, {});
  std::vector<Part> new_to_kept, new_to_gone;
  if (!readers_of_kept.empty()) new_to_kept = gained(notes, parts_[kept].notes);
  if (!readers_of_gone.empty()) {
    new_to_gone = gained(notes, parts_[gone].notes);
    new_to_gone.push_back(kept);
  }
  absorb(kept, gone);
  parts_[kept].notes = std::move(notes);
  parts_[kept].late.clear();
  announce(kept, readers_of_kept, new_to_kept);
  announce(kept, readers_of_gone, new_to_gone);

  if (readers_of_kept.size() < readers_of_gone.size()) std::swap(readers_of_kept, readers_of_gone);
  readers_of_kept.insert(readers_of_kept.end(), readers_of_gone.begin(), readers_of_gone.end());
  parts_[kept].readers = std::move(readers_of_kept);
  return kept;
}

std::vector<Part> Merging::gained(const IdSet& notes, const IdSet& before) const {
  std::vector<Part> parts;
  for (std::size_t at = before.full_words(); at < std::min(living_.size(), notes.end_word()); ++at)
    for (std::uint64_t bits = living_[at] & notes.word(at) & ~before.word(at); bits != 0; bits &= bits - 1)
      parts.push_back(static_cast<Part>(64 * at + static_cast<std::size_t>(__builtin_ctzll(bits))));
  return parts;
}

// Moves the nodes and users of `gone`, and empties it.
void Merging::absorb(Part kept, Part gone) {
  Partition& to = parts_[kept];
  Partition& from = parts_[gone];
  for (const DagNode node : from.nodes) part_of_[node] = kept;
  to.nodes.insert(to.nodes.end(), from.nodes.begin(), from.nodes.end());
  if (to.users.size() < from.users.size()) std::swap(to.users, from.users);
  for (const DagNode user : from.users)
    if (part_of_[user] != kept) to.users.push_back(user);
  from = {};
}

// Tells the readers, and all nodes before them, of partitions that they see now. Drops readers that are inside.
void Merging::announce(Part part, std::vector<DagNode>& readers, std::span<const Part> seen) {
  if (seen.empty()) return;
  std::erase_if(readers, [&](DagNode reader) { return part_of_[reader] == part; });
  for (const Part each : seen) {
    for (const DagNode reader : readers) tell(reader, false, each);
    while (!told_.empty()) {
      const DagNode root = told_.back();
      told_.pop_back();
      for (const Read& read : reads_[root]) {
        const Part own = part_of_[read.reader];
        tell(read.reader, own != kNoPart && part_of_[read.node] == own, each);
      }
    }
  }
}

// A user of the reader sees a partition now. `inside`: the user is in the same partition as the reader.
void Merging::tell(DagNode reader, bool inside, Part seen) {
  const Part own = part_of_[reader];
  const bool known = node_sees(reader, seen);
  if (own != kNoPart && !inside && !parts_[own].notes.has(seen)) parts_[own].late.add(seen);
  if (known) return;
  own_[reader].add(seen);
  told_.push_back(reader);
}

std::vector<Part> Merging::living() const {
  std::vector<Part> parts;
  for (std::size_t at = 0; at < living_.size(); ++at)
    for (std::uint64_t bits = living_[at]; bits != 0; bits &= bits - 1)
      parts.push_back(static_cast<Part>(64 * at + static_cast<std::size_t>(__builtin_ctzll(bits))));
  return parts;
}

}  // namespace tosaic::partition
