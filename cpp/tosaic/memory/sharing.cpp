#include "tosaic/memory/sharing.h"

#include <algorithm>
#include <optional>
#include <set>

#include "tosaic/memory/items.h"

namespace tosaic::memory {

using analysis::Lifetime;

Sharing::Sharing(const Graph& graph, std::span<const NodeNeeds> needs, const PlanOptions& options,
                 MemoryPlan& plan)
    : graph_(graph), needs_(needs), options_(options), plan_(plan), live_(analysis::liveness(graph)) {
  const std::size_t count = graph.values().size();
  read_late();
  roots_.resize(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    owner_.push_back({i, 0});
    roots_[i].contents = i;
    roots_[i].contents_end = live_[i].last;
  }
  write_early();
  plan_.alias.assign(count, AliasKind::kNone);
  plan_.alias_of.assign(count, ValueId());
  if (!options.share) return;
  for (const Node& node : graph.nodes()) share(node);
  share_parts();
}

void Sharing::write_early() {
  for (std::uint32_t step = 0; step < needs_.size(); ++step) {
    if (!needs_[step].writer) continue;
    const Node& node = graph_.nodes()[step];
    for (std::uint32_t i = 0; i < node.result_count; ++i)
      live_[node.first_result + i].first = *needs_[step].writer;
  }
}

void Sharing::read_late() {
  for (std::uint32_t step = 0; step < needs_.size(); ++step) {
    if (!needs_[step].reader) continue;
    const std::span<const ValueId> operands = graph_.operands(graph_.nodes()[step]);
    for (std::size_t i = 0; i < operands.size() && i < 32; ++i) {
      if ((needs_[step].read_later >> i & 1u) == 0) continue;
      std::uint32_t& last = live_[operands[i].index()].last;
      last = std::max<std::uint32_t>(last, *needs_[step].reader);
    }
  }
}

// A root that became a part is owned by the whole, which may be a part itself.
Sharing::Owner Sharing::owner_of(std::uint32_t value) const {
  Owner out{value, 0};
  while (owner_[out.root].root != out.root) {
    out.offset += owner_[out.root].offset;
    out.root = owner_[out.root].root;
  }
  return out;
}

std::vector<bool> Sharing::hidden_roots() const {
  std::vector<bool> hidden(graph_.values().size(), false);
  if (needs_.empty()) return hidden;
  std::vector<bool> is_seen(graph_.values().size(), false);  // the root of a value that is not hidden
  for (std::uint32_t i = 0; i < graph_.values().size(); ++i)
    if (graph_.values()[i].kind != ValueKind::kResult) is_seen[owner_of(i).root] = true;
  for (std::uint32_t step = 0; step < needs_.size(); ++step) {
    const Node& node = graph_.nodes()[step];
    for (std::uint32_t i = node.first_result; i < node.first_result + node.result_count; ++i) {
      const std::uint32_t root = owner_of(i).root;
      hidden[root] = hidden[root] || needs_[step].is_hidden;
      is_seen[root] = is_seen[root] || !needs_[step].is_hidden;
    }
  }
  for (std::size_t i = 0; i < hidden.size(); ++i) hidden[i] = hidden[i] && !is_seen[i];
  return hidden;
}

// ---- views and results in place ----

void Sharing::share(const Node& node) {
  if (node.result_count == 0) return;
  const NodeNeeds needs = needs_.empty() ? NodeNeeds{} : needs_[graph_.id(node).index()];
  if (needs.writer) return;
  if (const auto offsets = needs.writes_all ? std::nullopt : view_offsets(graph_, node))
    share_views(node, *offsets);
  else
    share_in_place(node, needs.in_place);
}

void Sharing::join(ValueId value, ValueId with, std::size_t offset, AliasKind kind) {
  const Owner owner = owner_of(with.index());
  owner_[value.index()] = {owner.root, owner.offset + offset};
  plan_.alias[value.index()] = kind;
  plan_.alias_of[value.index()] = with;
  Root& root = roots_[owner.root];
  const Lifetime& live = live_[value.index()];
  if (kind == AliasKind::kView) {
    root.contents_end = std::max(root.contents_end, live.last);
    return;
  }
  root.contents = value.index();
  root.contents_end = live.last;
  root.overwritten_at = std::min(root.overwritten_at, live.first);
}

void Sharing::share_views(const Node& node, const std::vector<std::size_t>& offsets) {
  for (std::size_t i = 0; i < offsets.size(); ++i)
    join(graph_.result(node, i), graph_.operands(node)[0], offsets[i], AliasKind::kView);
}

void Sharing::share_in_place(const Node& node, std::uint32_t allowed) {
  const std::uint32_t step = graph_.id(node).index();
  const auto operands = graph_.operands(node);
  for (std::size_t i = 0; i < operands.size() && i < 32; ++i) {
    if ((allowed >> i & 1u) == 0 || !operands[i].valid()) continue;
    if (!may_overwrite(node, i, step)) continue;
    join(graph_.result(node), operands[i], 0, AliasKind::kInPlace);
    return;
  }
}

bool Sharing::may_overwrite(const Node& node, std::size_t i, std::uint32_t step) const {
  const auto operands = graph_.operands(node);
  const Owner owner = owner_of(operands[i].index());
  const Value& root = graph_.values()[owner.root];
  if (root.kind != ValueKind::kResult || roots_[owner.root].contents_end != step) return false;
  const std::size_t bytes = graph_.type(graph_.result(node)).bytes();
  if (bytes == 0 || bytes != root.type.bytes() || owner.offset != 0 ||
      bytes != graph_.type(operands[i]).bytes())
    return false;
  for (std::size_t other = 0; other < operands.size(); ++other)
    if (other != i && operands[other].valid() && owner_of(operands[other].index()).root == owner.root)
      return false;
  return true;
}

// ---- parts ----

void Sharing::share_parts() {
  std::optional<Load> load;
  for (const Node& node : graph_.nodes()) {
    if (!needs_.empty() && needs_[graph_.id(node).index()].writes_all) continue;
    const auto offsets = part_offsets(graph_, node);
    if (!offsets) continue;
    if (!load) {
      find_spans();
      find_outside();
      load = count_load();
    }
    std::vector<Part> parts = parts_of(node, *offsets);
    const ValueId whole = graph_.result(node);
    choose(whole.index(), parts, *load);
    if (!parts.empty()) write_into(whole, parts);
  }
}

void Sharing::find_spans() {
  for (std::uint32_t i = 0; i < roots_.size(); ++i) roots_[i].live = live_[i];
  for (std::uint32_t i = 0; i < roots_.size(); ++i) {
    Lifetime& live = roots_[owner_of(i).root].live;
    live = {std::min(live.first, live_[i].first), std::max(live.last, live_[i].last)};
  }
}

// Finds the roots outside of the arena, as Roots in plan.cpp does, but before parts are shared.
void Sharing::find_outside() {
  const std::vector<bool> hidden = hidden_roots();
  for (std::uint32_t i = 0; i < roots_.size(); ++i)
    roots_[i].is_outside = hidden[i] || graph_.values()[i].kind == ValueKind::kConstant;
  for (const Input& input : graph_.inputs())
    roots_[input.value.index()].is_outside = input.kind == InputKind::kState || !options_.inputs_in_arena;
  for (const Output& output : graph_.outputs()) {
    if (output.kind == OutputKind::kUser && options_.outputs_in_arena) continue;
    const Owner owner = owner_of(output.value.index());
    const bool is_whole =
        owner.offset == 0 && graph_.type(output.value).bytes() == graph_.values()[owner.root].type.bytes();
    roots_[owner.root].is_outside = roots_[owner.root].is_outside || is_whole;
  }
}

Load Sharing::count_load() const {
  Load load(graph_.nodes().size() + 1);
  for (std::uint32_t i = 0; i < roots_.size(); ++i)
    if (owner_[i].root == i) load.add(roots_[i].live, arena_bytes(i));
  for (std::uint32_t step = 0; step < needs_.size(); ++step)
    load.add({step, step}, static_cast<std::int64_t>(round_up(needs_[step].scratch_bytes, kAlignment)));
  return load;
}

// The bytes that a root has in the arena.
std::int64_t Sharing::arena_bytes(std::uint32_t root) const {
  if (roots_[root].is_outside) return 0;
  return static_cast<std::int64_t>(round_up(graph_.values()[root].type.bytes(), kAlignment));
}

// The roots that may be written into the result of a concatenation.
std::vector<Sharing::Part> Sharing::parts_of(const Node& node,
                                             const std::vector<std::size_t>& offsets) const {
  const std::uint32_t whole = graph_.result(node).index();
  std::vector<Part> found;
  if (owner_[whole].root != whole) return found;  // computed in place of its only operand with bytes
  std::set<std::uint32_t> taken;
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    if (offsets[i] == kNoPart) continue;
    const ValueId operand = graph_.operands(node)[i];
    const Owner owner = owner_of(operand.index());
    const Root& root = roots_[owner.root];
    std::uint32_t shown = operand.index();
    while (plan_.alias[shown] == AliasKind::kView) shown = plan_.alias_of[shown].index();
    const bool fills =
        owner.offset == 0 && graph_.type(operand).bytes() == graph_.values()[owner.root].type.bytes();
    const bool is_free = graph_.values()[owner.root].kind == ValueKind::kResult && !root.is_outside;
    const bool is_last = root.contents == shown && root.contents_end < roots_[whole].overwritten_at;
    if (is_free && fills && is_last && taken.insert(owner.root).second)
      found.push_back({owner.root, offsets[i]});
  }
  return found;
}

