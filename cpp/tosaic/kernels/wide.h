// wide: conversion between arrays and the types in which contractions, pools and resizes compute.
//
//   double, float   floats; double is also for narrow integers whose sums it holds exactly
//   int64           integers
//   int16, uint32   int16 (or uint16) for 8-bit integers whose sums are taken modulo 2^32, uint32 for the
//                   sums
#pragma once

#include <cstddef>
#include <cstdint>

#include "tosaic/ir/dtype.h"
#include "tosaic/kernels/parallel.h"

namespace tosaic::kernels {

// to[i] = element i - zero_point. The zero point of floats is 0.
template <class Wide>
void widen(DType dtype, const std::byte* from, std::int64_t count, std::int64_t zero_point, Wide* to);

// A float result is rounded half to even. An integer result is the low bits of the value; a double that is
// stored as an integer must be integral.
template <class Wide>
void narrow(const Wide* from, std::int64_t count, DType dtype, std::byte* to);

// Like widen() and narrow(), but by the threads of a team.
template <class T>
void widen_in_parallel(Team* team, DType dtype, const std::byte* from, std::int64_t count,
                       std::int64_t zero_point, T* to) {
  const auto bytes = static_cast<std::int64_t>(byte_size(dtype));
  parallel_for(team, {.count = count, .step = 64, .unit_cost = cost::kCopy},
               [&](std::int64_t begin, std::int64_t end, Worker) {
                 widen(dtype, from + begin * bytes, end - begin, zero_point, to + begin);
               });
}
template <class T>
void narrow_in_parallel(Team* team, const T* from, std::int64_t count, DType dtype, std::byte* to) {
  const auto bytes = static_cast<std::int64_t>(byte_size(dtype));
  parallel_for(team, {.count = count, .step = 64, .unit_cost = cost::kCopy},
               [&](std::int64_t begin, std::int64_t end, Worker) {
                 narrow(from + begin, end - begin, dtype, to + begin * bytes);
               });
}

}  // namespace tosaic::kernels
