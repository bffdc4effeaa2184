#include "tosaic/quant/accuracy/gptq.h"

#include <Eigen/Cholesky>
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "tosaic/base/error.h"
#include "tosaic/ir/quantized_value.h"
#include "tosaic/quant/accuracy/group_scales.h"
#include "tosaic/quant/accuracy/moment_matrix.h"
#include "tosaic/quant/quantize.h"

namespace tosaic::quant {
namespace {

using Index = Eigen::Index;

void require(bool holds, const char* what, const char* expected, const std::string& got) {
  if (!holds) throw QuantMismatch({.where = "gptq", .what = what, .expected = expected, .got = got});
}

void require_options(const GptqOptions& options) {
  require(options.damping >= 0 && std::isfinite(options.damping), "damping", "a number of at least 0",
          std::to_string(options.damping));
  require(options.block >= 1, "block", "at least 1", std::to_string(options.block));
}

struct Factor {
  Matrix lower = {};           // the factor of the moments in the order of rounding, last column first
  Eigen::VectorXd added = {};  // what was added to the diagonal of the moments
  double damping = 0;
};

// The moments whose rows and columns are in this order.
Matrix arranged(const Matrix& moments, std::span<const Index> order) {
  Matrix out(moments.rows(), moments.cols());
  for (Index j = 0; j < out.cols(); ++j)
    for (Index i = j; i < out.rows(); ++i)
      out(i, j) = moments(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(j)]);
  return out;
}

Factor factor_of(const Matrix& moments, std::span<const Index> order, double damping) {
  Factor out{.damping = damping};
  const double mean = moments.rows() == 0 ? 0 : moments.diagonal().mean();
  while (true) {
    out.lower = arranged(moments, order);
    // A column of zeros is independent of all others, so any number on the diagonal is right.
    out.added =
        (out.lower.diagonal().array() == 0)
            .select(mean > 0 ? mean : 1.0, Eigen::VectorXd::Constant(out.lower.rows(), out.damping * mean));
    out.lower.diagonal() += out.added;
    const Eigen::LLT<Eigen::Ref<Matrix>> factorised(out.lower);
    if (factorised.info() == Eigen::Success) return out;
    out.damping = std::max(1e-6, out.damping * 10);
  }
}

// The rounding of the channels of one group of a contraction.
//
// Columns are stored last first, as in Factor::lower, so that the column rounded first is in the last row. A
// row of `errors_` has w - v of all channels for the chosen v, and then w - v for the nearest weights v.
class GroupRounding {
 public:
  GroupRounding(const Contraction& contraction, const SecondMoments& moments, std::int64_t group,
                std::span<const float> weights, const ScaleGrid& grid, const GptqOptions& options,
                GptqResult& result)
      : matrix_(contraction.matrix),
        group_(group),
        grid_(grid),
        options_(options),
        result_(result),
        channels_(matrix_.channels) {
    const Matrix moment = moment_matrix(moments, group);
    order_ = order_of(moment);
    for (Index i = 0; i < moment.rows(); ++i) result.dead_columns += moment(i, i) == 0 ? 1 : 0;
    factor_ = factor_of(moment, order_, options.damping);
    result.damping = std::max(result.damping, factor_.damping);
    take_weights(weights);
  }

  void run() {
    const auto columns = static_cast<Index>(order_.size());
    Index block = options_.block;
    if (options_.fit_groups) block = (block + unit() - 1) / unit() * unit();
    for (Index end = columns; end > 0; end -= std::min(block, end))
      round_block(std::max<Index>(0, end - block), end);
    store();
  }

 private:
  // The columns that share scales: a group of input channels.
  [[nodiscard]] Index unit() const { return result_.qparams.groups->size * matrix_.taps; }
  [[nodiscard]] std::size_t at(Index row, Index channel) const {
    return matrix_.index(group_, channel, order_[static_cast<std::size_t>(row)]);
  }
  [[nodiscard]] std::size_t scale_at(Index row, Index channel) const {
    return grid_.of(static_cast<std::int64_t>(at(row, channel)));
  }

