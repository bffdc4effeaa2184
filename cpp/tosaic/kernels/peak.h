// peak: a short benchmark of the most multiply-adds and bytes per second of this machine, for profiles.
//
// It uses the vectors and instructions of our kernels. Multiply-adds run in registers, so the peak needs no
// memory. The bandwidth is measured by adding two arrays into a third one. The three arrays have 96 MiB
// together, which is more than most caches hold. Each of several threads has its own three arrays: an equal
// share of the 96 MiB, but at least 12 MiB.
#pragma once

#include <cstddef>
#include <optional>

#include "tosaic/ir/dtype.h"
#include "tosaic/kernels/options.h"

namespace tosaic::kernels {

// Multiply-adds per second of factors of this dtype, on `threads` threads together: the best of several
// trials, 10 ms in total. Returns nothing if no fast path of the instruction set multiplies such factors.
[[nodiscard]] std::optional<double> peak_multiply_adds(Isa isa, DType factors, std::size_t threads = 1);

// Bytes per second that `threads` threads read and write together.
[[nodiscard]] double peak_bandwidth(Isa isa, std::size_t threads = 1);

}  // namespace tosaic::kernels
