#include "tosaic/memory/items.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "tosaic/base/error.h"

namespace tosaic::memory {
namespace {

[[noreturn]] void fail(std::size_t buffer, std::string what) {
  throw InvalidGraph(
      {.where = "memory/place", .what = "buffer " + std::to_string(buffer) + " " + std::move(what)});
}

void verify_inside(std::span<const Buffer> buffers, std::size_t i, std::uint32_t outer, std::size_t offset) {
  if (outer >= buffers.size()) fail(i, "shares memory with a buffer that is not there");
  const Buffer &buffer = buffers[i], &target = buffers[outer];
  if (offset > target.bytes || buffer.bytes > target.bytes - offset)
    fail(i, "does not fit into the buffer whose memory it shares");
  if (target.alignment % buffer.alignment != 0 || offset % buffer.alignment != 0)
    fail(i, "asks for more alignment than the buffer whose memory it shares");
}

void verify_buffer(std::span<const Buffer> buffers, std::size_t i) {
  const Buffer& buffer = buffers[i];
  if (buffer.alignment == 0 || (buffer.alignment & (buffer.alignment - 1)) != 0)
    fail(i, "has an alignment that is no power of two");
  if (buffer.last < buffer.first) fail(i, "ends before it begins");
  if (buffer.alias != AliasKind::kNone) verify_inside(buffers, i, buffer.target, buffer.target_offset);
}

// Where a buffer is: the root that has the memory, and the offset of the buffer in it, in bytes.
struct Owner {
  std::uint32_t root = 0;
  std::size_t offset = 0;
};

// Targets may be after the buffers that share their memory.
std::vector<Owner> owners_of(std::span<const Buffer> buffers) {
  std::vector<std::optional<Owner>> known(buffers.size());
  std::vector<Owner> out;
  std::vector<std::uint32_t> chain;
  for (std::uint32_t i = 0; i < buffers.size(); ++i) {
    std::uint32_t at = i;
    for (; !known[at] && buffers[at].alias != AliasKind::kNone; at = buffers[at].target) {
      chain.push_back(at);
      if (chain.size() > buffers.size()) fail(i, "shares memory with itself");
    }
    if (!known[at]) known[at] = Owner{at, 0};
    for (; !chain.empty(); chain.pop_back()) {
      const Buffer& buffer = buffers[chain.back()];
      known[chain.back()] =
          Owner{known[buffer.target]->root, known[buffer.target]->offset + buffer.target_offset};
    }
  }
  for (const std::optional<Owner>& each : known) out.push_back(*each);
  return out;
}

}  // namespace

Items group(std::span<const Buffer> buffers) {
  for (std::size_t i = 0; i < buffers.size(); ++i) verify_buffer(buffers, i);
  const std::vector<Owner> owners = owners_of(buffers);
  Items out;
  std::vector<std::uint32_t> item_of_root(buffers.size());
  std::size_t grain = 0;
  for (std::uint32_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].alias != AliasKind::kNone) continue;
    const Buffer& buffer = buffers[i];
    item_of_root[i] = static_cast<std::uint32_t>(out.items.size());
    out.items.push_back({buffer.bytes, buffer.alignment, buffer.first, buffer.last});
    grain = grain == 0 ? buffer.alignment : std::min(grain, buffer.alignment);
  }
  for (std::uint32_t i = 0; i < buffers.size(); ++i) {
    out.item_of.push_back(item_of_root[owners[i].root]);
    out.offset_in_item.push_back(owners[i].offset);
    Item& item = out.items[out.item_of.back()];
    item.first = std::min(item.first, buffers[i].first);
    item.last = std::max(item.last, buffers[i].last);
  }
  out.grain = std::max<std::size_t>(grain, 1);
  for (Item& item : out.items) item.bytes = round_up(item.bytes, out.grain);
  return out;
}

std::vector<std::size_t> live_bytes_of(std::span<const Item> items) {
  std::uint32_t last = 0;
  for (const Item& item : items) last = std::max(last, item.last);
  std::vector<std::size_t> live(items.empty() ? 0 : last + std::size_t{2});
  for (const Item& item : items) {  // differences of live bytes: they may wrap around, but their sums do not
    live[item.first] += item.bytes;
    live[item.last + std::size_t{1}] -= item.bytes;
  }
  for (std::size_t i = 1; i < live.size(); ++i) live[i] += live[i - 1];
  if (!live.empty()) live.pop_back();
  return live;
}

std::vector<std::size_t> busiest_of(std::span<const Item> items) {
  const std::vector<std::size_t> live = live_bytes_of(items);
  std::vector<std::size_t> busiest;
  for (const Item& item : items)
    busiest.push_back(*std::max_element(live.begin() + item.first, live.begin() + item.last + 1));
  return busiest;
}

std::vector<std::uint32_t> in_time(std::span<const Item> items) {
  std::vector<std::uint32_t> order(items.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return items[a].first < items[b].first; });
  return order;
}

std::size_t count_pairs(std::span<const Item> items) {
  std::vector<Item> counted(items.begin(), items.end());
  for (Item& item : counted) item.bytes = 1;
  const std::vector<std::size_t> alive = live_bytes_of(counted);
  std::vector<std::size_t> begun(alive.size());
  for (const Item& item : items) ++begun[item.first];
  std::size_t pairs = 0;  // sum over all steps: items that begin there, times items that are alive
  for (std::size_t step = 0; step < alive.size(); ++step)
    pairs += begun[step] * (alive[step] - begun[step]) + begun[step] * (begun[step] - 1) / 2;
  return pairs;
}

Cliques cliques_of(std::span<const Item> items) {
  std::vector<std::uint32_t> order = in_time(items);
  std::erase_if(order, [&](std::uint32_t i) { return items[i].bytes == 0; });
  Cliques out;
  out.first.assign(items.size(), 0);
  out.last.assign(items.size(), 0);
  std::vector<std::uint32_t> alive;
  bool has_new = false;  // `alive` has an item that is in no clique yet
  const auto close = [&] {
    if (!has_new) return;
    out.members.push_back(alive);
    has_new = false;
  };
  for (const std::uint32_t i : order) {
    const auto ended = [&](std::uint32_t other) { return items[other].last < items[i].first; };
    if (std::any_of(alive.begin(), alive.end(), ended)) {
      close();
      std::erase_if(alive, ended);
    }
    alive.push_back(i);
    has_new = true;
  }
  close();
  std::vector<bool> seen(items.size());
  for (std::uint32_t clique = 0; clique < out.members.size(); ++clique)
    for (const std::uint32_t i : out.members[clique]) {
      if (!seen[i]) out.first[i] = clique;
      seen[i] = true;
      out.last[i] = clique;
    }
  return out;
}

}  // namespace tosaic::memory
