#include "tosaic/layout/views.h"

#include "tosaic/layout/order.h"

namespace tosaic::layout {

DimOrder View::of_data(const DimOrder& order) const { return relabelled(order, inverse_permutation(axes)); }

DimOrder View::of_view(const DimOrder& order) const { return relabelled(order, axes); }

bool makes_view(const Graph& graph, const Node& node) {
  return node.op == Op::kPermute && graph.value(graph.operands(node)[0]).kind != ValueKind::kConstant;
}

std::vector<View> views_of(const Graph& graph) {
  std::vector<View> out(graph.values().size());
  for (std::uint32_t v = 0; v < out.size(); ++v)
    out[v] = {ValueId(v), Dims::iota(graph.values()[v].type.rank())};
  for (const Node& node : graph.nodes()) {
    if (!makes_view(graph, node)) continue;
    const View& from = out[graph.operands(node)[0].index()];
    out[node.first_result] = {from.of, permuted(from.axes, Graph::attrs<PermuteAttrs>(node).perm)};
  }
  return out;
}

}  // namespace tosaic::layout
