#include "tosaic/memory/place.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <queue>
#include <random>
#include <set>

#include "tosaic/base/error.h"
#include "tosaic/memory/check.h"

namespace tosaic::memory {
namespace {

constexpr std::size_t kNoOffset = std::numeric_limits<std::size_t>::max();

std::size_t round_up(std::size_t bytes, std::size_t alignment) {
  return (bytes + alignment - 1) & ~(alignment - 1);
}

// A root buffer and all buffers that share its memory.
struct Item {
  std::size_t bytes = 0, alignment = 1;
  std::uint32_t first = 0, last = 0;
};

struct Items {
  std::vector<Item> items;
  std::vector<std::uint32_t> item_of;       // per buffer
  std::vector<std::size_t> offset_in_item;  // per buffer
  std::size_t grain = 1;                    // every offset is a multiple of it
};

void verify_buffer(std::span<const Buffer> buffers, std::size_t i) {
  const Buffer& buffer = buffers[i];
  const auto fail = [i](std::string what) {
    throw InvalidGraph(
        {.where = "memory/place", .what = "buffer " + std::to_string(i) + " " + std::move(what)});
  };
  if (buffer.alignment == 0 || (buffer.alignment & (buffer.alignment - 1)) != 0)
    fail("has an alignment that is no power of two");
  if (buffer.last < buffer.first) fail("ends before it begins");
  if (buffer.alias == AliasKind::kNone) return;
  if (buffer.target >= i) fail("shares memory with a buffer that is not before it");
  const Buffer& target = buffers[buffer.target];
  if (buffer.target_offset > target.bytes || buffer.bytes > target.bytes - buffer.target_offset)
    fail("does not fit into the buffer whose memory it shares");
  if (target.alignment % buffer.alignment != 0 || buffer.target_offset % buffer.alignment != 0)
    fail("asks for more alignment than the buffer whose memory it shares");
}

Items group(std::span<const Buffer> buffers) {
  Items out;
  std::size_t grain = 0;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    verify_buffer(buffers, i);
    const Buffer& buffer = buffers[i];
    if (buffer.alias == AliasKind::kNone) {
      out.item_of.push_back(static_cast<std::uint32_t>(out.items.size()));
      out.offset_in_item.push_back(0);
      out.items.push_back({buffer.bytes, buffer.alignment, buffer.first, buffer.last});
      grain = grain == 0 ? buffer.alignment : std::min(grain, buffer.alignment);
      continue;
    }
    out.item_of.push_back(out.item_of[buffer.target]);
    out.offset_in_item.push_back(out.offset_in_item[buffer.target] + buffer.target_offset);
    Item& item = out.items[out.item_of.back()];
    item.first = std::min(item.first, buffer.first);
    item.last = std::max(item.last, buffer.last);
  }
  out.grain = std::max<std::size_t>(grain, 1);
  for (Item& item : out.items) item.bytes = round_up(item.bytes, out.grain);
  return out;
}

std::vector<std::size_t> live_bytes_of(const std::vector<Item>& items) {
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

// Pairs of items that overlap in time.
std::size_t count_conflicts(const std::vector<Item>& items) {
  std::vector<Item> counted = items;
  for (Item& item : counted) item.bytes = 1;
  const std::vector<std::size_t> alive = live_bytes_of(counted);
  std::vector<std::size_t> begun(alive.size());
  for (const Item& item : items) ++begun[item.first];
  std::size_t pairs = 0;  // sum over all steps: items that begin there, times items that are alive
  for (std::size_t step = 0; step < alive.size(); ++step)
    pairs += begun[step] * (alive[step] - begun[step]) + begun[step] * (begun[step] - 1) / 2;
  return pairs;
}

// Places items in order of their first steps, each into the smallest gap that holds it. When an item ends,
// its bytes become a gap. This costs as much as sorting, so it is used for lists in which comparing every
// pair would take too long.
class Sweep {
 public:
  explicit Sweep(const Items& items) : items_(items.items) {
    for (const Item& item : items_) unit_ = std::max({unit_, item.alignment, items.grain});
  }

  std::vector<std::size_t> run() {
    std::vector<std::uint32_t> order(items_.size());
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [this](std::uint32_t a, std::uint32_t b) { return items_[a].first < items_[b].first; });
    offsets_.assign(items_.size(), 0);
    std::priority_queue<Ending, std::vector<Ending>, std::greater<>> endings;
    for (const std::uint32_t i : order) {
      while (!endings.empty() && endings.top().first < items_[i].first) {
        release(endings.top().second);
        endings.pop();
      }
      if (items_[i].bytes == 0) continue;
      offsets_[i] = take(round_up(items_[i].bytes, unit_));
      endings.emplace(items_[i].last, i);
    }
    return std::move(offsets_);
  }

  [[nodiscard]] std::size_t bytes() const { return top_; }

 private:
  using Ending = std::pair<std::uint32_t, std::uint32_t>;  // last step, item

  std::size_t take(std::size_t bytes) {
    const auto fit = by_size_.lower_bound({bytes, 0});
    if (fit == by_size_.end()) return grow(bytes);
    const auto [size, offset] = *fit;
    drop(offset, size);
    if (size > bytes) add(offset + bytes, size - bytes);
    return offset;
  }

  // Extends the arena. If a gap ends at the top, the new item begins in that gap.
  std::size_t grow(std::size_t bytes) {
    std::size_t offset = top_;
    if (!by_offset_.empty()) {
      const auto [last, size] = *by_offset_.rbegin();
      if (last + size == top_) {
        drop(last, size);
        offset = last;
      }
    }
    top_ = offset + bytes;
    return offset;
  }

  void release(std::uint32_t item) {
    std::size_t offset = offsets_[item], size = round_up(items_[item].bytes, unit_);
    const auto next = by_offset_.find(offset + size);
    if (next != by_offset_.end()) {
      const std::size_t joined = next->second;
      drop(next->first, joined);
      size += joined;
    }
    auto before = by_offset_.lower_bound(offset);
    if (before != by_offset_.begin()) {
      --before;
      const auto [start, length] = *before;
      if (start + length == offset) {
        drop(start, length);
        offset = start;
        size += length;
      }
    }
    add(offset, size);
  }

  void add(std::size_t offset, std::size_t size) {
    by_offset_.emplace(offset, size);
    by_size_.emplace(size, offset);
  }
  void drop(std::size_t offset, std::size_t size) {
    by_offset_.erase(offset);
    by_size_.erase({size, offset});
  }

  const std::vector<Item>& items_;
  std::size_t unit_ = 1, top_ = 0;
  std::vector<std::size_t> offsets_;
  std::map<std::size_t, std::size_t> by_offset_;           // gaps: offset, size
  std::set<std::pair<std::size_t, std::size_t>> by_size_;  // gaps: size, offset
};

// For each item, the list of the items that overlap it in time.
class Conflicts {
 public:
  explicit Conflicts(const std::vector<Item>& items) {
    std::vector<std::uint32_t> order(items.size());
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return items[a].first < items[b].first; });
    lists_.resize(items.size());
    std::vector<std::uint32_t> alive;
    for (const std::uint32_t i : order) {
      std::erase_if(alive, [&](std::uint32_t other) { return items[other].last < items[i].first; });
      for (const std::uint32_t other : alive) {
        lists_[i].push_back(other);
        lists_[other].push_back(i);
      }
      if (items[i].bytes != 0) alive.push_back(i);
    }
  }

  template <class Visit>
  void for_each(std::uint32_t i, Visit&& visit) const {
    for (const std::uint32_t other : lists_[i]) visit(other);
  }

  [[nodiscard]] std::size_t degree(std::uint32_t i) const { return lists_[i].size(); }

 private:
  std::vector<std::vector<std::uint32_t>> lists_;
};

