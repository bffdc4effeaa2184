// unsigned_bits: which operators take unsigned integers as they are.
#pragma once

#include "tosaic/ir/control_flow.h"
#include "tosaic/ir/graph.h"

namespace tosaic::passes {

[[nodiscard]] constexpr bool is_unsigned(DType dtype) { return dtype == DType::kU8 || dtype == DType::kU16; }

// True for rescales, casts, control flow, views and data movement except pad: they work on the bits of an
// integer. TOSA has no unsigned dtypes, so only these operators can read and make unsigned integers there.
[[nodiscard]] inline bool takes_bits(const Node& node) {
  const OpInfo& row = info(node.op);
  return node.op == Op::kRescale || node.op == Op::kCast || is_cond(node.op) || is_while_loop(node.op) ||
         ((row.has(kMovement) || row.has(kView)) && node.op != Op::kPad);
}

}  // namespace tosaic::passes
