// block: shared by kernels that compute block by block. They compute in one of four domains, whatever the
// dtypes of the arrays are, so they need few loops. A kernel converts elements to the domain in blocks that
// fit the first-level cache. A loop compiled for each instruction set computes on the block, and the result
// is converted back. If an array already has the element type of the domain, the loop works on the array
// itself.
//
//   bool i4 i8 u8 i16 u16 i32 -> kI32    i48 i64 -> kI64    f8 f16 bf16 f32 -> kF32    f64 -> kF64
//
// Integers wrap: every operation is exact modulo 2^32 (2^64), and storing writes the low bits.
#pragma once

#include <cstdint>
#include <string_view>

#include "tosaic/ir/dtype.h"
#include "tosaic/kernels/isa/each_set.h"
#include "tosaic/kernels/kernel.h"

namespace tosaic::kernels {

enum class Domain : std::uint8_t { kI32, kI64, kF32, kF64 };

// How a float is converted to an integer. Both modes saturate and convert NaN to 0. The conversion of an
// integer to a narrower one takes the low bits in both modes.
enum class Rounding : std::uint8_t { kTruncate, kHalfToEven };

inline constexpr std::int64_t kBlockElements = 512;

[[nodiscard]] constexpr std::size_t byte_size(Domain domain) {
  return domain == Domain::kI32 || domain == Domain::kF32 ? 4 : 8;
}

[[nodiscard]] constexpr bool is_float(Domain domain) { return domain >= Domain::kF32; }

// The domain that holds `dtype` exactly. With `reference`, it is the 64-bit domain of the category: kI64 or
// kF64.
[[nodiscard]] constexpr Domain domain_of(DType dtype, bool reference) {
  if (tosaic::is_float(dtype)) return reference || dtype == DType::kF64 ? Domain::kF64 : Domain::kF32;
  return reference || dtype == DType::kI48 || dtype == DType::kI64 ? Domain::kI64 : Domain::kI32;
}

// True if an array of `dtype` has the element type of `domain`, so that it needs no conversion.
[[nodiscard]] constexpr bool is_domain(DType dtype, Domain domain) {
  switch (domain) {
    case Domain::kI32:
      return dtype == DType::kI32;
    case Domain::kI64:
      return dtype == DType::kI64 || dtype == DType::kI48;
    case Domain::kF32:
      return dtype == DType::kF32;
    case Domain::kF64:
      return dtype == DType::kF64;
  }
  return false;
}

// Converts `count` elements.
using ConvertBlock = void (*)(const void* from, void* to, std::int64_t count);

struct ConvertKernels {
  ConvertBlock (*load)(DType from, Domain to) = nullptr;
  ConvertBlock (*store)(Domain from, DType to, Rounding rounding) = nullptr;
};

TOSAIC_IN_EACH_SET(extern const ConvertKernels kConvert;)

[[nodiscard]] const ConvertKernels& convert_kernels(Isa isa);

// The table `name` that was compiled for `isa`, which must be one of usable_isas().
#if defined(TOSAIC_HAVE_AVX2) && defined(TOSAIC_HAVE_AVX512)
#define TOSAIC_SELECT_ISA(isa, name) \
  ((isa) >= Isa::kAvx512 ? avx512::name : (isa) >= Isa::kAvx2 ? avx2::name : baseline::name)
#else
#define TOSAIC_SELECT_ISA(isa, name) (static_cast<void>(isa), baseline::name)
#endif

// "add.avx512", "add.reference"; with a variant "add.<variant>.avx512".
[[nodiscard]] std::string kernel_name(const Request& request, std::string_view variant = {});

// Throws UnsupportedOp naming the op and the dtypes of operands and result.
[[noreturn]] void fail_unsupported(const Request& request);
// Throws InvalidGraph, which says that a value read from an index array is outside [low, limit).
[[noreturn]] void fail_index(Op op, std::int64_t index, std::int64_t low, std::int64_t limit);

// The attributes of the request. Throws InternalError if they are of another type than A.
template <class A>
[[nodiscard]] const A& attrs_of(const Request& request);

[[noreturn]] void fail_attrs(const Request& request);

template <class A>
const A& attrs_of(const Request& request) {
  const A* attrs = request.attrs != nullptr ? get_if<A>(request.attrs) : nullptr;
  if (attrs == nullptr) fail_attrs(request);
  return *attrs;
}

}  // namespace tosaic::kernels
