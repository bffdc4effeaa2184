// Copies between two strided views of the same extents: what permute, expand, slice, cat, flip ... all are.
//
//   target[sum i_k * target_stride_k] = source[sum i_k * source_stride_k]
//
// Axes are dropped and merged where possible. Then the innermost loop is a memcpy (both sides contiguous), a
// fill (the source stands still), a tiled transposition (the unit strides lie on different axes), or a
// strided loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tosaic/kernels/transpose_block.h"

namespace tosaic::kernels {

class StridedCopy {
 public:
  // Extents and strides in elements, outermost first; strides may be 0 (source) or negative.
  StridedCopy(std::size_t element_bytes, std::vector<std::int64_t> extents,
              std::vector<std::int64_t> source_strides, std::vector<std::int64_t> target_strides,
              const Options& options);
  // `source_offset`, `target_offset` in elements.
  void run(const std::byte* source, std::byte* target) const;

  std::int64_t source_offset = 0;
  std::int64_t target_offset = 0;

 private:
  struct Axis {
    std::int64_t extent = 1, source = 0, target = 0;
  };
  enum class Inner : std::uint8_t { kCopy, kFill, kTranspose, kLoop };

  void merge_axes();
  void choose_inner(const Options& options);
  void run_inner(const std::byte* source, std::byte* target) const;

  std::int64_t bytes_;
  std::vector<Axis> axes_;  // outer axes; the innermost one or two are below
  Axis row_, column_;       // kTranspose: `row_` has the target's unit stride, `column_` the source's
  Inner inner_ = Inner::kCopy;
  bool empty_ = false;
  TransposeBlock transpose_ = nullptr;
};

}  // namespace tosaic::kernels
