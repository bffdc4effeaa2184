#include "tosaic/kernels/wide.h"

#include <cstring>

#include "tosaic/ir/storage.h"

namespace tosaic::kernels {
namespace {

template <class Stored, class Wide>
void widen_as(const std::byte* from, std::int64_t count, std::int64_t zero_point, Wide* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    Stored value;
    std::memcpy(&value, from + i * static_cast<std::int64_t>(sizeof value), sizeof value);
    to[i] = static_cast<Wide>(static_cast<Wide>(value) - static_cast<Wide>(zero_point));
  }
}

template <class Stored, class Wide>
void narrow_as(const Wide* from, std::int64_t count, std::byte* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    Stored value;
    if constexpr (std::is_integral_v<Stored>)
      value = static_cast<Stored>(static_cast<std::int64_t>(from[i]));
    else
      value = static_cast<Stored>(from[i]);
    std::memcpy(to + i * static_cast<std::int64_t>(sizeof value), &value, sizeof value);
  }
}

template <class Wide>
void widen_any(DType dtype, const std::byte* from, std::int64_t count, std::int64_t zero_point, Wide* to) {
  switch (dtype) {
    case DType::kBool:
    case DType::kU8:
      return widen_as<std::uint8_t>(from, count, zero_point, to);
    case DType::kI4:
    case DType::kI8:
      return widen_as<std::int8_t>(from, count, zero_point, to);
    case DType::kI16:
      return widen_as<std::int16_t>(from, count, zero_point, to);
    case DType::kU16:
      return widen_as<std::uint16_t>(from, count, zero_point, to);
    case DType::kI32:
      return widen_as<std::int32_t>(from, count, zero_point, to);
    case DType::kI48:
    case DType::kI64:
      return widen_as<std::int64_t>(from, count, zero_point, to);
    case DType::kF32:
      return widen_as<float>(from, count, zero_point, to);
    case DType::kF64:
      return widen_as<double>(from, count, zero_point, to);
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kF16:
    case DType::kBF16:
      for (std::int64_t i = 0; i < count; ++i)
        to[i] =
            static_cast<Wide>(load_element(dtype, from + i * static_cast<std::int64_t>(byte_size(dtype))));
  }
}

template <class Wide>
void narrow_any(const Wide* from, std::int64_t count, DType dtype, std::byte* to) {
  switch (dtype) {
    case DType::kBool:
      for (std::int64_t i = 0; i < count; ++i) to[i] = std::byte{from[i] != Wide{}};
      return;
    case DType::kU8:
      return narrow_as<std::uint8_t>(from, count, to);
    case DType::kI4:
    case DType::kI8:
      return narrow_as<std::int8_t>(from, count, to);
    case DType::kI16:
      return narrow_as<std::int16_t>(from, count, to);
    case DType::kU16:
      return narrow_as<std::uint16_t>(from, count, to);
    case DType::kI32:
      return narrow_as<std::int32_t>(from, count, to);
    case DType::kI48:
    case DType::kI64:
      return narrow_as<std::int64_t>(from, count, to);
    case DType::kF32:
      return narrow_as<float>(from, count, to);
    case DType::kF64:
      return narrow_as<double>(from, count, to);
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kF16:
    case DType::kBF16:
      for (std::int64_t i = 0; i < count; ++i)
        store_element(dtype, to + i * static_cast<std::int64_t>(byte_size(dtype)),
                      static_cast<double>(from[i]));
  }
}

}  // namespace

void widen(DType dtype, const std::byte* from, std::int64_t count, std::int64_t zero_point, double* to) {
  widen_any(dtype, from, count, zero_point, to);
}
void widen(DType dtype, const std::byte* from, std::int64_t count, std::int64_t zero_point, float* to) {
  widen_any(dtype, from, count, zero_point, to);
}
void widen(DType dtype, const std::byte* from, std::int64_t count, std::int64_t zero_point,
           std::int64_t* to) {
  widen_any(dtype, from, count, zero_point, to);
}
void widen(DType dtype, const std::byte* from, std::int64_t count, std::int64_t zero_point,
           std::int16_t* to) {
  widen_any(dtype, from, count, zero_point, to);
}
void widen(DType dtype, const std::byte* from, std::int64_t count, std::int64_t zero_point,
           std::uint16_t* to) {
  widen_any(dtype, from, count, zero_point, to);
}
void widen(DType dtype, const std::byte* from, std::int64_t count, std::int64_t zero_point,
           std::uint32_t* to) {
  widen_any(dtype, from, count, zero_point, to);
}
void narrow(const double* from, std::int64_t count, DType dtype, std::byte* to) {
  narrow_any(from, count, dtype, to);
}
void narrow(const float* from, std::int64_t count, DType dtype, std::byte* to) {
  narrow_any(from, count, dtype, to);
}
void narrow(const std::int64_t* from, std::int64_t count, DType dtype, std::byte* to) {
  narrow_any(from, count, dtype, to);
}
void narrow(const std::uint32_t* from, std::int64_t count, DType dtype, std::byte* to) {
  narrow_any(from, count, dtype, to);
}

}  // namespace tosaic::kernels
