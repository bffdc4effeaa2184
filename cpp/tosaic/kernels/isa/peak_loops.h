// The loops of PeakKernels. Only files of kernels/isa/ include this header.
#pragma once

#include "tosaic/kernels/isa/multiply.h"
#include "tosaic/kernels/isa/peak.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

// 12 sums cover a latency of 5 cycles with 2 units, and fit 16 registers together with the factors.
constexpr int kSums = 12;

// Hides the value from the compiler, which would otherwise compute a product of the same factors once for all
// sums.
template <class V>
[[gnu::always_inline]] inline void hide(V& value) {
#if defined(__AVX512F__)
  asm volatile("" : "+v"(value));
#elif defined(__x86_64__)
  asm volatile("" : "+x"(value));
#elif defined(__aarch64__)
  asm volatile("" : "+w"(value));
#else
  asm volatile("" : "+m"(value));
#endif
}

template <class Sums, class Right, class Left, void (*kAdd)(Sums&, Right, Left)>
void multiply_add_rounds(std::int64_t rounds) {
  Right right{};
  Left left{};
  Sums sums[kSums] = {};
  // Hides that the sums are equal: the compiler would compute equal sums only once.
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) hide(sums[i]);
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) {
      hide(right);
      hide(left);
      kAdd(sums[i], right, left);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) hide(sums[i]);
}

// T is a form of isa/gemm.h.
template <class T>
using PeakLeft = std::conditional_t<Arithmetic<T>::kStep == 1, Vector<Factor<T>>,
                                    decltype(left_at(static_cast<const Factor<T>*>(nullptr)))>;
template <class T>
constexpr PeakLoop kMultiplyAdds = {
    multiply_add_rounds<Vector<Partial<T>>, Vector<Factor<T>>, PeakLeft<T>, add_product>,
    kSums * kLanes<Factor<T>>};

void add_arrays(const float* a, const float* b, float* to, std::int64_t count) {
  constexpr std::int64_t lanes = kLanes<float>;
  for (std::int64_t i = 0; i < count; i += lanes) store<float>(to + i, load(a + i) + load(b + i));
}

}  // namespace
}  // namespace tosaic::kernels::TOSAIC_ISA
