// requantize: computes RESCALE and CLAMPs after it in the same pass as the sums of a contraction.
#pragma once

#include <functional>
#include <optional>
#include <span>

#include "tosaic/kernels/isa/rescale.h"
#include "tosaic/kernels/kernel.h"

namespace tosaic::kernels {

// Converts `count` adjacent values to elements of `bytes` bytes. The channels of the values are `channel`,
// `channel` + 1, ..., and channel 0 follows the last one. Throws InvalidGraph if RESCALE has no result for a
// value, as the operator itself does. V is int32_t for i32, and int64_t for i48.
template <class V>
struct Requantizer {
  std::function<void(const V* values, std::int64_t count, std::int64_t channel, std::byte* to,
                     std::byte* scratch)>
      run;
  std::size_t bytes = 0, scratch_bytes = 0;
  // The same parameters as tables, if values are i32, the result is i8 and every value has a result. Entry 0
  // belongs to channel 0. `run` owns the memory.
  std::optional<RescaleTables<std::int32_t>> tables = std::nullopt;
  // The same parameters if values and results are i32. RESCALE may have no result for some values.
  std::optional<RescaleTables<std::int32_t>> wide_tables = std::nullopt;
  // The same parameters if values are i48, the zero point of the input is 0, and the result is i16. RESCALE
  // may have no result for some values.
  std::optional<RescaleTables<std::int64_t>> word_tables = std::nullopt;
};

// A requantizer for values of this shape, with the channels along `axis`. `followers` are the operators that
// are fused. They must be a RESCALE, or a RESCALE to a signed dtype and CLAMPs. The RESCALE must have
// multipliers of 32 bits for i32 and of 16 bits for i48, one for the tensor or one for each entry of `axis`.
// For other followers, `run` of the result is empty.
template <class V>
[[nodiscard]] Requantizer<V> prepare_requantizer(std::span<const Follower> followers, const Shape& shape,
                                                 std::size_t axis, Isa isa);

}  // namespace tosaic::kernels
