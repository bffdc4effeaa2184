#include "tosaic/quant/accuracy/weight_error.h"

#include <mutex>
#include <string>

#include "tosaic/base/error.h"
#include "tosaic/quant/accuracy/moment_matrix.h"

namespace tosaic::quant {

void fix_block_sizes() {
  static std::once_flag once;
  std::call_once(once, [] { Eigen::setCpuCacheSizes(32 * 1024, 512 * 1024, 4 * 1024 * 1024); });
}

Matrix moment_matrix(const SecondMoments& moments, std::int64_t group) {
  const std::span<const std::int64_t> sums = moments.sums(group);
  const std::int64_t columns = moments.columns();
  const double unit = moments.unit();
  Matrix out(columns, columns);
  std::size_t at = 0;
  for (std::int64_t i = 0; i < columns; ++i)
    for (std::int64_t j = 0; j <= i; ++j) out(j, i) = static_cast<double>(sums[at++]) * unit;
  out.triangularView<Eigen::StrictlyLower>() = out.transpose();
  return out;
}

WeightError weight_error(const Contraction& contraction, const SecondMoments& moments,
                         std::span<const float> weights, std::span<const float> rounded) {
  const WeightMatrix& matrix = contraction.matrix;
  for (const std::span<const float> each : {weights, rounded})
    if (static_cast<std::int64_t>(each.size()) != matrix.size())
      throw LayoutMismatch({.where = "accuracy",
                            .what = "the number of weights",
                            .expected = std::to_string(matrix.size()),
                            .got = std::to_string(each.size())});
  if (moments.groups() != matrix.groups || moments.columns() != matrix.columns)
    throw InternalError({.where = "accuracy", .what = "second moments of another contraction"});
  fix_block_sizes();
  WeightError out;
  const double factor = contraction.factor * contraction.factor;
  for (std::int64_t group = 0; group < matrix.groups; ++group) {
    // Rows of `both`: the errors of the channels, then their weights.
    RowMatrix both(2 * matrix.channels, matrix.columns);
    for (std::int64_t channel = 0; channel < matrix.channels; ++channel)
      for (std::int64_t column = 0; column < matrix.columns; ++column) {
        const std::size_t at = matrix.index(group, channel, column);
        const double weight = weights[at];
        both(channel, column) = weight - static_cast<double>(rounded[at]);
        both(matrix.channels + channel, column) = weight;
      }
    const RowMatrix product = both * moment_matrix(moments, group);
    const Eigen::VectorXd powers = factor * product.cwiseProduct(both).rowwise().sum();
    for (std::int64_t channel = 0; channel < matrix.channels; ++channel) {
      out.channel_errors.push_back(powers(channel));
      out.error += powers(channel);
      out.signal += powers(matrix.channels + channel);
    }
  }
  return out;
}

}  // namespace tosaic::quant
