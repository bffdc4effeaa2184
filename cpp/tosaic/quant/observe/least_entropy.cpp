// The range whose quantized samples have the least Kullback-Leibler divergence from the samples.
//
//   bins of the histogram     | 3 | 7 | 8 | 4 | 2 | 2 | 0 | 1 |
//   a range that ends here                            ^
//   samples, clipped   p      | 3 | 7 | 8 | 4 | 2 | 3 |           samples beyond count in the last bin inside
//   steps of two bins         |   5   |   6   |   2   |           spread evenly over the bins of a step
//   quantized samples  q      | 5 | 5 | 6 | 6 | 2 | 2 |           samples beyond are in none
//
// The divergence is the sum of p log(p / q) over the bins, divided by the number of samples. The divergence
// grows with steps that are too large for the shape of the histogram, and with clipped samples, which p
// counts and q does not. The distance of a clipped sample from the range does not matter. The sum of q is the
// number of samples inside of the range, so a range with few samples inside is never good.
//
// - Bins have different widths. A step spreads its samples in proportion to the widths of the bins in it that
//   have samples. A bin belongs to the step to which the mean of its samples rounds.
// - Zero is not a part of its step: quantization represents it exactly, however many samples are zero.
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

  // The divergence, times the number of samples. Infinite if no sample is inside of the range. A sample
  // counts as inside up to half a step beyond the last integer, since its error is a rounding error there.
  // Scales are rounded to f32, so the bound has a small tolerance.
  [[nodiscard]] double at(const QRange& to, Chosen chosen) const {
    const Rounding rounding{.scale = chosen.scale,
                            .low = static_cast<double>(to.qmin - chosen.zero_point),
                            .high = static_cast<double>(to.qmax - chosen.zero_point)};
    const double beyond_last = (0.5 + 1e-6 * (rounding.high - rounding.low)) * chosen.scale;
    const auto first = static_cast<std::size_t>(
        std::ranges::lower_bound(means_, rounding.low * chosen.scale - beyond_last) - means_.begin());
    const auto end = static_cast<std::size_t>(
        std::ranges::upper_bound(means_, rounding.high * chosen.scale + beyond_last) - means_.begin());
    if (first >= end) return std::numeric_limits<double>::infinity();
    double sum = 0;
    Step of_first, of_last;
    for (std::size_t i = first; i < end;) {
      const Step step = step_at(i, end, rounding);
      sum += divergence_of(step);
      if (i == first) of_first = step;
      of_last = step;
      i = step.end;
    }
    const double before = sums_[first].count, after = sums_.back().count - sums_[end].count;
    if (first + 1 == end) return sum + clipped(of_first, first, before + after);
    return sum + clipped(of_first, first, before) + clipped(of_last, end - 1, after);
  }

  // The median magnitude of the negative samples, of the positive ones, or of both.
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
    for (const auto& [magnitude, count] : magnitudes) {
      below += count;
      if (below * 2 >= total) return magnitude;
    }
    return 0;
  }

 private:
  // Sums over all bins before a bin.
  struct Sums {
    double count = 0, width = 0, information = 0;
  };
  // The bins from begin to end, all of one step.
  struct Step {
    std::size_t begin = 0, end = 0;
  };

  struct Rounding {
    double scale, low, high;

    [[nodiscard]] double operator()(double value) const {
      return std::clamp(std::nearbyint(value / scale), low, high);
    }
  };

  [[nodiscard]] Step step_at(std::size_t begin, std::size_t end, const Rounding& rounding) const {
    const double integer = rounding(means_[begin]);
    std::size_t i = begin + 1;
    while (i < end && rounding(means_[i]) == integer) ++i;
    return {begin, i};
  }
  // The sums over the bins of a step, without zero.
  [[nodiscard]] Sums sums_of(const Step& step) const {
    const Sums &from = sums_[step.begin], &to = sums_[step.end];
    const bool has_zero = step.begin <= zero_ && zero_ < step.end;
    return {to.count - from.count - (has_zero ? count_of(zero_) : 0), to.width - from.width,
            to.information - from.information};
  }
  [[nodiscard]] double count_of(std::size_t bin) const { return sums_[bin + 1].count - sums_[bin].count; }
  [[nodiscard]] double divergence_of(const Step& step) const {
    if (step.end - step.begin == 1) return 0;
    const Sums sums = sums_of(step);
    return sums.information - sums.count * std::log(sums.count / sums.width);
  }
  // What `more` clipped samples in a bin of a step add to the divergence.
  [[nodiscard]] double clipped(const Step& step, std::size_t bin, double more) const {
    if (more == 0) return 0;
    const double inside = count_of(bin);
    double quantized = inside;
    if (bin != zero_ && step.end - step.begin > 1) {
      const Sums sums = sums_of(step);
      quantized = sums.count * (sums_[bin + 1].width - sums_[bin].width) / sums.width;
    }
    return (inside + more) * std::log((inside + more) / quantized) - inside * std::log(inside / quantized);
  }

  std::vector<double> means_;
  std::vector<Sums> sums_;
  std::size_t zero_ = std::numeric_limits<std::size_t>::max();
};

