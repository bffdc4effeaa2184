// What a scale has to be: positive and finite.
#pragma once

#include <string>

namespace tosaic::quant {

// Throws QuantMismatch naming the subject ("the scale of channel 3") and the scale.
void require_scale(const std::string& subject, double scale);

// The shortest text that reads back to the same double.
[[nodiscard]] std::string scale_text(double scale);

}  // namespace tosaic::quant
