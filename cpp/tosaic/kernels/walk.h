// Walk: visits the offsets of a strided index space in row-major order. Every extent is at least 1. The walk
// refers to its two arguments, which must outlive it.
#pragma once

#include <cstdint>

#include "tosaic/ir/dims.h"

namespace tosaic::kernels {

class Walk {
 public:
  Walk(const Dims& extents, const Dims& strides)
      : extents_(extents), strides_(strides), at_(Dims::filled(extents.size(), 0)) {}
  [[nodiscard]] std::int64_t offset() const { return offset_; }
  // Moves to index number `index`.
  void seek(std::int64_t index) {
    offset_ = 0;
    for (std::size_t i = extents_.size(); i-- > 0; index /= extents_[i]) {
      at_[i] = index % extents_[i];
      offset_ += at_[i] * strides_[i];
    }
  }
  // Moves to the next index. Returns false after the last one; the walk is then at its start again.
  bool next() {
    for (std::size_t i = extents_.size(); i-- > 0;) {
      offset_ += strides_[i];
      if (++at_[i] < extents_[i]) return true;
      offset_ -= extents_[i] * strides_[i];
      at_[i] = 0;
    }
    return false;
  }

 private:
  const Dims& extents_;
  const Dims& strides_;
  Dims at_;
  std::int64_t offset_ = 0;
};

}  // namespace tosaic::kernels
