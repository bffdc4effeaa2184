// Quantization of floats to integers of 8 or 16 bits. Adding and subtracting 1.5 * 2^23 rounds a number to an
// integer if it is below 2^22. Larger numbers are clipped first; they are beyond all bounds anyway. The
// clipping also keeps compilers from fusing the multiplication and the addition, which would round once
// instead of twice.
#include "tosaic/kernels/quantize_block.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

template <class T>
void quantize(const float* from, std::int64_t count, const NarrowQuantization& by, T* to) {
  constexpr float kRound = 12582912.0F, kLargest = 1048576.0F;
  const auto [inverse, zero_point, low, high] = by;
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i) {
    float x = from[i] * inverse;
    x = x < -kLargest ? -kLargest : x;
    x = x > kLargest ? kLargest : x;
    float q = ((x + kRound) - kRound) + zero_point;
    q = q < low ? low : q;
    q = q > high ? high : q;
    q = q == q ? q : 0.0F;  // NaN
    to[i] = static_cast<T>(static_cast<std::int32_t>(q));
  }
}

}  // namespace

const QuantizeKernels kQuantizeKernels{quantize<std::int8_t>, quantize<std::int16_t>};

}  // namespace tosaic::kernels::TOSAIC_ISA
