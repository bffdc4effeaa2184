// The range that contains a share of the samples.
//
//   sorted samples   x0 <= x1 <= ... <= x(n-1)        quantile(p) = linear between the two samples next to
//                                                     position p (n - 1), as numpy.quantile computes it
//   affine           from quantile((1 - fraction) / 2) to quantile((1 + fraction) / 2)
//   symmetric        quantile(fraction) of |x|, to both sides
//
// A histogram has the exact least and greatest sample, and the bin of each other sample. The c samples of a
// bin are taken to be spread evenly over the widest interval inside of the bin around their exact mean: the
// k-th one is at (k + 1/2) / c of this interval. So a quantile differs from that of the samples by less than
// the width of a bin.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tosaic/base/error.h"
#include "tosaic/quant/observe/bins.h"
#include "tosaic/quant/observe/observe.h"

namespace tosaic::quant {
namespace {

// Samples in ascending order, as far as a histogram knows them.
class Sorted {
 public:
  Sorted(double unit, double least, double greatest) : unit_(unit), least_(least), greatest_(greatest) {}

  // Adds a bin after those before it.
  void add(const Histogram::Bin& bin) {
    double mean = 0, half = 0;
    if (bin.place != 0) {
      const Magnitudes magnitudes = magnitudes_of(bin);
      mean = std::copysign(magnitudes.mean * unit_, bin.place);
      half = unit_ * std::min(magnitudes.mean - magnitudes.low, magnitudes.high - magnitudes.mean);
      half = std::max(0.0, std::min({half, mean - least_, greatest_ - mean}));
    }
    spreads_.push_back({mean - half, mean + half, size_, bin.count});
    size_ += bin.count;
  }

  [[nodiscard]] double quantile(double share) const {
    const double position = share * static_cast<double>(size_ - 1), whole = std::floor(position);
    const auto before = std::min(static_cast<std::uint64_t>(whole), size_ - 1);
    const double a = at(before), b = at(std::min(before + 1, size_ - 1));
    return a + (position - whole) * (b - a);
  }

 private:
  struct Spread {
    double low = 0, high = 0;
    std::uint64_t first = 0, count = 0;  // the number of samples before the bin and in it
  };

  [[nodiscard]] double at(std::uint64_t k) const {
    if (k == 0) return least_;
    if (k == size_ - 1) return greatest_;
    const auto after = std::upper_bound(spreads_.begin(), spreads_.end(), k,
                                        [](std::uint64_t at, const Spread& each) { return at < each.first; });
    const Spread& found = *std::prev(after);
    const double share = (static_cast<double>(k - found.first) + 0.5) / static_cast<double>(found.count);
    return found.low + share * (found.high - found.low);
  }

  double unit_, least_, greatest_;
  std::vector<Spread> spreads_;
  std::uint64_t size_ = 0;
};

// The bins of a histogram of |x|.
std::vector<Histogram::Bin> bins_of_magnitudes(std::span<const Histogram::Bin> bins) {
  std::vector<Histogram::Bin> found(bins.begin(), bins.end());
  for (Histogram::Bin& bin : found) bin.place = std::abs(bin.place);
  std::ranges::stable_sort(found, {}, &Histogram::Bin::place);
  std::vector<Histogram::Bin> merged;
  for (const Histogram::Bin& bin : found) {
    if (merged.empty() || merged.back().place != bin.place) {
      merged.push_back(bin);
    } else {
      merged.back().count += bin.count;
      merged.back().offsets += bin.offsets;
    }
  }
  return merged;
}

// The least magnitude of the samples: exact if all have one sign, otherwise that of the first bin.
double least_magnitude(const Range& range, double of_first_bin) {
  if (range.least >= 0) return range.least;
  if (range.greatest <= 0) return -static_cast<double>(range.greatest);
  return of_first_bin;
}

Range percentile_range(const Histogram& histogram, double fraction, bool symmetric) {
  const Range& range = histogram.range();
  const double unit = magnitude_unit(histogram.exponent());
  const auto with = [&](double least, double greatest) {
    return Range{
        .least = static_cast<float>(least), .greatest = static_cast<float>(greatest), .finite = range.finite};
  };
  if (!symmetric) {
    Sorted sorted(unit, range.least, range.greatest);
    for (const Histogram::Bin& bin : histogram.bins()) sorted.add(bin);
    return with(sorted.quantile((1 - fraction) / 2), sorted.quantile((1 + fraction) / 2));
  }
  const std::vector<Histogram::Bin> bins = bins_of_magnitudes(histogram.bins());
  const double first = bins.front().place == 0 ? 0 : magnitudes_of(bins.front()).low * unit;
  Sorted sorted(unit, least_magnitude(range, first), std::max(-range.least, range.greatest));
  for (const Histogram::Bin& bin : bins) sorted.add(bin);
  const double bound = sorted.quantile(fraction);
  return with(-bound, bound);
}

}  // namespace

Chosen percentile_qparams(const Histogram& histogram, double fraction, const QRange& to) {
  require_range(to);
  if (!(fraction > 0 && fraction <= 1))
    throw QuantMismatch({.where = "observe",
                         .what = "the share of the samples that a range contains",
                         .expected = "a number above 0, and 1 at most",
                         .got = std::to_string(fraction)});
  if (histogram.range().finite == 0) return range_qparams(histogram.range(), to);
  return range_qparams(percentile_range(histogram, fraction, to.symmetric), to);
}

}  // namespace tosaic::quant
