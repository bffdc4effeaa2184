// StridedCopy: copies one strided view to another of the same extents. Most data movement (permute, expand,
// slice, cat, flip, ...) is such a copy.
//
//   target[sum i_k * target_stride_k] = source[sum i_k * source_stride_k]
//
// Axes of extent 1 are dropped, and adjacent axes are merged if possible. Then the innermost loop is a memcpy
// (both sides contiguous), a fill (source stride 0), a tiled transposition (source and target have stride 1
// on different axes), or a strided loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tosaic/kernels/parallel.h"
#include "tosaic/kernels/transpose_block.h"

namespace tosaic::kernels {

class StridedCopy {
 public:
  // Extents and strides in elements, outermost axis first. Strides may be negative, source strides also 0.
  StridedCopy(std::size_t element_bytes, std::vector<std::int64_t> extents,
              std::vector<std::int64_t> source_strides, std::vector<std::int64_t> target_strides,
              const Options& options);
  // `source_offset` and `target_offset` (in elements) are added to the pointers. Threads share the outer
  // loops and, if these are short, the inner one.
  void run(const std::byte* source, std::byte* target, Team* team) const;

  std::int64_t source_offset = 0;
  std::int64_t target_offset = 0;

 private:
  struct Axis {
    std::int64_t extent = 1, source = 0, target = 0;
  };
  enum class Inner : std::uint8_t { kCopy, kFill, kTranspose, kLoop };

  void merge_axes();
  void choose_inner(const Options& options);
  // Runs the units [begin, end). Each step of the outer loops consists of `pieces_` units: the inner loop,
  // cut along shared_axis().
  void run_units(const std::byte* source, std::byte* target, std::int64_t begin, std::int64_t end) const;
  // The axis along which the inner loop is cut. For a transposition it is column_ if that is long enough (a
  // piece is whole rows of the target, and no two threads write one cache line), else row_.
  [[nodiscard]] const Axis& shared_axis() const;
  // Runs the inner loop for the part [begin, end) of shared_axis().
  void run_inner(const std::byte* source, std::byte* target, std::int64_t begin, std::int64_t end) const;

  std::int64_t bytes_;
  std::vector<Axis> axes_;  // the outer loops; row_ is the inner one, with column_ for kTranspose
  Axis row_, column_;       // kTranspose: the target has stride 1 on row_, the source on column_
  Inner inner_ = Inner::kCopy;
  std::int64_t outer_count_ = 1, pieces_ = 1, piece_ = 1;  // a piece has `piece_` elements of the shared axis
  bool empty_ = false;
  TransposeBlock transpose_ = nullptr;
};

}  // namespace tosaic::kernels
