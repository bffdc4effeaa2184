#include "tosaic/quant/quantize.h"

#include <cmath>
#include <cstring>

#include "tosaic/base/error.h"
#include "tosaic/ir/apply_scale.h"
#include "tosaic/ir/quantized_value.h"
#include "tosaic/ir/stored_type.h"
#include "tosaic/quant/scale.h"

namespace tosaic::quant {
namespace {

[[noreturn]] void fail(const std::string& what, const std::string& expected, const std::string& got) {
  throw QuantMismatch({.where = "quant", .what = what, .expected = expected, .got = got});
}

void require_scales(std::span<const double> scales) {
  for (std::size_t i = 0; i < scales.size(); ++i) require_scale("scale " + std::to_string(i), scales[i]);
}

// Calls visit(T{}) with the type that holds one element of a storage dtype.
template <class Visit>
void with_element(DType dtype, Visit&& visit) {
  with_stored_type(dtype, [&](auto element) {
    using Element = decltype(element);
    if constexpr (std::is_integral_v<Element> && sizeof(Element) <= sizeof(std::int32_t))
      if (dtype != DType::kBool) return visit(element);
    fail("the storage dtype", "i4, i8, u8, i16, u16 or i32", std::string(to_string(dtype)));
  });
}

// Calls visit(scale, begin, end) for each run of consecutive elements [begin, end) with the same scale.
template <class Visit>
void for_each_run(const QParams& qparams, const Shape& shape, Visit&& visit) {
  const ScaleGrid grid(shape, qparams);
  const std::int64_t count = num_elements(shape);
  for (std::int64_t begin = 0; begin < count; begin += grid.run())
    visit(grid.of(begin), begin, begin + grid.run());
}

void require_count(std::size_t values, const Shape& shape) {
  if (static_cast<std::int64_t>(values) == num_elements(shape)) return;
  throw LayoutMismatch({.where = "quant",
                        .what = "wrong number of elements",
                        .expected = std::to_string(num_elements(shape)) + " of " + to_string(shape),
                        .got = std::to_string(values)});
}

}  // namespace

void require_qparams(const QParams& qparams, const Shape& shape) {
  with_element(qparams.storage, [](auto) {});  // throws for other dtypes
  const ValueRange range = *integer_limits(qparams.storage);
  if (qparams.qmin > qparams.qmax || !range.contains(qparams.qmin) || !range.contains(qparams.qmax))
    fail("the bounds of " + std::string(to_string(qparams.storage)),
         "qmin <= qmax within " + std::to_string(range.low) + " to " + std::to_string(range.high),
         std::to_string(qparams.qmin) + " and " + std::to_string(qparams.qmax));
  if (qparams.axis && (*qparams.axis < 0 || *qparams.axis >= static_cast<std::int64_t>(shape.size())))
    fail("the axis of the scales", "an axis of " + to_string(shape), std::to_string(*qparams.axis));
  if (const char* const expected = scale_grid_fault(shape, qparams.axis, qparams.groups))
    fail("the groups of the scales", expected,
         std::to_string(qparams.groups->size) + " on axis " + std::to_string(qparams.groups->axis) + " of " +
             to_string(shape));
  const auto expected = static_cast<std::size_t>(scale_count(shape, qparams.axis, qparams.groups));
  if (qparams.scales.size() != expected || qparams.zero_points.size() != expected)
    fail("the scales and zero points", std::to_string(expected) + " of each",
         std::to_string(qparams.scales.size()) + " and " + std::to_string(qparams.zero_points.size()));
  require_scales(qparams.scales);
}

Quantized quantize(std::span<const float> values, const Shape& shape, const QParams& qparams) {
  require_qparams(qparams, shape);
  require_count(values.size(), shape);
  Quantized out{Storage::allocate(values.size() * byte_size(qparams.storage)), {}};
  const auto low = static_cast<double>(qparams.qmin), high = static_cast<double>(qparams.qmax);
  with_element(qparams.storage, [&](auto element) {
    using T = decltype(element);
    std::byte* to = out.storage.writable();
    for_each_run(qparams, shape, [&](std::size_t channel, std::int64_t begin, std::int64_t end) {
      const float inverse = inverse_scale(qparams.scales[channel]);
      for (std::int64_t i = begin; i < end; ++i) {
        const float q =
            quantize_unbounded(values[static_cast<std::size_t>(i)], inverse, qparams.zero_points[channel]);
        const auto exact = static_cast<double>(q);
        out.counts.saturated += exact < low || exact > high ? 1 : 0;
        out.counts.nans += std::isnan(q) ? 1 : 0;
        const auto bounded = static_cast<T>(bound_quantized(q, qparams.qmin, qparams.qmax));
        std::memcpy(to + static_cast<std::size_t>(i) * sizeof(T), &bounded, sizeof(T));
      }
    });
  });
  return out;
}

Storage dequantize(std::span<const std::byte> values, const Shape& shape, const QParams& qparams) {
  require_qparams(qparams, shape);
  require_count(values.size() / byte_size(qparams.storage), shape);
  Storage out = Storage::allocate(static_cast<std::size_t>(num_elements(shape)) * sizeof(float));
  with_element(qparams.storage, [&](auto element) {
    using T = decltype(element);
    std::byte* to = out.writable();
    for_each_run(qparams, shape, [&](std::size_t channel, std::int64_t begin, std::int64_t end) {
      const double scale = qparams.scales[channel];
      for (std::int64_t i = begin; i < end; ++i) {
        T q;
        std::memcpy(&q, values.data() + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
        const float x = dequantize_value(q, scale, qparams.zero_points[channel]);
        std::memcpy(to + static_cast<std::size_t>(i) * sizeof(float), &x, sizeof(float));
      }
    });
  });
  return out;
}

QuantizedBias quantize_bias(std::span<const float> bias, std::span<const double> scales, DType accumulator) {
  if (accumulator != DType::kI32 && accumulator != DType::kI48)
    fail("the dtype of the accumulator", "i32 or i48", std::string(to_string(accumulator)));
  if (scales.size() != 1 && scales.size() != bias.size())
    fail("the scales of the bias", "1 or " + std::to_string(bias.size()), std::to_string(scales.size()));
  require_scales(scales);
  const ValueRange range = accumulator == DType::kI32 ? kInt32Values : kInt48Values;
  QuantizedBias out;
  out.values.reserve(bias.size());
  for (std::size_t c = 0; c < bias.size(); ++c) {
    const double q = std::nearbyint(static_cast<double>(bias[c]) / scales[scales.size() == 1 ? 0 : c]);
    const auto low = static_cast<double>(range.low), high = static_cast<double>(range.high);
    out.counts.nans += std::isnan(q) ? 1 : 0;
    out.counts.saturated += q < low || q > high ? 1 : 0;
    out.values.push_back(bound_quantized(q, range.low, range.high));
  }
  return out;
}

}  // namespace tosaic::quant
