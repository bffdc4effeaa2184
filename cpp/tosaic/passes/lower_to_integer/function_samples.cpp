#include "tosaic/passes/lower_to_integer/function_samples.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tosaic/ir/apply_scale.h"
#include "tosaic/passes/lower_to_integer/evaluation.h"
#include "tosaic/passes/lower_to_integer/integer_math.h"
#include "tosaic/passes/lower_to_integer/octaves.h"
#include "tosaic/passes/lower_to_integer/rescaling.h"

namespace tosaic::passes {
namespace {

using Interval = tosaic::Interval<double>;

constexpr std::int64_t kSamples = 65537;           // points; there are kSamples - 1 intervals
constexpr std::int64_t kSamplesApart[] = {16, 4};  // samples from knot to knot
constexpr int kRelevantBits = 20, kResultBits = 30;
// Bits of a position between the first knot and the last.
constexpr int kPositionBits = 28;

// The node's result at these points of `variable`, in f32 by the float kernels.
std::vector<double> evaluated_at(const NodeView& node, ValueId variable, const std::vector<float>& points) {
  const Shape shape{static_cast<std::int64_t>(points.size())};
  const ConstantRef argument =
      constant_over("", ConstantKind::kFolded, DType::kF32, shape, Storage::of(points));
  const ConstantRef f = evaluate_from(node, variable, argument);
  const Elements elements(*f);
  std::vector<double> out(elements.size());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = elements.as_double(i);
  return out;
}

std::vector<double> sampled(const NodeView& node, ValueId variable, Interval over) {
  std::vector<float> points(kSamples);
  for (std::int64_t i = 0; i < kSamples; ++i)
    points[static_cast<std::size_t>(i)] =
        static_cast<float>(over.low + (over.high - over.low) * static_cast<double>(i) / (kSamples - 1));
  return evaluated_at(node, variable, points);
}

// The range of the integers of x for which the function is not NaN. Example: the integers that represent -1
// to 1 for an arc sine. The bounds are exact. Throws NoIntegerForm if these integers are not one range.
ValueRange domain(const NodeView& node, ValueId variable, const ScaledInteger& x,
                  const std::vector<double>& f) {
  const auto is_number = [](double y) { return !std::isnan(y); };
  const auto first = std::find_if(f.begin(), f.end(), is_number);
  const auto last = std::find_if(f.rbegin(), f.rend(), is_number).base();
  if (first == f.end() || !std::all_of(first, last, is_number))
    throw NoIntegerForm("it is not a number everywhere");
  ValueRange out = x.range;
  const double step = static_cast<double>(x.range.high - x.range.low) / (kSamples - 1);
  // Evaluates the function at every unit from this sample to the next. Returns the first of these units, and
  // the results.
  const auto between = [&](std::ptrdiff_t sample) {
    const double from = static_cast<double>(x.range.low) + step * static_cast<double>(sample);
    const ValueRange units{static_cast<std::int64_t>(std::floor(from)),
                           static_cast<std::int64_t>(std::ceil(from + step))};
    std::vector<float> points;
    for (std::int64_t n = units.low; n <= units.high; ++n)
      points.push_back(static_cast<float>(static_cast<double>(n) * x.scale()));
    return std::pair(units.low, evaluated_at(node, variable, points));
  };
  if (first != f.begin()) {
    const auto [from, values] = between(first - f.begin() - 1);
    out.low = from + (std::find_if(values.begin(), values.end(), is_number) - values.begin());
  }
  if (last != f.end()) {
    const auto [from, values] = between(last - f.begin() - 1);
    const auto end = std::find_if(values.rbegin(), values.rend(), is_number).base();
    out.high = from + (end - values.begin()) - 1;
  }
  return out;
}

// The interval that is worth tabulating. In front of it, the function differs from its value at the start of
// `over` by at most 2^-`bits` of its largest magnitude. Beyond it, the function differs as little from its
// value at the end. Results beyond `most` saturate and count as `most`. The interval begins and ends at a
// multiple of `unit`.
Interval relevant(const std::vector<double>& f, double most, int bits, Interval over, double unit) {
  const auto at = [&](std::size_t i) { return std::clamp(f[i], -most, most); };
  double size = 0;
  for (std::size_t i = 0; i < f.size(); ++i) size = std::max(size, std::abs(at(i)));
  const double close = std::ldexp(size, -bits);
  std::size_t first = 0, last = f.size() - 1;
  while (first + 1 < last && std::abs(at(first + 1) - at(0)) <= close) ++first;
  while (last > first + 1 && std::abs(at(last - 1) - at(f.size() - 1)) <= close) --last;
  const double step = (over.high - over.low) / (kSamples - 1);
  const double low = std::floor((over.low + step * static_cast<double>(first)) / unit) * unit;
  const double high = std::ceil((over.low + step * static_cast<double>(last)) / unit) * unit;
  return {std::max(low, over.low), std::min(high, over.high)};
}

// A knot is a sample that the table stores; `apart` is the distance between knots, in samples. True if linear
// interpolation between knots is within 2^-18 of the largest result. Results beyond `most` do not count.
bool is_smooth(const std::vector<std::int64_t>& f, std::int64_t most, std::int64_t apart) {
  std::int64_t size = 0, error = 0;
  for (const std::int64_t y : f) size = std::max(size, std::min(std::abs(y), most));
  for (std::size_t i = 0; i < f.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i), knot = at / apart * apart;
    if (at == knot || std::abs(f[i]) > most) continue;
    const std::int64_t from = f[static_cast<std::size_t>(knot)];
    const std::int64_t rise = f[static_cast<std::size_t>(knot + apart)] - from;
    const std::int64_t line = from + rise * (at - knot) / apart;
    error = std::max(error, std::abs(line - f[i]));
  }
  return error <= size >> 18;
}

// True if the function turns so often that the sample next to a number tells little about its result: more
// than 1 of 64 samples differ from the next by more than 2^-6 of the largest result. A function with a few
// steps, such as a sign, is not such a function.
bool is_wild(const std::vector<std::int64_t>& f, std::int64_t most) {
  std::int64_t size = 0;
  std::size_t jumps = 0;
  const auto at = [&](std::size_t i) { return std::clamp(f[i], -most, most); };
  for (std::size_t i = 0; i < f.size(); ++i) size = std::max(size, std::abs(at(i)));
  for (std::size_t i = 1; i < f.size(); ++i) jumps += std::abs(at(i) - at(i - 1)) > size >> 6 ? 1 : 0;
  return jumps > f.size() / 64;
}

struct Samples {
  ValueRange domain;                  // integers of the operand for which the function is not NaN
  Interval over;                      // from the first sample to the last, as numbers
  std::vector<std::int64_t> entries;  // the results at the samples, in units of `unit`
  double unit = 1;
  std::optional<std::int64_t> apart;  // samples from knot to knot; nothing if interpolation is too imprecise
  bool is_complete = false;  // each integer of the operand from the first sample to the last is a sample
  std::int64_t most = 0;     // results beyond saturate, in units of `unit`
};

// The node's result at these integers of x.
std::vector<double> at_integers(const NodeView& node, ValueId variable, const ScaledInteger& x,
                                const std::vector<std::int64_t>& integers) {
  std::vector<float> points;
  for (const std::int64_t q : integers)
    points.push_back(static_cast<float>(static_cast<double>(q) * x.scale()));
  return evaluated_at(node, variable, points);
}

// If an integer of x represents minus infinity: refuses a function that is NaN there, or that is infinite
// there while its result is not quantized in the end.
void require_number_at_infinity(const NodeView& node, ValueId variable, const ScaledInteger& x) {
  if (!x.minus_infinity) return;
  const double at = evaluated_at(node, variable, {-std::numeric_limits<float>::infinity()}).front();
  if (std::isnan(at) || (std::isinf(at) && !node.eventual_qparams())) throw NoIntegerForm(kNoInfinity);
}

Samples samples_of(const RuleContext& ctx, ValueId variable, const ScaledInteger& x) {
  const NodeView& node = ctx.node;
  require_number_at_infinity(node, variable, x);
  Samples out;
  const auto numbers = [&](ValueRange range) {
    return Interval{static_cast<double>(range.low) * x.scale(), static_cast<double>(range.high) * x.scale()};
  };
  std::vector<double> f = sampled(node, variable, numbers(x.range));
  out.domain = domain(node, variable, x, f);
  out.over = numbers(out.domain);
  if (out.domain != x.range) f = sampled(node, variable, out.over);
  const std::optional<QParams> to = node.eventual_qparams();
  const std::optional<analysis::RelevantNumbers> noticed = ctx.values.noticed(node.node());
  const bool is_exact = !to && noticed && noticed->step == 0;
  const double most = to ? 2 * largest_number(*to) : std::numeric_limits<double>::infinity();
  // Next to an infinite result, all others would count as equal.
  const auto is_infinite = [](double y) { return std::isinf(y); };
  if (!to && std::any_of(f.begin(), f.end(), is_infinite)) throw NoIntegerForm("it is not finite everywhere");
  for (int turn = 0; turn < 4; ++turn) {
    const Interval less = relevant(f, most, is_exact ? kResultBits : kRelevantBits, out.over, x.scale());
    if (less.high - less.low > 0.75 * (out.over.high - out.over.low)) break;
    out.over = less;
    f = sampled(node, variable, out.over);
  }
  const auto store = [&] {
    double size = 0;
    for (double& y : f) {
      y = std::clamp(y, -2 * most, 2 * most);
      if (!std::isfinite(y)) throw NoIntegerForm("it is not finite everywhere");
      size = std::max(size, std::abs(y));
    }
    out.unit = unit_for(size);
    ctx.require_fine_results(out.unit);
    require_fine_counts(ctx, variable, x, out.unit);
    out.entries.clear();
    for (const double y : f) out.entries.push_back(std::llround(y / out.unit));
    return static_cast<std::int64_t>(std::min(most / out.unit, 0x1p62));
  };
  const std::int64_t counts = out.most = store();
  const double integers = (out.over.high - out.over.low) / x.scale() + 1;
  const bool are_few = integers <= static_cast<double>(kSamples);
  if (!is_exact || !are_few)
    for (const std::int64_t apart : kSamplesApart)
      if (!out.apart && is_smooth(out.entries, counts, apart)) out.apart = apart;
  if (out.apart) return out;
  if (are_few) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(std::llround(integers)));
    std::iota(all.begin(), all.end(), std::llround(out.over.low / x.scale()));
    f = at_integers(node, variable, x, all);
    store();
    out.is_complete = true;
  } else if (is_wild(out.entries, counts)) {
    throw NoIntegerForm("it turns more often than a table of its operand can tell");
  }
  return out;
}

