#include "tosaic/quant/accuracy/second_moments.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tosaic/base/error.h"
#include "tosaic/ir/quantized_value.h"
#include "tosaic/kernels/gemm/gemm.h"
#include "tosaic/quant/accuracy/input_columns.h"
#include "tosaic/quant/accuracy/state_bytes.h"
#include "tosaic/quant/scale.h"

namespace tosaic::quant {
namespace {

using namespace kernels;

constexpr std::int64_t kDepth = 256;  // rows that are multiplied at a time
constexpr std::int64_t kRowsOfTile = 64;
constexpr std::int64_t kExactInFloat = std::int64_t{1} << 24;
constexpr std::uint32_t kFormat = 0x314d5354;  // "TSM1" in memory

void require_grid(const InputGrid& grid) {
  require_scale("the scale of the input", grid.scale);
  if (grid.qmin <= grid.zero_point && grid.zero_point <= grid.qmax && grid.qmin >= -65535 &&
      grid.qmax <= 65535 && grid.qmax - grid.qmin < 65536)
    return;
  throw QuantMismatch({.where = "accuracy",
                       .what = "the grid of the input",
                       .expected = "at most 65536 integers that contain the zero point",
                       .got = std::to_string(grid.qmin) + ".." + std::to_string(grid.qmax) + ", zero point " +
                              std::to_string(grid.zero_point)});
}

// The integers of samples minus the zero point.
template <class T>
std::vector<T> rounded(std::span<const float> values, const InputGrid& grid) {
  const float inverse = inverse_scale(grid.scale);
  const auto low = static_cast<float>(grid.qmin), high = static_cast<float>(grid.qmax);
  const auto zero = static_cast<float>(grid.zero_point);
  std::vector<T> out(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float q = quantize_unbounded(values[i], inverse, grid.zero_point);
    out[i] = std::isnan(q) ? T{0} : static_cast<T>(std::min(std::max(q, low), high) - zero);
  }
  return out;
}

}  // namespace

InputGrid wide_grid(const Range& range) {
  InputGrid grid;
  const double most = range.finite == 0 ? 0 : std::max(std::abs(range.least), std::abs(range.greatest));
  const double scale = most / static_cast<double>(grid.qmax);
  if (scale >= static_cast<double>(std::numeric_limits<float>::min())) grid.scale = scale;
  return grid;
}

SecondMoments::SecondMoments(const Contraction& contraction, const InputGrid& grid)
    : grid_(grid), groups_(contraction.matrix.groups), columns_(contraction.matrix.columns) {
  require_grid(grid);
  sums_.resize(static_cast<std::size_t>(groups_ * triangle()));
}

std::span<const std::int64_t> SecondMoments::sums(std::int64_t group) const {
  const auto size = static_cast<std::size_t>(triangle());
  return std::span(sums_).subspan(static_cast<std::size_t>(group) * size, size);
}

double SecondMoments::unit() const {
  return rows_ == 0 ? 0 : grid_.scale * grid_.scale / static_cast<double>(rows_);
}

std::int64_t SecondMoments::largest() const {
  return std::max(grid_.qmax - grid_.zero_point, grid_.zero_point - grid_.qmin);
}

void SecondMoments::require_room(std::int64_t more) const {
  const std::int64_t square = std::max<std::int64_t>(1, largest() * largest());
  if (more <= std::numeric_limits<std::int64_t>::max() / square - rows_) return;
  throw QuantMismatch(
      {.where = "accuracy",
       .what = "too many samples for exact second moments",
       .expected = "at most " + std::to_string(std::numeric_limits<std::int64_t>::max() / square) + " rows",
       .got = std::to_string(rows_) + " and " + std::to_string(more) + " more"});
}

void SecondMoments::observe(const Contraction& contraction, std::span<const float> values,
                            const Shape& shape) {
  if (contraction.matrix.groups != groups_ || contraction.matrix.columns != columns_)
    throw InternalError({.where = "accuracy", .what = "second moments of another contraction"});
  if (largest() * largest() * kDepth <= kExactInFloat)
    add<float>(contraction, values, shape);
  else
    add<double>(contraction, values, shape);
}

template <class T>
void SecondMoments::add(const Contraction& contraction, std::span<const float> values, const Shape& shape) {
  const InputColumns source(contraction, shape);
  if (static_cast<std::int64_t>(values.size()) != num_elements(shape))
    throw LayoutMismatch({.where = "accuracy",
                          .what = "the number of samples",
                          .expected = std::to_string(num_elements(shape)),
                          .got = std::to_string(values.size())});
  require_room(source.rows());
  const std::vector<T> integers = rounded<T>(values, grid_);
  const std::int64_t taps = contraction.matrix.taps, channels = columns_ / taps;
  std::vector<std::int64_t> offsets(static_cast<std::size_t>(taps * kDepth));
  std::vector<T> columns(static_cast<std::size_t>(columns_ * kDepth)), panels, products;
  for (std::int64_t row = 0; row < source.rows(); row += kDepth) {
    const std::int64_t depth = std::min(kDepth, source.rows() - row);
    for (std::int64_t tap = 0; tap < taps; ++tap)
      source.offsets(row, tap, std::span(offsets).subspan(tap * kDepth, depth));
    for (std::int64_t group = 0; group < groups_; ++group) {
      for (std::int64_t column = 0; column < columns_; ++column) {
        const T* from = integers.data() + (group * channels + column / taps) * source.channel_stride();
        const std::int64_t* at = offsets.data() + column % taps * kDepth;
        T* to = columns.data() + column * kDepth;
        for (std::int64_t i = 0; i < depth; ++i) to[i] = at[i] < 0 ? T{0} : from[at[i]];
      }
      add_products<T>(group, columns, depth, panels, products);
    }
  }
  rows_ += source.rows();
}

// Adds the products of all pairs of columns. The first `depth` elements of each column are samples.
template <class T>
void SecondMoments::add_products(std::int64_t group, std::span<const T> columns, std::int64_t depth,
                                 std::vector<T>& panels, std::vector<T>& products) {
  static const GemmKernels<T>& kernels = gemm_kernels<T>(best_isa());
  panels.resize(static_cast<std::size_t>(depth * ceil_div(columns_, kernels.panel) * kernels.panel));
  products.resize(static_cast<std::size_t>(kRowsOfTile * columns_));
  kernels.pack_transposed(columns.data(), kDepth, depth, columns_, panels.data());
  std::int64_t* sums = sums_.data() + group * triangle();
  for (std::int64_t row = 0; row < columns_; row += kRowsOfTile) {
    const std::int64_t end = std::min(columns_, row + kRowsOfTile);
    GemmBlock<T> block;
    block.rows = end - row;
    block.cols = std::min(columns_, ceil_div(end, kernels.panel) * kernels.panel);
    block.depth = depth;
    block.a = columns.data() + row * kDepth;
    block.a_stride = kDepth;
    block.b = panels.data();
    block.c = products.data();
    block.c_stride = columns_;
    kernels.multiply(block);
    for (std::int64_t i = row; i < end; ++i) {
      const T* from = products.data() + (i - row) * columns_;
      std::int64_t* to = sums + i * (i + 1) / 2;
      for (std::int64_t j = 0; j <= i; ++j) to[j] += static_cast<std::int64_t>(from[j]);
    }
  }
}

void SecondMoments::merge(const SecondMoments& other) {
  if (groups_ != other.groups_ || columns_ != other.columns_ || !(grid_ == other.grid_))
    throw QuantMismatch({.where = "accuracy",
                         .what = "second moments of different inputs cannot be merged",
                         .expected = "equal grids and numbers of columns"});
  require_room(other.rows_);
  for (std::size_t i = 0; i < sums_.size(); ++i) sums_[i] += other.sums_[i];
  rows_ += other.rows_;
}

std::vector<std::byte> SecondMoments::to_bytes() const {
  StateWriter writer(kFormat);
  writer.put(grid_.scale);
  for (const std::int64_t each : {grid_.zero_point, grid_.qmin, grid_.qmax, groups_, columns_, rows_})
    writer.put(each);
  writer.put_all(std::span(sums_));
  return std::move(writer).finish();
}

SecondMoments SecondMoments::from_bytes(std::span<const std::byte> bytes) {
  StateReader reader(bytes, kFormat, "second moments");
  SecondMoments out;
  out.grid_.scale = reader.take<double>();
  for (std::int64_t* each :
       {&out.grid_.zero_point, &out.grid_.qmin, &out.grid_.qmax, &out.groups_, &out.columns_, &out.rows_})
    *each = reader.take<std::int64_t>();
  const auto left = static_cast<std::int64_t>(reader.left() / sizeof(std::int64_t));
  reader.require(out.groups_ >= 0 && out.columns_ >= 0 && out.rows_ >= 0 && out.columns_ < (1 << 30));
  reader.require(out.triangle() == 0 || out.groups_ == left / out.triangle());
  reader.require(reader.left() ==
                 static_cast<std::size_t>(out.groups_ * out.triangle()) * sizeof(std::int64_t));
  out.sums_.resize(static_cast<std::size_t>(out.groups_ * out.triangle()));
  reader.take_all(std::span(out.sums_));
  try {
    require_grid(out.grid_);
    out.require_room(0);
  } catch (const QuantMismatch&) {
    reader.require(false);
  }
  return out;
}

}  // namespace tosaic::quant
