#include "tosaic/quant/planner/behaviour.h"

namespace tosaic::quant {

Behaviour behaviour_of(Op op) {
  using enum Behaviour;
  switch (op) {
#define TOSAIC_OP(Name, text, AttrsT, operands, results, traits, int16, inference, error, kernel, expansion, \
                  legalization, integer_rule, quantization)                                                  \
  case Op::Name:                                                                                             \
    return quantization;
#define TOSAIC_TOSA_OP(Name, ...) case Op::Name:
#include "tosaic/ir/ops.def"
    return kFloatOnly;  // graphs that are annotated have canonical operators only
  }
  return kFloatOnly;
}

}  // namespace tosaic::quant
