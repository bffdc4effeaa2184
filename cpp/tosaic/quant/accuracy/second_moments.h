// second_moments: the sum of the outer products x xT over all columns x that a contraction reads
// (contraction.h).
//
//   E |(w - v) x|^2 = (w - v) E[x xT] (w - v)T
//
// is the expected squared error of a result whose weights w are rounded to v.
//
// Samples are first rounded to integers, and the products of integers are summed exactly. So states that are
// merged in any order, from any split of the samples, are equal. The integers are the quantized input's if
// it has a grid. Otherwise they lie on a grid of 16 bits, whose rounding error is 2^-16 of the range.
//
// Bounds: integers minus the zero point have magnitudes m <= 65535, so products are below 2^32. Blocks of 256
// rows are multiplied in f32 if 256 m^2 <= 2^24 (integers of 8 bits), and otherwise in f64. Both are exact,
// in any order of the sums and on every instruction set. Blocks are added up as 64-bit integers. observe()
// and merge() throw QuantMismatch if rows * m^2 exceeds 2^63 - 1, so never for up to 2^31 rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tosaic/quant/accuracy/contraction.h"
#include "tosaic/quant/observe/observe.h"

namespace tosaic::quant {

// The integers that samples are rounded to: see ir/quantized_value.h.
struct InputGrid {
  double scale = 1;
  std::int64_t zero_point = 0;
  std::int64_t qmin = -32767;
  std::int64_t qmax = 32767;
  bool operator==(const InputGrid&) const = default;
};

// A symmetric grid of 16 bits that has all samples of a range. Without finite samples, its scale is 1.
[[nodiscard]] InputGrid wide_grid(const Range& range);

class SecondMoments {
 public:
  // Throws QuantMismatch unless qmin <= zero_point <= qmax, qmax - qmin < 65536, and the scale is positive
  // and finite.
  SecondMoments(const Contraction& contraction, const InputGrid& grid);

  // Adds the columns that the contraction reads from an input. NaN counts as zero, and numbers beyond the
  // grid are clamped to it. Throws LayoutMismatch for an input whose shape does not suit the contraction.
  void observe(const Contraction& contraction, std::span<const float> values, const Shape& shape);
  // Adds the samples of another state. Throws QuantMismatch if its grid or the sizes of its matrices differ.
  void merge(const SecondMoments& other);

  [[nodiscard]] std::int64_t groups() const { return groups_; }
  [[nodiscard]] std::int64_t columns() const { return columns_; }
  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] const InputGrid& grid() const { return grid_; }
  // The lower triangle of a group, row by row: the sum of q_i q_j is at i * (i + 1) / 2 + j, for j <= i. Each
  // q is the integer of a sample minus the zero point.
  [[nodiscard]] std::span<const std::int64_t> sums(std::int64_t group) const;
  // A sum of q_i q_j times unit() is the mean of x_i x_j.
  [[nodiscard]] double unit() const;

  bool operator==(const SecondMoments&) const = default;

  // The state as bytes, for files. from_bytes() throws InvalidGraph for other bytes.
  [[nodiscard]] std::vector<std::byte> to_bytes() const;
  [[nodiscard]] static SecondMoments from_bytes(std::span<const std::byte> bytes);

 private:
  SecondMoments() = default;
  [[nodiscard]] std::int64_t triangle() const { return columns_ * (columns_ + 1) / 2; }
  [[nodiscard]] std::int64_t largest() const;
  void require_room(std::int64_t more) const;
  template <class T>
  void add(const Contraction& contraction, std::span<const float> values, const Shape& shape);
  template <class T>
  void add_products(std::int64_t group, std::span<const T> columns, std::int64_t depth,
                    std::vector<T>& panels, std::vector<T>& products);

  InputGrid grid_;
  std::int64_t groups_ = 0, columns_ = 0, rows_ = 0;
  std::vector<std::int64_t> sums_;
};

}  // namespace tosaic::quant
