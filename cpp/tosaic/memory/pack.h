// pack: decides whether items fit into an arena of a given size.
//
//   bytes                      Items are placed from the bottom up. `release` of an item is the lowest
//    ^                         offset it can have above the placed items that live with it. A clique's
//    |      +----+             floor is the least release of its items. Where the floor is lower than on
//    | +--+ | b  |  floor      both sides, there is a valley; an item of the least release in a valley lies
//    | |a |_|    |___          within the valley. In one clique of the valley, either such an item is
//    +-+--+------+--->         placed on the floor, or nothing is, and the floor of this clique rises.
//            cliques           These are all the branches.
//
// A branch is cut if some clique cannot hold its items any more: stacked in order of their releases, they end
// above the arena. The search takes the valley and clique with the fewest branches, of these the one where
// most branches were cut. Where no item connects two ranges of cliques, the ranges are searched one after the
// other: if one of them fails, no other arrangement of the ranges before it is tried.
//
// Among equal items, the one with the least number is placed first. A part that failed once is not searched
// again (failures.h). Where little may be wasted, the offset of an item is nearly a sum of sizes (heights.h).
//
// If the items do not fit, the search returns the least arena size at which one of its cuts would not have
// been made: no smaller arena holds the items.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "tosaic/memory/effort.h"
#include "tosaic/memory/items.h"

namespace tosaic::memory {

struct PackResult {
  std::vector<std::size_t> offsets;  // one per item, if the items fit
  std::size_t needed = 0;            // if they do not fit: the least size that is not excluded
  [[nodiscard]] bool fits() const { return !offsets.empty(); }
};

class Packer {
 public:
  explicit Packer(const Items& items);
  ~Packer();
  Packer(Packer&&) noexcept;
  Packer& operator=(Packer&&) noexcept;

  // Returns nothing if the effort does not suffice.
  [[nodiscard]] std::optional<PackResult> pack(std::size_t capacity, Effort& effort);

 private:
  class Search;
  std::unique_ptr<Search> search_;
};

}  // namespace tosaic::memory
