// integer_exceptions: infinity and NaN in integer arithmetic, which has neither.
//
// Infinity is a number so large that it saturates when it is stored. Quotients, logarithms and rsqrt know
// that number from the qparams of the reader; without these, they throw NoIntegerForm if the operand may be
// too close to zero.
//
// NaN is any number with a mask (Real::undefined) of where it is NaN. Quotients, roots, logarithms, softmax
// and functions from samples create masks unless the ranges rule NaN out. Operators that compute with such
// numbers pass masks on. Where the result is stored, the mask selects the integer that quantize makes of NaN.
// An operator without a rule for NaN throws NoIntegerForm.

#include <algorithm>
#include <limits>

#include "tosaic/passes/lower_to_integer/integer_math.h"
#include "tosaic/quant/quantize.h"

namespace tosaic::passes {
namespace {

using Mask = std::optional<ValueId>;

bool is_comparison(Op op) {
  return op == Op::kEq || op == Op::kNe || op == Op::kLt || op == Op::kLe || op == Op::kGt || op == Op::kGe;
}

// True for elementwise operators with a rule for NaN: a float result is NaN, a comparison false (ne: true),
// another bool true.
bool hands_on_nan(const Node& node) {
  const OpInfo& row = info(node.op);
  if (!row.has(kElementwise) || row.is_tosa) return false;
  return node.op != Op::kNanToNum && node.op != Op::kIsinf && node.op != Op::kPow;
}

ValueId negation(IntegerLowering& l, ValueId mask) { return l.emit(Op::kTosaLogicalNot, NoAttrs{}, {mask}); }

// The mask of where(condition, x, y), with the masks `a` of x and `b` of y.
Mask chosen(IntegerLowering& l, ValueId condition, const Mask& a, const Mask& b) {
  Mask out;
  if (a) out = l.both(condition, a);
  if (b) out = l.either(out, l.both(negation(l, condition), b));
  return out;
}

}  // namespace

std::optional<ValueId> IntegerLowering::either(const Mask& a, const Mask& b) {
  if (!a || !b || *a == *b) return a ? a : b;
  return binary(Op::kTosaLogicalOr, *a, *b);
}

std::optional<ValueId> IntegerLowering::both(const Mask& a, const Mask& b) {
  if (!a || !b) return std::nullopt;
  return *a == *b ? a : binary(Op::kTosaLogicalAnd, *a, *b);
}

// The integer that quantize makes of NaN, in the signed form of the result's qparams.
std::int64_t IntegerLowering::stored_nan() const {
  const QParams& label = *result_type().qparams;
  const float nan[] = {std::numeric_limits<float>::quiet_NaN()};
  Constant one;
  one.dtype = label.storage;
  one.shape = {1};
  one.storage = quant::quantize(nan, one.shape, label).storage;
  return Elements(one).as_int(0) - (target_->storage == label.storage ? 0 : carried_offset(label.storage));
}

// Selects stored_nan() where `undefined` is true.
ValueId IntegerLowering::with_nan(ValueId stored, ValueId undefined) {
  const ValueId nan = number(stored_nan(), type(stored).rank(), type(stored).dtype);
  return elementwise(Op::kTosaSelect, NoAttrs{}, {undefined, nan, stored});
}

// Adds the masks of the operands to the result of a rule. Throws NoIntegerForm for an operator without a rule
// for NaN.
Lowered IntegerLowering::with_exceptions(Lowered made) {
  std::vector<Mask> masks(operand_count());
  for (std::size_t i = 0; i < masks.size(); ++i)
    if (has(i) && !is_constant(i) && is_real(i)) masks[i] = real(i).undefined;
  const auto is_none = [](const Mask& mask) { return !mask; };
  if (std::all_of(masks.begin(), masks.end(), is_none)) return made;
  Mask undefined;
  if (node_->op == Op::kWhere) {
    undefined = chosen(*this, plain(0), masks[1], masks[2]);
  } else if (rearranges(*node_) && masks.size() == 1) {
    Shape shape = type(*masks[0]).shape;
    while (shape.size() < operand_type(0).rank()) shape.insert(0, 1);
    const ValueId whole = expand(reshape(*masks[0], shape), operand_type(0).shape);
    undefined = emit(node_->op, *node_->attrs, {whole});
  } else if (hands_on_nan(*node_)) {
    for (const Mask& mask : masks) undefined = either(undefined, mask);
  } else {
    throw NoIntegerForm("its operand may be NaN");
  }
  if (Real* const number = std::get_if<Real>(&made)) {
    number->undefined = either(number->undefined, undefined);
    return made;
  }
  if (!undefined) return made;
  const ValueId value = std::get<ValueId>(made);
  if (target_) return with_nan(value, *undefined);
  if (type(value).dtype != DType::kBool) return made;  // torch does not define which integer NaN becomes
  if (node_->op == Op::kNe || !is_comparison(node_->op)) return *either(value, undefined);
  return *both(value, negation(*this, *undefined));
}

}  // namespace tosaic::passes
