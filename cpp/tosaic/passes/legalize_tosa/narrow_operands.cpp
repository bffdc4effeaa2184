// narrow-operands: stores an i32 constant that is added to, or multiplied with, widened integers as integers
// of the same narrow dtype, which a RESCALE widens.
//
//   %w = rescale(%x: i8): i32                      const %c: i8[192]
//   const %c: i32[192]                       ->    %w = rescale(%x)  %v = rescale(%c)
//   %y = add(%w, %c)                               %y = add(%w, %v)
//
// Ethos-U then computes both RESCALEs within the operator (widening.h). With a constant of 32 bits it
// computes neither: it writes and reads the widened operand. Most such constants are folded from a RESCALE of
// quantized numbers; the pass finds its multiplier again. All elements must be exactly those of the constant.

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "tosaic/ir/apply_scale.h"
#include "tosaic/ir/rewriter.h"
#include "tosaic/passes/legalize_tosa/widening.h"
#include "tosaic/passes/pass.h"

namespace tosaic::passes {
namespace {

// The elements of a constant are apply_scale(narrow - zero_point, by).
struct Narrow {
  ConstantRef constant;
  std::int64_t zero_point = 0;
  Multiplier by;
};

// The different elements, in order. Empty if there are more than `most`.
std::vector<std::int64_t> distinct(const Elements& elements, std::size_t most) {
  std::vector<std::int64_t> found;
  for (std::size_t i = 0; i < elements.size(); ++i) found.push_back(elements.as_int(i));
  std::ranges::sort(found);
  const auto repeated = std::ranges::unique(found);
  found.erase(repeated.begin(), repeated.end());
  return found.size() > most ? std::vector<std::int64_t>() : found;
}

// The multiplier by which RESCALE turns each of `steps` into the wide integer of the same index. `unit` is 1
// or more, so the shift is at most 30, and single and double rounding are the same. Returns nothing if there
// is no such multiplier.
std::optional<Multiplier> multiplier_of(const std::vector<std::int64_t>& steps,
                                        const std::vector<std::int64_t>& wide, double unit) {
  const int shift = 30 - std::ilogb(unit);
  if (shift < kMinShift || shift > kMaxShift) return std::nullopt;
  std::int64_t low = std::int64_t{1} << 30, high = kInt32Values.high;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::int64_t size = std::abs(steps[i]);
    if (size >= std::int64_t{1} << (shift - 1)) return std::nullopt;
    if (size == 0) {
      if (wide[i] != 0) return std::nullopt;
      continue;
    }
    // apply_scale() rounds half up: wide - 1/2 <= step * multiplier / 2^shift < wide + 1/2.
    const double middle = std::ldexp(static_cast<double>(wide[i]), shift) / static_cast<double>(steps[i]);
    const double reach = std::ldexp(1.0, shift - 1) / static_cast<double>(size);
    low = std::max(low, static_cast<std::int64_t>(std::max(std::ceil(middle - reach), 0.0)));
    high = std::min(high, static_cast<std::int64_t>(std::clamp(middle + reach, 0.0, 0x1p31)));
  }
  if (low > high) return std::nullopt;
  const Multiplier found{static_cast<std::int32_t>(low + (high - low) / 2), shift};
  for (std::size_t i = 0; i < steps.size(); ++i)
    if (apply_scale(steps[i], found, MultiplierWidth::k32, RoundingMode::kSingleRound) != wide[i])
      return std::nullopt;
  return found;
}

// The constant as integers of `dtype` that a RESCALE widens. With `only_by_one`, the RESCALE must multiply by
// 1.
std::optional<Narrow> narrowed(const Constant& constant, DType dtype, bool only_by_one) {
  const ValueRange limits = *integer_limits(dtype);
  const std::int64_t count = limits.high - limits.low;
  const Elements elements(constant);
  const std::vector<std::int64_t> wide = distinct(elements, static_cast<std::size_t>(count) + 1);
  if (wide.empty()) return std::nullopt;
  const std::int64_t most = std::max(std::abs(wide.front()), std::abs(wide.back()));
  std::vector<std::int64_t> steps(wide.size());
  std::optional<Multiplier> by;
  std::int64_t zero_point = 0;
  // True if the wide integers, divided by `unit` and rounded, are narrow ones that RESCALE widens exactly.
  const auto fits = [&](double unit) {
    for (std::size_t i = 0; i < wide.size(); ++i)
      steps[i] = std::llround(static_cast<double>(wide[i]) / unit);
    const std::int64_t low = steps.front(), high = steps.back();
    zero_point = low < limits.low ? limits.low - low : high > limits.high ? limits.high - high : 0;
    if (high - low > count || !limits.contains(zero_point) || (zero_point != 0 && dtype != DType::kI8))
      return false;
    by = only_by_one ? Multiplier{1 << 30, 30} : multiplier_of(steps, wide, unit);
    return by.has_value();
  };
  std::int64_t divisor = 0;
  for (const std::int64_t element : wide) divisor = std::gcd(divisor, element);
  bool found = fits(only_by_one ? 1.0 : static_cast<double>(std::max<std::int64_t>(divisor, 1)));
  if (dtype == DType::kI8 && !only_by_one)
    for (std::int64_t k = 1; !found && k <= count && k <= most; ++k)
      found = fits(static_cast<double>(most) / static_cast<double>(k));
  if (!found) return std::nullopt;
  std::vector<double> narrow;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const auto at = std::ranges::lower_bound(wide, elements.as_int(i)) - wide.begin();
    narrow.push_back(static_cast<double>(steps[static_cast<std::size_t>(at)] + zero_point));
  }
  return Narrow{make_constant(constant.name, dtype, constant.shape, narrow), zero_point, *by};
}

