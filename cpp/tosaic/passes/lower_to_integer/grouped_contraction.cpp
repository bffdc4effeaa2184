#include "tosaic/passes/lower_to_integer/grouped_contraction.h"

#include <algorithm>
#include <cmath>

#include "tosaic/ir/apply_scale.h"
#include "tosaic/passes/lower_to_integer/integer_arithmetic.h"
#include "tosaic/passes/lower_to_integer/integer_math.h"
#include "tosaic/passes/lower_to_integer/rescaling.h"

namespace tosaic::passes {
namespace {

constexpr int kSumBits = 29;    // of the sum of all groups, in the unit of its channel
constexpr int kRatioBits = 14;  // the most by which a unit is finer than the scale of a group

GroupedWeight::Digit digit_of(const RuleContext& ctx, const GroupedWeight& weight, const ScaleGrid& grid,
                              const std::vector<std::int64_t>& values) {
  GroupedWeight::Digit out{ctx.build.constant(DType::kI8, weight.shape, values),
                           std::vector<std::int64_t>(weight.scales.size(), 0)};
  for (std::size_t k = 0; k < values.size(); ++k)
    out.sums[grid.of(static_cast<std::int64_t>(k))] += std::abs(values[k]);
  return out;
}

// The units of the channels of a result, and the bias in these units if it is a constant.
struct Units {
  std::vector<double> units;
  std::optional<std::vector<std::int64_t>> bias;
  ValueRange range;  // of the result
};

// One product of a part of the input and a digit of the weight.
struct Factor {
  const ScaledInteger* part;
  const GroupedWeight::Digit* digit;
  double scale;  // to be multiplied with the weight's scales
};

std::vector<Factor> factors_of(const std::vector<ScaledInteger>& parts, const GroupedWeight& weight) {
  std::vector<Factor> out;
  for (const ScaledInteger& part : parts)
    for (std::size_t k = 0; k < weight.digits.size(); ++k)
      out.push_back({&part, &weight.digits[k], std::ldexp(part.scale(), 7 * static_cast<int>(k))});
  return out;
}

// The operator that converts the sums of a group to the units of their channels. A RESCALE must be defined
// for the range of the sums, which is known only for all channels together.
enum class By : std::uint8_t { kMul, kRescale };

Units units_of(const RuleContext& ctx, const std::vector<Factor>& factors, const GroupedWeight& weight,
               By by) {
  std::vector<double> bias;
  if (ctx.node.has(2) && ctx.is_known(2)) bias = ctx.numbers(2);
  for (const double number : bias)
    if (!std::isfinite(number)) throw NoIntegerForm("its bias is not finite");
  const double terms = static_cast<double>(factors.size()) * static_cast<double>(weight.groups);
  const double room = std::ldexp(1.0, kSumBits) - terms - 2;  // each term, and the bias, may round up
  if (room < std::ldexp(1.0, kSumBits - 1)) throw NoIntegerForm("its weight has too many groups");
  // The largest sum of group g by factor f, over all channels.
  const auto largest = [&](const Factor& f, std::int64_t g) {
    std::int64_t found = 0;
    for (std::int64_t c = 0; c < weight.channels; ++c)
      found = std::max(found, f.digit->sums[static_cast<std::size_t>(c * weight.groups + g)]);
    return static_cast<double>(found * f.part->magnitude());
  };
  std::vector<double> of_all;
  if (by == By::kRescale)
    for (const Factor& factor : factors)
      for (std::int64_t g = 0; g < weight.groups; ++g) of_all.push_back(largest(factor, g));
  Units out;
  if (!bias.empty()) out.bias.emplace();
  for (std::int64_t c = 0; c < weight.channels; ++c) {
    double most = bias.empty() ? 0 : std::abs(bias[static_cast<std::size_t>(c)]), coarsest = 0;
    auto of_each = of_all.begin();
    for (const Factor& factor : factors)
      for (std::int64_t g = 0; g < weight.groups; ++g) {
        const auto at = static_cast<std::size_t>(c * weight.groups + g);
        const double scale = factor.scale * weight.scales[at];
        most += scale * static_cast<double>(factor.digit->sums[at] * factor.part->magnitude());
        coarsest = std::max(coarsest, std::ldexp(scale, -kRatioBits));
        if (by == By::kRescale) coarsest = std::max(coarsest, scale * *of_each++ / room);
      }
    const double unit = std::max(most / room, coarsest);
    out.units.push_back(unit);
    if (!bias.empty()) out.bias->push_back(std::llround(bias[static_cast<std::size_t>(c)] / unit));
  }
  const std::int64_t bound = (std::int64_t{1} << kSumBits) - 1;  // a RESCALE by 1 is defined up to here
  out.range = {-bound, bound};
  return out;
}

// The sum of the terms, plus the bias, as a ScaledInteger with its channels on `axis`.
ScaledInteger summed(const RuleContext& ctx, const std::vector<ValueId>& terms, Units units,
                     std::int64_t axis) {
  IntegerMath m(ctx.build);
  ValueId sum = terms.front();
  for (std::size_t k = 1; k < terms.size(); ++k) sum = m.add(sum, terms[k]);
  Shape own = Dims::filled(ctx.build.type(sum).rank(), 1);
  own[static_cast<std::size_t>(axis)] = static_cast<std::int64_t>(units.units.size());
  if (units.bias) sum = m.add(sum, ctx.build.constant(DType::kI32, own, *units.bias));
  ScaledInteger out{sum, std::move(units.units), 0, units.range};
  if (out.scales.size() > 1) out.axis = axis;
  return out;
}

ScaledInteger with_computed_bias(const RuleContext& ctx, const ScaledInteger& sums, std::int64_t axis) {
  if (!ctx.node.has(2) || ctx.is_known(2)) return sums;
  Shape own = Dims::filled(ctx.build.type(sums.id).rank() - static_cast<std::size_t>(axis), 1);
  own[0] = ctx.node.operand_type(2).shape[0];
  return plus(ctx, sums, 2, own);
}

// Multipliers [groups, 1, channels] with which MUL converts sums to the units of the channels, and its shift.
struct Multipliers {
  std::vector<std::int64_t> values;
  int shift = 0;
};

Multipliers multipliers_of(const GroupedWeight& weight, double scale, const std::vector<double>& units) {
  std::vector<double> ratios;
  for (std::int64_t g = 0; g < weight.groups; ++g)
    for (std::int64_t c = 0; c < weight.channels; ++c)
      ratios.push_back(scale * weight.scales[static_cast<std::size_t>(c * weight.groups + g)] /
                       units[static_cast<std::size_t>(c)]);
  Multipliers out;
  const double largest = *std::max_element(ratios.begin(), ratios.end());
  out.shift = std::clamp(30 - std::ilogb(largest), 0, 62);
  for (const double ratio : ratios)
    out.values.push_back(
        std::min(std::llround(std::ldexp(ratio, out.shift)), static_cast<long long>(kInt32Values.high)));
  return out;
}

}  // namespace

std::optional<GroupedWeight> grouped_weight(const RuleContext& ctx, std::size_t i, std::int64_t axis,
                                            std::int64_t along) {
  const std::optional<ScaledInteger> x = ctx.by_group(i);
  if (!x || *x->axis != axis || x->groups->axis != along || num_elements(ctx.build.type(x->id).shape) == 0)
    return std::nullopt;
  const ConstantRef known = ctx.build.known(x->id);
  const ScaleGrid grid(known->shape, *x);
  GroupedWeight out{.shape = known->shape,
                    .axis = axis,
                    .along = along,
                    .channels = known->shape[static_cast<std::size_t>(axis)],
                    .groups = known->shape[static_cast<std::size_t>(along)] / x->groups->size,
                    .size = x->groups->size,
                    .scales = x->scales,
                    .digits = {}};
  const Elements elements(*known);
  std::vector<std::int64_t> whole, upper, lower;
  bool narrow = true;
  for (std::size_t k = 0; k < elements.size(); ++k) {
    const std::int64_t q = elements.as_int(k) - x->zero_point;
    whole.push_back(q);
    upper.push_back((q + 64) >> 7);
    lower.push_back(q - upper.back() * 128);
    narrow = narrow && std::abs(q) <= 127;
    if (std::abs(q) > 127 * 128) return std::nullopt;
  }
  if (narrow)
    out.digits = {digit_of(ctx, out, grid, whole)};
  else
    out.digits = {digit_of(ctx, out, grid, lower), digit_of(ctx, out, grid, upper)};
  return out;
}

ScaledInteger grouped_row_products(const RuleContext& ctx, const std::vector<ScaledInteger>& parts,
                                   const GroupedWeight& weight) {
  IntegerBuilder& build = ctx.build;
  IntegerMath m(build);
  const std::vector<Factor> factors = factors_of(parts, weight);
  Units units = units_of(ctx, factors, weight, By::kMul);
  const Shape& result = ctx.node.result_type().shape;
  const std::int64_t rows = num_elements(result) / weight.channels;
  std::vector<ValueId> terms;
  for (const Factor& factor : factors) {
    const ScaledInteger& x = *factor.part;
    const DType dtype = build.type(x.id).dtype;
    const ValueId blocks = build.emit(Op::kPermute, PermuteAttrs{{1, 0, 2}},
                                      {build.reshape(x.id, {rows, weight.groups, weight.size})});
    const bool by_row = weight.axis == 0;  // (O, I)
    const ValueId split =
        build.reshape(factor.digit->id, by_row ? Shape{weight.channels, weight.groups, weight.size}
                                               : Shape{weight.groups, weight.size, weight.channels});
    const ValueId filters =
        build.cast(by_row ? build.emit(Op::kPermute, PermuteAttrs{{1, 2, 0}}, {split}) : split, dtype);
    const ValueId products =
        build.emit(Op::kTosaMatmul, TosaMatmulAttrs{x.zero_point, 0, std::nullopt}, {blocks, filters});
    const __int128_t most = static_cast<__int128_t>(x.magnitude()) *
                            *std::max_element(factor.digit->sums.begin(), factor.digit->sums.end());
    if (most > (dtype == DType::kI8 ? kInt32Values : kInt48Values).high)
      throw NoIntegerForm("the sums of a group may leave their dtype");
    const auto bound = static_cast<std::int64_t>(most);
    ScaledInteger sums{products, {factor.scale}, 0, {-bound, bound}};
    if (dtype != DType::kI8) sums = within_32_bits(build, sums);
    const Multipliers by = multipliers_of(weight, sums.scale(), units.units);
    const ValueId scaled =
        m.mul(sums.id, build.constant(DType::kI32, {weight.groups, 1, weight.channels}, by.values), by.shift);
    terms.push_back(m.sum(scaled, 0));
  }
  ScaledInteger sum = summed(ctx, terms, std::move(units), 2);
  sum.id = build.reshape(sum.id, result);
  if (sum.axis) sum.axis = static_cast<std::int64_t>(result.size()) - 1;
  return with_computed_bias(ctx, sum, static_cast<std::int64_t>(result.size()) - 1);
}

ScaledInteger grouped_convolution(const RuleContext& ctx, const std::vector<ScaledInteger>& parts,
                                  const GroupedWeight& weight, std::int64_t blocks,
                                  const Convolve& convolve) {
  IntegerBuilder& build = ctx.build;
  const std::vector<Factor> factors = factors_of(parts, weight);
  Units units = units_of(ctx, factors, weight, By::kRescale);
  const auto slice = [&](ValueId id, std::int64_t axis, std::int64_t from) {
    return build.emit(Op::kSlice, SliceAttrs{axis, from, from + weight.size, 1}, {id});
  };
  const std::int64_t of_block = weight.groups * weight.size;  // input channels of a block
  std::vector<ValueId> terms;
  for (const Factor& factor : factors)
    for (std::int64_t g = 0; g < weight.groups; ++g) {
      std::vector<ValueId> channels;
      for (std::int64_t block = 0; block < blocks; ++block)
        channels.push_back(slice(factor.part->id, 1, block * of_block + g * weight.size));
      ScaledInteger input = *factor.part;
      input.id = blocks == 1 ? channels.front() : build.emit(Op::kCat, AxisAttrs{1}, channels);
      ScaledInteger filters{
          slice(factor.digit->id, weight.along, g * weight.size), {}, 0, {-127, 127}, weight.axis};
      for (std::int64_t c = 0; c < weight.channels; ++c)
        filters.scales.push_back(factor.scale / input.scale() *
                                 weight.scales[static_cast<std::size_t>(c * weight.groups + g)]);
      ScaledInteger sums = convolve(input, filters);
      if (build.type(sums.id).dtype == DType::kI48) sums = within_32_bits(build, sums);
      // One RESCALE converts each channel to its own unit.
      sums.scales.resize(units.units.size(), sums.scales.front());
      for (std::size_t c = 0; c < units.units.size(); ++c) sums.scales[c] /= units.units[c];
      if (sums.scales.size() > 1) sums.axis = 1;
      terms.push_back(rescaled(build, sums, DType::kI32, 1.0).id);
    }
  return with_computed_bias(ctx, summed(ctx, terms, std::move(units), 1), 1);
}

}  // namespace tosaic::passes
