// tensor_types: types of tensors that the tests share. They are row-major and not quantized.
#pragma once

#include "tosaic/ir/type.h"

namespace tosaic::testing {

inline TensorType tensor(DType dtype, Shape shape) { return {dtype, shape, {}, nullptr}; }
inline TensorType f32(Shape shape) { return tensor(DType::kF32, shape); }

}  // namespace tosaic::testing