// Drops parts until the greatest load does not rise if the remaining parts are written into the whole. The
// earliest part is dropped first, since the whole needs its memory from then on. Updates the load.
void Sharing::choose(std::uint32_t whole, std::vector<Part>& parts, Load& load) const {
  std::stable_sort(parts.begin(), parts.end(), [this](const Part& a, const Part& b) {
    return roots_[a.root].live.first > roots_[b.root].live.first;
  });
  const std::int64_t peak = load.greatest(), bytes = arena_bytes(whole);
  std::vector<Lifetime> spans{roots_[whole].live};  // spans[n]: the whole with the first n parts
  for (const Part& part : parts) {
    const Lifetime &live = roots_[part.root].live, &before = spans.back();
    spans.push_back({std::min(before.first, live.first), std::max(before.last, live.last)});
    load.add(live, -arena_bytes(part.root));
  }
  load.add(spans.front(), -bytes);
  for (;; parts.pop_back()) {
    const Lifetime& span = spans[parts.size()];
    load.add(span, bytes);
    if (parts.empty() || load.greatest(span) <= peak) return;
    load.add(span, -bytes);
    load.add(roots_[parts.back().root].live, arena_bytes(parts.back().root));
  }
}

void Sharing::write_into(ValueId whole, std::span<const Part> parts) {
  const std::uint32_t index = whole.index();
  Root& root = roots_[index];
  for (const Part& part : parts) {
    const Root& inner = roots_[part.root];
    root.live = {std::min(root.live.first, inner.live.first), std::max(root.live.last, inner.live.last)};
    if (root.contents == index) root.contents_end = std::max(root.contents_end, inner.contents_end);
    owner_[part.root] = {index, part.offset};
    plan_.alias[part.root] = AliasKind::kPart;
    plan_.alias_of[part.root] = whole;
  }
}

}  // namespace tosaic::memory
