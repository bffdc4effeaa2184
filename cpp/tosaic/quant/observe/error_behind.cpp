// The error that rounding a tensor x causes in f(x), where the function f is the only reader of x.
//
//   sample x less than half a step from 0   (f(0) - f(x))^2
//   other sample x inside of the range      f'(x)^2 * scale^2 / 12    the mean over a step, for a smooth f
//   sample x beyond its bound b             (f(b) - f(x))^2           zero where f is flat, as SiLU is far
//                                                                     below 0
//
// Prefix sums over the bins give each term for any range, so a candidate costs a few binary searches.
#include <algorithm>
#include <cmath>
#include <string>

#include "tosaic/base/error.h"
#include "tosaic/quant/observe/bins.h"
#include "tosaic/quant/observe/observe.h"

namespace tosaic::quant {
namespace {

class ErrorBehind {
 public:
  ErrorBehind(const std::vector<double>& means, std::span<const Histogram::Bin> bins,
              std::span<const double> results)
      : means_(means), results_(results), sums_(means.size() + 1) {
    for (std::size_t i = 0; i < means.size(); ++i) {
      const auto count = static_cast<double>(bins[i].count);
      const double slope = slope_at(i), result = results[i];
      const Sums& before = sums_[i];
      sums_[i + 1] = {before.count + count, before.results + count * result,
                      before.squares + count * result * result, before.slopes + count * slope * slope};
    }
  }

  // The squared error of all samples.
  [[nodiscard]] double at(const QRange& to, Chosen chosen) const {
    const double low = static_cast<double>(to.qmin - chosen.zero_point) * chosen.scale;
    const double high = static_cast<double>(to.qmax - chosen.zero_point) * chosen.scale;
    const double half = chosen.scale / 2;
    const Sums &first = below(low), &last = up_to(high);
    const Sums &near = below(std::max(low, -half)), &far = up_to(std::min(high, half));
    const double inside = (last.slopes - first.slopes) - (far.slopes - near.slopes);
    return inside * chosen.scale * chosen.scale / 12 + constant(near, far, 0) + constant(Sums{}, first, low) +
           constant(last, sums_.back(), high);
  }

 private:
  // Sums over the samples of all bins before a bin.
  struct Sums {
    double count = 0, results = 0, squares = 0, slopes = 0;
  };

  [[nodiscard]] const Sums& below(double x) const {
    return sums_[static_cast<std::size_t>(std::ranges::lower_bound(means_, x) - means_.begin())];
  }
  [[nodiscard]] const Sums& up_to(double x) const {
    return sums_[static_cast<std::size_t>(std::ranges::upper_bound(means_, x) - means_.begin())];
  }
  [[nodiscard]] double slope_at(std::size_t i) const {
    const std::size_t before = i == 0 ? 0 : i - 1, after = std::min(i + 1, means_.size() - 1);
    const double width = means_[after] - means_[before];
    return width > 0 ? (results_[after] - results_[before]) / width : 0;
  }
  [[nodiscard]] double result_at(double x) const {
    const auto after = std::ranges::lower_bound(means_, x);
    if (after == means_.begin()) return results_.front();
    if (after == means_.end()) return results_.back();
    const auto i = static_cast<std::size_t>(after - means_.begin());
    const double part = (x - means_[i - 1]) / (means_[i] - means_[i - 1]);
    return results_[i - 1] + part * (results_[i] - results_[i - 1]);
  }
  // The squared error of the samples between two sums if all of them become `x`.
  [[nodiscard]] double constant(const Sums& from, const Sums& to, double x) const {
    const double count = to.count - from.count;
    if (count <= 0) return 0;
    const double result = result_at(x);
    return std::max(0.0, count * result * result - 2 * result * (to.results - from.results) +
                             (to.squares - from.squares));
  }

  const std::vector<double>& means_;
  std::span<const double> results_;
  std::vector<Sums> sums_;
};

// The best scale and zero point so far.
struct Best {
  const ErrorBehind& error;
  const QRange& to;
  Chosen chosen;
  double least;

  void offer(Chosen each) {
    const double found = error.at(to, each);
    if (found < least) chosen = each, least = found;
  }
  void offer_scale(double scale, std::int64_t lowest, std::int64_t highest) {
    const double exact = std::max(static_cast<float>(scale), to.least_scale);
    for (std::int64_t zero_point = lowest; zero_point <= highest; ++zero_point) offer({exact, zero_point});
  }
};

constexpr double kRatio = 0.96;       // of a scale to the scale before it
constexpr double kLeastRatio = 0.25;  // the search ends at this share of the scale of least_error_qparams()
constexpr int kMostScales = 512;
constexpr int kFineSteps = 8;      // on either side of the best scale
constexpr std::int64_t kNear = 2;  // zero points on either side of the best one

}  // namespace

std::vector<double> means_of(const Histogram& histogram) {
  const double unit = magnitude_unit(histogram.exponent());
  std::vector<double> means;
  means.reserve(histogram.bins().size());
  for (const Histogram::Bin& bin : histogram.bins())
    means.push_back(bin.place == 0 ? 0.0 : std::copysign(magnitudes_of(bin).mean * unit, bin.place));
  return means;
}

LeastError least_error_behind(const Histogram& histogram, const QRange& to, std::span<const double> results) {
  const std::vector<double> means = means_of(histogram);
  if (results.size() != means.size())
    throw LayoutMismatch({.where = "observe",
                          .what = "the results of a function",
                          .expected = std::to_string(means.size()) + " numbers, one for each bin",
                          .got = std::to_string(results.size())});
  if (!std::ranges::all_of(results, [](double each) { return std::isfinite(each); }))
    throw QuantMismatch({.where = "observe",
                         .what = "a result of the function that reads the tensor",
                         .expected = "finite numbers",
                         .got = "an infinity or NaN"});
  const LeastError plain = least_error_qparams(histogram, to);
  if (means.empty() || to.qmax - to.qmin > 255) return plain;
  const ErrorBehind error(means, histogram.bins(), results);
  Best best{error, to, plain.chosen, error.at(to, plain.chosen)};
  const std::int64_t lowest = to.symmetric ? to.zero_point : to.qmin;
  const std::int64_t highest = to.symmetric ? to.zero_point : to.qmax;
  const double first = range_qparams(histogram.range(), to).scale;
  const double octaves = std::log2(std::max(first / (kLeastRatio * plain.chosen.scale), 1.0));
  const int count = std::min(kMostScales, 1 + static_cast<int>(octaves / -std::log2(kRatio)));
  for (int i = 0; i < count; ++i) best.offer_scale(first * std::pow(kRatio, i), lowest, highest);
  const Chosen coarse = best.chosen;
  for (int i = -kFineSteps; i <= kFineSteps; ++i)
    best.offer_scale(coarse.scale * (1 + (1 - kRatio) * i / kFineSteps),
                     std::max(lowest, coarse.zero_point - kNear),
                     std::min(highest, coarse.zero_point + kNear));
  return {best.chosen, best.least / static_cast<double>(histogram.range().finite)};
}

}  // namespace tosaic::quant
