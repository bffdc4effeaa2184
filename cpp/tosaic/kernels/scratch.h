// scratch: the scratch memory of a kernel. ScratchPlan assigns offsets at prepare time, and piece() finds the
// memory at run time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tosaic::kernels {

class ScratchPlan {
 public:
  // Reserves memory for `count` elements of T. Returns its offset, a multiple of 64 bytes.
  template <class T>
  std::size_t take(std::int64_t count) {
    const std::size_t offset = bytes_;
    bytes_ += (static_cast<std::size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return offset;
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

template <class T>
[[nodiscard]] T* piece(std::byte* scratch, std::size_t offset) {
  return reinterpret_cast<T*>(scratch + offset);
}

}  // namespace tosaic::kernels
