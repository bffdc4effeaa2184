// The range for which quantized samples tell the most about samples: the least Kullback-Leibler divergence.
//
//   bins of the histogram     | 3 | 7 | 8 | 4 | 2 | 2 | 0 | 1 |
//   a range that ends here                            ^
//   samples, clipped   p      | 3 | 7 | 8 | 4 | 2 | 3 |           samples beyond count in the last bin inside
//   steps of two bins         |   5   |   6   |   2   |           a step spreads its samples over its bins evenly
//   quantized samples  q      | 5 | 5 | 6 | 6 | 2 | 2 |           samples beyond are in none
//
// The divergence is the sum of p log(p / q) over the bins, divided by the number of samples. Steps that are too
// large for the shape of the histogram make it grow, and so do samples that are clipped: p has them where q has
// not. The sum of q is the number of samples inside, not that of all samples, so a range with few samples inside is
// never a good one.
//
// - Bins have different widths. A step spreads its samples in proportion to the widths of those of its bins that
//   have samples. A bin belongs to the step to which the mean of its samples rounds.
// - Zero has a step of its own: quantization represents it exactly, however many samples are zero.
// - Counts are random. If the density is even over a step of m bins, the divergence is (m - 1) / 2 in the mean,
//   in samples, although it should be zero. This part is subtracted, as Miller and Madow do for entropies.
//   Otherwise, few samples would prefer ranges with few bins.
//
// With prefix sums over the bins, a candidate costs two logarithms for each step with samples.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "tosaic/quant/observe/bins.h"
#include "tosaic/quant/observe/observe.h"
#include "tosaic/quant/scale.h"

namespace tosaic::quant {
namespace {

class Divergence {
 public:
  explicit Divergence(const Histogram& histogram) : means_(means_of(histogram)) {
    const double unit = magnitude_unit(histogram.exponent());
    sums_.resize(means_.size() + 1);
    for (std::size_t i = 0; i < means_.size(); ++i) {
      const Histogram::Bin& bin = histogram.bins()[i];
      const auto count = static_cast<double>(bin.count);
      double width = 0;
      if (bin.place == 0) {
        zero_ = i;
      } else {
        const Magnitudes magnitudes = magnitudes_of(bin);
        width = (magnitudes.high - magnitudes.low) * unit;
      }
      const double information = width > 0 ? count * std::log(count / width) : 0;
      sums_[i + 1] = {sums_[i].count + count, sums_[i].width + width, sums_[i].information + information};
    }
  }

  // The divergence, times the number of samples. Infinite if no sample is inside.
  [[nodiscard]] double at(const QRange& to, Chosen chosen) const {
    const double low = static_cast<double>(to.qmin - chosen.zero_point),
                 high = static_cast<double>(to.qmax - chosen.zero_point);
    const double inverse = 1 / chosen.scale;
    const std::size_t first = first_from(low, inverse), end = first_from(high + 1, inverse);
    if (first >= end) return std::numeric_limits<double>::infinity();
    double sum = 0;
    Step of_first, of_last;
    for (std::size_t i = first; i < end;) {
      const Step step = step_at(i, end, inverse);
      sum += divergence_of(step);
      if (i == first) of_first = step;
      of_last = step;
      i = step.end;
    }
    const double before = sums_[first].count, beyond = sums_.back().count - sums_[end].count;
    if (first + 1 == end) return sum + clipped(of_first, first, before + beyond);
    return sum + clipped(of_first, first, before) + clipped(of_last, end - 1, beyond);
  }

  // The magnitude at which half of the samples of a sign, or of both, are clipped.
  [[nodiscard]] double median(bool negative, bool positive) const {
    std::vector<std::pair<double, double>> magnitudes;
    double total = 0;
    for (std::size_t i = 0; i < means_.size(); ++i) {
      if (means_[i] < 0 ? !negative : !positive || means_[i] == 0) continue;
      const double count = sums_[i + 1].count - sums_[i].count;
      magnitudes.emplace_back(std::abs(means_[i]), count);
      total += count;
    }
    std::ranges::sort(magnitudes);
    double below = 0;
    for (const auto& [magnitude, count] : magnitudes)
      if ((below += count) * 2 >= total) return magnitude;
    return 0;
  }

 private:
  // Sums over the bins before one.
  struct Sums {
    double count = 0, width = 0, information = 0;
  };
  // The bins from begin to end, all of one step.
  struct Step {
    std::size_t begin = 0, end = 0;
  };

