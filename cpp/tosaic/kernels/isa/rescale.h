// Blocks of RESCALE with 32-bit results: what each instruction set provides.
#pragma once

#include <cstdint>

#include "tosaic/kernels/kernel.h"

namespace tosaic::kernels {

// Parameters of the elements of a block, T the type of its values: i32 with 32-bit multipliers, i64 with
// 16-bit ones. Tables have one entry an element and kRescalePadding more; where `uniform`, one entry and the
// padding, which stands for all.
template <class T>
struct RescaleTables {
  const std::int32_t* multiplier = nullptr;
  const std::int32_t* shift = nullptr;
  const T* low = nullptr;  // values that may be scaled
  const T* high = nullptr;
  bool uniform = false;
  bool double_round = false;  // i32 only
  T input_zp = 0;
  std::int32_t output_zp = 0;
  std::int32_t min = 0, max = 0;  // of the result
};

// No less than the lanes of any vector.
inline constexpr std::int64_t kRescalePadding = 16;

template <class T>
struct RescaleKernels {
  // Whether every value less its zero point lies in [low, high].
  bool (*inside)(const RescaleTables<T>& tables, const T* values, std::int64_t count) = nullptr;
  // clamp(apply_scale(value - input_zp) + output_zp, min, max) of values that are inside. Results may be the
  // values.
  void (*scale)(const RescaleTables<T>& tables, const T* values, std::int32_t* results,
                std::int64_t count) = nullptr;
};

namespace baseline {
extern const RescaleKernels<std::int32_t> kRescaleI32;
extern const RescaleKernels<std::int64_t> kRescaleI64;
}  // namespace baseline
namespace avx2 {
extern const RescaleKernels<std::int32_t> kRescaleI32;
extern const RescaleKernels<std::int64_t> kRescaleI64;
}  // namespace avx2
namespace avx512 {
extern const RescaleKernels<std::int32_t> kRescaleI32;
extern const RescaleKernels<std::int64_t> kRescaleI64;
}  // namespace avx512

}  // namespace tosaic::kernels
