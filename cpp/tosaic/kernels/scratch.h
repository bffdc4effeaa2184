// scratch: the scratch memory of a kernel. ScratchPlan assigns offsets at prepare time, and piece() finds the
// memory at run time. Memory that each thread needs for itself has a plan of its own:
//
//   ScratchPlan own;                                   what one worker needs
//   const PerWorker each = plan.take_each(own, threads);
//   std::byte* mine = each.of(arrays.scratch, worker);
#pragma once

#include <cstddef>
#include <cstdint>

namespace tosaic::kernels {

class ScratchPlan;

// One piece of scratch memory for each worker.
struct PerWorker {
  std::size_t at = 0, bytes = 0;
  [[nodiscard]] std::byte* of(std::byte* scratch, std::uint32_t worker) const {
    return scratch + at + worker * bytes;
  }
};

class ScratchPlan {
 public:
  // Reserves memory for `count` elements of T. Returns its offset, a multiple of 64 bytes.
  template <class T>
  std::size_t take(std::int64_t count) {
    const std::size_t offset = bytes_;
    bytes_ += (static_cast<std::size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return offset;
  }
  // Reserves what `own` describes, once for each of the workers.
  PerWorker take_each(const ScratchPlan& own, std::uint32_t workers) {
    return {take<std::byte>(static_cast<std::int64_t>(own.bytes_ * workers)), own.bytes_};
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
