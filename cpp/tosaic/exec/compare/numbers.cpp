#include "tosaic/exec/compare/numbers.h"

#include <cmath>
#include <memory>
#include <vector>

#include "tosaic/ir/attributes.h"
#include "tosaic/ir/quantized.h"
#include "tosaic/ir/quantized_value.h"

namespace tosaic::exec {
namespace {

Array dequantized(const ArrayView& view, const QParams& qparams) {
  Array out = Array::allocate(DType::kF32, view.shape);
  auto* to = reinterpret_cast<float*>(out.storage.writable());
  const auto count = static_cast<std::size_t>(num_elements(view.shape));
  std::vector<double> values(count);
  read_doubles(view, 0, values);
  const ScaleGrid grid(view.shape, qparams);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t channel = grid.of(static_cast<std::int64_t>(i));
    to[i] = dequantize_value(static_cast<std::int64_t>(values[i]), qparams.scales[channel],
                             qparams.zero_points[channel]);
  }
  return out;
}

}  // namespace

Held as_numbers(const ArrayView& view, const QParamsRef& qparams) {
  if (!qparams) return {view, {}};
  Held out;
  out.owner = dequantized(view, *qparams);
  out.view = out.owner.view();
  return out;
}

ArrayView with_sign_of(DType dtype, const ArrayView& view) {
  ArrayView out = view;
  if (is_integer(dtype) && is_integer(view.dtype) && byte_size(dtype) == byte_size(view.dtype))
    out.dtype = dtype;
  return out;
}

Held as_integers(const ArrayView& numbers, const QParams& qparams) {
  Held out;
  out.owner = Array::allocate(qparams.storage, numbers.shape);
  std::byte* to = out.owner.storage.writable();
  std::vector<double> values(static_cast<std::size_t>(num_elements(numbers.shape)));
  read_doubles(numbers, 0, values);
  const ScaleGrid grid(numbers.shape, qparams);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t channel = grid.of(static_cast<std::int64_t>(i));
    const float whole = quantize_unbounded(
        static_cast<float>(values[i]), inverse_scale(qparams.scales[channel]), qparams.zero_points[channel]);
    store_element(qparams.storage, to + i * byte_size(qparams.storage),
                  static_cast<double>(bound_quantized(whole, qparams.qmin, qparams.qmax)));
  }
  out.view = out.owner.view();
  return out;
}

std::optional<double> unit_of(const QParamsRef& qparams) {
  if (!qparams || qparams->axis) return std::nullopt;
  return qparams->scales.front();
}

bool is_same(const QParamsRef& a, const QParamsRef& b) {
  if (a == b) return true;
  if (!a || !b || a->scales.size() != b->scales.size()) return false;
  for (std::size_t i = 0; i < a->scales.size(); ++i)
    if (std::fabs(a->scales[i] - b->scales[i]) > 0x1p-22 * a->scales[i]) return false;
  QParams same = *b;
  same.scales = a->scales;
  return *a == same;
}

bool has_same_numbers(const QParams& a, const QParams& b) {
  QParams moved = b;
  for (std::size_t i = 0; i < moved.zero_points.size(); ++i) moved.zero_points[i] += a.qmin - b.qmin;
  moved.storage = a.storage;
  moved.qmin += a.qmin - b.qmin;
  moved.qmax += a.qmin - b.qmin;
  return is_same(std::make_shared<const QParams>(a), std::make_shared<const QParams>(std::move(moved)));
}

bool is_near(const QParams& a, const QParams& b) {
  constexpr double kOfRange = 1e-3;
  if (a.storage != b.storage || a.axis != b.axis || a.scales.size() != b.scales.size()) return false;
  for (std::size_t i = 0; i < a.scales.size(); ++i) {
    const auto number = [i](const QParams& qparams, std::int64_t whole) {
      return static_cast<double>(whole - qparams.zero_points[i]) * qparams.scales[i];
    };
    const double most = a.scales[i] + kOfRange * (number(a, a.qmax) - number(a, a.qmin));
    if (std::fabs(number(a, a.qmin) - number(b, b.qmin)) > most ||
        std::fabs(number(a, a.qmax) - number(b, b.qmax)) > most)
      return false;
  }
  return true;
}

QParamsRef qparams_of(const Node& quantize) {
  const auto& attrs = Graph::attrs<QuantizeAttrs>(quantize);
  return tosaic::qparams_of(attrs, attrs.dtype);
}

}  // namespace tosaic::exec
