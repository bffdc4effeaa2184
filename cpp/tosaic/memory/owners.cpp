#include "tosaic/memory/owners.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

namespace tosaic::memory {
namespace {

constexpr std::uint32_t kNobody = 0xffffffff;

// The thread that wrote each byte of the arena last.
class Owners {
 public:
  explicit Owners(std::uint32_t threads) : threads_(threads) { last_writers_.emplace(0, kNobody); }

  // The threads write their parts of `bytes` bytes.
  void write(std::size_t offset, std::size_t bytes) {
    for_each_part(offset, bytes, [&](std::size_t begin, std::size_t end, std::uint32_t thread) {
      cut(begin);
      cut(end);
      const auto first = last_writers_.find(begin);
      first->second = thread;
      last_writers_.erase(std::next(first), last_writers_.find(end));
    });
  }

  // The number of these bytes that another thread wrote last.
  [[nodiscard]] std::size_t changes(std::size_t offset, std::size_t bytes) const {
    std::size_t out = 0;
    for_each_part(offset, bytes, [&](std::size_t begin, std::size_t end, std::uint32_t thread) {
      for (auto at = std::prev(last_writers_.upper_bound(begin));
           at != last_writers_.end() && at->first < end; ++at) {
        const auto next = std::next(at);
        const std::size_t until = next == last_writers_.end() ? end : std::min(end, next->first);
        if (at->second != thread && at->second != kNobody) out += until - std::max(begin, at->first);
      }
    });
    return out;
  }

  // Calls visit(offset) for offsets of a result at which a thread's part begins at bytes of this thread.
  template <class F>
  void for_each_fit(std::size_t bytes, F&& visit) const {
    for (const auto& [begin, thread] : last_writers_)
      if (thread != kNobody && thread != 0)
        if (const std::size_t before = bytes * thread / threads_; before <= begin) visit(begin - before);
  }

 private:
  template <class F>
  void for_each_part(std::size_t offset, std::size_t bytes, F&& visit) const {
    for (std::uint32_t thread = 0; thread < threads_; ++thread)
      if (const std::size_t begin = bytes * thread / threads_, end = bytes * (thread + 1) / threads_;
          begin < end)
        visit(offset + begin, offset + end, thread);
  }

  // Splits the entry that contains this byte, so that an entry begins at it.
  void cut(std::size_t at) {
    const auto next = last_writers_.upper_bound(at);
    last_writers_.emplace_hint(next, at, std::prev(next)->second);
  }

  std::uint32_t threads_;
  std::map<std::size_t, std::uint32_t> last_writers_;  // of the bytes from each key to the next key
};

// Moves items, one after another in time.
class Mover {
 public:
  Mover(const Items& items, const Arrangement& from, std::uint32_t threads)
      : items_(items.items), grain_(items.grain), from_(from), owners_(threads) {}

  // Moves the items all of whose steps have fewer live bytes than `least_fixed`. Returns nothing if one of
  // them finds no place.
  std::optional<Arrangement> move(std::size_t least_fixed) {
    const std::vector<std::size_t> busiest = busiest_of(items_);
    Arrangement out = from_;
    for (std::uint32_t i = 0; i < items_.size(); ++i)
      if (busiest[i] >= least_fixed) placed_.push_back(i);
    for (const std::uint32_t i : in_time(items_)) {
      if (busiest[i] < least_fixed) {
        const std::optional<std::size_t> offset = best_offset(items_[i], out.offsets);
        if (!offset) return std::nullopt;
        out.offsets[i] = *offset;
        placed_.push_back(i);
      }
      owners_.write(out.offsets[i], items_[i].bytes);
    }
    return out;
  }

 private:
  using Range = std::pair<std::size_t, std::size_t>;

  // The offsets that the item may have, as ranges that include both ends.
  [[nodiscard]] std::vector<Range> free_offsets(const Item& item,
                                                const std::vector<std::size_t>& offsets) const {
    std::vector<Range> taken;
    for (const std::uint32_t other : placed_)
      if (items_[other].first <= item.last && item.first <= items_[other].last && items_[other].bytes != 0)
        taken.emplace_back(offsets[other], offsets[other] + items_[other].bytes);
    std::sort(taken.begin(), taken.end());
    taken.emplace_back(from_.bytes, from_.bytes);
    std::vector<Range> out;
    std::size_t low = 0;
    for (const auto& [begin, end] : taken) {
      if (const std::size_t first = round_up(low, alignment(item)); begin >= first + item.bytes)
        out.emplace_back(first, begin - item.bytes);
      low = std::max(low, end);
    }
    return out;
  }

  [[nodiscard]] std::size_t alignment(const Item& item) const { return std::max(item.alignment, grain_); }

  [[nodiscard]] std::optional<std::size_t> best_offset(const Item& item,
                                                       const std::vector<std::size_t>& offsets) const {
    std::optional<std::size_t> best;
    std::size_t least = std::numeric_limits<std::size_t>::max();
    const std::vector<Range> free = free_offsets(item, offsets);
    const auto consider = [&](std::size_t offset) {
      offset = offset / alignment(item) * alignment(item);
      const bool is_free = std::any_of(free.begin(), free.end(), [&](const Range& range) {
        return offset >= range.first && offset <= range.second;
      });
      if (!is_free) return;
      if (const std::size_t changes = owners_.changes(offset, item.bytes); changes < least) {
        least = changes;
        best = offset;
      }
    };
    for (const Range& range : free) consider(range.first);
    owners_.for_each_fit(item.bytes, consider);
    return best;
  }

  const std::vector<Item>& items_;
  std::size_t grain_;
  const Arrangement& from_;
  Owners owners_;
  std::vector<std::uint32_t> placed_;  // items whose offset is known
};

}  // namespace

std::size_t bytes_that_change_hands(const std::vector<Item>& items, const std::vector<std::size_t>& offsets,
                                    std::uint32_t threads) {
  Owners owners(threads);
  std::size_t changes = 0;
  for (int run = 0; run < 2; ++run) {
    changes = 0;
    for (const std::uint32_t i : in_time(items)) {
      changes += owners.changes(offsets[i], items[i].bytes);
      owners.write(offsets[i], items[i].bytes);
    }
  }
  return changes;
}

Arrangement keep_owners(const Items& items, const Arrangement& arrangement, std::uint32_t threads) {
  Arrangement best = arrangement;
  std::size_t least = bytes_that_change_hands(items.items, best.offsets, threads);
  // Items of full steps do not move, since there is little room. Which steps count as full depends on the
  // network, so several limits are tried.
  for (const std::size_t divisor : {1, 2, 4}) {
    const std::optional<Arrangement> moved =
        Mover(items, arrangement, threads).move(arrangement.bytes / divisor);
    if (!moved) continue;
    const std::size_t changes = bytes_that_change_hands(items.items, moved->offsets, threads);
    if (changes >= least) continue;
    least = changes;
    best = *moved;
  }
  return best;
}

}  // namespace tosaic::memory