class Operands {
 public:
  explicit Operands(const Graph& graph) : graph_(graph), rewriter_(graph) {}

  std::optional<Graph> run() {
    for (const Node& node : graph_.nodes())
      if (!narrow(node)) rewriter_.copy(node);
    return without_dead_code(std::move(rewriter_).finish());
  }

 private:
  // Narrows the constant operand of `node`. Returns false if it has none, or none that is narrow.
  bool narrow(const Node& node) {
    if (!scales_operands(node.op)) return false;
    const auto operands = graph_.operands(node);
    const std::size_t at = constant_of(operands[0]) != nullptr ? 0 : 1;
    const Constant* const constant = constant_of(operands[at]);
    const Node* const other = constant == nullptr ? nullptr : widening(graph_, operands[1 - at]);
    if (other == nullptr) return false;
    const bool is_product = node.op == Op::kTosaMul;
    const auto& attrs = Graph::attrs<TosaRescaleAttrs>(*other);
    if (is_product && !multiplies_by_one(attrs)) return false;
    const std::optional<Narrow>& found =
        narrow_of(operands[at], *constant, narrow_dtype(graph_, *other), is_product);
    if (!found) return false;
    TosaRescaleAttrs widen;
    widen.dtype = DType::kI32;
    widen.rounding_mode = attrs.rounding_mode;
    widen.input_zp = found->zero_point;
    widen.multiplier = {found->by.multiplier};
    widen.shift = {found->by.shift};
    static_cast<void>(rewriter_.begin_output(node));
    std::vector<ValueId> made = rewriter_.map_operands(node);
    made[at] = rewriter_.emit(node, Op::kTosaRescale, widen, {rewriter_.constant(node, found->constant)});
    rewriter_.replace(node, rewriter_.emit(node, node.op, *node.attrs, made));
    return true;
  }

  [[nodiscard]] const Constant* constant_of(ValueId id) const {
    const Value& value = graph_.value(id);
    const bool is_known = value.kind == ValueKind::kConstant && value.constant->storage.bound();
    return is_known && value.type.dtype == DType::kI32 && value.constant->storage.size() > 0
               ? value.constant.get()
               : nullptr;
  }

  const std::optional<Narrow>& narrow_of(ValueId id, const Constant& constant, DType dtype, bool by_one) {
    const auto [at, is_new] = narrow_.try_emplace({id, dtype, by_one});
    if (is_new) at->second = narrowed(constant, dtype, by_one);
    return at->second;
  }

  const Graph& graph_;
  Rewriter rewriter_;
  std::map<std::tuple<ValueId, DType, bool>, std::optional<Narrow>> narrow_;
};

}  // namespace

std::optional<Graph> narrow_operands(const Graph& graph) { return Operands(graph).run(); }

}  // namespace tosaic::passes
