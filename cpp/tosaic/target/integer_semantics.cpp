#include "tosaic/target/integer_semantics.h"

#include "tosaic/base/error.h"
#include "tosaic/base/error_text.h"

namespace tosaic::target {

const IntegerSemantics& tosa_semantics() {
  static const IntegerSemantics semantics;
  return semantics;
}

const IntegerSemantics& cmsis_nn_semantics() {
  static const IntegerSemantics semantics{.rounding = RoundingMode::kDoubleRound,
                                          .sum = SumForm::kTwiceLargerScale,
                                          .product = ProductForm::kIntegers,
                                          .average = AverageForm::kRawSum,
                                          .softmax = SoftmaxForm::kFixedPoint5_26,
                                          .function = FunctionForm::kInDouble,
                                          .quotient = QuotientForm::kInFloat,
                                          .hard = HardForm::kInQParams,
                                          .bound = BoundForm::kInOneSum};
  return semantics;
}

const IntegerSemantics& semantics_named(std::string_view name) {
  if (name == "tosa") return tosa_semantics();
  if (name == "cmsis-nn") return cmsis_nn_semantics();
  throw InvalidGraph({.where = "lower",
                      .what = "unknown integer semantics",
                      .expected = "'tosa' or 'cmsis-nn'",
                      .got = quoted(name)});
}

}  // namespace tosaic::target
