// large_pages: memory in large pages, for arrays that are about to be written, and in small ones, for arrays
// that are written in few places.
//
// The first access to 50 MB in pages of 4 KiB costs as much as copying them, and reading them later takes
// longer, too. But the system clears a whole page when its first byte is written.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

namespace tosaic {

inline constexpr std::size_t kLargePage = std::size_t{2} << 20;

// Affects only large pages that lie completely in the memory. If this advice fails, the program is only
// slower.
inline void advise_large_pages([[maybe_unused]] void* begin, [[maybe_unused]] std::size_t size) {
#if defined(MADV_HUGEPAGE)
  const auto first = reinterpret_cast<std::uintptr_t>(begin);
  const std::uintptr_t low = (first + kLargePage - 1) / kLargePage * kLargePage;
  const std::uintptr_t high = (first + size) / kLargePage * kLargePage;
  if (low < high) madvise(static_cast<std::byte*>(begin) + (low - first), high - low, MADV_HUGEPAGE);
#endif
}

// New memory, which is zero, in pages of the least size whatever the system's default is. `size` is not 0.
[[nodiscard]] inline void* map_small_pages(std::size_t size) {
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
#if defined(MADV_NOHUGEPAGE)
  madvise(memory, size, MADV_NOHUGEPAGE);
#endif
  return memory;
}
inline void unmap_small_pages(void* memory, std::size_t size) { munmap(memory, size); }

template <class T>
struct LargePageAllocator {
  using value_type = T;
  static constexpr std::size_t kLeastBytes = kLargePage;

  LargePageAllocator() = default;
  template <class U>
  explicit(false) LargePageAllocator(const LargePageAllocator<U>&) {}

  [[nodiscard]] static std::align_val_t alignment(std::size_t bytes) {
    return std::align_val_t{bytes >= kLeastBytes ? kLargePage : 64};
  }
  [[nodiscard]] T* allocate(std::size_t count) {
    const std::size_t bytes = count * sizeof(T);
    void* memory = ::operator new(bytes, alignment(bytes));
    if (bytes >= kLeastBytes) advise_large_pages(memory, bytes);
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t count) { ::operator delete(memory, alignment(count * sizeof(T))); }
  // Elements without a value are not initialised.
  template <class U>
  void construct(U* at) {
    ::new (static_cast<void*>(at)) U;
  }
  template <class U, class... Args>
  void construct(U* at, Args&&... args) {
    ::new (static_cast<void*>(at)) U(std::forward<Args>(args)...);
  }
  bool operator==(const LargePageAllocator&) const = default;
};

// An array of large pages, which `LargeArray<T>(n)` does not initialise.
template <class T>
using LargeArray = std::vector<T, LargePageAllocator<T>>;

}  // namespace tosaic
