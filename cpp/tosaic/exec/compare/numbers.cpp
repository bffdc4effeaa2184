#include "tosaic/exec/compare/numbers.h"

#include <vector>

#include "tosaic/ir/attributes.h"
#include "tosaic/ir/quantized_value.h"

namespace tosaic::exec {
namespace {

Array dequantized(const ArrayView& view, const QParams& qparams) {
  Array out = Array::allocate(DType::kF32, view.shape);
  auto* to = reinterpret_cast<float*>(out.storage.writable());
  const auto count = static_cast<std::size_t>(num_elements(view.shape));
  std::vector<double> values(count);
  read_doubles(view, 0, values);
  std::size_t inner = 1, channels = 1;
  if (qparams.axis) {
    const auto axis = static_cast<std::size_t>(*qparams.axis);
    channels = static_cast<std::size_t>(view.shape[axis]);
    for (std::size_t i = axis + 1; i < view.shape.size(); ++i)
      inner *= static_cast<std::size_t>(view.shape[i]);
  }
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t channel = qparams.axis ? i / inner % channels : 0;
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

std::optional<double> unit_of(const QParamsRef& qparams) {
  if (!qparams || qparams->axis) return std::nullopt;
  return qparams->scales.front();
}

bool is_same(const QParamsRef& a, const QParamsRef& b) { return a == b || (a && b && *a == *b); }

QParamsRef qparams_of(const Node& quantize) {
  const auto& attrs = Graph::attrs<QuantizeAttrs>(quantize);
  return std::make_shared<QParams>(
      QParams{attrs.dtype, attrs.qmin, attrs.qmax, attrs.axis, attrs.scales, attrs.zero_points});
}

}  // namespace tosaic::exec
