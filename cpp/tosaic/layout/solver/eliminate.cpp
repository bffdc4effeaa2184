#include "tosaic/layout/solver/eliminate.h"

#include <algorithm>
#include <functional>

namespace tosaic::layout {
namespace {

// look_at() visits all factors of a variable. So a variable with more factors than kMany is looked at again
// only after a quarter of its factors is gone.
constexpr std::uint32_t kMany = 64;

class Eliminator {
 public:
  Eliminator(Factors& factors, const EliminateLimits& limits)
      : factors_(factors),
        limits_(limits),
        key_(factors.variables(), kNoKey),
        seen_degree_(factors.variables(), 0),
        slot_(factors.variables(), kFree) {}

  std::vector<VariableId> run(std::span<const VariableId> from) {
    queue_.reserve(from.size());
    for (const VariableId v : from) look_at(v);
    std::make_heap(queue_.begin(), queue_.end(), std::greater<>());
    is_heap_ = true;
    while (!queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end(), std::greater<>());
      const auto key = static_cast<Key>(queue_.back() >> 32);
      const auto v = static_cast<VariableId>(queue_.back());
      queue_.pop_back();
      if (factors_.gone(v) || key_[v] != key || factors_.degree(v) == 0) continue;
      const Key now = key_of(v);
      if (now > key) {
        push(v, now);
      } else if (now < kUnfit) {
        factors_.for_each_of(v, [this](std::uint32_t f) { return group_.push_back(f), true; });
        minimise(v);
      } else if (limits_.split) {
        minimise_in_parts(v);
      } else {
        key_[v] = kNoKey;
      }
    }
    return std::move(split_);
  }

 private:
  using Key = std::uint32_t;
  static constexpr Key kUnfit = Key{1} << 30;
  static constexpr Key kNoKey = ~Key{0};
  static constexpr std::uint32_t kFree = 0xffffffffu;

  void push(VariableId v, Key key) {
    if (key == key_[v]) return;
    key_[v] = key;
    queue_.push_back(std::uint64_t{key} << 32 | v);
    if (is_heap_) std::push_heap(queue_.begin(), queue_.end(), std::greater<>());
  }
  void look_at(VariableId v) {
    const std::uint32_t degree = factors_.degree(v);
    if (factors_.gone(v) || degree == 0) return;
    if (seen_degree_[v] > kMany && degree > kMany && degree > seen_degree_[v] / 4 * 3) return;
    seen_degree_[v] = degree;
    push(v, key_of(v));
  }

  // Adds the scope of a factor to neighbours_. Returns false if that exceeds a limit.
  bool include(VariableId v, std::uint32_t factor) {
    for (const VariableId u : factors_.scope(factor)) {
      if (u == v || slot_[u] != kFree) continue;
      entries_ *= factors_.states(u);
      if (neighbours_.size() == limits_.neighbours || entries_ > limits_.entries) return false;
      slot_[u] = static_cast<std::uint32_t>(neighbours_.size());
      neighbours_.push_back(u);
    }
    return true;
  }
  void clear_neighbours(VariableId v) {
    for (const VariableId u : neighbours_) slot_[u] = kFree;
    neighbours_.clear();
    entries_ = factors_.states(v);
  }

  // The priority of v; the least is eliminated first. It is the number of entries of the table that v would
  // leave behind. If v is not within the limits, it is a number of at least kUnfit that grows with the degree
  // of v.
  Key key_of(VariableId v) {
    clear_neighbours(v);
    bool fits = true;
    factors_.for_each_of(v, [&](std::uint32_t f) { return fits = include(v, f); });
    const std::size_t entries = std::min<std::size_t>(entries_ / factors_.states(v), kUnfit - 1);
    const Key key = fits ? static_cast<Key>(entries) : kUnfit + std::min(factors_.degree(v), kUnfit);
    clear_neighbours(v);
    return key;
  }

