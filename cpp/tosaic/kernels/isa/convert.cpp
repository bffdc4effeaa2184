// Conversion of blocks between array dtypes and compute domains. f16 and bf16 round half to even with integer
// arithmetic on the bits, so that the loops vectorise without half-precision instructions.
#include "tosaic/ir/storage.h"
#include "tosaic/kernels/block.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

using std::int64_t;

template <class To, class From>
[[gnu::always_inline]] inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}

// The array elements whose types are not C++ arithmetic types.
struct Bool {
  std::uint8_t value;
};
struct I4 {
  std::int8_t value;
};
struct I48 {
  int64_t value;
};
struct F16 {
  std::uint16_t value;
};
struct BF16 {
  std::uint16_t value;
};
template <DType kDType>
struct F8 {
  std::uint8_t value;
};

template <class T>
inline constexpr bool kIsFloat = false;
template <>
inline constexpr bool kIsFloat<float> = true;
template <>
inline constexpr bool kIsFloat<double> = true;

// The least and the greatest integer of a type of 8, 16 or 32 bits.
template <class T>
struct Limits {
  static constexpr auto kCount = static_cast<double>(std::uint64_t{1} << (8 * sizeof(T)));
  static constexpr double kLow = std::is_signed_v<T> ? -kCount / 2.0 : 0.0;
  static constexpr double kHigh = kLow + kCount - 1.0;
};

// ---- loading: from an array element to a value of the domain ----

template <class T>
[[gnu::always_inline]] inline T read(T value) {
  return value;
}
[[gnu::always_inline]] inline std::int32_t read(Bool from) { return from.value != 0 ? 1 : 0; }
[[gnu::always_inline]] inline std::int8_t read(I4 from) { return from.value; }
[[gnu::always_inline]] inline int64_t read(I48 from) { return from.value; }
[[gnu::always_inline]] inline float read(BF16 from) {
  return bits<float>(static_cast<std::uint32_t>(from.value) << 16);
}
// A multiplication by 2^112 changes the bias of the exponent and normalises subnormals.
[[gnu::always_inline]] inline float read(F16 from) {
  const std::uint32_t magnitude = static_cast<std::uint32_t>(from.value & 0x7fffu) << 13;
  const std::uint32_t sign = static_cast<std::uint32_t>(from.value & 0x8000u) << 16;
  const std::uint32_t finite = bits<std::uint32_t>(bits<float>(magnitude) * 0x1p112f);
  const std::uint32_t special = magnitude | 0x7f800000u;
  return bits<float>((magnitude >= 0x0f800000u ? special : finite) | sign);
}
template <DType kDType>
[[gnu::always_inline]] inline float read(F8<kDType> from) {
  return static_cast<float>(load_element(kDType, reinterpret_cast<const std::byte*>(&from)));
}

[[gnu::always_inline]] inline int64_t to_int64(double value) {
  const double low = value <= -0x1p63 ? -0x1p63 : value;
  const bool high = low >= 0x1p63;
  const double safe = low == low && !high ? low : 0.0;
  const auto whole = static_cast<int64_t>(safe);
  return high ? INT64_MAX : whole;
}

template <class T>
[[gnu::always_inline]] inline T to_integer(double value) {
  if constexpr (sizeof(T) == 8) {
    return to_int64(value);
  } else {
    double bounded = value < Limits<T>::kLow ? Limits<T>::kLow : value;
    bounded = bounded > Limits<T>::kHigh ? Limits<T>::kHigh : bounded;
    bounded = bounded == bounded ? bounded : 0.0;
    return static_cast<T>(static_cast<std::int32_t>(bounded));
  }
}

template <class From, class D>
void load_block(const void* from, void* to, int64_t count) {
  const auto* source = static_cast<const From*>(from);
  auto* target = static_cast<D*>(to);
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    const auto value = read(source[i]);
    if constexpr (kIsFloat<std::remove_const_t<decltype(value)>> && !kIsFloat<D>)
      target[i] = to_integer<D>(static_cast<double>(value));
    else
      target[i] = static_cast<D>(value);
  }
}

// ---- storing ----

