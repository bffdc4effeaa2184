#include "tosaic/passes/lower_to_integer/rules.h"

namespace tosaic::passes {
namespace {

constexpr IntegerRule kNoIntegerRule = nullptr;

}  // namespace

IntegerRule rule_of(const Node& node) {
  if (node.op == Op::kIndexPut && Graph::attrs<IndexPutAttrs>(node).accumulate) return kNoIntegerRule;
  switch (node.op) {
#define TOSAIC_OP(Name, text, AttrsT, operands, results, traits, int16, inference, error, kernel, expansion, \
                  legalization, integer_rule, ...)                                                           \
  case Op::Name:                                                                                             \
    return integer_rule;
#define TOSAIC_TOSA_OP(Name, ...) case Op::Name:
#include "tosaic/ir/ops.def"
    return kNoIntegerRule;
  }
  return kNoIntegerRule;
}

}  // namespace tosaic::passes
