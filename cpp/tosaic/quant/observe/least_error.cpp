// The search for the scale and zero point of least expected squared error.
//
//   representable   (qmin - zp) * s   ...   -s    0    s    2s   ...   (qmax - zp) * s
//   cells                        |       |     |     |     |        |
//   samples       clipped        |      rounded to the nearest      |        clipped
//
// The multiples of s do not depend on the zero point, which only says how many of them there are on each side
// of zero. So for one scale, the error is the sum of two functions of the number of steps: one for the
// negative samples, one for the positive ones. Each function falls and is convex: each further step saves
// less than the step before, because fewer samples are clipped. The sum is therefore convex in the zero
// point, and the best zero point of a scale is found by bisection.
//
// As a function of the scale, the error is not convex: samples that lie on a grid cause sharp minima. The
// search evaluates a grid of scales and then refines the best minima of the grid. It ends at a scale so small
// that clipping alone makes a larger error than range_qparams(); smaller scales clip more.
//
// The samples of a bin are assumed to be spread evenly over the widest interval inside of the bin that has
// their mean in the middle. The mean is exact. Magnitudes are in units of the width of a linear bin, so
// that no square overflows.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tosaic/base/error.h"
#include "tosaic/quant/observe/bins.h"
#include "tosaic/quant/observe/observe.h"
#include "tosaic/quant/scale.h"

namespace tosaic::quant {
namespace {

// Rounds to the nearest whole number, |x| < 2^51, with two additions that compilers vectorise.
double nearest(double x) {
  constexpr double kShift = 0x1.8p52;
  return (x + kShift) - kShift;
}

// The samples of one sign, by magnitude, ascending. Bin i is spread over [low[i], high[i]].
class Side {
 public:
  void add(const Magnitudes& bin, double count) {
    // A spread that is tiny, but not zero, makes a bin with one value like any other bin.
    const double half = std::max(std::min(bin.mean - bin.low, bin.high - bin.mean), 1e-7 * bin.mean);
    low_.push_back(bin.mean - half);
    high_.push_back(bin.mean + half);
    density_.push_back(count / (6 * half));  // a third of the density
    count_.push_back(count);
    mean_.push_back(bin.mean);
    square_.push_back(bin.mean * bin.mean + half * half / 3);
  }

  // Call after the last add().
  void finish() {
    const std::size_t size = low_.size();
    above_.resize(size + 1);
    below_.resize(size + 1);
    rounded_.resize(size + 1);
    for (std::size_t i = size; i-- > 0;)
      above_[i] = {above_[i + 1].count + count_[i], above_[i + 1].sum + count_[i] * mean_[i],
                   above_[i + 1].squares + count_[i] * square_[i]};
    for (std::size_t i = 0; i < size; ++i) below_[i + 1] = below_[i] + count_[i] * square_[i];
  }

  [[nodiscard]] std::size_t size() const { return low_.size(); }

  // Computes the rounding errors for multiples of `scale`, which clipped() and error() use.
  void round_to(double scale) {
    scale_ = scale;
    const double inverse = 1 / scale, cube = scale * scale * scale / 4;
    // All samples of the bins before `first` round to zero.
    const std::size_t first = std::upper_bound(high_.begin(), high_.end(), scale / 2) - high_.begin();
    const std::size_t size = low_.size();
    const double* low = low_.data();
    const double* high = high_.data();
    const double* density = density_.data();
    double* out = rounded_.data() + 1;
    for (std::size_t i = first; i < size; ++i) {
      const double from = nearest(low[i] * inverse), to = nearest(high[i] * inverse);
      const double a = low[i] - from * scale, b = high[i] - to * scale;
      out[i] = density[i] * ((to - from) * cube + (b * b * b - a * a * a));
    }
    first_ = first;
    double sum = below_[first];
    for (std::size_t i = first; i < size; ++i) out[i] = sum += out[i];
  }

  // The error of the samples beyond `limit`, if they are clipped to it.
  [[nodiscard]] double clipped(double limit) const {
    const std::size_t i = bin_at(limit);
    if (i == size()) return 0;
    if (low_[i] >= limit) return beyond(i, limit);
    const double part = high_[i] - limit;
    return density_[i] * part * part * part + beyond(i + 1, limit);
  }

  // The error of all samples with `steps` multiples of the scale in addition to zero.
  [[nodiscard]] double error(double steps) const {
    const double limit = steps * scale_;
    const std::size_t i = bin_at(limit);
    if (i == size()) return rounded_before(size());
    if (low_[i] >= limit) return rounded_before(i) + beyond(i, limit);
    const double from = nearest(low_[i] / scale_), a = low_[i] - from * scale_, part = high_[i] - limit;
    const double inside = (steps - from) * (scale_ * scale_ * scale_ / 4) - a * a * a;
    return rounded_before(i) + density_[i] * (inside + part * part * part) + beyond(i + 1, limit);
  }

