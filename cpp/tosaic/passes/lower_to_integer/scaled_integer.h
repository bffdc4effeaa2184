// scaled_integer: integers that represent numbers, and the qparams with which integer arithmetic computes.
//
//   number = (integer - zero point) * scale
//
//   %x: i8 q(s, z)   ScaledInteger{%x, scale s, zero point z}     a quantized value
//   %sums: i32       ScaledInteger{%sums, scale s_x * s_w[c]}     the result of a contraction or addition
//
// A ScaledInteger has a known range. Rules compute one from the ranges of the operands, without rounding to
// qparams in between; rescaling.h rounds the last one to the qparams of the result.
#pragma once

#include <cmath>
#include <optional>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/ir/quantized.h"

namespace tosaic::passes {

// The ranges of the integers of each channel of a value: channels next to one that has a large bias, or a
// tiny scale, do not reach the range of all channels.
struct ChannelRanges {
  ValueId of;
  std::vector<ValueRange> ranges;
};

// A tensor of scaled integers. Several scales belong to the positions of `axis` of `id`, as in the sums of a
// contraction.
struct ScaledInteger {
  ValueId id;  // the tensor in the new graph
  std::vector<double> scales;
  std::int64_t zero_point = 0;
  ValueRange range;  // the range of the integers in `id`, before the zero point is subtracted
  std::optional<std::int64_t> axis = {};
  // The shape that `id` is reshaped to once it has at most 32 bits: TOSA cannot reshape i48.
  std::optional<Shape> pending_shape = {};
  // Integers up to this one represent minus infinity, as in attention masks; then the zero point is 0. Such
  // scaled integers "hide" minus infinity.
  std::optional<std::int64_t> minus_infinity = {};
  // A bound of the error that elementwise arithmetic has caused, in the unit of `number` above (not in
  // integer steps). Sums and contractions do not increase this bound.
  double error = 0;
  // A bool value that broadcasts to `id` and is true where the number is NaN. Absent if no number is NaN. See
  // nan_masks.h.
  std::optional<ValueId> nan_mask = {};
  // The scales are [channels, groups], as in QParams. Only constants have groups, and only contractions read
  // them; see RuleContext::by_group.
  std::optional<Groups> groups = {};
  // Of `id`, or of another value if `id` has changed since.
  ChannelRanges channel_ranges = {};

  // The range of the integers in channel c of the axis. No channel leaves `range`.
  [[nodiscard]] ValueRange range_of_channel(std::size_t c) const {
    return channel_ranges.of == id && c < channel_ranges.ranges.size() ? channel_ranges.ranges[c] : range;
  }
  [[nodiscard]] double scale() const { return scales.front(); }
  // The range of value - zero_point.
  [[nodiscard]] ValueRange centred() const { return {range.low - zero_point, range.high - zero_point}; }
  [[nodiscard]] std::int64_t magnitude() const;  // the largest |value - zero_point|
};

// The qparams with which signed integers represent the same numbers: u8 and i4 become i8, u16 becomes i16.
// Returns nothing if integer arithmetic does not have the dtype or the zero point: i8 may have any zero
// point, i16 and i32 only 0, so u16 only 32768.
[[nodiscard]] std::optional<QParams> signed_form(const QParams& qparams);
// The signed form of a stored integer is the integer minus this offset: 128 for u8, 32768 for u16, 0 for
// others.
[[nodiscard]] std::int64_t signed_offset(DType storage);
// The integers of `from` plus `offset`, in another dtype.
[[nodiscard]] ConstantRef recoded(const Constant& from, DType dtype, std::int64_t offset);

// The largest magnitude of a number that these per-tensor qparams can represent.
[[nodiscard]] double largest_number(const QParams& qparams);
// The smallest number of bits b with 2^b >= count; 0 for a count below 2.
[[nodiscard]] int bits_to(std::int64_t count);
// A unit, a power of two, in which numbers of magnitude `size` have 29 bits.
[[nodiscard]] double unit_for(double size);
// True if the error of x is more than 2^-17 of its smallest numbers, or more than 0 if they may be 0 or less.
[[nodiscard]] bool is_vague_near_zero(const ScaledInteger& x);

// ---- minus infinity ----
[[nodiscard]] inline bool is_minus_infinity(double x) { return std::isinf(x) && x < 0; }
// The distance by which the number that represents minus infinity is below finite numbers of magnitude up to
// `size`. At that distance exp is 0, and rounding does not close the gap.
[[nodiscard]] double hidden_below(double size);
// x.minus_infinity, the largest integer that represents minus infinity, converted to the unit `unit`.
[[nodiscard]] std::int64_t least_in_unit(const ScaledInteger& x, double unit);

}  // namespace tosaic::passes
