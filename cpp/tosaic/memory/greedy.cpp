#include "tosaic/memory/greedy.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

namespace tosaic::memory {
namespace {

constexpr std::size_t kNoOffset = std::numeric_limits<std::size_t>::max();

// For each item, the list of the items that overlap it in time.
class Conflicts {
 public:
  explicit Conflicts(const std::vector<Item>& items) {
    lists_.resize(items.size());
    std::vector<std::uint32_t> alive;
    for (const std::uint32_t i : in_time(items)) {
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
  explicit Search(const Items& items) : items_(items.items), grain_(items.grain), conflicts_(items.items) {}

  [[nodiscard]] const Arrangement& best() const { return best_; }

  // Places the items in this order. If the arena is no higher than the best one so far, it becomes the best
  // one, and the function returns true.
  bool attempt(const std::vector<std::uint32_t>& order, Fit fit) {
    offsets_.assign(items_.size(), kNoOffset);
    std::size_t top = 0;
    for (const std::uint32_t i : order) {
      offsets_[i] = fitting_offset(i, fit);
      top = std::max(top, offsets_[i] + items_[i].bytes);
      if (top > best_.bytes) return false;
    }
    best_ = {offsets_, top};
    best_order_ = order;
    best_fit_ = fit;
    return true;
  }

  // Moves an item that touches the top to an earlier place in the order and tries again.
  void improve(std::size_t enough, Effort& effort) {
    std::mt19937 random(1);  // NOLINT(cert-msc51-cpp): the same plan every time
    while (best_.bytes > enough) {
      std::vector<std::size_t> at_top;
      for (std::size_t place = 1; place < best_order_.size(); ++place)
        if (const std::uint32_t i = best_order_[place]; best_.offsets[i] + items_[i].bytes == best_.bytes)
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
      work_ = 0;
      attempt(order, random() % 4 == 0 ? Fit::kFirst : best_fit_);
      if (!effort.spend(kUnits * (work_ + order.size()))) return;
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

  static constexpr std::size_t kUnits = 10;  // work units of one comparison

  const std::vector<Item>& items_;
  std::size_t grain_;
  Conflicts conflicts_;
  std::vector<std::size_t> offsets_;
  Arrangement best_{{}, kNoOffset};
  std::vector<std::uint32_t> best_order_;
  Fit best_fit_ = Fit::kFirst;
  std::vector<std::pair<std::size_t, std::size_t>> taken_;
  std::size_t work_ = 0;
};

// Orders of items that yield small arenas for networks. Four orders have the largest item first, measured by
// bytes; by busiest step, then bytes; by bytes times lifetime; by lifetime, then bytes. Two more orders go
// forwards and backwards in time.
std::vector<std::vector<std::uint32_t>> greedy_orders(const std::vector<Item>& items) {
  const std::vector<std::size_t> busiest = busiest_of(items);
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
  orders.push_back(in_time(items));
  sorted([&](I a, I b) { return items[a].last > items[b].last; });
  return orders;
}

}  // namespace

Arrangement place_in_orders(const Items& items, std::size_t enough) {
  if (items.items.empty()) return {};
  Search search(items);
  for (const std::vector<std::uint32_t>& order : greedy_orders(items.items))
    for (const Fit fit : {Fit::kFirst, Fit::kBest})
      if (search.best().bytes > enough) search.attempt(order, fit);
  return search.best();
}

// Placing items in the order of their offsets, each at its lowest free offset, raises none of them.
void improve(const Items& items, Arrangement& best, std::size_t enough, Effort& effort) {
  std::vector<std::uint32_t> order(items.items.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return best.offsets[a] < best.offsets[b]; });
  Search search(items);
  search.attempt(order, Fit::kFirst);
  search.improve(enough, effort);
  best = search.best();
}

}  // namespace tosaic::memory
