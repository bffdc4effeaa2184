// terms: brings the operands of a sum, an extremum or a comparison to one unit.
//
//   terms = {term_of(ctx, 0), term_of(ctx, 1)}     scaled integers, or the numbers of a constant
//   unit = common_unit(terms)
//   a = in_unit(build, terms[0], unit)             i32; constants are converted at compile time
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "tosaic/passes/lower_to_integer/rule_context.h"

namespace tosaic::passes {

// An operand before its unit is chosen: scaled integers, or the numbers of a constant. It is multiplied by
// `factor`.
struct Term {
  std::optional<ScaledInteger> scaled;
  std::vector<double> numbers;  // the numbers of a constant
  Shape shape;
  double factor = 1;
  double scale = 0;  // quantized constants: their numbers are multiples of it; 0 for other terms

  // True if some integers of the term represent minus infinity.
  [[nodiscard]] bool is_hiding() const { return scaled && scaled->minus_infinity; }
  [[nodiscard]] double magnitude() const;
};

[[nodiscard]] Term term_of(const RuleContext& ctx, std::size_t operand, double factor = 1);
[[nodiscard]] Term term_of(IntegerBuilder& build, const ScaledInteger& x);
// The largest magnitude of the numbers of `x` that are finite.
[[nodiscard]] double finite_magnitude(const ScaledInteger& x);
// x, which hides minus infinity (scaled_integer.h), as i32. Minus infinity becomes -2 * least, and in the
// result every number up to -least represents minus infinity. `least` is more than finite_magnitude(x).
[[nodiscard]] ScaledInteger with_lower_infinity(IntegerBuilder& build, const ScaledInteger& x, double least);
// Throws NoIntegerForm if a constant has an infinity or NaN.
void require_finite(const Term& term);

// The coarsest scale of the operands times the power of two for which the sum just stays below 2^29. RESCALE
// sets this limit: a factor of 2^k (multiplier 2^30, shift 30 - k) is only defined for values below 2^(29 -
// k). Equal scales stay as they are if the sum has room.
[[nodiscard]] double common_unit(const std::vector<Term>& terms);

// RuleContext::require_bits for both operands of the node, which become integers in units of `unit`.
void require_bits(const RuleContext& ctx, std::span<const Term> terms, double unit);

struct Integers {
  ValueId id;
  ValueRange range;
  double error = 0;  // as in ScaledInteger
};
// The term as i32 in units of `unit`, times |factor|. The caller handles the sign of `factor`.
[[nodiscard]] Integers in_unit(IntegerBuilder& build, const Term& term, double unit);

}  // namespace tosaic::passes
