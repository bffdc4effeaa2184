#include "tosaic/quant/requantize.h"

#include <cmath>

#include "tosaic/base/error.h"
#include "tosaic/ir/infer.h"
#include "tosaic/quant/scale.h"

namespace tosaic::quant {
namespace {

constexpr int multiplier_bits(MultiplierWidth width) { return width == MultiplierWidth::k32 ? 31 : 15; }

[[noreturn]] void fail_large(const std::string& subject, MultiplierWidth width, double scale) {
  throw QuantMismatch(
      {.where = "quant",
       .what = subject + " is too large for a multiplier and a shift",
       .expected = "a number that rounds below 2^" + std::to_string(multiplier_bits(width) - kMinShift),
       .got = scale_text(scale)});
}

// value / 2^bits, rounded half to even; value >= 0.
std::int64_t shifted_half_even(std::int64_t value, int bits) {
  const std::int64_t quotient = value >> bits;
  const std::int64_t rest = value - (quotient << bits);
  const std::int64_t half = std::int64_t{1} << (bits - 1);
  return quotient + (rest > half || (rest == half && quotient % 2 != 0) ? 1 : 0);
}

bool is_unsigned(DType dtype) { return dtype == DType::kU8 || dtype == DType::kU16; }

MultiplierWidth width_of(const TosaRescaleAttrs& attrs) {
  return attrs.scale32 ? MultiplierWidth::k32 : MultiplierWidth::k16;
}

void require_rescale(const TosaRescaleAttrs& attrs, DType from) {
  TensorType input;
  input.dtype = from;
  input.shape = Shape{static_cast<std::int64_t>(attrs.multiplier.size())};
  const TensorType* const operands[] = {&input};
  static_cast<void>(infer(Op::kTosaRescale, attrs, operands));
}

}  // namespace

Multiplier multiplier_of(double scale, MultiplierWidth width, const std::string& subject) {
  require_scale(subject, scale);
  constexpr int kMantissaBits = std::numeric_limits<double>::digits;
  const int bits = multiplier_bits(width);
  int exponent = 0;
  const auto mantissa = static_cast<std::int64_t>(std::ldexp(std::frexp(scale, &exponent), kMantissaBits));
  std::int64_t multiplier = shifted_half_even(mantissa, kMantissaBits - bits);
  if (multiplier == std::int64_t{1} << bits) {
    multiplier /= 2;
    ++exponent;
  }
  std::int32_t shift = bits - exponent;
  if (shift < kMinShift) fail_large(subject, width, scale);
  if (shift > kMaxShift) {
    multiplier >>= std::min(shift - kMaxShift, 63);
    shift = kMaxShift;
  }
  return {static_cast<std::int32_t>(multiplier), shift};
}

Multiplier narrowed(Multiplier wide, const std::string& subject) {
  constexpr std::int64_t kHalf = std::int64_t{1} << 15;
  const std::int64_t upper = (wide.multiplier + kHalf) >> 16;
  const Multiplier narrow{static_cast<std::int32_t>(std::min<std::int64_t>(upper, 32767)), wide.shift - 16};
  if (narrow.shift < kMinShift) fail_large(subject, MultiplierWidth::k16, real_scale(wide));
  return narrow;
}

double real_scale(Multiplier by) { return std::ldexp(static_cast<double>(by.multiplier), -by.shift); }

std::vector<double> accumulator_scales(double input, std::span<const double> weight) {
  require_scale("the scale of the input", input);
  std::vector<double> scales;
  scales.reserve(weight.size());
  for (const double each : weight) {
    require_scale("a scale of the weight", each);
    scales.push_back(input * each);
  }
  return scales;
}

std::vector<double> rescale_scales(std::span<const double> from, double to) {
  require_scale("the scale of the result", to);
  std::vector<double> scales;
  scales.reserve(from.size());
  for (const double each : from) {
    require_scale("a scale of the operand", each);
    scales.push_back(each / to);
  }
  return scales;
}

TosaRescaleAttrs plan_rescale(RescaleSide from, RescaleSide to, std::span<const double> scales,
                              const RescaleOptions& options) {
  TosaRescaleAttrs attrs;
  attrs.input_zp = from.zero_point;
  attrs.output_zp = to.zero_point;
  attrs.dtype = without_sign(to.dtype);
  attrs.scale32 = from.dtype != DType::kI48;
  attrs.rounding_mode = options.rounding_mode;
  attrs.per_channel = scales.size() > 1;
  attrs.input_unsigned = is_unsigned(from.dtype);
  attrs.output_unsigned = is_unsigned(to.dtype);
  const bool from_wide = !attrs.scale32 && options.narrow == NarrowMultiplier::kFromWide;
  for (std::size_t c = 0; c < scales.size(); ++c) {
    const std::string subject =
        attrs.per_channel ? "the scale of channel " + std::to_string(c) : std::string("the scale");
    const Multiplier by = from_wide
                              ? narrowed(multiplier_of(scales[c], MultiplierWidth::k32, subject), subject)
                              : multiplier_of(scales[c], width_of(attrs), subject);
    attrs.multiplier.push_back(by.multiplier);
    attrs.shift.push_back(by.shift);
  }
  require_rescale(attrs, without_sign(from.dtype));
  return attrs;
}

ValueRange defined_inputs(const TosaRescaleAttrs& attrs, std::size_t channel) {
  const Multiplier by{static_cast<std::int32_t>(attrs.multiplier.at(channel)),
                      static_cast<std::int32_t>(attrs.shift.at(channel))};
  const ValueRange values = scalable_values(by, width_of(attrs), attrs.output_zp);
  return {values.low + attrs.input_zp, values.high + attrs.input_zp};
}

}  // namespace tosaic::quant