// A mask that is true where x is outside the domain. Returns nothing if x is always inside.
std::optional<ValueId> outside(IntegerBuilder& build, const ScaledInteger& x, ValueRange domain) {
  IntegerMath m(build);
  std::optional<ValueId> out;
  if (domain.low > x.range.low) out = build.binary(Op::kTosaGreater, m.number(x.id, domain.low), x.id);
  if (domain.high < x.range.high)
    out = build.either(out, build.binary(Op::kTosaGreater, x.id, m.number(x.id, domain.high)));
  return out;
}

ScaledInteger read_at(IntegerBuilder& build, const ScaledInteger& x, const Samples& f) {
  IntegerMath m(build);
  // x minus the first sample; `steps` below rescales it to steps.
  const std::int64_t shift = std::llround(f.over.low / x.scale());
  ScaledInteger near = x;
  const auto overflows = [&] {
    return near.range.low - shift < kInt32Values.low || near.range.high - shift > kInt32Values.high;
  };
  if (overflows()) {
    near.range = {std::max(x.range.low, shift),
                  std::min(x.range.high, static_cast<std::int64_t>(std::ceil(f.over.high / x.scale())))};
    near.id = build.bounded(x.id, x.range, near.range);
  }
  if (overflows()) throw NoIntegerForm("its operand has too many bits");
  ScaledInteger from_first{
      m.add(near.id, -shift), x.scales, 0, {near.range.low - shift, near.range.high - shift}};
  const auto last = static_cast<std::int64_t>(std::ceil((f.over.high - f.over.low) / x.scale()));
  from_first.id = build.bounded(from_first.id, from_first.range, {0, last});
  from_first.range = {std::max<std::int64_t>(from_first.range.low, 0), std::min(from_first.range.high, last)};
  const auto steps = [&](std::int64_t count) {
    const double step = (f.over.high - f.over.low) / static_cast<double>(count);
    const ScaledInteger found = step == 0 ? from_first : rescaled(build, from_first, DType::kI32, step);
    return build.bounded(found.id, found.range, {0, count});
  };
  const auto [low, high] = std::minmax_element(f.entries.begin(), f.entries.end());
  const ValueRange range{*low, *high};
  const std::optional<ValueId> nan_mask = build.either(x.nan_mask, outside(build, x, f.domain));
  if (!f.apart) {
    const ValueId at = f.is_complete ? from_first.id : steps(kSamples - 1);
    ScaledInteger out{m.lookup(at, f.entries), {f.unit}, 0, range};
    out.nan_mask = nan_mask;
    return out;
  }
  std::vector<std::int64_t> knots;
  for (std::size_t k = 0; k < f.entries.size(); k += static_cast<std::size_t>(*f.apart))
    knots.push_back(f.entries[k]);
  const auto lines = static_cast<std::int64_t>(knots.size() - 1);
  const int fraction_bits = kPositionBits - bits_to(lines);
  const ValueId fine = steps(lines << fraction_bits);
  ScaledInteger out{m.on_lines(fine, fraction_bits, knots), {f.unit}, 0, {range.low - 1, range.high + 1}};
  std::int64_t steepest = 0;
  for (std::size_t k = 1; k < knots.size(); ++k)
    steepest = std::max(steepest, std::abs(knots[k] - knots[k - 1]));
  const double step = (f.over.high - f.over.low) / static_cast<double>(lines);
  const double size = static_cast<double>(std::max(std::abs(range.low), std::abs(range.high))) * f.unit;
  out.nan_mask = nan_mask;
  out.error =
      std::ldexp(size, -18) + (step == 0 ? 0 : static_cast<double>(steepest) * f.unit * x.error / step);
  return out;
}

