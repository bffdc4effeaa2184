// scale: checks that a quantization scale is positive and finite.
#pragma once

#include <string>

namespace tosaic::quant {

// Throws QuantMismatch unless the scale is positive and finite. The error names the subject ("the scale of
// channel 3") and the scale.
void require_scale(const std::string& subject, double scale);

// The shortest decimal text that parses to the same double.
[[nodiscard]] std::string scale_text(double scale);

}  // namespace tosaic::quant
