// Arrays to and from the types that contractions, pools and resizes compute in: double and float for floats,
// int64 for integers, double also for narrow integers whose sums it holds exactly, int16 for integers of 8
// bits whose sums are taken modulo 2^32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tosaic/ir/dtype.h"

namespace tosaic::kernels {

// to[i] = element i - zero_point.
void widen(DType dtype, const std::byte* from, std::int64_t count, std::int64_t zero_point, double* to);
void widen(DType dtype, const std::byte* from, std::int64_t count, std::int64_t zero_point, float* to);
void widen(DType dtype, const std::byte* from, std::int64_t count, std::int64_t zero_point, std::int64_t* to);
void widen(DType dtype, const std::byte* from, std::int64_t count, std::int64_t zero_point, std::int16_t* to);
void widen(DType dtype, const std::byte* from, std::int64_t count, std::int64_t zero_point,
           std::uint32_t* to);

// Floats round half to even. Integers keep their low bits; doubles stored as integers must be integral.
void narrow(const double* from, std::int64_t count, DType dtype, std::byte* to);
void narrow(const float* from, std::int64_t count, DType dtype, std::byte* to);
void narrow(const std::int64_t* from, std::int64_t count, DType dtype, std::byte* to);
void narrow(const std::uint32_t* from, std::int64_t count, DType dtype, std::byte* to);

}  // namespace tosaic::kernels