template <class To>
struct Write {
  template <class D>
  [[gnu::always_inline]] static To of(D value, bool half_to_even) {
    if constexpr (kIsFloat<D> && !kIsFloat<To>) {
      const auto wide = static_cast<double>(value);
      return to_integer<To>(half_to_even ? __builtin_rint(wide) : wide);
    } else {
      return static_cast<To>(value);
    }
  }
};
template <>
struct Write<Bool> {
  template <class D>
  [[gnu::always_inline]] static Bool of(D value, bool) {
    return {static_cast<std::uint8_t>(value != D{} ? 1 : 0)};
  }
};
template <>
struct Write<I4> {
  template <class D>
  [[gnu::always_inline]] static I4 of(D value, bool half_to_even) {
    if constexpr (kIsFloat<D>) {
      const std::int8_t whole = Write<std::int8_t>::of(value, half_to_even);
      return {static_cast<std::int8_t>(whole < -8 ? -8 : whole > 7 ? 7 : whole)};
    } else {
      return {static_cast<std::int8_t>(((static_cast<std::int32_t>(value) & 15) ^ 8) - 8)};
    }
  }
};
template <>
struct Write<I48> {
  template <class D>
  [[gnu::always_inline]] static I48 of(D value, bool half_to_even) {
    constexpr int64_t kLimit = int64_t{1} << 47;
    const int64_t whole = Write<int64_t>::of(value, half_to_even);
    if constexpr (kIsFloat<D>)
      return {whole < -kLimit ? -kLimit : whole >= kLimit ? kLimit - 1 : whole};
    else
      return {((whole & (2 * kLimit - 1)) ^ kLimit) - kLimit};
  }
};
template <>
struct Write<BF16> {
  template <class D>
  [[gnu::always_inline]] static BF16 of(D value, bool) {
    const auto word = bits<std::uint32_t>(static_cast<float>(value));
    const std::uint32_t rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
    const bool nan = (word & 0x7fffffffu) > 0x7f800000u;
    return {static_cast<std::uint16_t>(nan ? (word >> 16) | 0x40u : rounded)};
  }
};
template <>
struct Write<F16> {
  template <class D>
  [[gnu::always_inline]] static F16 of(D value, bool) {
    const auto word = bits<std::uint32_t>(static_cast<float>(value));
    const std::uint32_t magnitude = word & 0x7fffffffu;
    const std::uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    // Adding 0.5 rounds half to even to a multiple of 2^-24 (f16's subnormal step), which is in the low bits.
    const std::uint32_t subnormal = bits<std::uint32_t>(bits<float>(magnitude) + 0.5f) - 0x3f000000u;
    const std::uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
    const std::uint32_t huge = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    const std::uint32_t result = magnitude >= 0x477ff000u ? huge : finite;
    return {static_cast<std::uint16_t>(result | ((word >> 16) & 0x8000u))};
  }
};
template <DType kDType>
struct Write<F8<kDType>> {
  template <class D>
  [[gnu::always_inline]] static F8<kDType> of(D value, bool) {
    F8<kDType> result{};
    store_element(kDType, reinterpret_cast<std::byte*>(&result), static_cast<double>(value));
    return result;
  }
};

template <class D, class To, bool kHalfToEven>
void store_block(const void* from, void* to, int64_t count) {
  const auto* source = static_cast<const D*>(from);
  auto* target = static_cast<To*>(to);
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) target[i] = Write<To>::of(source[i], kHalfToEven);
}

// Calls visit with a null pointer to the element type of `dtype`.
template <class Visit>
ConvertBlock with_element(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::kBool:
      return visit(static_cast<Bool*>(nullptr));
    case DType::kI4:
      return visit(static_cast<I4*>(nullptr));
    case DType::kI8:
      return visit(static_cast<std::int8_t*>(nullptr));
    case DType::kU8:
      return visit(static_cast<std::uint8_t*>(nullptr));
    case DType::kI16:
      return visit(static_cast<std::int16_t*>(nullptr));
    case DType::kU16:
      return visit(static_cast<std::uint16_t*>(nullptr));
    case DType::kI32:
      return visit(static_cast<std::int32_t*>(nullptr));
    case DType::kI48:
      return visit(static_cast<I48*>(nullptr));
    case DType::kI64:
      return visit(static_cast<int64_t*>(nullptr));
    case DType::kF8E4M3:
      return visit(static_cast<F8<DType::kF8E4M3>*>(nullptr));
    case DType::kF8E5M2:
      return visit(static_cast<F8<DType::kF8E5M2>*>(nullptr));
    case DType::kF16:
      return visit(static_cast<F16*>(nullptr));
    case DType::kBF16:
      return visit(static_cast<BF16*>(nullptr));
    case DType::kF32:
      return visit(static_cast<float*>(nullptr));
    case DType::kF64:
      return visit(static_cast<double*>(nullptr));
  }
  return nullptr;
}

template <class D>
struct LoadTo {
  template <class From>
  ConvertBlock operator()(From*) const {
    return load_block<From, D>;
  }
};

template <class D>
struct StoreFrom {
  bool half_to_even;
  template <class To>
  ConvertBlock operator()(To*) const {
    if constexpr (kIsFloat<D>)
      return half_to_even ? store_block<D, To, true> : store_block<D, To, false>;
    else
      return store_block<D, To, false>;
  }
};

ConvertBlock find_load(DType from, Domain to) {
  switch (to) {
    case Domain::kI32:
      return with_element(from, LoadTo<std::int32_t>{});
    case Domain::kI64:
      return with_element(from, LoadTo<int64_t>{});
    case Domain::kF32:
      return with_element(from, LoadTo<float>{});
    case Domain::kF64:
      return with_element(from, LoadTo<double>{});
  }
  return nullptr;
}

ConvertBlock find_store(Domain from, DType to, Rounding rounding) {
  const bool half_to_even = rounding == Rounding::kHalfToEven;
  switch (from) {
    case Domain::kI32:
      return with_element(to, StoreFrom<std::int32_t>{half_to_even});
    case Domain::kI64:
      return with_element(to, StoreFrom<int64_t>{half_to_even});
    case Domain::kF32:
      return with_element(to, StoreFrom<float>{half_to_even});
    case Domain::kF64:
      return with_element(to, StoreFrom<double>{half_to_even});
  }
  return nullptr;
}

}  // namespace

extern const ConvertKernels kConvert;
const ConvertKernels kConvert{find_load, find_store};

}  // namespace tosaic::kernels::TOSAIC_ISA
