// heights: which heights above a floor items reach when they are stacked on some of the other items.
//
//   items of 2, 3 and 6 units, 1 unit of waste:    sums    0 2 3 5 6 8 9 11     (bits of a number)
//                                                  reached 0 1 2 3 4 5 6 ...
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tosaic::memory {

class Heights {
 public:
  // Heights up to `most` units; without items, only 0 is reached.
  void start(std::size_t most) {
    most_ = most;
    bits_.assign(most / 64 + 1, 0);
    bits_[0] = 1;
  }
  // Adds the heights that are reached with one more item, or with one more piece of waste.
  void add(std::size_t units) {
    const std::size_t words = units / 64, bits = units % 64;
    for (std::size_t w = bits_.size(); w-- > words;) {
      std::uint64_t moved = bits_[w - words] << bits;
      if (bits != 0 && w > words) moved |= bits_[w - words - 1] >> (64 - bits);
      bits_[w] |= moved;
    }
  }
  // Adds the heights that are reached with any waste up to this one.
  void add_waste(std::size_t units) {
    for (std::size_t piece = 1; units != 0; piece *= 2) {
      piece = std::min(piece, units);
      add(piece);
      units -= piece;
    }
  }
  // The least height that is reached and not below `units`; above the greatest height if there is none.
  [[nodiscard]] std::size_t next(std::size_t units) const {
    std::size_t w = units / 64;
    std::uint64_t bits = bits_[w] & (~std::uint64_t{0} << (units % 64));
    while (bits == 0 && ++w < bits_.size()) bits = bits_[w];
    return bits == 0 ? most_ + 1 : 64 * w + static_cast<std::size_t>(std::countr_zero(bits));
  }
  [[nodiscard]] std::size_t words() const { return bits_.size(); }

 private:
  std::size_t most_ = 0;
  std::vector<std::uint64_t> bits_;
};

}  // namespace tosaic::memory
