#include "tosaic/passes/legalize_tosa/widening.h"

#include <algorithm>
#include <array>

namespace tosaic::passes {

bool scales_operands(Op op) {
  static constexpr std::array kOps{Op::kTosaAdd,          Op::kTosaSub,     Op::kTosaMul,
                                   Op::kTosaMaximum,      Op::kTosaMinimum, Op::kTosaGreater,
                                   Op::kTosaGreaterEqual, Op::kTosaEqual};
  return std::ranges::find(kOps, op) != kOps.end();
}

bool multiplies_by_one(const TosaRescaleAttrs& attrs) {
  return attrs.multiplier[0] == std::int64_t{1} << attrs.shift[0];
}

const Node* widening(const Graph& graph, ValueId id) {
  const Node* const node = id.valid() ? graph.producer(id) : nullptr;
  if (node == nullptr || node->op != Op::kTosaRescale) return nullptr;
  const auto& attrs = Graph::attrs<TosaRescaleAttrs>(*node);
  const DType from = narrow_dtype(graph, *node);
  const bool widens = attrs.dtype == DType::kI32 && (from == DType::kI8 || from == DType::kI16);
  return widens && !attrs.per_channel && attrs.output_zp == 0 && !attrs.input_unsigned ? node : nullptr;
}

DType narrow_dtype(const Graph& graph, const Node& rescale) {
  return graph.type(graph.operands(rescale)[0]).dtype;
}

bool widens_operands(const Graph& graph, const Node& node) {
  if (!scales_operands(node.op)) return false;
  const Node* const first = widening(graph, graph.operands(node)[0]);
  return first != nullptr && std::ranges::all_of(graph.operands(node), [&](ValueId operand) {
           const Node* const each = widening(graph, operand);
           return each != nullptr && narrow_dtype(graph, *each) == narrow_dtype(graph, *first) &&
                  (node.op != Op::kTosaMul || multiplies_by_one(Graph::attrs<TosaRescaleAttrs>(*each)));
         });
}

}  // namespace tosaic::passes
