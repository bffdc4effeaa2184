// type_support: which dtypes a TOSA operator takes, and the profile or extension that each combination
// belongs to, from the tables "Supported Data Types" of the TOSA 1.0 specification.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/target/spec.h"

namespace tosaic::target {

// A target meets a need if it has all of the features `all` and, unless `any` is 0, one of the features
// `any`.
struct Need {
  Features any = 0;
  Features all = 0;

  [[nodiscard]] bool met_by(Features features) const {
    return (any == 0 || (features & any) != 0) && (features & all) == all;
  }
};
// The features to add to `features` so that they meet the need: missing ones of `all`, and the first of
// `any`.
[[nodiscard]] Features missing(const Need& need, Features features);
// "PRO-INT or PRO-FP"
[[nodiscard]] std::string to_string(const Need& need);

// One combination of dtypes: the operands, then the results, then the accumulator of convolutions and
// AVG_POOL2D. The operators on variables have only one dtype, that of the variable.
struct TypeMode {
  std::vector<DType> dtypes;
  Need need;
};

// All combinations of dtypes that a tosa.* operator with `operand_count` operands takes. Returns none for
// operators of other stages, and for TOSA operators that take any tensors.
[[nodiscard]] std::vector<TypeMode> type_modes(Op op, std::size_t operand_count);

// The dtypes with which the target has an operator whose operands and results all have one dtype, such as
// RESHAPE, CONCAT and VARIABLE.
[[nodiscard]] std::vector<DType> dtypes_of(const TargetSpec& target, Op op, std::size_t operand_count);

// What an operator needs that takes tensors of any dtype (CUSTOM, COND_IF, WHILE_LOOP); null for other
// operators.
[[nodiscard]] const Need* untyped_need(Op op);

// The combination of dtypes that a node has.
[[nodiscard]] std::vector<DType> node_dtypes(const Graph& graph, const Node& node);

// The features that a constant or an input of the dtype needs; null if TOSA has no such dtype.
[[nodiscard]] const Need* constant_need(DType dtype);

// "i8, i8, i32 -> i32", followed by " (accumulator i32)" if `dtypes` has an entry after the result.
[[nodiscard]] std::string to_string(std::span<const DType> dtypes, std::size_t operand_count);

}  // namespace tosaic::target
