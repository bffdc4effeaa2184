// expand_integer_grid_sample: expresses a sampler over integers by operators that TOSA has.
//
//   image (N, C, H, W)   ->  table (N * H * W, C)
//   grid (N, H', W', 2)  ->  positions (N, H', W', 2), for x and y at once
//   per tap: row of the table -> index_select -> times its weight
//
// ir/integer_sampler.h defines the arithmetic. Every value equals the value in the kernel of the operator.

#include <algorithm>
#include <array>
#include <cstdlib>

#include "tosaic/ir/integer_sampler.h"
#include "tosaic/passes/decompose/expansions.h"

namespace tosaic::passes {
namespace {

// Two numbers, for x and for y.
using Pair = std::array<std::int64_t, 2>;

class IntegerSampler {
 public:
  explicit IntegerSampler(Emitter& e)
      : e_(e),
        attrs_(e.attrs<IntegerGridSampleAttrs>()),
        image_(e.type(e.operand(0)).shape),
        grid_(e.type(e.operand(1)).shape),
        dtype_(e.type(e.operand(0)).dtype),
        outputs_(grid_[0] * grid_[1] * grid_[2]),
        extent_{image_[3], image_[2]},
        fraction_{attrs_.fraction[0], attrs_.fraction[1]},
        weights_(sampler_weights(dtype_)) {}

  ValueId run() {
    table_ =
        e_.reshape(e_.permute(bounded_image(), {0, 2, 3, 1}), {image_[0] * image_[2] * image_[3], image_[1]});
    const ValueId p = positions();
    const ValueId y = attrs_.sample.mode == ResizeMode::kNearest    ? nearest(padded(p))
                      : attrs_.sample.mode == ResizeMode::kBilinear ? bilinear(padded(p))
                                                                    : bicubic(p);
    return e_.permute(y, {0, 3, 1, 2});
  }

 private:
  [[nodiscard]] bool reflects() const { return attrs_.sample.padding == GridPadding::kReflection; }
  [[nodiscard]] bool has_zeros() const { return attrs_.sample.padding == GridPadding::kZeros; }

  // ---- i32 arithmetic, with a pair as an operand of shape (1, 1, 1, 2) or (1, 1, 1, 1) ----
  ValueId pair(const Pair& of) {
    if (of[0] == of[1]) return number(of[0]);
    return e_.constant(DType::kI32, {1, 1, 1, 2}, {static_cast<double>(of[0]), static_cast<double>(of[1])});
  }
  ValueId number(std::int64_t value) {
    return e_.constant(DType::kI32, {1, 1, 1, 1}, {static_cast<double>(value)});
  }
  template <class Make>
  [[nodiscard]] Pair each(Make make) const {
    return {make(std::size_t{0}), make(std::size_t{1})};
  }
  ValueId add(ValueId a, ValueId b) { return e_.binary(Op::kTosaAdd, a, b); }
  ValueId add(ValueId a, std::int64_t b) { return b == 0 ? a : add(a, number(b)); }
  ValueId sub(ValueId a, ValueId b) { return e_.binary(Op::kTosaSub, a, b); }
  ValueId mul(ValueId a, ValueId b, int shift) { return e_.emit(Op::kTosaMul, TosaMulAttrs{shift}, {a, b}); }
  ValueId mul(ValueId a, std::int64_t b, int shift) { return mul(a, number(b), shift); }
  ValueId left(ValueId a, const Pair& by) {
    return by == Pair{0, 0} ? a : e_.binary(Op::kTosaLogicalLeftShift, a, pair(by));
  }
  ValueId right(ValueId a, const Pair& by) {
    return e_.emit(Op::kTosaArithmeticRightShift, TosaShiftAttrs{false}, {a, pair(by)});
  }
  ValueId bits(ValueId a, const Pair& mask) { return e_.binary(Op::kTosaBitwiseAnd, a, pair(mask)); }
  ValueId minimum(ValueId a, ValueId b) { return e_.binary(Op::kTosaMinimum, a, b); }
  ValueId maximum(ValueId a, ValueId b) { return e_.binary(Op::kTosaMaximum, a, b); }
  ValueId clamped(ValueId a, const Pair& high) { return minimum(maximum(a, number(0)), pair(high)); }
  ValueId cast(ValueId a, DType dtype) {
    return e_.type(a).dtype == dtype ? a : e_.emit(Op::kTosaCast, CastAttrs{dtype}, {a});
  }
  // The column of x or of y, as (N, H', W', 1).
  ValueId of_axis(ValueId a, std::size_t axis) {
    const auto at = static_cast<std::int64_t>(axis);
    return e_.slice(a, 3, at, at + 1);
  }