enum class Fit : std::uint8_t { kFirst, kBest };

// Places items one after another, and stores the best arrangement so far.
class Search {
 public:
  Search(const Items& items, std::size_t bound)
      : items_(items.items), grain_(items.grain), bound_(bound), conflicts_(items.items) {}

  [[nodiscard]] bool optimal() const { return best_bytes_ <= bound_; }
  [[nodiscard]] std::size_t best_bytes() const { return best_bytes_; }
  [[nodiscard]] const std::vector<std::size_t>& best() const { return best_; }

  // Places the items in this order. If the arena is no higher than the best one so far, it becomes the best
  // one, and the function returns true.
  bool attempt(const std::vector<std::uint32_t>& order, Fit fit) {
    offsets_.assign(items_.size(), kNoOffset);
    std::size_t top = 0;
    for (const std::uint32_t i : order) {
      offsets_[i] = fitting_offset(i, fit);
      top = std::max(top, offsets_[i] + items_[i].bytes);
      if (top > best_bytes_) return false;
    }
    best_bytes_ = top;
    best_ = offsets_;
    best_order_ = order;
    best_fit_ = fit;
    return true;
  }

  // Moves an item that touches the top to an earlier place in the order and tries again.
  void improve(std::size_t budget) {
    std::mt19937 random(1);  // NOLINT(cert-msc51-cpp): the same plan every time
    work_ = 0;
    while (!optimal() && work_ < budget) {
      std::vector<std::size_t> at_top;
      for (std::size_t place = 1; place < best_order_.size(); ++place)
        if (const std::uint32_t i = best_order_[place]; best_[i] + items_[i].bytes == best_bytes_)
          at_top.push_back(place);
      if (at_top.empty()) return;
      std::vector<std::uint32_t> order = best_order_;
      const std::size_t from = at_top[random() % at_top.size()];
      const std::size_t to = random() % from;
      if (random() % 2 == 0)
        std::swap(order[from], order[to]);
      else
        std::rotate(order.begin() + static_cast<std::ptrdiff_t>(to),
                    order.begin() + static_cast<std::ptrdiff_t>(from),
                    order.begin() + static_cast<std::ptrdiff_t>(from) + 1);
      attempt(order, random() % 4 == 0 ? Fit::kFirst : best_fit_);
      work_ += order.size();
    }
  }

