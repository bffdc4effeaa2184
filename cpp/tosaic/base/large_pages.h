// large_pages: asks the system to use large pages for memory that is about to be written.
//
// The first access to 50 MB in pages of 4 KiB costs as much as copying them.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

namespace tosaic {

inline constexpr std::size_t kLargePage = std::size_t{2} << 20;

// Only the large pages that lie in the memory as a whole are concerned. Advice: if it fails, only speed is lost.
inline void advise_large_pages([[maybe_unused]] void* begin, [[maybe_unused]] std::size_t size) {
#if defined(MADV_HUGEPAGE)
  const auto first = reinterpret_cast<std::uintptr_t>(begin);
  const std::uintptr_t low = (first + kLargePage - 1) / kLargePage * kLargePage;
  const std::uintptr_t high = (first + size) / kLargePage * kLargePage;
  if (low < high) madvise(static_cast<std::byte*>(begin) + (low - first), high - low, MADV_HUGEPAGE);
#endif
}

}  // namespace tosaic