  // The columns, last to be rounded first.
  [[nodiscard]] std::vector<Index> order_of(const Matrix& moment) const {
    std::vector<Index> order(static_cast<std::size_t>(moment.rows()));
    std::iota(order.begin(), order.end(), Index{0});
    if (options_.activation_order) {
      std::vector<double> sums;  // of groups of columns that are rounded one after another
      const Index together = options_.fit_groups ? unit() : 1;
      for (Index i = 0; i < moment.rows(); i += together)
        sums.push_back(moment.diagonal().segment(i, together).sum());
      std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) {
        const auto group_a = a / together, group_b = b / together;
        const double sum_a = sums[static_cast<std::size_t>(group_a)],
                     sum_b = sums[static_cast<std::size_t>(group_b)];
        if (sum_a != sum_b) return sum_a > sum_b;
        if (group_a != group_b) return group_a < group_b;
        return moment(a, a) > moment(b, b);
      });
    }
    std::reverse(order.begin(), order.end());
    return order;
  }

  void take_weights(std::span<const float> weights) {
    const auto columns = static_cast<Index>(order_.size());
    weights_.resize(columns, channels_);
    errors_.resize(columns, 2 * channels_);
    for (Index row = 0; row < columns; ++row)
      for (Index channel = 0; channel < channels_; ++channel) {
        const float weight = weights[at(row, channel)];
        weights_(row, channel) = weight;
        errors_(row, channels_ + channel) =
            static_cast<double>(weight) - static_cast<double>(rounded(weight, scale_at(row, channel)));
      }
    powers_ = RowMatrix::Zero(1, 2 * channels_);
  }

  [[nodiscard]] float rounded(double value, std::size_t scale) const {
    const QParams& qparams = result_.qparams;
    const std::int64_t zero_point = qparams.zero_points[scale];
    const float q =
        quantize_unbounded(static_cast<float>(value), inverse_scale(qparams.scales[scale]), zero_point);
    return dequantize_value(bound_quantized(q, qparams.qmin, qparams.qmax), qparams.scales[scale],
                            zero_point);
  }

  void round_block(Index begin, Index end) {
    const Index later = errors_.rows() - end;  // rows that are rounded already
    RowMatrix moved =
        factor_.lower.block(end, begin, later, end - begin).transpose() * errors_.bottomRows(later);
    for (Index row = end - 1; row >= begin; --row) {
      if (options_.fit_groups && (row + 1) % unit() == 0)
        fit_scales(row + 1 - unit(), row + 1, end, moved.middleRows(row + 1 - unit() - begin, unit()));
      auto sums = moved.row(row - begin);
      for (Index other = end - 1; other > row; --other)
        sums += factor_.lower(other, row) * errors_.row(other);
      const double pivot = factor_.lower(row, row);
      for (Index channel = 0; channel < channels_; ++channel)
        errors_(row, channel) = weights_(row, channel) -
                                static_cast<double>(rounded(weights_(row, channel) + sums(channel) / pivot,
                                                            scale_at(row, channel)));
      sums += pivot * errors_.row(row);
      powers_ +=
          sums.cwiseProduct(sums) - factor_.added(row) * errors_.row(row).cwiseProduct(errors_.row(row));
    }
  }

  // Computes the scales of the columns [begin, end) before they are rounded. `moved` has what the errors of
  // the rows from `known` on add to these columns.
  template <class Moved>
  void fit_scales(Index begin, Index end, Index known, const Moved& moved) {
    // The weights that would cancel the errors so far, if the columns could have any numbers.
    RowMatrix wanted(end - begin, channels_);
    RowMatrix change(end - begin, channels_);
    for (Index row = end - 1; row >= begin; --row) {
      auto sums = change.row(row - begin);
      sums = moved.row(row - begin).head(channels_);
      for (Index other = known - 1; other >= end; --other)
        sums += factor_.lower(other, row) * errors_.row(other).head(channels_);
      for (Index other = end - 1; other > row; --other)
        sums -= factor_.lower(other, row) * change.row(other - begin);
      sums /= factor_.lower(row, row);
      wanted.row(row - begin) = weights_.row(row) + sums;
    }
    const ScaleSearch search{
        .qmin = result_.qparams.qmin, .qmax = result_.qparams.qmax, .search = options_.search};
    std::vector<float> members(static_cast<std::size_t>(end - begin));
    for (Index channel = 0; channel < channels_; ++channel) {
      for (Index row = begin; row < end; ++row)
        members[static_cast<std::size_t>(row - begin)] = static_cast<float>(wanted(row - begin, channel));
      const std::size_t scale = scale_at(begin, channel);
      given_.push_back({channel, scale, result_.qparams.scales[scale]});
      result_.qparams.scales[scale] = scale_of_group(members, search);
    }
  }

  void store() {
    std::vector<bool> nearest(static_cast<std::size_t>(channels_));
    for (Index channel = 0; channel < channels_; ++channel) {
      const double after = std::max(0.0, powers_(0, channel)),
                   before = std::max(0.0, powers_(0, channels_ + channel));
      const bool worse = after >= before;
      nearest[static_cast<std::size_t>(channel)] = worse;
      result_.nearest_channels += worse ? 1 : 0;
      result_.error_before += before;
      result_.error_after += worse ? before : after;
      for (Index row = 0; row < errors_.rows(); ++row)
        result_.weights[at(row, channel)] =
            static_cast<float>(weights_(row, channel) - errors_(row, worse ? channels_ + channel : channel));
    }
    for (const Given& each : given_)
      if (nearest[static_cast<std::size_t>(each.channel)]) result_.qparams.scales[each.scale] = each.value;
  }

  struct Given {  // a scale that fit_scales() has replaced
    Index channel;
    std::size_t scale;
    double value;
  };

  const WeightMatrix& matrix_;
  std::int64_t group_;
  const ScaleGrid& grid_;
  const GptqOptions& options_;
  GptqResult& result_;
  Index channels_;
  std::vector<Index> order_;
  Factor factor_;
  RowMatrix weights_, errors_, powers_;
  std::vector<Given> given_;
};

