#include "tosaic/layout/views.h"

#include "tosaic/layout/order.h"

namespace tosaic::layout {

namespace {

const Shape& shape_before(const Graph& graph, const Node& node) {
  return graph.type(graph.operands(node)[0]).shape;
}

const Shape& shape_behind(const Graph& graph, const Node& node) {
  return graph.type(graph.result(node)).shape;
}

bool differ_in_unit_axes(const Shape& a, const Shape& b) {
  for (std::size_t i = 0, k = 0;; ++i, ++k) {
    while (i < a.size() && a[i] == 1) ++i;
    while (k < b.size() && b[k] == 1) ++k;
    if (i == a.size() || k == b.size()) return i == a.size() && k == b.size();
    if (a[i] != b[k]) return false;
  }
}

// View::axes of the result of a reshape; `axes` are View::axes of its operand.
Dims reshaped_axes(const Dims& axes, const Shape& before, const Shape& behind) {
  Dims out;
  std::size_t at = 0;
  for (const std::int64_t extent : behind) {
    if (extent == 1) {
      out.push_back(View::kAdded);
      continue;
    }
    while (before[at] == 1) ++at;
    out.push_back(axes[at++]);
  }
  return out;
}

}  // namespace

DimOrder View::of_data(const DimOrder& order) const {
  Dims sequence;
  for (const std::int64_t axis : order.axes(axes.size()))
    if (const std::int64_t own = axes[static_cast<std::size_t>(axis)]; own != kAdded) sequence.push_back(own);
  return completed(sequence, rank);
}

bool makes_view(const Graph& graph, const Node& node) {
  if (node.op != Op::kPermute && node.op != Op::kReshape) return false;
  if (graph.value(graph.operands(node)[0]).kind == ValueKind::kConstant) return false;
  return node.op == Op::kPermute || differ_in_unit_axes(shape_before(graph, node), shape_behind(graph, node));
}

DimOrder order_of_view(const Graph& graph, const Node& node, const DimOrder& order) {
  if (node.op == Op::kPermute) return relabelled(order, Graph::attrs<PermuteAttrs>(node).perm);
  return *reshaped(shape_before(graph, node), order, shape_behind(graph, node));
}

std::vector<View> views_of(const Graph& graph) {
  std::vector<View> out(graph.values().size());
  for (std::uint32_t v = 0; v < out.size(); ++v) {
    const std::size_t rank = graph.values()[v].type.rank();
    out[v] = {ValueId(v), Dims::iota(rank), rank};
  }
  for (const Node& node : graph.nodes()) {
    if (!makes_view(graph, node)) continue;
    const View& from = out[graph.operands(node)[0].index()];
    Dims axes = node.op == Op::kPermute
                    ? permuted(from.axes, Graph::attrs<PermuteAttrs>(node).perm)
                    : reshaped_axes(from.axes, shape_before(graph, node), shape_behind(graph, node));
    out[node.first_result] = {from.of, std::move(axes), from.rank};
  }
  return out;
}

}  // namespace tosaic::layout
