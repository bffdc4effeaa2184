#include "tosaic/passes/lower_to_integer/table_lookup.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "tosaic/passes/lower_to_integer/integer_math.h"
#include "tosaic/passes/lower_to_integer/rescaling.h"
#include "tosaic/passes/lower_to_integer/rule_result.h"

namespace tosaic::passes {
namespace {

constexpr std::int64_t kBytes = 256;
constexpr int kFractionBits = 7;  // fraction bits of the result of a TABLE over i16

std::vector<std::int64_t> integers_of(const Constant& constant) {
  const Elements elements(constant);
  std::vector<std::int64_t> out(elements.size());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = elements.as_int(i);
  return out;
}

// The position of each i8 or i16 integer in a table: 0 for the least integer. Positions of i8 are multiplied
// by `factor`.
ValueId positions(IntegerBuilder& build, ValueId x, std::int64_t factor = 1) {
  const ValueRange all = *integer_limits(build.type(x).dtype);
  if (build.type(x).dtype == DType::kI8) {  // the zero point -128 is subtracted
    const ScaledInteger shifted{x, {static_cast<double>(factor)}, all.low, all};
    return rescaled(build, shifted, DType::kI32, 1.0).id;
  }
  return build.binary(Op::kTosaAdd, in_32_bits(build, x), build.number(-all.low, build.type(x).rank()));
}

using Entry = std::function<std::int64_t(std::int64_t)>;  // the table entry for an integer

bool is_identity(const Entry& f, ValueRange range) {
  for (std::int64_t q = range.low; q <= range.high; ++q)
    if (f(q) != q) return false;
  return true;
}

std::optional<ValueRange> as_bounds(const Entry& f, ValueRange range) {
  const ValueRange bounds{f(range.low), f(range.high)};
  if (bounds.low > bounds.high) return std::nullopt;
  for (std::int64_t q = range.low; q <= range.high; ++q)
    if (f(q) != std::clamp(q, bounds.low, bounds.high)) return std::nullopt;
  return bounds;
}

// TABLE over i16 interpolates: entry[k] * (128 - r) + entry[k + 1] * r at position 128 * k + r. The result
// has 7 bits more than the entries.
std::int64_t interpolated(const std::vector<std::int64_t>& entries, std::int64_t position) {
  const auto k = static_cast<std::size_t>(position >> kFractionBits);
  const std::int64_t rest = position & ((1 << kFractionBits) - 1);
  return entries[k] * (1 << kFractionBits) + (entries[k + 1] - entries[k]) * rest;
}

bool slopes_fit(const std::vector<std::int64_t>& entries) {
  const ValueRange limits = *integer_limits(DType::kI16);
  for (std::size_t k = 1; k < entries.size(); ++k)
    if (!limits.contains(entries[k] - entries[k - 1])) return false;
  return true;
}

// 513 entries, which are the function at every 128th integer. The last one is beyond the range: it continues
// the line through the entry before it and the function's last value. So `1 - x` is exactly 0 for the largest
// x, which a mask (1 - x) * -1e9 needs.
std::vector<std::int64_t> knots(const std::vector<std::int64_t>& f) {
  std::vector<std::int64_t> out;
  for (std::int64_t k = 0; k < 512; ++k) out.push_back(f[static_cast<std::size_t>(k << kFractionBits)]);
  const std::int64_t rise = f.back() - out.back();
  const double of_knots = std::round(static_cast<double>(rise << kFractionBits) / ((1 << kFractionBits) - 1));
  const ValueRange limits = *integer_limits(DType::kI16);
  out.push_back(std::clamp(out.back() + static_cast<std::int64_t>(of_knots), limits.low, limits.high));
  return out;
}

// The largest distance, in units of the result, between TABLE and the function, for integers in `range`.
double table_error(const std::vector<std::int64_t>& entries, const std::vector<std::int64_t>& f,
                   ValueRange range) {
  double worst = 0;
  for (std::int64_t q = range.low; q <= range.high; ++q) {
    const auto at = static_cast<std::size_t>(q + 32768);
    const std::int64_t rounded =
        (interpolated(entries, q + 32768) + (1 << (kFractionBits - 1))) >> kFractionBits;
    worst = std::max(worst, std::abs(static_cast<double>(rounded - f[at])));
  }
  return worst;
}

// A target without int16 has GATHER of 16 bits, but no TABLE.
bool has_wide_tables(const IntegerBuilder& build) { return build.rules().wide_integers; }

ValueId table_of_16_bits(IntegerBuilder& build, ValueId x, const std::vector<std::int64_t>& entries,
                         DType to) {
  const ValueId finer =
      build.emit(Op::kTosaTable, NoAttrs{}, {x, build.constant(DType::kI16, {513}, entries)});
  const std::int64_t limit = std::int64_t{32768} << kFractionBits;
  const ScaledInteger scaled{finer, {std::ldexp(1.0, -kFractionBits)}, 0, {-limit, limit}};
  return rescaled(build, scaled, to, 1.0).id;
}

ValueId table_of_bytes(IntegerBuilder& build, const ScaledInteger& x, const Constant& f) {
  const std::vector<std::int64_t> entries = integers_of(f);
  const auto at = [&](std::int64_t q) { return entries[static_cast<std::size_t>(q + 128)]; };
  if (f.dtype == DType::kI8) {
    if (is_identity(at, x.range)) return x.id;
    if (const std::optional<ValueRange> bounds = as_bounds(at, x.range))
      return build.bounded(x.id, x.range, *bounds);
    return build.emit(Op::kTosaTable, NoAttrs{}, {x.id, build.constant(DType::kI8, {kBytes}, entries)});
  }
  if (f.dtype != DType::kI16 || !has_wide_tables(build)) return gathered(build, position_of(build, x), f);
  std::vector<std::int64_t> knots;  // each entry appears twice, so 256 * x is at a knot for an i8 x
  for (const std::int64_t entry : entries) knots.insert(knots.end(), 2, entry);
  knots.push_back(entries.back());
  if (!slopes_fit(knots)) return gathered(build, position_of(build, x), f);
  const ScaledInteger spread{x.id, {256.0}, 0, *integer_limits(DType::kI8)};
  return table_of_16_bits(build, rescaled(build, spread, DType::kI16, 1.0).id, knots, DType::kI16);
}

ValueId table_of_words(IntegerBuilder& build, const ScaledInteger& x, const Constant& f) {
  const std::vector<std::int64_t> entries = integers_of(f);
  const auto at = [&](std::int64_t q) { return entries[static_cast<std::size_t>(q + 32768)]; };
  if (f.dtype == DType::kI16) {
    if (is_identity(at, x.range)) return x.id;
    if (const std::optional<ValueRange> bounds = as_bounds(at, x.range))
      return build.bounded(x.id, x.range, *bounds);
    const std::vector<std::int64_t> few = knots(entries);
    if (has_wide_tables(build) && slopes_fit(few) && table_error(few, entries, x.range) <= 1)
      return table_of_16_bits(build, x.id, few, DType::kI16);
  }
  return gathered(build, position_of(build, x), f);
}

}  // namespace

ValueId looked_up(IntegerBuilder& build, const ScaledInteger& x, const Constant& table) {
  return build.type(x.id).dtype == DType::kI8 ? table_of_bytes(build, x, table)
                                              : table_of_words(build, x, table);
}

ValueId position_of(IntegerBuilder& build, const ScaledInteger& x) { return positions(build, x.id); }

ValueId position_of(IntegerBuilder& build, const ScaledInteger& a, const ScaledInteger& b) {
  return build.binary(Op::kTosaAdd, positions(build, a.id, kBytes), positions(build, b.id));
}

ValueId gathered(IntegerBuilder& build, ValueId position, const Constant& table) {
  return IntegerMath(build).lookup(position, integers_of(table), table.dtype);
}

ScaledInteger gathered_numbers(IntegerBuilder& build, ValueId position, const Constant& table, double most) {
  constexpr int kBits = 24;
  double largest = 0;
  const Elements elements(table);
  std::vector<double> numbers(elements.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = std::clamp(elements.as_double(i), -most, most);
    if (!std::isfinite(numbers[i])) throw NoIntegerForm("it is not finite everywhere");
    largest = std::max(largest, std::abs(numbers[i]));
  }
  double unit = largest == 0 ? 1.0 : std::ldexp(1.0, std::ilogb(largest) + 1 - kBits);
  // If all numbers are multiples of a coarser power of two, as whole numbers are, that is the unit.
  const auto are_multiples = [&](double of) {
    return std::ranges::all_of(numbers, [of](double number) { return std::fmod(number, of) == 0; });
  };
  while (2 * unit <= largest && are_multiples(2 * unit)) unit *= 2;
  std::vector<std::int64_t> entries;
  for (const double value : numbers) entries.push_back(std::llround(value / unit));
  const auto [low, high] = std::minmax_element(entries.begin(), entries.end());
  const ValueRange range{*low, *high};
  return {IntegerMath(build).lookup(position, entries), {unit}, 0, range};
}

}  // namespace tosaic::passes
