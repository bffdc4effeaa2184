#include "tosaic/quant/unit_of_constant.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tosaic/ir/lexical.h"

namespace tosaic::quant {
namespace {

struct Magnitudes {
  double largest = 0;
  double small = 0;  // the largest one below kLargestActivation; if there is none, the least one
};

// Returns nothing if a number is not finite.
std::optional<Magnitudes> magnitudes_of(const Elements& elements) {
  Magnitudes out;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const double x = std::abs(elements.as_double(i));
    if (!std::isfinite(x)) return std::nullopt;
    if (x == 0) continue;
    out.largest = std::max(out.largest, x);
    least = std::min(least, x);
    if (x < kLargestActivation) out.small = std::max(out.small, x);
  }
  if (out.small == 0) out.small = least;
  return out;
}

bool is_exact(const Elements& elements, double unit) {
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const double units = elements.as_double(i) / unit;
    if (units != std::nearbyint(units)) return false;
  }
  return true;
}

}  // namespace

std::optional<ConstantUnit> unit_of_constant(const Constant& constant, double steps) {
  if (!constant.storage.bound()) return std::nullopt;
  const Elements elements(constant);
  const std::optional<Magnitudes> found = magnitudes_of(elements);
  if (!found || found->largest == 0) return std::nullopt;
  int exponent = 0;
  std::frexp(found->largest, &exponent);
  const double narrow = std::ldexp(1.0, exponent - 15), wide = std::ldexp(1.0, exponent - 30);
  if (is_exact(elements, narrow) || found->small >= steps * narrow) return ConstantUnit{"i16", narrow, 32767};
  if (is_exact(elements, wide) || found->small >= kLeastSteps * wide)
    return ConstantUnit{"i32", wide, std::int64_t{1} << 30};
  return std::nullopt;
}

std::string why_no_unit(const Constant& constant) {
  if (!constant.storage.bound() || !is_float(constant.dtype)) return {};
  const std::optional<Magnitudes> found = magnitudes_of(Elements(constant));
  if (!found) return "holds numbers that are not finite, which no integers represent";
  if (found->largest < kLargestActivation || unit_of_constant(constant)) return {};
  std::string out = "holds ";
  append_number(out, static_cast<float>(found->small));
  out += " and ";
  append_number(out, static_cast<float>(found->largest));
  return out + ": no unit of 32 bits represents both";
}

}  // namespace tosaic::quant
