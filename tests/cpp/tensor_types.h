// Types of tensors that the tests share: row-major, and not quantized.
#pragma once

#include "tosaic/ir/type.h"

namespace tosaic::testing {

inline TensorType tensor(DType dtype, Shape shape) { return {dtype, shape, {}, nullptr}; }
inline TensorType f32(Shape shape) { return tensor(DType::kF32, shape); }

}  // namespace tosaic::testing