  // Adds to the sums for the least-squares scale: the mean of each bin, and the step to which it rounds.
  void add_steps(double steps, double& products, double& squares) const {
    for (std::size_t i = 0; i < size(); ++i) {
      const double step = std::min(nearest(mean_[i] / scale_), steps);
      products += count_[i] * step * mean_[i];
      squares += count_[i] * step * step;
    }
  }

 private:
  struct Moments {
    double count = 0, sum = 0, squares = 0;
  };

  // The first bin that reaches beyond `limit`.
  [[nodiscard]] std::size_t bin_at(double limit) const {
    return std::upper_bound(high_.begin(), high_.end(), limit) - high_.begin();
  }
  [[nodiscard]] double beyond(std::size_t bin, double limit) const {
    const Moments& moments = above_[bin];
    return std::max(0.0, moments.squares - 2 * limit * moments.sum + limit * limit * moments.count);
  }
  [[nodiscard]] double rounded_before(std::size_t bin) const {
    return bin <= first_ ? below_[bin] : rounded_[bin];
  }

  std::vector<double> low_, high_, density_, count_, mean_, square_;
  std::vector<Moments> above_;   // of the bins from i
  std::vector<double> below_;    // the squares of the bins before i
  std::vector<double> rounded_;  // the rounding error of the bins before i, for i > first_
  std::size_t first_ = 0;
  double scale_ = 1;
};

class Search {
 public:
  Search(const Histogram& histogram, const QRange& to)
      : to_(to), unit_(magnitude_unit(histogram.exponent())) {
    const double least = std::max(0.0, -static_cast<double>(histogram.range().least) / unit_);
    const double greatest = std::max(0.0, static_cast<double>(histogram.range().greatest) / unit_);
    const auto fill = [](Side& side, const Histogram::Bin& bin, double bound) {
      Magnitudes magnitudes = magnitudes_of(bin);
      magnitudes.high = std::min(magnitudes.high, bound);
      side.add(magnitudes, static_cast<double>(bin.count));
    };
    const std::span<const Histogram::Bin> bins = histogram.bins();
    for (auto bin = bins.rbegin(); bin != bins.rend(); ++bin)
      if (bin->place < 0) fill(negative_, *bin, least);
    for (const Histogram::Bin& bin : bins)
      if (bin.place > 0) fill(positive_, bin, greatest);
    negative_.finish();
    positive_.finish();
  }

  [[nodiscard]] std::size_t bins() const { return negative_.size() + positive_.size(); }
  // Scales in the units of the search, and back.
  [[nodiscard]] double inside(double scale) const { return scale / unit_; }
  [[nodiscard]] double outside(double scale) const { return scale * unit_; }
  // An error of the search as the squared error of all samples.
  [[nodiscard]] double outside_error(double error) const { return error * unit_ * unit_; }

  // The error for a scale in f32.
  [[nodiscard]] double error(Chosen chosen) {
    round_to(inside(chosen.scale));
    return error_at(chosen.zero_point);
  }
  // The best zero point for a scale in the units of the search.
  [[nodiscard]] std::pair<std::int64_t, double> best(double scale) {
    round_to(scale);
    return least([this](std::int64_t zero_point) { return error_at(zero_point); });
  }
  // The least-squares scale, in units of the search, for the integers to which the means of the bins round.
  [[nodiscard]] double refit(Chosen chosen) {
    round_to(inside(chosen.scale));
    double products = 0, squares = 0;
    negative_.add_steps(static_cast<double>(chosen.zero_point - to_.qmin), products, squares);
    positive_.add_steps(static_cast<double>(to_.qmax - chosen.zero_point), products, squares);
    return squares > 0 ? products / squares : inside(chosen.scale);
  }
  [[nodiscard]] double least_clipped(double scale) const {
    return least([&](std::int64_t zero_point) {
             return negative_.clipped(static_cast<double>(zero_point - to_.qmin) * scale) +
                    positive_.clipped(static_cast<double>(to_.qmax - zero_point) * scale);
           })
        .second;
  }

 private:
  void round_to(double scale) {
    negative_.round_to(scale);
    positive_.round_to(scale);
  }
  [[nodiscard]] double error_at(std::int64_t zero_point) const {
    return negative_.error(static_cast<double>(zero_point - to_.qmin)) +
           positive_.error(static_cast<double>(to_.qmax - zero_point));
  }
  // The least value of a convex function of the zero point.
  template <class F>
  [[nodiscard]] std::pair<std::int64_t, double> least(F&& function) const {
    if (to_.symmetric) return {to_.zero_point, function(to_.zero_point)};
    std::int64_t low = to_.qmin, high = to_.qmax;
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (function(middle + 1) < function(middle))
        low = middle + 1;
      else
        high = middle;
    }
    return {low, function(low)};
  }

