// observe: statistics of f32 samples, and the scale and zero point that follow from them.
//
//   samples --observe()--> Range      least, greatest --range_qparams()------->  scale, zero point
//                          Histogram  counts by bin   --percentile_qparams()-->  scale, zero point
//                                                     --least_error_qparams()->  scale, zero point, error
//                                                     --least_error_behind()-->  the same, after a function
//                                                     --least_entropy_qparams()> the same, divergence
//                          MaskRange  visible, hidden --mask_qparams()-------->  scale, zero point
//
// Statistics are exact and do not depend on the order of the samples, nor on how they are split into calls
// and merged. Their memory does not grow with the number of samples. Infinities and NaN are counted, and
// affect no other number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace tosaic::quant {

// The bounds of all finite samples, and the number of samples.
struct Range {
  float least = std::numeric_limits<float>::infinity();
  float greatest = -std::numeric_limits<float>::infinity();
  std::uint64_t finite = 0;
  std::uint64_t infinities = 0;
  std::uint64_t nans = 0;

  void observe(std::span<const float> values);
  void observe(float value, std::uint64_t times);  // a finite value
  void merge(const Range& other);
  bool operator==(const Range&) const = default;
};

// The samples of a mask that is added to scores: numbers that hide a score from a softmax, kHides and below,
// and numbers that do not. Minus infinity hides.
struct MaskRange {
  static constexpr float kHides = -5000.0F;
  Range visible;
  Range hidden;

  // Returns the counts of the samples that are in neither range: NaN and plus infinity.
  Range observe(std::span<const float> values);
  void observe(float value, std::uint64_t times);  // a finite value
  void merge(const MaskRange& other);
  [[nodiscard]] Range all() const;
  bool operator==(const MaskRange&) const = default;
};

// Moves the bounds by `weight` times the distance to the bounds of a batch: the first batch sets them, and a
// batch without finite samples leaves them as they are. Counts are added. This statistic does depend on the
// order.
[[nodiscard]] Range moving_average(const Range& before, const Range& batch, float weight);

// A row-major array with one channel axis: `outer` groups of `channels` runs of `inner` values.
struct ChannelShape {
  std::int64_t outer = 1;
  std::int64_t channels = 1;
  std::int64_t inner = 1;
};

// Observes each channel on its own. Throws LayoutMismatch unless there are outer * channels * inner values
// and one range for each channel.
void observe_channels(std::span<const float> values, ChannelShape shape, std::span<Range> ranges);

// A histogram of all finite samples around zero.
//
// The range of the bins is (-2^exponent, 2^exponent), for the least exponent that contains all samples. A
// sample beyond doubles the range until it contains the sample; each doubling makes one linear bin of two.
// The upper octaves of each sign have 2048 linear bins; each octave below has 64 bins, down to 2^-22 of the
// range. Smaller values count as zero. A bin also has the sum of the offsets of its samples, so that its mean
// is exact. All numbers are integers, and a histogram of some samples has one state only.
class Histogram {
 public:
  // One bin that has samples. `place` is 0 for zero, and otherwise 1 + the number of the bin, negated for
  // negative values; it is ordered as the values are. kernels/histogram_block.h numbers the bins.
  struct Bin {
    std::int32_t place = 0;
    std::uint64_t count = 0;
    std::uint64_t offsets = 0;  // in units of 2^-17 of the width of the bin, away from zero
    bool operator==(const Bin&) const = default;
  };

  // Counts of samples that are not in the bins yet. A table makes many calls of observe() cheap: only take()
  // moves its counts into the bins.
  class Table;

  void observe(std::span<const float> values);
  // Counts each sample `times` times, at first only in the table. Until take(), the bins lack these samples:
  // do not call functions that read the bins, and observe only with the same table.
  void observe(std::span<const float> values, Table& table, std::uint64_t times);
  void observe(float value, Table& table, std::uint64_t times);  // a finite value
  void take(Table& table);
  // The histogram of the samples of both.
  void merge(const Histogram& other);

  [[nodiscard]] const Range& range() const { return range_; }
  [[nodiscard]] int exponent() const { return exponent_; }
  [[nodiscard]] std::span<const Bin> bins() const { return bins_; }  // by value, ascending
  bool operator==(const Histogram&) const = default;

  // The state as bytes, for files. Throws InvalidGraph for bytes that to_bytes() did not return.
  [[nodiscard]] std::vector<std::byte> to_bytes() const;
  [[nodiscard]] static Histogram from_bytes(std::span<const std::byte> bytes);

 private:
  [[nodiscard]] static int exponent_of(const Range& range);
  void extend_to(int exponent);
  void count_few(std::span<const float> values);
  void add(std::span<const Bin> bins);

  Range range_;
  int exponent_ = kLeastExponent;
  std::vector<Bin> bins_;

  static constexpr int kLeastExponent = -99;  // samples below 2^-99 do not make the range smaller
};