 private:
  std::size_t fitting_offset(std::uint32_t i, Fit fit) {
    taken_.clear();
    conflicts_.for_each(i, [&](std::uint32_t other) {
      if (offsets_[other] != kNoOffset && items_[other].bytes != 0)
        taken_.emplace_back(offsets_[other], offsets_[other] + items_[other].bytes);
    });
    work_ += 1 + conflicts_.degree(i);
    std::sort(taken_.begin(), taken_.end());
    const std::size_t alignment = std::max(items_[i].alignment, grain_);
    std::size_t best = kNoOffset, best_waste = kNoOffset, low = 0;
    for (const auto& [begin, end] : taken_) {
      if (begin >= low + items_[i].bytes) {
        const std::size_t waste = begin - low - items_[i].bytes;
        if (fit == Fit::kFirst) return low;
        if (waste < best_waste) {
          best = low;
          best_waste = waste;
        }
      }
      low = std::max(low, round_up(end, alignment));
    }
    return best != kNoOffset ? best : low;
  }

  const std::vector<Item>& items_;
  std::size_t grain_, bound_;
  Conflicts conflicts_;
  std::vector<std::size_t> offsets_, best_;
  std::vector<std::uint32_t> best_order_;
  Fit best_fit_ = Fit::kFirst;
  std::vector<std::pair<std::size_t, std::size_t>> taken_;
  std::size_t best_bytes_ = kNoOffset;
  std::size_t work_ = 0;
};

// Orders of items that yield small arenas for networks. Four orders have the largest item first, measured by
// bytes; by busiest step, then bytes; by bytes times lifetime; by lifetime, then bytes. Two more orders go
// forwards and backwards in time.
std::vector<std::vector<std::uint32_t>> greedy_orders(const std::vector<Item>& items) {
  const std::vector<std::size_t> live = live_bytes_of(items);
  std::vector<std::size_t> busiest;
  for (const Item& item : items)
    busiest.push_back(*std::max_element(live.begin() + item.first, live.begin() + item.last + 1));
  const auto length = [&](std::uint32_t i) { return items[i].last - items[i].first + std::size_t{1}; };
  std::vector<std::vector<std::uint32_t>> orders;
  const auto sorted = [&](auto&& before) {
    std::vector<std::uint32_t> order(items.size());
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(), before);
    orders.push_back(std::move(order));
  };
  using I = std::uint32_t;
  sorted([&](I a, I b) { return items[a].bytes > items[b].bytes; });
  sorted([&](I a, I b) {
    return std::pair(busiest[a], items[a].bytes) > std::pair(busiest[b], items[b].bytes);
  });
  sorted([&](I a, I b) { return items[a].bytes * length(a) > items[b].bytes * length(b); });
  sorted(
      [&](I a, I b) { return std::pair(length(a), items[a].bytes) > std::pair(length(b), items[b].bytes); });
  sorted([&](I a, I b) { return items[a].first < items[b].first; });
  sorted([&](I a, I b) { return items[a].last > items[b].last; });
  return orders;
}

std::size_t greatest(const std::vector<std::size_t>& list) {
  return list.empty() ? 0 : *std::max_element(list.begin(), list.end());
}

// Search is used up to this number of pairs of items that overlap in time, Sweep beyond it.
constexpr std::size_t kMaxPairs = 2'000'000;

Placement swept(std::span<const Buffer> buffers, const Items& items, Placement out) {
  Sweep sweep(items);
  const std::vector<std::size_t> offsets = sweep.run();
  out.bytes = sweep.bytes();
  for (std::size_t i = 0; i < buffers.size(); ++i)
    out.offsets.push_back(offsets[items.item_of[i]] + items.offset_in_item[i]);
  check(buffers, out);
  return out;
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
  }
  return "";
}

Placement place(std::span<const Buffer> buffers, const PlaceOptions& options) {
  const Items items = group(buffers);
  Placement out;
  out.lower_bound = greatest(live_bytes_of(items.items));
  if (count_conflicts(items.items) > kMaxPairs) return swept(buffers, items, std::move(out));
  Search search(items, out.lower_bound);
  for (const std::vector<std::uint32_t>& order : greedy_orders(items.items))
    for (const Fit fit : {Fit::kFirst, Fit::kBest})
      if (!search.optimal()) search.attempt(order, fit);
  search.improve(options.budget);
  out.bytes = items.items.empty() ? 0 : search.best_bytes();
  for (std::size_t i = 0; i < buffers.size(); ++i)
    out.offsets.push_back(search.best()[items.item_of[i]] + items.offset_in_item[i]);
  check(buffers, out);
  return out;
}

std::vector<std::size_t> live_bytes(std::span<const Buffer> buffers) {
  return live_bytes_of(group(buffers).items);
}

}  // namespace tosaic::memory
