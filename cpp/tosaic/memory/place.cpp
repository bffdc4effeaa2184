#include "tosaic/memory/place.h"

#include <algorithm>

#include "tosaic/memory/check.h"
#include "tosaic/memory/greedy.h"
#include "tosaic/memory/items.h"
#include "tosaic/memory/owners.h"
#include "tosaic/memory/pack.h"
#include "tosaic/memory/sweep.h"

namespace tosaic::memory {
namespace {

// Up to this many pairs of items that share a step, the searches compare items with each other. Longer lists
// are placed in one sweep.
constexpr std::size_t kMostPairs = 2'000'000;
// Up to this many items, place() packs, and moves items to bytes that their threads wrote (owners.h).
constexpr std::size_t kMostPacked = 2'000;

std::size_t greatest(const std::vector<std::size_t>& list) {
  return list.empty() ? 0 : *std::max_element(list.begin(), list.end());
}

std::size_t height(const Items& items, std::span<const std::size_t> offsets) {
  std::size_t top = 0;
  for (std::size_t i = 0; i < offsets.size(); ++i) top = std::max(top, offsets[i] + items.items[i].bytes);
  return top;
}

// Looks for the least arena between `bound` and `best`: packs at the bound, raises the bound if that is
// proven impossible, and lowers `best` by local search if the effort did not suffice to pack.
void search(const Items& items, std::size_t enough, std::size_t& bound, Arrangement& best, Effort& effort) {
  Packer packer(items);
  const auto is_done = [&] { return best.bytes <= std::max(bound, enough) || effort.left() == 0; };
  // Packs into an arena of this size with a part of the effort.
  const auto pack = [&](std::size_t bytes, std::size_t units) {
    Effort part = effort.share(units);
    const std::optional<PackResult> result = packer.pack(bytes, part);
    effort.settle(part, units);
    if (!result) return false;
    if (result->fits())
      best = {result->offsets, height(items, result->offsets)};
    else
      bound = std::min(result->needed, best.bytes);
    return true;
  };
  const std::size_t whole = effort.left();
  while (!is_done() && pack(std::max(bound, enough), whole / 2)) {
  }
  if (is_done()) return;
  const std::size_t units = effort.left() / 3;
  Effort part = effort.share(units);
  improve(items, best, std::max(bound, enough), part);
  effort.settle(part, units);
  // It is not known whether items fit at the bound. Sizes between it and the best arrangement are easier.
  for (std::size_t low = std::max(bound, enough); !is_done() && best.bytes - low > items.grain;) {
    const std::size_t middle = low + round_up((best.bytes - low) / 2, items.grain);
    if (middle >= best.bytes) break;
    const bool is_decided = pack(middle, effort.left() / 3);
    if (!is_decided || best.bytes > middle) low = middle;
  }
}

}  // namespace

std::string_view to_string(AliasKind kind) {
  switch (kind) {
    case AliasKind::kNone:
      return "none";
    case AliasKind::kView:
      return "view";
    case AliasKind::kInPlace:
      return "in_place";
    case AliasKind::kPart:
      return "part";
  }
  return "";
}

Placement place(std::span<const Buffer> buffers, const PlaceOptions& options) {
  const Items items = group(buffers);
  Placement out;
  out.lower_bound = greatest(live_bytes_of(items.items));
  const bool is_compared = count_pairs(items.items) <= kMostPairs;
  Effort effort = Effort(options.budget, options.deadline);
  Arrangement best =
      is_compared ? place_in_orders(items, std::max(out.lower_bound, options.enough)) : sweep(items);
  if (is_compared && items.items.size() <= kMostPacked)
    search(items, options.enough / items.grain * items.grain, out.lower_bound, best, effort);
  else if (is_compared)
    improve(items, best, std::max(out.lower_bound, options.enough), effort);
  if (options.threads > 1 && is_compared && items.items.size() <= kMostPacked)
    best = keep_owners(items, best, options.threads);
  out.bytes = best.bytes;
  for (std::size_t i = 0; i < buffers.size(); ++i)
    out.offsets.push_back(best.offsets[items.item_of[i]] + items.offset_in_item[i]);
  check(buffers, out);
  return out;
}

std::vector<std::size_t> live_bytes(std::span<const Buffer> buffers) {
  return live_bytes_of(group(buffers).items);
}

}  // namespace tosaic::memory
