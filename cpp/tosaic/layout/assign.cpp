#include "tosaic/layout/assign.h"

#include "tosaic/base/work.h"

namespace tosaic::layout {
namespace {

bool spatial(Op op) {
  return op == Op::kConv || op == Op::kIntegerConv || op == Op::kAvgPool || op == Op::kMaxPool ||
         op == Op::kResize;
}

// Operators that read and write each axis on its own, so any order does for operand and result alike.
bool order_free(Op op) {
  return op == Op::kCat || op == Op::kSlice || op == Op::kPad || op == Op::kFlip || op == Op::kRepeat ||
         op == Op::kClone;
}

class Assignment {
 public:
  explicit Assignment(const Graph& graph)
      : graph_(graph), plan_{std::vector<DimOrder>(graph.values().size())} {}

  LayoutPlan run() {
    work::add(graph_.nodes().size() + graph_.values().size());
    for (const Input& input : graph_.inputs()) plan_.order[input.value.index()] = input.border.order;
    for (const Node& node : graph_.nodes()) {
      if (node.result_count != 1) continue;
      plan_.order[node.first_result] = result_order(node);
    }
    return std::move(plan_);
  }

 private:
  [[nodiscard]] const DimOrder& order(ValueId id) const { return plan_.order[id.index()]; }

  // The first order other than row-major among operands of the result's shape (all of its rank if
  // `any_shape`).
  [[nodiscard]] DimOrder followed(const Node& node, bool any_shape) const {
    const Shape& shape = graph_.type(graph_.result(node)).shape;
    for (const ValueId operand : graph_.operands(node)) {
      if (!operand.valid() || graph_.value(operand).kind == ValueKind::kConstant) continue;
      const Shape& from = graph_.type(operand).shape;
      if (from.size() == shape.size() && (any_shape || from == shape) && !order(operand).is_identity())
        return order(operand);
    }
    return {};
  }

  [[nodiscard]] DimOrder permute_order(const Node& node) const {
    const DimOrder free = relabelled(order(graph_.operands(node)[0]), Graph::attrs<PermuteAttrs>(node).perm);
    const std::size_t rank = graph_.type(graph_.result(node)).rank();
    return rank >= 4 && free == DimOrder::channels_last(rank) ? free : DimOrder();
  }

  [[nodiscard]] DimOrder reduced_order(const Node& node) const {
    const auto* reduce = std::get_if<ReduceAttrs>(node.attrs.get());
    if (reduce == nullptr) return {};
    return reduce->keepdim ? order(graph_.operands(node)[0]) : DimOrder();
  }

  [[nodiscard]] DimOrder result_order(const Node& node) const {
    const std::size_t rank = graph_.type(graph_.result(node)).rank();
    if (spatial(node.op)) return DimOrder::channels_last(rank);
    if (node.op == Op::kPermute) return permute_order(node);
    if (info(node.op).has(kElementwise)) return followed(node, false);
    if (order_free(node.op)) return followed(node, true);
    return reduced_order(node);
  }

  const Graph& graph_;
  LayoutPlan plan_;
};

}  // namespace

LayoutPlan assign(const Graph& graph) { return Assignment(graph).run(); }

DimOrder relabelled(const DimOrder& order, const Dims& perm) {
  const Dims inverse = inverse_permutation(perm);
  Dims axes = order.axes(perm.size());
  for (std::int64_t& axis : axes) axis = inverse[static_cast<std::size_t>(axis)];
  return DimOrder(axes);
}

DimOrder without_axes(const DimOrder& order, std::size_t rank, const Dims& axes) {
  Dims rest;
  for (const std::int64_t axis : order.axes(rank)) {
    if (axes.contains(axis)) continue;
    std::int64_t label = axis;
    for (const std::int64_t removed : axes) label -= removed < axis ? 1 : 0;
    rest.push_back(label);
  }
  return DimOrder(rest);
}

bool same_in_memory(const Shape& shape, const DimOrder& a, const DimOrder& b) {
  const auto significant = [&shape](const DimOrder& order) {
    Dims axes;
    for (const std::int64_t axis : order.axes(shape.size()))
      if (shape[static_cast<std::size_t>(axis)] != 1) axes.push_back(axis);
    return axes;
  };
  return significant(a) == significant(b);
}

}  // namespace tosaic::layout
