// constant_factor: products and quotients by one number, which change the scale of integers and not the
// integers.
//
//   %a: i8 q(scale s, zp z)
//   %b: i8 q(scale s * c, zp z) = mul(%a, c)            the integers of %a
//   %b: i8 q(scale s * -c, zp -1 - z) = mul(%a, c)      c < 0: the integers -1 - %a
//
// A negative scale does not exist: the mirrored integers stand for the numbers of a negative factor.
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

// Returns nothing unless the node is a product, or a quotient that does not round, by a constant that has one
// number, and the result has the shape of the other operand. The constant may be quantized. 0 is not a
// factor: a scale is not 0.
[[nodiscard]] std::optional<ConstantFactor> constant_factor(const Graph& graph, const Node& node);

// The zero point of -x if the integers of x are mirrored in their range: q becomes min + max - q.
[[nodiscard]] std::int64_t mirrored_zero_point(const QParams& qparams);

// True if the numbers of `from` times a positive factor are, rounded to `to`, the same integers.
[[nodiscard]] bool keeps_integers(const QParams& from, double factor, const QParams& to);

}  // namespace tosaic
