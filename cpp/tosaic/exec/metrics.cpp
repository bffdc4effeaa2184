#include "tosaic/exec/metrics.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "tosaic/base/error.h"

namespace tosaic::exec {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::size_t kBlock = 1024;

struct FloatFormat {
  int mantissa_bits;    // stored
  int lowest_exponent;  // the lowest exponent of normal numbers
};

FloatFormat format(DType dtype) {
  if (dtype == DType::kF8E4M3) return {3, -6};
  if (dtype == DType::kF8E5M2) return {2, -14};
  if (dtype == DType::kF16) return {10, -14};
  if (dtype == DType::kBF16) return {7, -126};
  if (dtype == DType::kF32) return {23, -126};
  return {52, -1022};
}

// Converts a distance to units: units in the last place of the reference, or multiples of the given unit.
class Unit {
 public:
  Unit(DType a, DType b, std::optional<double> given) {
    if (given || !is_float(a) || !is_float(b)) {
      inverse_ = 1.0 / given.value_or(1.0);
      return;
    }
    const FloatFormat fa = format(a), fb = format(b);
    format_ = fa.mantissa_bits <= fb.mantissa_bits ? fa : fb;
    floating_ = true;
  }

  [[nodiscard]] double measure(double reference, double distance) const {
    if (distance == 0) return 0;
    if (!floating_) return distance * inverse_;
    const auto bits = std::bit_cast<std::uint64_t>(reference);
    const int exponent = std::max(static_cast<int>(bits >> 52 & 0x7ffu) - 1023, format_.lowest_exponent);
    const int power = format_.mantissa_bits - exponent;
    if (power < -1022 || power > 1023) return std::ldexp(distance, power);
    return distance * std::bit_cast<double>(static_cast<std::uint64_t>(power + 1023) << 52);
  }

 private:
  bool floating_ = false;
  double inverse_ = 1;
  FloatFormat format_{};
};

// The elements of both arrays, block by block as doubles, and their differences. Two 64-bit integers are
// subtracted as integers, before the rounding to double, so that a small difference of large numbers is not
// lost.
class Blocks {
 public:
  Blocks(const ArrayView& a, const ArrayView& b)
      : a_(a),
        b_(b),
        wide_(byte_size(a.dtype) == 8 && byte_size(b.dtype) == 8 && !is_float(a.dtype) &&
              !is_float(b.dtype)) {}

  void load(std::size_t begin, std::size_t count) {
    if (wide_) {
      load_wide(begin, count);
      return;
    }
    read_doubles(a_, begin, std::span(reference.data(), count));
    read_doubles(b_, begin, std::span(value.data(), count));
    for (std::size_t i = 0; i < count; ++i) difference[i] = value[i] - reference[i];
  }

  std::array<double, kBlock> reference{}, value{}, difference{};

 private:
  void load_wide(std::size_t begin, std::size_t count) {
    read_integers(a_, begin, std::span(integers_a_.data(), count));
    read_integers(b_, begin, std::span(integers_b_.data(), count));
    for (std::size_t i = 0; i < count; ++i) {
      const auto x = static_cast<std::uint64_t>(integers_a_[i]),
                 y = static_cast<std::uint64_t>(integers_b_[i]);
      reference[i] = static_cast<double>(integers_a_[i]);
      value[i] = static_cast<double>(integers_b_[i]);
      difference[i] =
          integers_b_[i] >= integers_a_[i] ? static_cast<double>(y - x) : -static_cast<double>(x - y);
    }
  }

  const ArrayView &a_, &b_;
  bool wide_;
  std::array<std::int64_t, kBlock> integers_a_{}, integers_b_{};
};

struct Sums {
  double signal = 0, noise = 0, values = 0, product = 0, max_abs = 0;
};

bool all_finite(const std::array<double, kBlock>& difference, std::size_t count) {
  double sum = 0;  // becomes NaN if any difference is NaN or infinite
  for (std::size_t i = 0; i < count; ++i) sum += difference[i] * 0.0;
  return sum == 0;
}

class Accumulator {
 public:
  Accumulator(std::size_t count, const Unit& unit) : unit_(unit), ulps_(count) {}