// Throws unless each group of input channels has a scale of its own for each channel of the result.
void require_groups(const WeightMatrix& matrix, const ScaleGrid& grid, const QParams& qparams) {
  const auto scale_at = [&](std::int64_t channel, std::int64_t column) {
    return grid.of(static_cast<std::int64_t>(matrix.index(0, channel, column)));
  };
  bool fits = qparams.groups && qparams.qmin < 0 && qparams.qmax > 0;
  if (fits) {
    const std::int64_t unit = qparams.groups->size * matrix.taps;
    fits = unit <= matrix.columns && matrix.columns % unit == 0 && scale_at(0, 0) == scale_at(0, unit - 1) &&
           static_cast<std::int64_t>(qparams.scales.size()) == matrix.size() / unit &&
           (matrix.columns == unit || scale_at(0, 0) != scale_at(0, unit)) &&
           (matrix.channels == 1 || scale_at(0, 0) != scale_at(1, 0));
  }
  require(fits, "fit_groups", "qparams with a scale for each channel and each group of input channels",
          to_string(qparams));
  for (const std::int64_t zero_point : qparams.zero_points)
    require(zero_point == 0, "fit_groups", "zero points of 0", std::to_string(zero_point));
}

}  // namespace

GptqResult gptq(const Contraction& contraction, const SecondMoments& moments, std::span<const float> weights,
                const Shape& shape, const QParams& qparams, const GptqOptions& options) {
  require_options(options);
  require_qparams(qparams, shape);
  const WeightMatrix& matrix = contraction.matrix;
  if (static_cast<std::int64_t>(weights.size()) != matrix.size() || num_elements(shape) != matrix.size())
    throw LayoutMismatch({.where = "gptq",
                          .what = "the number of weights",
                          .expected = std::to_string(matrix.size()),
                          .got = std::to_string(weights.size())});
  require(moments.rows() > 0, "second moments", "those of at least one sample", "none");
  if (moments.groups() != matrix.groups || moments.columns() != matrix.columns)
    throw InternalError({.where = "gptq", .what = "second moments of another contraction"});
  for (const float weight : weights)
    require(std::isfinite(weight), "weights", "finite numbers", std::to_string(weight));
  const ScaleGrid grid(shape, qparams);
  if (options.fit_groups) require_groups(matrix, grid, qparams);
  fix_block_sizes();
  GptqResult result{.weights = std::vector<float>(weights.size()), .qparams = qparams};
  for (std::int64_t group = 0; group < matrix.groups; ++group)
    GroupRounding(contraction, moments, group, weights, grid, options, result).run();
  result.error_before *= contraction.factor * contraction.factor;
  result.error_after *= contraction.factor * contraction.factor;
  return result;
}

}  // namespace tosaic::quant
