// refused_qparams: why an operand or result has no signed form (scaled_integer.h).
#pragma once

#include <string>

#include "tosaic/ir/quantized.h"

namespace tosaic::passes {

// Example: "operand 'image' is quantized in a way that no integer arithmetic has: i16 with a zero point".
[[nodiscard]] inline std::string refused_qparams(const std::string& subject, const QParams& qparams) {
  std::string text = subject + " is quantized in a way that no integer arithmetic has: " +
                     std::string(to_string(qparams.storage));
  for (const std::int64_t zero_point : qparams.zero_points)
    if (zero_point != 0) return text + " with a zero point";
  return text;
}

}  // namespace tosaic::passes
