// block: the part of a result that an NPU computes at a time, chosen such that inputs and sums fit its
// buffers.
//
//   8 x 8 x 32 of 56 x 56 x 64      2048 sums, and 10 x 10 x 64 of the input for a kernel of 3 x 3
#pragma once

#include "tosaic/cost/command.h"
#include "tosaic/cost/machine.h"

namespace tosaic::cost {

struct Block {
  Extent input, result;
  Extent micro;                  // what is computed at once
  bool is_kernel_first = false;  // a step takes elements of the kernel, not channels
};

[[nodiscard]] Block block_of(const Command& command, const Machine& machine);

// The number of blocks above one another and side by side. All weights are read for each of them.
[[nodiscard]] std::int64_t columns_of(const Command& command, const Block& block);

// The cycles that the weights of a microblock take to load.
[[nodiscard]] std::int64_t weight_cycles(const Extent& micro, const Machine& machine);

// The elements of the kernel that are processed at a time, along each axis.
inline constexpr std::int64_t kKernelPart = 8;

}  // namespace tosaic::cost
