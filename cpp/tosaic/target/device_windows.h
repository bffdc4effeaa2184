// device_windows: the largest windows that operators of TOSA may have on every device that tosaic knows.
//
// A form that is chosen for a plain TOSA target stays within them. The limits are those of Ethos-U55, whose
// record (claimant/devices/ethos_u.cpp) refers to them.
#pragma once

#include <cstdint>

namespace tosaic::target {

struct WindowLimits {
  std::int64_t height = 0, product = 0;  // of the kernel; the product is height times width
  std::int64_t batch = INT64_MAX;

  [[nodiscard]] constexpr bool take(std::int64_t rows, std::int64_t columns, std::int64_t images = 1) const {
    return rows <= height && rows * columns <= product && images <= batch;
  }
};

inline constexpr WindowLimits kConvolutionWindows{.height = 64, .product = 4096};
inline constexpr WindowLimits kMaxPoolWindows{.height = 256, .product = 65536};
inline constexpr WindowLimits kAvgPoolWindows{.height = 256, .product = 65536, .batch = 1};

}  // namespace tosaic::target
