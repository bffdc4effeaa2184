#include "tosaic/kernels/wide.h"

#include <cstring>

#include "tosaic/ir/storage.h"
#include "tosaic/ir/stored_type.h"

namespace tosaic::kernels {

template <class Wide>
void widen(DType dtype, const std::byte* from, std::int64_t count, std::int64_t zero_point, Wide* to) {
  const auto size = static_cast<std::int64_t>(byte_size(dtype));
  with_stored_type(dtype, [&](auto stored) {
    using Stored = decltype(stored);
    for (std::int64_t i = 0; i < count; ++i) {
      if constexpr (std::is_same_v<Stored, NarrowFloat>) {
        to[i] = static_cast<Wide>(load_element(dtype, from + i * size));
      } else {
        Stored value;
        std::memcpy(&value, from + i * static_cast<std::int64_t>(sizeof value), sizeof value);
        to[i] = static_cast<Wide>(static_cast<Wide>(value) - static_cast<Wide>(zero_point));
      }
    }
  });
}

template <class Wide>
void narrow(const Wide* from, std::int64_t count, DType dtype, std::byte* to) {
  const auto size = static_cast<std::int64_t>(byte_size(dtype));
  if (dtype == DType::kBool) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = std::byte{from[i] != Wide{}};
    return;
  }
  with_stored_type(dtype, [&](auto stored) {
    using Stored = decltype(stored);
    for (std::int64_t i = 0; i < count; ++i) {
      if constexpr (std::is_same_v<Stored, NarrowFloat>) {
        store_element(dtype, to + i * size, static_cast<double>(from[i]));
      } else {
        Stored value;
        if constexpr (std::is_integral_v<Stored>)
          value = static_cast<Stored>(static_cast<std::int64_t>(from[i]));
        else
          value = static_cast<Stored>(from[i]);
        std::memcpy(to + i * static_cast<std::int64_t>(sizeof value), &value, sizeof value);
      }
    }
  });
}

template void widen(DType, const std::byte*, std::int64_t, std::int64_t, double*);
template void widen(DType, const std::byte*, std::int64_t, std::int64_t, float*);
template void widen(DType, const std::byte*, std::int64_t, std::int64_t, std::int64_t*);
template void widen(DType, const std::byte*, std::int64_t, std::int64_t, std::int16_t*);
template void widen(DType, const std::byte*, std::int64_t, std::int64_t, std::uint16_t*);
template void widen(DType, const std::byte*, std::int64_t, std::int64_t, std::uint32_t*);
template void narrow(const double*, std::int64_t, DType, std::byte*);
template void narrow(const float*, std::int64_t, DType, std::byte*);
template void narrow(const std::int64_t*, std::int64_t, DType, std::byte*);
template void narrow(const std::uint32_t*, std::int64_t, DType, std::byte*);

}  // namespace tosaic::kernels
