// byte_integers: finds integers of a wider dtype whose values fit a byte, for integer matmuls.
#pragma once

#include <cstdint>
#include <optional>

#include "tosaic/ir/constant_value.h"
#include "tosaic/passes/match.h"

namespace tosaic::passes {

// The zero point with which i8 represents the integers of a value: 0 for integers of i8, -128 for u8. Returns
// nothing if the value is neither a cast from i8 or u8 nor a constant that fits one of them.
[[nodiscard]] inline std::optional<std::int64_t> byte_zero_point(const Graph& graph, ValueId value) {
  constexpr std::int64_t kLow = -128, kHigh = 127;
  if (const Node* cast = produced_by(graph, value, Op::kCast)) {
    const DType source = graph.type(graph.operands(*cast)[0]).dtype;
    if (source == DType::kI8) return 0;
    if (source == DType::kU8) return kLow;
  }
  const Constant* constant = constant_of(graph, value);
  if (constant == nullptr || !constant->storage.bound() || !is_integer(constant->dtype) ||
      num_elements(constant->shape) == 0)
    return std::nullopt;
  const ValueRange range = extremes_of(*constant);
  if (range.low >= kLow && range.high <= kHigh) return 0;
  if (range.low >= 0 && range.high <= kHigh - kLow) return kLow;
  return std::nullopt;
}

// True for a matmul with an i32 result whose two operands have a byte_zero_point().
[[nodiscard]] inline bool multiplies_bytes(const Graph& graph, const Node& node) {
  const std::span<const ValueId> operands = graph.operands(node);
  return node.op == Op::kMatmul && graph.type(graph.result(node)).dtype == DType::kI32 &&
         byte_zero_point(graph, operands[0]) && byte_zero_point(graph, operands[1]);
}

}  // namespace tosaic::passes