  // The first bin whose mean rounds to `integer` or above.
  [[nodiscard]] std::size_t first_from(double integer, double inverse) const {
    const auto is_below = [&](double mean) { return std::nearbyint(mean * inverse) < integer; };
    return static_cast<std::size_t>(std::ranges::partition_point(means_, is_below) - means_.begin());
  }
  [[nodiscard]] Step step_at(std::size_t begin, std::size_t end, double inverse) const {
    if (begin == zero_) return {begin, begin + 1};
    const double integer = std::nearbyint(means_[begin] * inverse);
    std::size_t i = begin + 1;
    while (i < end && i != zero_ && std::nearbyint(means_[i] * inverse) == integer) ++i;
    return {begin, i};
  }
  [[nodiscard]] double divergence_of(const Step& step) const {
    const std::size_t bins = step.end - step.begin;
    if (bins == 1) return 0;
    const Sums &from = sums_[step.begin], &to = sums_[step.end];
    const double count = to.count - from.count;
    return to.information - from.information - count * std::log(count / (to.width - from.width)) -
           static_cast<double>(bins - 1) / 2;
  }
  // What `more` clipped samples in a bin of a step add to the divergence.
  [[nodiscard]] double clipped(const Step& step, std::size_t bin, double more) const {
    if (more == 0) return 0;
    const Sums &from = sums_[step.begin], &to = sums_[step.end];
    const double inside = sums_[bin + 1].count - sums_[bin].count;
    double quantized = inside;
    if (step.end - step.begin > 1)
      quantized =
          (to.count - from.count) * (sums_[bin + 1].width - sums_[bin].width) / (to.width - from.width);
    return (inside + more) * std::log((inside + more) / quantized) - inside * std::log(inside / quantized);
  }

  std::vector<double> means_;
  std::vector<Sums> sums_;
  std::size_t zero_ = std::numeric_limits<std::size_t>::max();
};

constexpr double kCoarse = 0.957603280698573646909;  // 2^(-1/16), of a bound to the one before it
constexpr int kFine = 8;                             // steps between two bounds of the coarse grid
constexpr int kMostRounds = 4;

// Bounds from `bound` down to `least`, in equal ratios.
std::vector<double> bounds_from(double bound, double least) {
  std::vector<double> found{bound};
  while (found.back() * kCoarse >= least && found.back() > 0) found.push_back(found.back() * kCoarse);
  return found;
}

// The search among ranges [-below, above].
class Search {
 public:
  Search(const Histogram& histogram, const QRange& to)
      : divergence_(histogram),
        to_(to),
        below_(std::max(0.0, -static_cast<double>(histogram.range().least))),
        above_(std::max(0.0, static_cast<double>(histogram.range().greatest))),
        chosen_(range_qparams(histogram.range(), to)),
        least_(divergence_.at(to, chosen_)) {}

  // Both bounds are `share` of the whole range.
  void shrink() {
    const double below = below_, above = above_, most = std::max(below, above);
    for (const double bound : bounds_from(most, divergence_.median(true, true)))
      offer(below * bound / most, above * bound / most);
    refine([&](double ratio) { return std::pair(below_ * ratio, above_ * ratio); });
  }
  // Each bound alone, as long as one of them improves.
  void shrink_each() {
    const double below = below_, above = above_, of_below = divergence_.median(true, false),
                 of_above = divergence_.median(false, true);
    for (int round = 0; round < kMostRounds; ++round) {
      const double before = least_;
      for (const double bound : bounds_from(above, of_above)) offer(below_, bound);
      refine([&](double ratio) { return std::pair(below_, std::min(above, above_ * ratio)); });
      for (const double bound : bounds_from(below, of_below)) offer(bound, above_);
      refine([&](double ratio) { return std::pair(std::min(below, below_ * ratio), above_); });
      if (least_ >= before) return;
    }
  }
  [[nodiscard]] const Chosen& chosen() const { return chosen_; }
  [[nodiscard]] double least() const { return least_; }

 private:
  void offer(double below, double above) {
    const Chosen chosen = range_qparams(
        {.least = static_cast<float>(-below), .greatest = static_cast<float>(above), .finite = 1}, to_);
    const double found = divergence_.at(to_, chosen);
    if (found >= least_) return;
    least_ = found, chosen_ = chosen, below_ = below, above_ = above;
  }
  // Offers the ranges of ratios between the neighbours of the best range in the coarse grid.
  template <class RangeOf>
  void refine(RangeOf&& range_of) {
    std::vector<std::pair<double, double>> ranges;
    for (int i = 1 - kFine; i < kFine; ++i) ranges.push_back(range_of(std::pow(kCoarse, 1.0 * i / kFine)));
    for (const auto& [below, above] : ranges) offer(below, above);
  }

  Divergence divergence_;
  QRange to_;
  double below_, above_;  // of the best range
  Chosen chosen_;
  double least_;
};

}  // namespace

LeastEntropy least_entropy_qparams(const Histogram& histogram, const QRange& to) {
  const Chosen whole = range_qparams(histogram.range(), to);
  if (histogram.range().finite == 0) return {whole, 0};
  Search search(histogram, to);
  search.shrink();
  if (!to.symmetric) search.shrink_each();
  return {search.chosen(), search.least() / static_cast<double>(histogram.range().finite)};
}

}  // namespace tosaic::quant
