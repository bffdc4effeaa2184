// numbers: the numbers that quantized integers represent.
#pragma once

#include <optional>

#include "tosaic/exec/local_error.h"

namespace tosaic::exec {

// The array, dequantized unless `qparams` is null.
[[nodiscard]] Held as_numbers(const ArrayView& view, const QParamsRef& qparams);
// The scale, if there is one for the whole value.
[[nodiscard]] std::optional<double> unit_of(const QParamsRef& qparams);
[[nodiscard]] bool is_same(const QParamsRef& a, const QParamsRef& b);
// The qparams of a quantize node.
[[nodiscard]] QParamsRef qparams_of(const Node& quantize);

}  // namespace tosaic::exec
