// widening: RESCALE from 8 or 16 bits to 32 that Ethos-U computes within the operator that reads its result.
//
// Elementwise operators have a scale for each operand, if all their operands are of the narrow dtype. A
// product, and a sum over a row, can only widen by the factor one. Vela 5.2 fuses such a RESCALE if its
// result has no other reader.
#pragma once

#include "tosaic/ir/graph.h"

namespace tosaic::passes {

// True for elementwise operators with two operands that may each have a scale.
[[nodiscard]] bool scales_operands(Op op);
// True for a RESCALE by one.
[[nodiscard]] bool multiplies_by_one(const TosaRescaleAttrs& attrs);
// The RESCALE from i8 or i16 to i32, with one scale and without an output zero point, that makes a value.
// Null for other values.
[[nodiscard]] const Node* widening(const Graph& graph, ValueId id);
// The dtype from which it widens.
[[nodiscard]] DType narrow_dtype(const Graph& graph, const Node& rescale);
// True if Ethos-U computes the RESCALEs of all operands of an elementwise operator within the operator.
[[nodiscard]] bool widens_operands(const Graph& graph, const Node& node);

}  // namespace tosaic::passes