// Counts for each bin. After take() the table is empty, and it keeps its memory: observing again allocates
// none.
class Histogram::Table {
 public:
  [[nodiscard]] bool empty() const { return pending_ == 0; }

 private:
  friend class Histogram;
  void count(std::span<const float> block, float unit);
  [[nodiscard]] std::span<const Bin> drain();

  std::vector<std::uint64_t> entries_;
  std::uint64_t pending_ = 0;  // samples in the entries, without repetition
  std::uint64_t times_ = 1;    // how many times each of them counts
  bool has_zeros_ = false;     // the last block had many zeros
  std::vector<Bin> found_;     // memory of drain()
};

// As observe_channels() of ranges, with a histogram for each channel.
void observe_channels(std::span<const float> values, ChannelShape shape, std::span<Histogram> histograms);

// The integers to which samples are quantized, and the scheme.
struct QRange {
  std::int64_t qmin = -128;
  std::int64_t qmax = 127;
  bool symmetric = false;
  std::int64_t zero_point = 0;  // symmetric only
  float least_scale = std::numeric_limits<float>::epsilon();
};

// Throws QuantMismatch unless qmin < qmax, both have at most 32 bits, the zero point of a symmetric range is
// one of its integers, and least_scale is positive and finite.
void require_range(const QRange& range);

// `scale` is the value of an f32.
struct Chosen {
  double scale = 1;
  std::int64_t zero_point = 0;
  bool operator==(const Chosen&) const = default;
};

// The scale and zero point for which [least, greatest], extended to zero, just fits:
//
//   symmetric   scale = max(-least, greatest) / ((qmax - qmin) / 2)
//   affine      scale = (greatest - least) / (qmax - qmin)
//               zero_point = qmin - round_half_even(least / scale)
//
// in f32, as torchao's observers compute them. The scale is at least least_scale. Without finite samples, the
// scale is 1 and the zero point 0. Throws what require_range() throws.
[[nodiscard]] Chosen range_qparams(const Range& range, const QRange& to);

// The scale and zero point for a mask. Numbers that hide are below the range, and saturate at its end:
//
//   1024 + the largest visible magnitude   hides all scores up to 500, whatever number the caller hides with
//   the greatest number that hides         if it is -1e8 or below, and all visible numbers are 0: in a row
//                                          that is hidden as a whole, the sum in f32 rounds the scores away,
//                                          and these integers do so, too
//
// Throws what require_range() throws.
[[nodiscard]] Chosen mask_qparams(const MaskRange& range, const QRange& to);

// The scale and zero point for which the range that contains `fraction` of the samples, extended to zero,
// just fits. Half of the other samples are below the range, and half are above it; a symmetric range contains
// this fraction of the magnitudes. Its bounds differ by less than the width of a bin from those that linear
// interpolation between sorted samples finds; fraction 1 is range_qparams(). Throws what require_range()
// throws, and QuantMismatch for a fraction that is not above 0 and at most 1.
[[nodiscard]] Chosen percentile_qparams(const Histogram& histogram, double fraction, const QRange& to);

struct LeastError {
  Chosen chosen;
  double error = 0;  // the expected squared error of a sample, or of f of it; clipping included
};

// The scale and zero point of least expected squared error over the histogram. Zero is representable, and the
// scale is at least least_scale. Returns those of range_qparams() if none are better, so the error is never
// above theirs. Throws what require_range() throws.
[[nodiscard]] LeastError least_error_qparams(const Histogram& histogram, const QRange& to);

struct LeastEntropy {
  Chosen chosen;
  double divergence = 0;  // in nats, of a sample
};

// The scale and zero point of least Kullback-Leibler divergence between the histogram of the samples and that
// of the quantized samples, which are spread evenly over each step. Samples beyond the range add to the first
// and last bin of the former, and are missing in the latter. Only ranges within that of range_qparams() are
// tried, and the whole range wins ties. Zero is representable, and the scale is at least least_scale. Throws
// what require_range() throws.
[[nodiscard]] LeastEntropy least_entropy_qparams(const Histogram& histogram, const QRange& to);

// The means of the bins, ascending.
[[nodiscard]] std::vector<double> means_of(const Histogram& histogram);

// As least_error_qparams(), but minimizes the error of f(x) instead of x, for a tensor that only the function
// f reads. `results` are f(means_of(histogram)). For integers of more than 8 bits, whose errors are always
// small, returns what least_error_qparams() returns. Throws what least_error_qparams() throws, LayoutMismatch
// for another number of results, and QuantMismatch for results that are not finite.
[[nodiscard]] LeastError least_error_behind(const Histogram& histogram, const QRange& to,
                                            std::span<const double> results);

// The expected squared error of a sample for these parameters; 0 without finite samples. Throws what
// require_range() throws, and QuantMismatch for a scale that is not positive and finite and for a zero point
// outside the range.
[[nodiscard]] double expected_error(const Histogram& histogram, const QRange& to, Chosen chosen);

}  // namespace tosaic::quant