// The node at these integers of x, in units of the samples.
std::vector<std::int64_t> entries_at(const NodeView& node, ValueId variable, const ScaledInteger& x,
                                     const Samples& f, const std::vector<std::int64_t>& integers) {
  std::vector<std::int64_t> out;
  const auto far = static_cast<double>(std::max<std::int64_t>(f.most, 1)) * 2;
  for (const double y : at_integers(node, variable, x, integers))
    out.push_back(std::llround(std::clamp(y / f.unit, -far, far)));
  return out;
}

// The values of a function at `knots`: the first `half` have one sign, the others the other sign. A knot
// outside of the domain has a value such that the line to it goes through the function at the end of the
// domain.
std::vector<std::int64_t> with_ends(const std::vector<std::int64_t>& knots, std::size_t half,
                                    ValueRange domain, const auto& function) {
  std::vector<std::int64_t> places;
  for (const std::int64_t at : knots) places.push_back(std::clamp(at, domain.low, domain.high));
  const std::vector<std::int64_t> found = function(places);
  std::vector<std::int64_t> out = found;
  constexpr double kMost = 0x1p30;
  for (std::size_t i = 0; i < knots.size(); ++i)
    for (const std::size_t n : {i - 1, i + 1}) {
      const bool is_on_line = n < knots.size() && n / half == i / half;
      if (places[i] == knots[i] || !is_on_line || places[n] == places[i]) continue;
      const auto rise = static_cast<double>(found[i] - found[n]);
      const auto ratio =
          static_cast<double>(knots[i] - places[n]) / static_cast<double>(places[i] - places[n]);
      const double number = static_cast<double>(found[n]) + rise * ratio;
      out[i] = std::llround(std::clamp(number, -kMost, kMost));
    }
  return out;
}

