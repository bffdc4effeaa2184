// word_scaling: the parameters with which contractions of i16 and i8 rescale their sums to i16 in registers
// (isa/words.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "tosaic/kernels/gemm/bands.h"
#include "tosaic/kernels/isa/rescale.h"

namespace tosaic::kernels {

// The sums of `groups` groups of `cols` columns each. The vectors of the instruction set have `lanes` sums.
class WordScaling {
 public:
  WordScaling(const RescaleTables<std::int64_t>& tables, std::int64_t groups, std::int64_t cols,
              std::int64_t lanes)
      : tables_(tables),
        groups_(groups),
        cols_(cols),
        lanes_(lanes),
        padded_cols_(ceil_div(cols, lanes) * lanes) {}

  // Elements of `added`, which at() reads.
  [[nodiscard]] std::int64_t elements() const { return groups_ * padded_cols_ + lanes_; }

  // Writes `added`. `bias` has an element for each column of all groups, `stride` apart; null: no bias.
  // Returns false if a sum of 32 bits, plus its bias, may be a value for which RESCALE has no result.
  [[nodiscard]] bool find(const std::int64_t* bias, std::int64_t stride, std::int64_t* added) const {
    constexpr std::int64_t most = std::int64_t{1} << 31;  // the greatest magnitude of a sum
    bool inside = true;
    for (std::int64_t group = 0; group < groups_; ++group)
      for (std::int64_t col = 0; col < cols_; ++col) {
        const std::int64_t channel = group * cols_ + col, entry = tables_.uniform ? 0 : channel;
        const std::int64_t value = bias == nullptr ? 0 : bias[channel * stride];
        inside = inside && value >= tables_.low[entry] + most && value <= tables_.high[entry] - most;
        if (!inside) return false;
        added[group * padded_cols_ + col / lanes_ * lanes_ + word_place(col % lanes_, lanes_)] =
            value * tables_.multiplier[entry] + (std::int64_t{1} << (tables_.shift[entry] - 1));
      }
    return true;
  }

  // The tables of a group's columns from `col` on, a multiple of `lanes`.
  [[nodiscard]] WordTables at(std::int64_t group, std::int64_t col, const std::int64_t* added) const {
    const RescaleTables<std::int64_t> tables = tables_.at(group * cols_ + col);
    return {.multiplier = tables.multiplier,
            .shift = tables.shift,
            .added = added + group * padded_cols_ + col,
            .uniform = tables.uniform,
            .output_zp = tables.output_zp,
            .min = tables.min,
            .max = tables.max};
  }

 private:
  RescaleTables<std::int64_t> tables_;
  std::int64_t groups_, cols_, lanes_, padded_cols_;
};

// The depth of a band of B whose sums of products with elements of i16 are exact in 32 bits. `column(j, to)`
// writes the `depth` elements of column j. Few weights are near 127, so the depth is often much more than
// kMostWideDepth.
template <class Column>
[[nodiscard]] std::int64_t exact_band(std::int64_t depth, std::int64_t cols, Column&& column) {
  constexpr std::int64_t most_sum = 0xffff;  // most_sum * 2^15 < 2^31
  constexpr std::int64_t most_depth = 8192;
  std::vector<std::int16_t> values(static_cast<std::size_t>(depth));
  const auto fits = [&](std::int64_t band) {
    for (std::int64_t j = 0; j < cols; ++j) {
      column(j, values.data());
      std::int64_t sum = 0;
      for (std::int64_t k = 0; k < depth; ++k) {
        if (k % band == 0) sum = 0;
        sum += std::abs(std::int64_t{values[static_cast<std::size_t>(k)]});
        if (sum > most_sum) return false;
      }
    }
    return true;
  };
  std::int64_t parts = std::max<std::int64_t>(1, ceil_div(depth, most_depth));
  while (band_of_parts(depth, parts) > kMostWideDepth && !fits(band_of_parts(depth, parts))) ++parts;
  return band_of_parts(depth, parts);
}

}  // namespace tosaic::kernels
