#include "tosaic/exec/compare/numbers.h"

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

std::optional<double> unit_of(const QParamsRef& qparams) {
  if (!qparams || qparams->axis) return std::nullopt;
  return qparams->scales.front();
}

bool is_same(const QParamsRef& a, const QParamsRef& b) { return a == b || (a && b && *a == *b); }

QParamsRef qparams_of(const Node& quantize) {
  const auto& attrs = Graph::attrs<QuantizeAttrs>(quantize);
  return tosaic::qparams_of(attrs, attrs.dtype);
}

}  // namespace tosaic::exec
