#include "tosaic/quant/accuracy/group_scales.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "tosaic/base/error.h"

namespace tosaic::quant {
namespace {

constexpr int kSteps = 20;

// torch.linspace(1.0, 0.6, 21), which computes each half from its own end.
std::array<float, kSteps + 1> ratios() {
  constexpr float kFirst = 1.0F, kLast = 0.6F;
  const float step = (kLast - kFirst) / static_cast<float>(kSteps);
  std::array<float, kSteps + 1> out{};
  for (int i = 0; i <= kSteps; ++i)
    out[static_cast<std::size_t>(i)] = i <= kSteps / 2 ? kFirst + step * static_cast<float>(i)
                                                       : kLast - step * static_cast<float>(kSteps - i);
  return out;
}

float finite(float value) { return std::isfinite(value) ? value : 0.0F; }

double squared_error(std::span<const float> weights, float scale, float low, float high) {
  const float inverse = 1.0F / scale;
  double sum = 0;
  for (const float weight : weights) {
    const float w = finite(weight);
    const float error = std::clamp(std::nearbyint(w * inverse), low, high) * scale - w;
    sum += static_cast<double>(error * error);
  }
  return sum;
}

void require_search(const ScaleSearch& search) {
  if (search.qmin < 0 && search.qmax > 0 && search.qmin >= INT32_MIN && search.qmax <= INT32_MAX &&
      search.least_scale > 0 && std::isfinite(search.least_scale))
    return;
  throw QuantMismatch({.where = "accuracy",
                       .what = "scales of groups",
                       .expected = "qmin < 0 < qmax of at most 32 bits and a positive, finite least scale",
                       .got = std::to_string(search.qmin) + ".." + std::to_string(search.qmax) + ", " +
                              std::to_string(search.least_scale)});
}

}  // namespace

float scale_of_group(std::span<const float> weights, const ScaleSearch& search) {
  const auto low = static_cast<float>(search.qmin), high = static_cast<float>(search.qmax);
  float most = 0;
  for (const float weight : weights) most = std::max(most, std::abs(finite(weight)));
  const float fitting = std::max(most / std::min(-low, high), search.least_scale);
  if (!search.search) return fitting;
  static const std::array<float, kSteps + 1> kRatios = ratios();
  float best = fitting;
  double least = std::numeric_limits<double>::infinity();
  for (const float ratio : kRatios) {
    const float scale = std::max(fitting * ratio, search.least_scale);
    const double error = squared_error(weights, scale, low, high);
    if (error < least) {
      best = scale;
      least = error;
    }
  }
  return best;
}

std::vector<float> group_scales(std::span<const float> weights, const Shape& shape, std::int64_t axis,
                                const Groups& groups, const ScaleSearch& search) {
  require_search(search);
  if (const char* expected = scale_grid_fault(shape, axis, groups))
    throw LayoutMismatch({.where = "accuracy",
                          .what = "the groups of a weight",
                          .expected = expected,
                          .got = to_string(shape) + ", axis " + std::to_string(axis) + ", groups of " +
                                 std::to_string(groups.size) + " on " + std::to_string(groups.axis)});
  if (static_cast<std::int64_t>(weights.size()) != num_elements(shape))
    throw LayoutMismatch({.where = "accuracy",
                          .what = "the number of weights",
                          .expected = std::to_string(num_elements(shape)),
                          .got = std::to_string(weights.size())});
  const ScaleGrid grid(shape, axis, groups);
  std::vector<std::vector<float>> members(static_cast<std::size_t>(scale_count(shape, axis, groups)));
  for (std::size_t i = 0; i < weights.size(); ++i)
    members[grid.of(static_cast<std::int64_t>(i))].push_back(weights[i]);
  std::vector<float> scales;
  scales.reserve(members.size());
  for (const std::vector<float>& each : members) scales.push_back(scale_of_group(each, search));
  return scales;
}

}  // namespace tosaic::quant