  // Minimises v once per group of its factors. Each group collects, in order, the remaining factors that fit
  // into one table, and at least one of them.
  void minimise_in_parts(VariableId v) {
    split_.push_back(v);
    std::vector<std::uint32_t> waiting, later;
    factors_.for_each_of(v, [&](std::uint32_t f) { return waiting.push_back(f), true; });
    while (!waiting.empty()) {
      clear_neighbours(v);
      later.clear();
      for (const std::uint32_t f : waiting) {
        const std::size_t entries = entries_, count = neighbours_.size();
        if (include(v, f) || group_.empty()) {
          group_.push_back(f);
          continue;
        }
        while (neighbours_.size() > count) {
          slot_[neighbours_.back()] = kFree;
          neighbours_.pop_back();
        }
        entries_ = entries;
        later.push_back(f);
      }
      clear_neighbours(v);
      minimise(v);
      waiting.swap(later);
    }
  }

  // Replaces the factors of group_ by their minimum over v. The unary costs of v are added the first time
  // only.
  void minimise(VariableId v) {
    for (const std::uint32_t f : group_)
      for (const VariableId u : factors_.scope(f))
        if (u != v && slot_[u] == kFree) {
          slot_[u] = 0;
          neighbours_.push_back(u);
        }
    std::sort(neighbours_.begin(), neighbours_.end());
    for (std::size_t i = 0; i < neighbours_.size(); ++i)
      slot_[neighbours_[i]] = static_cast<std::uint32_t>(i);
    sum_up(v);
    const std::size_t states = factors_.states(v), entries = sum_.size() / states;
    for (std::size_t i = 0; i < entries; ++i)
      sum_[i] = *std::min_element(sum_.begin() + static_cast<std::ptrdiff_t>(i * states),
                                  sum_.begin() + static_cast<std::ptrdiff_t>((i + 1) * states));
    scope_ = neighbours_;
    clear_neighbours(v);
    factors_.minimised(v, group_, scope_, std::span(sum_).first(entries));
    group_.clear();
    for (const VariableId u : scope_) look_at(u);
  }

  // Sets sum_ to the sum of the factors of group_. sum_ is a table of costs over the states of neighbours_
  // (in this order) and of v; the state of v varies fastest.
  void sum_up(VariableId v) {
    const std::size_t states = factors_.states(v);
    std::size_t entries = states;
    for (const VariableId u : neighbours_) entries *= factors_.states(u);
    sum_.assign(entries, 0);
    if (!factors_.gone(v)) {
      const std::span<const Cost> costs = factors_.unary(v);
      for (std::size_t i = 0; i < entries; ++i) sum_[i] = costs[i % states];
    }
    for (const std::uint32_t f : group_) add_factor(v, f);
  }

  void add_factor(VariableId v, std::uint32_t f) {
    const std::size_t dims = neighbours_.size(), states = factors_.states(v);
    stride_.assign(dims, 0);
    digit_.assign(dims, 0);
    std::size_t stride = 1, stride_v = 0;
    const std::span<const VariableId> scope = factors_.scope(f);
    for (std::size_t i = scope.size(); i-- > 0; stride *= factors_.states(scope[i]))
      (scope[i] == v ? stride_v : stride_[slot_[scope[i]]]) = stride;
    const Cost* table = factors_.table(f);
    for (std::size_t out = 0, at = 0; out < sum_.size();) {
      for (std::size_t s = 0; s < states; ++s) sum_[out++] += table[at + s * stride_v];
      for (std::size_t d = dims; d-- > 0;) {
        at += stride_[d];
        if (++digit_[d] < factors_.states(neighbours_[d])) break;
        at -= stride_[d] * digit_[d];
        digit_[d] = 0;
      }
    }
  }

  Factors& factors_;
  const EliminateLimits& limits_;
  std::vector<std::uint64_t> queue_;  // key (upper half) and variable; once it is a heap, the least is first
  bool is_heap_ = false;
  std::vector<Key> key_;                    // by variable: the key of its valid queue entry
  std::vector<std::uint32_t> seen_degree_;  // by variable: its degree at the last look_at
  std::vector<std::uint32_t> slot_;         // by variable: its index in neighbours_, or kFree
  std::vector<VariableId> neighbours_, scope_, split_;
  std::size_t entries_ = 1;  // the number of entries of a table over v and neighbours_
  std::vector<std::uint32_t> group_;
  std::vector<Cost> sum_;
  std::vector<std::size_t> stride_;
  std::vector<std::uint32_t> digit_;
};

}  // namespace

std::vector<VariableId> eliminate(Factors& factors, std::span<const VariableId> from,
                                  const EliminateLimits& limits) {
  return Eliminator(factors, limits).run(from);
}

}  // namespace tosaic::layout
