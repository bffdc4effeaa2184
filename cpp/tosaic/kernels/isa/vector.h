// The vectors of this instruction set. They are vector extensions of GCC and Clang, so that one source serves
// SSE, NEON, AVX2 and AVX-512. Only files of kernels/isa/ include this header. Those files must not call
// library templates: the linker might use their instantiation, compiled for this instruction set, in code
// that runs on older machines.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(TOSAIC_VECTOR_BYTES)  // CMakeLists.txt: narrower than the instruction set allows
#elif defined(__AVX512F__)
#define TOSAIC_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define TOSAIC_VECTOR_BYTES 32
#else
#define TOSAIC_VECTOR_BYTES 16
#endif

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

template <class T>
inline constexpr std::int64_t kLanes = TOSAIC_VECTOR_BYTES / sizeof(T);
template <class T, std::int64_t kCount>
struct VectorOf {
  using Type [[gnu::vector_size(kCount * sizeof(T))]] = T;
};
template <class T, std::int64_t kCount = kLanes<T>>
using Vector = typename VectorOf<T, kCount>::Type;

template <class T, std::int64_t kCount = kLanes<T>>
[[gnu::always_inline]] inline Vector<T, kCount> load(const T* at) {
  Vector<T, kCount> value;
  __builtin_memcpy(&value, at, sizeof value);
  return value;
}

template <class T, std::int64_t kCount = kLanes<T>>
[[gnu::always_inline]] inline void store(T* at, Vector<T, kCount> value) {
  __builtin_memcpy(at, &value, sizeof value);
}

// Loads the first `count` lanes, 0 <= count <= kCount; the other lanes are zero.
template <class T, std::int64_t kCount = kLanes<T>>
[[gnu::always_inline]] inline Vector<T, kCount> load_first(const T* at, std::int64_t count) {
  T lanes[kCount] = {};
  T* to = lanes;
#pragma GCC unroll 4
  for (std::int64_t piece = kCount; piece > 0; piece /= 2) {
    if ((count & piece) == 0) continue;
    __builtin_memcpy(to, at, static_cast<std::size_t>(piece) * sizeof(T));
    at += piece;
    to += piece;
  }
  return load<T, kCount>(lanes);
}

template <class T>
[[gnu::always_inline]] inline void store_first(T* at, Vector<T> value, std::int64_t count) {
  T lanes[kLanes<T>];
  store(lanes, value);
  const T* from = lanes;
#pragma GCC unroll 4
  for (std::int64_t piece = kLanes<T>; piece > 0; piece /= 2) {
    if ((count & piece) == 0) continue;
    __builtin_memcpy(at, from, static_cast<std::size_t>(piece) * sizeof(T));
    at += piece;
    from += piece;
  }
}

template <class T>
[[gnu::always_inline]] inline Vector<T> broadcast(T value) {
  return value - Vector<T>{};  // one instruction, unlike setting each lane
}

// The larger or smaller operand of each lane. NaN stays NaN.
template <class T>
[[gnu::always_inline]] inline Vector<T> clamp(Vector<T> value, Vector<T> low, Vector<T> high) {
  value = value < low ? low : value;
  return value > high ? high : value;
}

// Copies `count` elements: an inlined memcpy for the short runs of image patches.
template <class T>
[[gnu::always_inline]] inline void copy(T* to, const T* from, std::int64_t count) {
  constexpr std::int64_t lanes = kLanes<T>;
  if (count < lanes) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = from[i];
    return;
  }
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) store(to + i, load(from + i));
  if (i < count) store(to + count - lanes, load(from + count - lanes));
}

template <class T>
[[gnu::always_inline]] inline void zero(T* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = T{};
}

}  // namespace
}  // namespace tosaic::kernels::TOSAIC_ISA
