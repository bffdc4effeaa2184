// Lookups by index arrays: gather, index_select, index, embedding, tosa.gather, tosa.scatter.
#pragma once

#include "tosaic/kernels/kernel.h"

namespace tosaic::kernels {

// Empty `run` when the request is not one of these operators. Running throws InvalidGraph, naming the index
// and the limit, when an index is out of range.
[[nodiscard]] Kernel prepare_index(const Request& request);

// scatter.cpp: the same for index_put.
[[nodiscard]] Kernel prepare_index_put(const Request& request);

}  // namespace tosaic::kernels