  void add_finite(const Blocks& block, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) add_pair(block.reference[i], block.value[i], block.difference[i]);
    for (std::size_t i = 0; i < count; ++i) count_difference(block.reference[i], block.difference[i]);
  }

  void add_any(const Blocks& block, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const double r = block.reference[i], v = block.value[i];
      if (std::isfinite(r) && std::isfinite(v)) {
        add_pair(r, v, block.difference[i]);
        count_difference(r, block.difference[i]);
      } else if (r == v || (std::isnan(r) && std::isnan(v))) {
        ++at_;
      } else {
        ++nonfinite_;
        differ(kInfinity);
      }
    }
  }

  [[nodiscard]] Metrics finish() {
    Metrics out;
    out.count = ulps_.size();
    out.mismatches = mismatches_;
    out.nonfinite = nonfinite_;
    out.max_abs = nonfinite_ != 0 ? kInfinity : sums_.max_abs;
    out.max_ulp = max_ulp_;
    out.p99_ulp = percentile_99();
    if (nonfinite_ != 0) {
      out.sqnr_db = -kInfinity;
      out.relative = kInfinity;
    } else {
      out.sqnr_db = sums_.noise == 0    ? kInfinity
                    : sums_.signal == 0 ? -kInfinity
                                        : 10 * std::log10(sums_.signal / sums_.noise);
      out.relative = sums_.noise == 0    ? 0
                     : sums_.signal == 0 ? kInfinity
                                         : std::sqrt(sums_.noise) / std::sqrt(sums_.signal);
    }
    out.cosine = cosine();
    return out;
  }

 private:
  void add_pair(double r, double v, double d) {
    sums_.signal += r * r;
    sums_.noise += d * d;
    sums_.values += v * v;
    sums_.product += r * v;
    sums_.max_abs = std::max(sums_.max_abs, std::fabs(d));
  }

  void count_difference(double r, double d) {
    if (d == 0)
      ++at_;
    else
      differ(unit_.measure(r, std::fabs(d)));
  }

  void differ(double ulp) {
    ++mismatches_;
    max_ulp_ = std::max(max_ulp_, ulp);
    const double finite = std::min(ulp, static_cast<double>(std::numeric_limits<float>::max()));
    ulps_[at_++] = static_cast<float>(std::isinf(ulp) ? ulp : finite);
  }

  [[nodiscard]] double cosine() const {
    if (mismatches_ == 0 || (sums_.signal == 0 && sums_.values == 0)) return 1;
    if (sums_.signal == 0 || sums_.values == 0) return 0;
    return std::clamp(sums_.product / (std::sqrt(sums_.signal) * std::sqrt(sums_.values)), -1.0, 1.0);
  }

  // The smallest distance that at least 99 % of the elements do not exceed.
  [[nodiscard]] double percentile_99() {
    if (mismatches_ == 0) return 0;
    const std::size_t rank = (ulps_.size() * 99 + 99) / 100 - 1;
    if (rank < ulps_.size() - mismatches_) return 0;
    const auto at = ulps_.begin() + static_cast<std::ptrdiff_t>(rank);
    std::nth_element(ulps_.begin(), at, ulps_.end());
    return *at;
  }

  Unit unit_;
  std::vector<float> ulps_;  // one per element
  std::size_t at_ = 0;
  Sums sums_;
  std::uint64_t mismatches_ = 0, nonfinite_ = 0;
  double max_ulp_ = 0;
};

}  // namespace

Metrics compute_metrics(const ArrayView& reference, const ArrayView& value, const MetricsOptions& options) {
  if (reference.shape != value.shape)
    throw LayoutMismatch({.where = "compare",
                          .what = "arrays of different shapes",
                          .expected = to_string(reference.shape),
                          .got = to_string(value.shape)});
  const auto total = static_cast<std::size_t>(num_elements(reference.shape));
  Accumulator accumulator(total, Unit(reference.dtype, value.dtype, options.unit));
  Blocks block(reference, value);
  for (std::size_t begin = 0; begin < total; begin += kBlock) {
    const std::size_t count = std::min(kBlock, total - begin);
    block.load(begin, count);
    if (all_finite(block.difference, count))
      accumulator.add_finite(block, count);
    else
      accumulator.add_any(block, count);
  }
  return accumulator.finish();
}

}  // namespace tosaic::exec
