#include "tosaic/quant/scale.h"

#include <cmath>

#include "tosaic/base/error.h"
#include "tosaic/ir/lexical.h"

namespace tosaic::quant {

void require_scale(const std::string& subject, double scale) {
  if (scale > 0 && !std::isinf(scale)) return;
  throw QuantMismatch(
      {.where = "quant", .what = subject, .expected = "a positive finite number", .got = scale_text(scale)});
}

std::string scale_text(double scale) {
  std::string text;
  append_number(text, scale);
  return text;
}

}  // namespace tosaic::quant
