// Reads and writes by index arrays: gather, index_select, index, embedding, index_put, tosa.gather,
// tosa.scatter.
#pragma once

#include "tosaic/kernels/kernel.h"

namespace tosaic::kernels {

// `run` is empty if the request is not one of these operators. Running throws InvalidGraph, which names the
// index and the limits, if an index is out of range.
[[nodiscard]] Kernel prepare_index(const Request& request);

// The same for index_put alone (scatter.cpp).
[[nodiscard]] Kernel prepare_index_put(const Request& request);

}  // namespace tosaic::kernels
