// Which dtypes a TOSA operator takes, and the profile or extension that each combination belongs to: the
// tables "Supported Data Types" of the TOSA 1.0 specification.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/target/spec.h"

namespace tosaic::target {

// A combination is supported by a target that has any of `any` and all of `all`.
struct Need {
  Features any = 0;
  Features all = 0;

  [[nodiscard]] bool met_by(Features features) const {
    return (any == 0 || (features & any) != 0) && (features & all) == all;
  }
};
// "PRO-INT or PRO-FP"
[[nodiscard]] std::string to_string(const Need& need);

// One combination: operands, results and, for convolutions and AVG_POOL2D, the accumulator; of a variable's
// operators its dtype alone.
struct TypeMode {
  std::vector<DType> dtypes;
  Need need;
};

// All combinations of a tosa.* operator with `operand_count` operands; empty for other operators, and for
// those that take any tensors.
[[nodiscard]] std::vector<TypeMode> type_modes(Op op, std::size_t operand_count);

// What an operator that takes any tensors needs (CUSTOM, COND_IF, WHILE_LOOP); null for the others.
[[nodiscard]] const Need* untyped_need(Op op);

// The combination that a node has.
[[nodiscard]] std::vector<DType> node_dtypes(const Graph& graph, const Node& node);

// What a constant or an input of the dtype needs; null: TOSA has no such dtype.
[[nodiscard]] const Need* constant_need(DType dtype);

// "i8, i8, i32 -> i32", with " (accumulator i32)" where `dtypes` has one more than operands and result.
[[nodiscard]] std::string to_string(std::span<const DType> dtypes, std::size_t operand_count);

}  // namespace tosaic::target