// The node by linear interpolation between knots that are dense next to `center`, e.g. next to 0 for an arc
// tangent of large numbers. Returns nothing if the error exceeds 2^-18 of the largest result.
std::optional<ScaledInteger> on_octaves(const RuleContext& ctx, ValueId variable, const ScaledInteger& x,
                                        const Samples& f, const Octaves& octaves, std::int64_t center) {
  constexpr std::int64_t kTests = 4;  // parts of a line, between which it is compared with the function
  std::vector<std::int64_t> knots, tests, lines;
  std::vector<double> parts;
  const std::size_t halves = f.domain.low < center ? 2 : 1;
  for (std::size_t half = 0; half < halves; ++half) {
    const std::int64_t sign = half == 0 ? 1 : -1;
    for (std::int64_t k = 0; k < octaves.count(); ++k) {
      const std::int64_t from = octaves.magnitude(k), to = octaves.magnitude(k + 1);
      knots.push_back(center + sign * from);
      if (k + 1 == octaves.count()) continue;
      std::vector<std::int64_t> at{std::abs(f.domain.low - center), std::abs(f.domain.high - center)};
      for (std::int64_t t = 1; t < kTests; ++t) at.push_back(from + (to - from) * t / kTests);
      for (const std::int64_t magnitude : at) {
        const bool is_on_line = from < magnitude && magnitude < to;
        if (!is_on_line || !f.domain.contains(center + sign * magnitude)) continue;
        tests.push_back(center + sign * magnitude);
        lines.push_back(static_cast<std::int64_t>(knots.size()) - 1);
        parts.push_back(static_cast<double>(magnitude - from) / static_cast<double>(to - from));
      }
    }
  }
  const std::vector<std::int64_t> at_knots =
      with_ends(knots, static_cast<std::size_t>(octaves.count()), f.domain,
                [&](const auto& places) { return entries_at(ctx.node, variable, x, f, places); });
  const std::vector<std::int64_t> at_tests = entries_at(ctx.node, variable, x, f, tests);
  std::int64_t size = 0;
  for (const std::int64_t y : at_knots) size = std::max(size, std::min(std::abs(y), f.most));
  for (std::size_t i = 0; i < tests.size(); ++i) {
    if (std::abs(at_tests[i]) > f.most) continue;
    const auto k = static_cast<std::size_t>(lines[i]);
    const auto rise = static_cast<double>(at_knots[k + 1] - at_knots[k]);
    const double line = static_cast<double>(at_knots[k]) + rise * parts[i];
    if (std::abs(line - static_cast<double>(at_tests[i])) > static_cast<double>(size >> 18))
      return std::nullopt;
  }
  IntegerMath m(ctx.build);
  const int fraction = octaves.fraction_bits();
  const ValueId from_center = m.add(ctx.build.bounded(x.id, x.range, f.domain), -center);
  const ValueId position =
      halves == 2 ? octaves.signed_position(ctx.build, from_center) : octaves.position(m, from_center);
  const auto [low, high] = std::minmax_element(at_knots.begin(), at_knots.end());
  ScaledInteger out{m.on_lines(position, fraction, at_knots), {f.unit}, 0, {*low - 1, *high + 1}};
  double steepest = 0;  // by unit of x
  for (std::size_t k = 1; k < knots.size(); ++k)
    if (knots[k] != knots[k - 1])
      steepest = std::max(steepest, std::abs(static_cast<double>(at_knots[k] - at_knots[k - 1]) /
                                             static_cast<double>(knots[k] - knots[k - 1])));
  out.nan_mask = ctx.build.either(x.nan_mask, outside(ctx.build, x, f.domain));
  out.error = f.unit * (std::ldexp(static_cast<double>(size), -18) + steepest * x.error / x.scale());
  return out;
}

