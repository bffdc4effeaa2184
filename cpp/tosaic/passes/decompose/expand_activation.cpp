// expand_activation: expresses activations by erf, tanh, sigmoid, clamp, maximum and where. The formulas are
// those in the documentation of torch.nn.functional.

#include <cmath>

#include "tosaic/passes/decompose/expansions.h"

namespace tosaic::passes {
namespace {

ValueId clamp(Emitter& e, ValueId x, double min, double max) {
  return e.emit(Op::kClamp, ClampAttrs{Scalar(min), Scalar(max)}, {x});
}

// relu6(x + 3) / 6
ValueId hard_sigmoid(Emitter& e, ValueId x) { return e.mul(clamp(e, e.add(x, 3.0), 0.0, 6.0), 1.0 / 6.0); }

}  // namespace

ValueId expand_gelu(Emitter& e) {
  const ValueId x = e.operand(0);
  ValueId gate;
  if (e.attrs<GeluAttrs>().tanh) {
    const double k = std::sqrt(2.0 / M_PI);
    const ValueId cubic = e.mul(e.mul(e.mul(x, x), x), 0.044715);
    gate = e.unary(Op::kTanh, e.mul(e.add(x, cubic), k));
  } else {
    gate = e.unary(Op::kErf, e.mul(x, std::sqrt(0.5)));
  }
  return e.mul(e.mul(x, 0.5), e.add(gate, 1.0));
}

ValueId expand_silu(Emitter& e) { return e.mul(e.operand(0), e.unary(Op::kSigmoid, e.operand(0))); }

ValueId expand_hardsigmoid(Emitter& e) { return hard_sigmoid(e, e.operand(0)); }

ValueId expand_hardswish(Emitter& e) { return e.mul(e.operand(0), hard_sigmoid(e, e.operand(0))); }

ValueId expand_leaky_relu(Emitter& e) {
  const ValueId x = e.operand(0);
  const double slope = e.attrs<SlopeAttrs>().alpha;
  const ValueId scaled = e.mul(x, slope);
  // max(x, slope * x) is right for 0 < slope <= 1. If the slope rounds to 0 in the dtype, inf * 0 = NaN would
  // become the maximum.
  const ConstantRef rounded = make_constant("", e.type(x).dtype, {}, std::span(&slope, 1));
  if (element_as_double(*rounded, 0) > 0.0 && slope <= 1.0) return e.binary(Op::kMaximum, x, scaled);
  return e.where(e.binary(Op::kGt, x, e.number(0.0, e.type(x).dtype)), x, scaled);
}

}  // namespace tosaic::passes