  // ---- operands ----
  ValueId bounded_image() {
    const ValueId x = e_.operand(0);
    const ValueRange limits = *integer_limits(dtype_);
    if (attrs_.input_low == limits.low) return x;
    if (dtype_ == DType::kI8)
      return e_.emit(Op::kTosaClamp, TosaClampAttrs{attrs_.input_low, limits.high, NanMode::kPropagate}, {x});
    const ValueId low = e_.constant(DType::kI32, {1, 1, 1, 1}, {static_cast<double>(attrs_.input_low)});
    return cast(maximum(cast(x, DType::kI32), low), dtype_);
  }

  ValueId positions() {
    ValueId g = e_.operand(1);
    const ValueRange limits = *integer_limits(e_.type(g).dtype);
    RescaleAttrs attrs;
    attrs.rescale.dtype = DType::kI32;
    attrs.rescale.multiplier = attrs_.multiplier;
    attrs.rescale.shift = attrs_.shift;
    attrs.rescale.input_zp = attrs_.grid_zp;
    attrs.rescale.per_channel = true;
    attrs.axis = 3;
    if (attrs_.grid_low > limits.low || attrs_.grid_high < limits.high) {
      g = cast(g, DType::kI32);
      if (attrs_.grid_low > limits.low) g = maximum(g, number(attrs_.grid_low));
      if (attrs_.grid_high < limits.high) g = minimum(g, number(attrs_.grid_high));
      if (attrs_.grid_zp != 0) g = sub(g, number(attrs_.grid_zp));
      attrs.rescale.input_zp = 0;
    }
    return add(e_.emit(Op::kRescale, attrs, {g}),
               pair(each([&](std::size_t i) { return (extent_[i] - 1) << (fraction_[i] - 1); })));
  }

  // The largest distance of a position from the axis at which reflections mirror it first.
  [[nodiscard]] std::int64_t farthest(std::size_t i) const {
    const Multiplier by{static_cast<std::int32_t>(attrs_.multiplier[i]),
                        static_cast<std::int32_t>(attrs_.shift[i])};
    std::int64_t most = 0;
    for (const std::int64_t q : {attrs_.grid_low, attrs_.grid_high}) {
      const std::int64_t p =
          apply_scale(q - attrs_.grid_zp, by, MultiplierWidth::k32, RoundingMode::kSingleRound) +
          ((extent_[i] - 1) << (fraction_[i] - 1));
      most = std::max(most, std::abs(p + mirror(i)));
    }
    return most;
  }

  // ---- padding of positions ----
  [[nodiscard]] std::int64_t mirror(std::size_t i) const {
    return attrs_.sample.align_corners ? 0 : std::int64_t{1} << (fraction_[i] - 1);
  }
  // In pixels. An image with one pixel along an axis has the position 0 in the end, whatever the period is.
  [[nodiscard]] std::int64_t period(std::size_t i) const {
    const std::int64_t spans = attrs_.sample.align_corners ? extent_[i] - 1 : extent_[i];
    return std::max<std::int64_t>(2 * spans, 1);
  }
  [[nodiscard]] Pair lasts() const {
    return each([&](std::size_t i) { return extent_[i] - 1; });
  }
  // x modulo `turns`, for x >= 0.
  ValueId remainder(ValueId x, const Pair& turns) {
    const ValueId by = pair(turns);
    return sub(x, mul(e_.binary(Op::kTosaIntdiv, x, by), by, 0));
  }

