// owners: an arrangement for several threads.
//
// Threads compute a result in bands: of n threads, thread i writes the i-th of n equal parts of its bytes. A
// core that writes a line of memory that another core wrote last has to get the line from the cache of that
// core, which takes ten times as long as to write a line of its own. So results should lie where the bytes of
// each part were written by the thread of the part: in the middle of an older result, if there are two
// threads and the new result is smaller.
#pragma once

#include <cstdint>

#include "tosaic/memory/items.h"

namespace tosaic::memory {

// Of the bytes that the items write in a run after the first one, the number that another thread wrote last.
[[nodiscard]] std::size_t bytes_that_change_hands(const std::vector<Item>& items,
                                                  const std::vector<std::size_t>& offsets,
                                                  std::uint32_t threads);

// Moves items of steps with free room, so that fewer bytes change their writers. The arena does not grow.
[[nodiscard]] Arrangement keep_owners(const Items& items, const Arrangement& arrangement,
                                      std::uint32_t threads);

}  // namespace tosaic::memory
