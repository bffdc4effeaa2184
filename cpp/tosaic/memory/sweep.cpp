#include "tosaic/memory/sweep.h"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <set>

namespace tosaic::memory {
namespace {

class Sweep {
 public:
  explicit Sweep(const Items& items) : items_(items.items) {
    for (const Item& item : items_) unit_ = std::max({unit_, item.alignment, items.grain});
  }

  std::vector<std::size_t> run() {
    offsets_.assign(items_.size(), 0);
    std::priority_queue<Ending, std::vector<Ending>, std::greater<>> endings;
    for (const std::uint32_t i : in_time(items_)) {
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

}  // namespace

Arrangement sweep(const Items& items) {
  Sweep sweep(items);
  std::vector<std::size_t> offsets = sweep.run();
  return {std::move(offsets), sweep.bytes()};
}

}  // namespace tosaic::memory
