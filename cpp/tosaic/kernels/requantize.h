// Sums of contractions as RESCALE, and a CLAMP behind it, make narrow integers of them.
#pragma once

#include <functional>
#include <span>

#include "tosaic/kernels/kernel.h"

namespace tosaic::kernels {

// `count` adjacent values of channels `channel`, `channel` + 1, ... and so on from 0, to elements of `bytes`
// bytes. Throws what the operator itself does.
struct Requantizer {
  std::function<void(const std::int32_t* values, std::int64_t count, std::int64_t channel, std::byte* to,
                     std::byte* scratch)>
      run;
  std::size_t bytes = 0, scratch_bytes = 0;
};

// Of i32 values of this shape, whose channels lie along `axis`; an empty `run` where the operators are not of
// that kind.
[[nodiscard]] Requantizer prepare_requantizer(std::span<const Follower> followers, const Shape& shape,
                                              std::size_t axis, Isa isa);

}  // namespace tosaic::kernels