// The center is 0, or the end of a domain that ends inside of the range of x, where there may be a pole.
std::optional<ScaledInteger> on_octaves(const RuleContext& ctx, ValueId variable, const ScaledInteger& x,
                                        const Samples& f) {
  constexpr std::int64_t kFar = std::int64_t{1} << 30;
  if (x.minus_infinity || f.domain.low < -kFar || f.domain.high > kFar) return std::nullopt;
  std::vector<std::int64_t> centers{0};
  if (f.domain.low > x.range.low) centers.push_back(f.domain.low);
  for (int bits = 7; bits <= 10; ++bits)
    for (const std::int64_t center : centers) {
      const std::int64_t reach = std::max(std::abs(f.domain.low - center), std::abs(f.domain.high - center));
      const Octaves octaves(bits, std::max(bits_to(reach + 1), bits + 1));
      if (auto made = on_octaves(ctx, variable, x, f, octaves, center)) return made;
    }
  return std::nullopt;
}

// Refuses a function that changes between two samples by more than its reader tolerates, unless it does so in
// a step: then the result at the sample next to a number is the right one, or that of a number next to it.
void require_known_between_samples(const RuleContext& ctx, ValueId variable, const Samples& f) {
  std::int64_t size = 0;
  const auto bounded = [&](std::int64_t y) { return std::clamp(y, -f.most, f.most); };
  for (const std::int64_t y : f.entries) size = std::max(size, std::abs(bounded(y)));
  const std::optional<QParams> to = ctx.node.eventual_qparams();
  const double step = to ? 2 * to->scales.front() / f.unit : 0;
  const auto tolerated = static_cast<std::int64_t>(std::max(step, static_cast<double>(size >> 12)));
  std::vector<std::size_t> jumps;
  std::vector<float> middles;
  for (std::size_t i = 0; i + 1 < f.entries.size(); ++i) {
    if (std::abs(bounded(f.entries[i + 1]) - bounded(f.entries[i])) <= 2 * tolerated) continue;
    jumps.push_back(i);
    const double part = (static_cast<double>(i) + 0.5) / (kSamples - 1);
    middles.push_back(static_cast<float>(f.over.low + (f.over.high - f.over.low) * part));
  }
  if (jumps.empty()) return;
  const std::vector<double> found = evaluated_at(ctx.node, variable, middles);
  for (std::size_t k = 0; k < jumps.size(); ++k) {
    const double far = 2.0 * static_cast<double>(f.most);
    const std::int64_t middle = bounded(std::llround(std::clamp(found[k] / f.unit, -far, far)));
    const auto is_near = [&](std::size_t i) { return std::abs(middle - bounded(f.entries[i])) <= tolerated; };
    if (!is_near(jumps[k]) && !is_near(jumps[k] + 1))
      throw NoIntegerForm("it changes faster than a table of its operand can tell");
  }
}

