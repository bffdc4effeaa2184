// Transposition of matrices of elements of 1, 2, 4 or 8 bytes.
#pragma once

#include <cstdint>

#include "tosaic/kernels/kernel.h"

namespace tosaic::kernels {

// to[j * to_stride + i] = from[i * from_stride + j] for i < rows, j < cols; strides in elements.
using TransposeBlock = void (*)(const void* from, std::int64_t from_stride, std::int64_t rows,
                                std::int64_t cols, void* to, std::int64_t to_stride);

struct TransposeKernels {
  TransposeBlock (*find)(std::size_t element_bytes) = nullptr;
};

namespace baseline {
extern const TransposeKernels kTransposeKernels;
}
namespace avx2 {
extern const TransposeKernels kTransposeKernels;
}
namespace avx512 {
extern const TransposeKernels kTransposeKernels;
}

}  // namespace tosaic::kernels
