#include "tosaic/passes/integer_math.h"

#include <cmath>

namespace tosaic::passes {
namespace {

constexpr std::int64_t kFewTerms = 256;  // whose 22 bits each are enough
constexpr int kHalfBits = 15;

}  // namespace

ValueId IntegerMath::mul(ValueId a, ValueId b, int shift) {
  const std::size_t rank = std::max(l_.type(a).rank(), l_.type(b).rank());
  const auto aligned = [&](ValueId x) {
    Shape shape = l_.type(x).shape;
    while (shape.size() < rank) shape.insert(0, 1);
    return l_.reshape(x, shape);
  };
  return l_.emit(Op::kTosaMul, TosaMulAttrs{shift}, {aligned(a), aligned(b)});
}

ValueId IntegerMath::right(ValueId a, ValueId by, bool round) {
  return l_.emit(Op::kTosaArithmeticRightShift, TosaShiftAttrs{round}, {a, by});
}

ValueId IntegerMath::lookup(ValueId index, const std::vector<std::int64_t>& entries) {
  const Shape shape = l_.type(index).shape;
  const ValueId table = l_.constant(DType::kI32, {static_cast<std::int64_t>(entries.size()), 1}, entries);
  const ValueId list = l_.reshape(index, {num_elements(shape)});
  return l_.reshape(l_.emit(Op::kEmbedding, NoAttrs{}, {table, list}), shape);
}

int IntegerMath::fewer_bits(std::int64_t count) {
  int bits = 0;
  while ((std::int64_t{1} << bits) < count) ++bits;
  return bits;
}

ValueId IntegerMath::sum30(ValueId a, std::int64_t axis, std::int64_t count) {
  const int fewer = fewer_bits(count);
  if (count == 1) return a;
  if (count <= kFewTerms) return sum(right(a, fewer, true), axis);
  if (fewer > kHalfBits) throw NoIntegerForm("it sums " + std::to_string(count) + " terms");
  const std::int64_t mask = (std::int64_t{1} << kHalfBits) - 1;
  const ValueId upper = sum(right(a, kHalfBits), axis), lower = sum(bits(a, mask), axis);
  const ValueId carried = add(upper, right(lower, kHalfBits));
  return add(left(carried, kHalfBits - fewer), right(bits(lower, mask), fewer));
}

IntegerMath::Scaled IntegerMath::normalized(ValueId v, bool even) {
  ValueId shift = add(clz(v), -1);
  if (even) shift = bits(shift, 30);
  return {left(v, shift), shift};
}

ValueId IntegerMath::of_mantissa(ValueId mantissa, const Function& f, bool even) {
  const int drop = even ? 15 : 14;
  const std::int64_t first = (std::int64_t{1} << (even ? 29 : 30)) >> drop;
  std::vector<std::int64_t> entries;
  for (std::int64_t at = first; at < (std::int64_t{1} << 31) >> drop; ++at)
    entries.push_back(std::llround(f(std::ldexp(static_cast<double>(at) + 0.5, drop))));
  return lookup(add(right(mantissa, drop), -first), entries);
}

}  // namespace tosaic::passes