// The node as a function of `variable`. Returns nothing if the function is not smooth, or if the numbers of
// the variable have more than 32 bits.
std::optional<RuleResult> smooth_function(const RuleContext& ctx, ValueId variable) {
  std::optional<RuleResult> made = attempt([&]() -> std::optional<RuleResult> {
    const ScaledInteger x = widened(ctx.build, with_one_scale(ctx.build, ctx.scaled_value(variable)));
    const Samples f = samples_of(ctx, variable, x);
    return f.apart ? std::optional<RuleResult>(read_at(ctx.build, x, f)) : std::nullopt;
  });
  const Refusal* const refused = made ? std::get_if<Refusal>(&*made) : nullptr;
  if (refused != nullptr && !refused->by_scale) return std::nullopt;
  return made;
}

}  // namespace

std::optional<RuleResult> smooth_composition(const RuleContext& ctx) {
  for (const ValueId variable : deciding_values(ctx))
    if (std::optional<RuleResult> made = smooth_function(ctx, variable)) return made;
  return std::nullopt;
}

RuleResult by_samples(const RuleContext& ctx, ValueId variable, const ScaledInteger& x) {
  const Samples f = samples_of(ctx, variable, x);
  if (!f.apart && !f.is_complete) {
    if (std::optional<RuleResult> made = smooth_composition(ctx)) return *made;
    if (std::optional<ScaledInteger> made = on_octaves(ctx, variable, x, f)) return *std::move(made);
    require_known_between_samples(ctx, variable, f);
  }
  return read_at(ctx.build, x, f);
}

}  // namespace tosaic::passes