  ValueId padded(ValueId p) {
    if (has_zeros()) return p;
    if (reflects()) {
      const Pair mirrors = each([&](std::size_t i) { return mirror(i); });
      const Pair turns = each([&](std::size_t i) { return period(i) << fraction_[i]; });
      const ValueId away = e_.unary(Op::kTosaAbs, add_pair(p, mirrors));
      const bool turned = farthest(0) > turns[0] || farthest(1) > turns[1];
      const ValueId extra = turned ? remainder(away, turns) : away;
      p = add_pair(minimum(extra, sub(pair(turns), extra)), {-mirrors[0], -mirrors[1]});
    }
    return clamped(p, each([&](std::size_t i) { return (extent_[i] - 1) << fraction_[i]; }));
  }
  ValueId add_pair(ValueId a, const Pair& b) { return b == Pair{0, 0} ? a : add(a, pair(b)); }

  // The pixel of a tap of a bicubic sample.
  ValueId padded_pixel(ValueId whole) {
    if (has_zeros()) return whole;
    if (!reflects()) return clamped(whole, lasts());
    const std::int64_t mirrored = attrs_.sample.align_corners ? 0 : 1;
    const Pair periods = each([&](std::size_t i) { return period(i); });
    const ValueId away = maximum(whole, sub(number(-mirrored), whole));
    const auto goes_round = [&](std::size_t i) {
      return (farthest(i) >> fraction_[i]) + 4 > periods[i];  // a tap is at most 2 pixels from the position
    };
    const ValueId extra = goes_round(0) || goes_round(1) ? remainder(away, periods) : away;
    const ValueId rest = sub(pair(each([&](std::size_t i) { return periods[i] - mirrored; })), extra);
    const ValueId inside = minimum(extra, rest);
    const bool one_pixel = extent_[0] == 1 || extent_[1] == 1;
    return one_pixel ? clamped(inside, lasts()) : inside;
  }

  // ---- taps ----
  ValueId whole(ValueId p) { return right(p, fraction_); }
  // The fractional part with `count` bits.
  ValueId fraction(ValueId p, std::int64_t count) {
    const Pair masks = each([&](std::size_t i) { return (std::int64_t{1} << fraction_[i]) - 1; });
    return left(bits(p, masks), each([&](std::size_t i) { return count - fraction_[i]; }));
  }

  // For each axis, true where the position is in the image.
  ValueId inside(ValueId at) {
    const ValueId low = e_.binary(Op::kTosaGreaterEqual, at, number(0));
    const ValueId high = e_.binary(Op::kTosaGreaterEqual, pair(lasts()), at);
    return e_.binary(Op::kTosaLogicalAnd, low, high);
  }
  ValueId masked(ValueId condition, ValueId a) {
    return e_.emit(Op::kTosaSelect, NoAttrs{}, {condition, a, number(0)});
  }

  // The pixels in column `x` and row `y`, which are in the image, as (N, H', W', C).
  ValueId pixels(ValueId x, ValueId y) {
    ValueId at = add(mul(y, image_[3], 0), x);
    if (image_[0] > 1) {
      std::vector<double> first;  // the row of the table at which the pixels of an image begin
      for (std::int64_t n = 0; n < image_[0]; ++n)
        first.push_back(static_cast<double>(n * image_[2] * image_[3]));
      at = add(at, e_.constant(DType::kI32, {image_[0], 1, 1, 1}, first));
    }
    const ValueId rows = e_.emit(Op::kIndexSelect, AxisAttrs{0}, {table_, e_.reshape(at, {outputs_})});
    return e_.reshape(rows, {grid_[0], grid_[1], grid_[2], image_[1]});
  }

  // The pixels minus the zero point, times weights of shape (N, H', W', 1).
  ValueId term(ValueId x, ValueId y, ValueId weight) {
    ValueId v = pixels(x, y);
    if (attrs_.input_zp == 0) {
      v = cast(v, DType::kI32);
    } else {
      RescaleAttrs attrs;
      attrs.rescale.input_zp = attrs_.input_zp;
      attrs.rescale.dtype = DType::kI32;
      attrs.rescale.multiplier = {std::int64_t{1} << 30};
      attrs.rescale.shift = {30};
      v = e_.emit(Op::kRescale, attrs, {v});
    }
    return mul(v, weight, weights_.product_shift);
  }

