// failures: which parts of a search failed before. Whether the remaining items can be placed depends only on
// their lowest offsets, not on the order in which the others were placed, so each set of remaining items and
// lowest offsets is searched only once.
//
// A key has 128 bits, so two different sets will practically never have the same key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_set>

namespace tosaic::memory {

// The exclusive or of a number for each unplaced item and its lowest offset.
struct SearchKey {
  std::uint64_t low = 0, high = 0;

  static SearchKey of(std::uint32_t item, std::size_t lowest) {
    const std::uint64_t low = mixed(lowest * 0x9e3779b97f4a7c15u + item);
    return {low, mixed(low ^ std::uint64_t{item} << 32)};
  }
  SearchKey& operator^=(const SearchKey& other) {
    low ^= other.low;
    high ^= other.high;
    return *this;
  }
  bool operator==(const SearchKey&) const = default;

 private:
  // The finalizer of the generator splitmix64: every bit of the result depends on every bit of the argument.
  static constexpr std::uint64_t mixed(std::uint64_t bits) {
    bits += 0x9e3779b97f4a7c15u;
    bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ bits >> 27) * 0x94d049bb133111ebu;
    return bits ^ bits >> 31;
  }
};

class Failures {
 public:
  void clear() { keys_.clear(); }
  void add(const SearchKey& key) {
    if (keys_.size() < kMost) keys_.insert(key);
  }
  [[nodiscard]] bool contains(const SearchKey& key) const { return keys_.contains(key); }

 private:
  struct Hash {
    std::size_t operator()(const SearchKey& key) const { return static_cast<std::size_t>(key.low); }
  };
  static constexpr std::size_t kMost = std::size_t{1} << 20;

  std::unordered_set<SearchKey, Hash> keys_;
};

}  // namespace tosaic::memory