constexpr double kSteps =
    4;  // of a grid in an octave; each finer grid has as many in a step of the one before
constexpr int kFinerGrids = 3;

// `bound`, then smaller bounds, each by the same factor, down to `least`.
std::vector<double> bounds_from(double bound, double least) {
  std::vector<double> found;
  for (int i = 0; i == 0 || found.back() > least; ++i) found.push_back(bound * std::exp2(-i / kSteps));
  return found;
}

// Bounds around `bound` in steps of a part of an octave, up to `most`.
std::vector<double> bounds_around(double bound, double most, double step) {
  if (bound == 0) return {0};
  std::vector<double> found;
  for (int i = -static_cast<int>(kSteps); i <= static_cast<int>(kSteps); ++i)
    found.push_back(std::min(most, bound * std::exp2(i * step)));
  return found;
}

// The search among ranges [-below, above]: a coarse grid of both bounds, then finer grids around the best
// range. The bounds are searched together: with a bad value of one, the other may have a local minimum.
class Search {
 public:
  Search(const Histogram& histogram, const QRange& to)
      : divergence_(histogram),
        to_(to),
        chosen_(range_qparams(histogram.range(), to)),
        least_(divergence_.at(to, chosen_)) {
    const double below = std::max(0.0, -static_cast<double>(histogram.range().least)),
                 above = std::max(0.0, static_cast<double>(histogram.range().greatest));
    if (to.symmetric) {  // the larger bound decides
      most_above_ = std::max(below, above);
      offer_all({0}, bounds_from(most_above_, divergence_.median(true, true)));
    } else {
      most_below_ = below, most_above_ = above;
      offer_all(bounds_from(below, divergence_.median(true, false)),
                bounds_from(above, divergence_.median(false, true)));
    }
    double step = 1 / kSteps;
    for (int i = 0; i < kFinerGrids; ++i) {
      step /= kSteps;
      offer_all(bounds_around(below_, most_below_, step), bounds_around(above_, most_above_, step));
    }
  }

  [[nodiscard]] const Chosen& chosen() const { return chosen_; }
  [[nodiscard]] double least() const { return least_; }

 private:
  void offer_all(const std::vector<double>& belows, const std::vector<double>& aboves) {
    if (below_ < 0) below_ = belows.front(), above_ = aboves.front();
    for (const double below : belows)
      for (const double above : aboves) offer(below, above);
  }
  void offer(double below, double above) {
    const Chosen chosen = range_qparams(
        {.least = static_cast<float>(-below), .greatest = static_cast<float>(above), .finite = 1}, to_);
    const double found = divergence_.at(to_, chosen);
    if (found >= least_) return;
    least_ = found, chosen_ = chosen, below_ = below, above_ = above;
  }

  Divergence divergence_;
  QRange to_;
  double most_below_ = 0, most_above_ = 0;  // of all samples
  double below_ = -1, above_ = -1;          // of the best range; below zero before the first grid
  Chosen chosen_;
  double least_;
};

}  // namespace

LeastEntropy least_entropy_qparams(const Histogram& histogram, const QRange& to) {
  const Chosen whole = range_qparams(histogram.range(), to);
  if (histogram.range().finite == 0) return {whole, 0};
  const Search search(histogram, to);
  return {search.chosen(), std::max(0.0, search.least()) / static_cast<double>(histogram.range().finite)};
}

}  // namespace tosaic::quant
