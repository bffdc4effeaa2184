// Odometer over the offsets of a strided index space, in row-major order.
#pragma once

#include <cstdint>

#include "tosaic/ir/dims.h"

namespace tosaic::kernels {

class Walk {
 public:
  Walk(const Dims& extents, const Dims& strides)
      : extents_(extents), strides_(strides), at_(Dims::filled(extents.size(), 0)) {}
  [[nodiscard]] std::int64_t offset() const { return offset_; }
  // To the next index; false after the last one, where the walk stands at its start again.
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
