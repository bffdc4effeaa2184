// constant_factor: products and quotients by one number, which change only the scale and not the integers.
//
//   %a: i8 q(scale s, zp z)
//   %b: i8 q(scale s * c, zp z) = mul(%a, c)            the integers of %a
//   %b: i8 q(scale s * -c, zp -1 - z) = mul(%a, c)      c < 0: the integers -1 - %a
//
// Scales are positive: a negative factor mirrors the integers instead of changing the sign of the scale.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "tosaic/ir/graph.h"

namespace tosaic {

// The result is operand `data` times `factor`, which is finite and not 0.
struct ConstantFactor {
  std::size_t data = 0;
  double factor = 1;
};

// Returns nothing unless the node is a product, or a quotient without rounding, of a value and a constant
// whose elements are one number, and the result has the shape of the value. The constant may be quantized. A
// factor of 0 returns nothing, since scales are not 0.
[[nodiscard]] std::optional<ConstantFactor> constant_factor(const Graph& graph, const Node& node);

// The zero point of -x if the integers of x are mirrored in their range: q becomes min + max - q.
[[nodiscard]] std::int64_t mirrored_zero_point(const QParams& qparams);

// True if each integer of `from`, times a positive factor and rounded to `to`, remains the same integer.
[[nodiscard]] bool keeps_integers(const QParams& from, double factor, const QParams& to);

}  // namespace tosaic