  ValueId nearest(ValueId p) {
    const Pair half = each([&](std::size_t i) { return (std::int64_t{1} << (fraction_[i] - 1)) - 1; });
    const ValueId odd = bits(whole(p), {1, 1});
    const ValueId at = whole(add(add_pair(p, half), odd));
    if (!has_zeros()) return pixels(of_axis(at, 0), of_axis(at, 1));
    const ValueId within = inside(at), clipped = clamped(at, lasts());
    const ValueId both = e_.binary(Op::kTosaLogicalAnd, of_axis(within, 0), of_axis(within, 1));
    const ValueId zero = e_.constant(dtype_, {1, 1, 1, 1}, {static_cast<double>(attrs_.input_zp)});
    return e_.emit(Op::kTosaSelect, NoAttrs{},
                   {both, pixels(of_axis(clipped, 0), of_axis(clipped, 1)), zero});
  }

  ValueId bilinear(ValueId p) {
    const std::int64_t count = weights_.bits;
    const ValueId first = whole(p), second = add(first, 1), f = fraction(p, count);
    const ValueId fx = of_axis(f, 0), fy = of_axis(f, 1);
    const ValueId both = mul(fx, fy, weights_.bits);
    const ValueId east = sub(fx, both), south = sub(fy, both);
    const ValueId west = sub(sub(number(std::int64_t{1} << count), fx), south);
    const ValueId weight[] = {west, east, south, both};
    // With other paddings, the second tap is outside only where its weight is 0.
    const ValueId taps[] = {has_zeros() ? clamped(first, lasts()) : first, clamped(second, lasts())};
    ValueId within[2];
    if (has_zeros()) {
      within[0] = inside(first);
      within[1] = inside(second);
    }
    ValueId sum;
    for (std::size_t k = 0; k < 4; ++k) {
      const std::size_t column = k % 2, row = k / 2;
      ValueId w = weight[k];
      if (has_zeros())
        w = masked(e_.binary(Op::kTosaLogicalAnd, of_axis(within[column], 0), of_axis(within[row], 1)), w);
      const ValueId made = term(of_axis(taps[column], 0), of_axis(taps[row], 1), w);
      sum = sum.valid() ? add(sum, made) : made;
    }
    return sum;
  }

  // The weights of four taps of each axis, with kAxisWeightBits bits: Keys' cubic kernel with a = -0.75.
  std::array<ValueId, 4> cubic_weights(ValueId t) {
    constexpr int count = kAxisWeightBits;
    constexpr std::int64_t one = std::int64_t{1} << count;
    const ValueId u = sub(number(one), t), zero = number(0);
    const ValueId both = mul(t, u, count);
    const ValueId first = sub(zero, mul(mul(both, u, count), 3, 2));
    const ValueId last = sub(zero, mul(mul(both, t, count), 3, 2));
    const ValueId slope = sub(number(9 * (one / 4)), mul(t, 5, 2));
    const ValueId second = sub(number(one), mul(mul(t, t, count), slope, count));
    const ValueId third = sub(sub(sub(number(one), first), second), last);
    return {first, second, third, last};
  }

  ValueId bicubic(ValueId p) {
    std::array<ValueId, 4> weight = cubic_weights(fraction(p, kAxisWeightBits)), taps;
    const ValueId second = whole(p);
    for (std::size_t k = 0; k < 4; ++k) {
      const ValueId at = padded_pixel(add(second, static_cast<std::int64_t>(k) - 1));
      taps[k] = has_zeros() ? clamped(at, lasts()) : at;
      if (has_zeros()) weight[k] = masked(inside(at), weight[k]);
    }
    ValueId sum;
    for (std::size_t k = 0; k < 4; ++k)
      for (std::size_t j = 0; j < 4; ++j) {
        const ValueId w =
            mul(of_axis(weight[j], 0), of_axis(weight[k], 1), 2 * kAxisWeightBits - weights_.bits);
        const ValueId made = term(of_axis(taps[j], 0), of_axis(taps[k], 1), w);
        sum = sum.valid() ? add(sum, made) : made;
      }
    return sum;
  }

  Emitter& e_;
  const IntegerGridSampleAttrs& attrs_;
  Shape image_, grid_;
  DType dtype_;
  std::int64_t outputs_;
  Pair extent_, fraction_;
  SamplerWeights weights_;
  ValueId table_;
};

}  // namespace

ValueId expand_integer_grid_sample(Emitter& e) { return IntegerSampler(e).run(); }

}  // namespace tosaic::passes
