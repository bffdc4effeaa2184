// id_set: a set of small numbers that may hold almost all of the low ones.
//
//   {0 ... 127, 130}   full words 2, then the words 0b100        64 numbers to a word
//
// In compat mode (compat.h) numbers stand for partitions, and a partition mostly holds all that are older. Only
// living numbers matter: the set may answer anything for a number that has died, and `trim` makes use of that.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tosaic::partition {

class IdSet {
 public:
  // The members among the numbers 64 * at ... 64 * at + 63, as bits.
  [[nodiscard]] std::uint64_t word(std::size_t at) const {
    if (at < full_) return ~std::uint64_t{0};
    return at - full_ < words_.size() ? words_[at - full_] : 0;
  }
  [[nodiscard]] bool has(std::uint32_t id) const { return (word(id / 64) >> (id % 64) & 1) != 0; }
  // All numbers below 64 * full_words() are members.
  [[nodiscard]] std::size_t full_words() const { return full_; }
  [[nodiscard]] std::size_t end_word() const { return full_ + words_.size(); }

  void add(std::uint32_t id) {
    const std::size_t at = id / 64;
    if (at < full_) return;
    if (at >= end_word()) words_.resize(at - full_ + 1, 0);
    words_[at - full_] |= std::uint64_t{1} << (id % 64);
  }

  void remove(std::uint32_t id) {
    const std::size_t at = id / 64;
    if (at < full_) {
      words_.insert(words_.begin(), full_ - at, ~std::uint64_t{0});
      full_ = at;
    }
    if (at < end_word()) words_[at - full_] &= ~(std::uint64_t{1} << (id % 64));
  }

  void unite(const IdSet& other) {
    if (other.full_ > full_) {
      words_.erase(words_.begin(), words_.begin() + offset(std::min(other.full_ - full_, words_.size())));
      full_ = other.full_;
    }
    if (other.end_word() > end_word()) words_.resize(other.end_word() - full_, 0);
    for (std::size_t at = full_; at < other.end_word(); ++at)
      words_[at - full_] |= other.words_[at - other.full_];
  }

  // Shortens the set, given the living numbers as bits. The numbers below 64 * words are all that there will be:
  // those that do not live now will not live later.
  void trim(const std::vector<std::uint64_t>& living, std::size_t words) {
    std::size_t drop = 0;
    while (drop < words_.size() && full_ + drop < words && (living[full_ + drop] & ~words_[drop]) == 0)
      ++drop;
    words_.erase(words_.begin(), words_.begin() + offset(drop));
    full_ += drop;
  }

  void clear() {
    full_ = 0;
    words_.clear();
  }

 private:
  static std::ptrdiff_t offset(std::size_t count) { return static_cast<std::ptrdiff_t>(count); }

  std::size_t full_ = 0;              // words of which all numbers are members
  std::vector<std::uint64_t> words_;  // the words after these
};

}  // namespace tosaic::partition
