// widen_unsigned: replaces arithmetic over unsigned integers by arithmetic in i32 between casts.
//
//   %y: u8[4] = add(%x: u8[4], %1: i64[])
//     ->  %x.cast: i32[4] = cast(%x)   %y.add: i32[4] = add(%x.cast, %1)   %y: u8[4] = cast(%y.add)
//
// A cast to an unsigned dtype keeps the lowest bits, as torch's operators do. Sums, differences and products
// modulo 2^8 or 2^16 depend on the lowest bits of the operands only. All other operators are exact for the
// numbers themselves, which i32 holds.

#include <vector>

#include "tosaic/ir/control_flow.h"
#include "tosaic/ir/rewriter.h"
#include "tosaic/passes/decompose/expansions.h"
#include "tosaic/passes/regions.h"
#include "tosaic/passes/unsigned_bits.h"

namespace tosaic::passes {
namespace {

bool computes_unsigned(const Graph& graph, const Node& node) {
  if (node.result_count != 1 || is_foreign(node.op) || info(node.op).is_tosa || takes_bits(node))
    return false;
  bool found = is_unsigned(graph.type(graph.result(node)).dtype);
  for (const ValueId operand : graph.operands(node))
    found = found || (operand.valid() && is_unsigned(graph.type(operand).dtype));
  return found;
}

// The attributes, with i32 in the place of an unsigned dtype.
Attrs widened(Attrs attrs) {
  visit(
      [](auto& fields) {
        if constexpr (requires { fields.dtype = DType::kI32; })
          if (fields.dtype == DType::kU8 || fields.dtype == DType::kU16) fields.dtype = DType::kI32;
      },
      attrs);
  return attrs;
}

}  // namespace

std::optional<Graph> widen_unsigned(const Graph& graph) {
  std::optional<Graph> inner = in_regions(graph, widen_unsigned);
  const Graph& source = inner ? *inner : graph;
  Rewriter rewriter(source);
  for (const Node& node : source.nodes()) {
    if (!computes_unsigned(source, node)) {
      rewriter.copy(node);
      continue;
    }
    static_cast<void>(rewriter.begin_output(node));  // ids from here on are of the new graph
    std::vector<ValueId> operands;
    for (const ValueId operand : source.operands(node)) {
      ValueId made = operand.valid() ? rewriter.map(operand) : operand;
      if (operand.valid() && is_unsigned(source.type(operand).dtype))
        made = rewriter.emit(node, Op::kCast, CastAttrs{DType::kI32}, {made});
      operands.push_back(made);
    }
    const DType dtype = source.type(source.result(node)).dtype;
    ValueId result = rewriter.emit(node, node.op, widened(*node.attrs), operands);
    if (rewriter.current().type(result).dtype != dtype)
      result = rewriter.emit(node, Op::kCast, CastAttrs{dtype}, {result});
    rewriter.replace(node, result);
  }
  std::optional<Graph> out = std::move(rewriter).finish();
  return out ? std::move(out) : std::move(inner);
}

}  // namespace tosaic::passes