  QRange to_;
  double unit_;
  Side negative_, positive_;
};

void require_chosen(const QRange& to, const Chosen& chosen) {
  require_range(to);
  require_scale("the scale", chosen.scale);
  if (chosen.zero_point < to.qmin || chosen.zero_point > to.qmax)
    throw QuantMismatch(
        {.where = "observe",
         .what = "the zero point",
         .expected = "an integer from " + std::to_string(to.qmin) + " to " + std::to_string(to.qmax),
         .got = std::to_string(chosen.zero_point)});
}

// The best scale and zero point that a search has seen.
class Best {
 public:
  Best(Search& search, const QRange& to, Chosen first)
      : search_(&search), to_(to), chosen_(first), error_(search.error(first)) {}

  // Tries a scale in the units of the search, rounded to f32, and returns its error.
  double offer(double scale) {
    const auto rounded = static_cast<float>(search_->outside(scale));
    const double exact = std::max(rounded, to_.least_scale);
    const auto [zero_point, error] = search_->best(search_->inside(exact));
    if (error < error_) {
      error_ = error;
      chosen_ = {exact, zero_point};
    }
    return error;
  }
  [[nodiscard]] const Chosen& chosen() const { return chosen_; }
  [[nodiscard]] double error() const { return error_; }

 private:
  Search* search_;
  QRange to_;
  Chosen chosen_;
  double error_;
};

// The largest scale at or below `largest` at which clipping alone makes an error of at least `error`.
double least_useful_scale(const Search& search, double largest, double error) {
  double low = std::ldexp(largest, -40), high = largest;
  if (search.least_clipped(high) >= error) return high;
  if (search.least_clipped(low) < error) return low;
  while (high / low > 1.01) {
    const double middle = std::sqrt(low * high);
    (search.least_clipped(middle) < error ? high : low) = middle;
  }
  return low;
}

// `count` scales from `low` to `high` in equal ratios.
std::vector<double> scales_between(double low, double high, std::size_t count) {
  std::vector<double> out(count);
  for (std::size_t i = 0; i < count; ++i)
    out[i] = low * std::pow(high / low, static_cast<double>(i) / static_cast<double>(count - 1));
  return out;
}

// Tries ever finer grids around the best scale of the one before.
void refine(Best& best, double low, double high) {
  for (int round = 0; round < 3; ++round) {
    const std::vector<double> scales = scales_between(low, high, 9);
    std::vector<double> errors;
    for (const double scale : scales) errors.push_back(best.offer(scale));
    const auto least = static_cast<std::size_t>(std::ranges::min_element(errors) - errors.begin());
    low = scales[least == 0 ? 0 : least - 1];
    high = scales[std::min(least + 1, scales.size() - 1)];
  }
}

// The positions of the best minima of the grid.
std::vector<std::size_t> minima(const std::vector<double>& errors, std::size_t most) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < errors.size(); ++i)
    if ((i == 0 || errors[i] <= errors[i - 1]) && (i + 1 == errors.size() || errors[i] < errors[i + 1]))
      found.push_back(i);
  std::stable_sort(found.begin(), found.end(),
                   [&](std::size_t a, std::size_t b) { return errors[a] < errors[b]; });
  if (found.size() > most) found.resize(most);
  return found;
}

}  // namespace

double expected_error(const Histogram& histogram, const QRange& to, Chosen chosen) {
  require_chosen(to, chosen);
  if (histogram.range().finite == 0) return 0;
  Search search(histogram, to);
  return search.outside_error(search.error(chosen)) / static_cast<double>(histogram.range().finite);
}

LeastError least_error_qparams(const Histogram& histogram, const QRange& to) {
  const Chosen whole = range_qparams(histogram.range(), to);
  if (histogram.range().finite == 0) return {whole, 0};
  Search search(histogram, to);
  Best best(search, to, whole);
  const double start = search.inside(whole.scale);
  const double low = std::max(least_useful_scale(search, start, best.error()), search.inside(to.least_scale));
  // Twice the scale of the whole range: a grid of values, such as whole numbers, may need up to that.
  const double high = 2 * start;
  if (best.error() > 0 && low < high) {
    // A histogram with few bins gets a finer grid: its values may lie on a grid of their own.
    const std::size_t count = std::clamp<std::size_t>(200'000 / (search.bins() + 1), 96, 2048);
    const std::vector<double> scales = scales_between(low, high, count);
    std::vector<double> errors;
    for (const double scale : scales) errors.push_back(best.offer(scale));
    for (const std::size_t i : minima(errors, 4))
      refine(best, scales[i == 0 ? 0 : i - 1], scales[std::min(i + 1, count - 1)]);
    for (int round = 0; round < 2; ++round) best.offer(search.refit(best.chosen()));
  }
  return {best.chosen(), search.outside_error(best.error()) / static_cast<double>(histogram.range().finite)};
}

}  // namespace tosaic::quant
