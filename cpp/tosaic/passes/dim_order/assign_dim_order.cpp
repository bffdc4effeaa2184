// assign-dim-order: writes the layout plan onto the values, and adds a clone where a reader needs a value in
// another order than the one in which the value is made.
//
//   %y: f32[1,64,56,56] = conv(%x, %w)
//     ->  %x.order: f32[1,3,56,56] order(0,2,3,1) = clone(%x) {order=[0,2,3,1]}
//         %y: f32[1,64,56,56] order(0,2,3,1) = conv(%x.order, %w)

#include <utility>
#include <vector>

#include "tosaic/layout/order.h"
#include "tosaic/layout/plan.h"
#include "tosaic/layout/views.h"
#include "tosaic/passes/pass.h"

namespace tosaic::passes {
namespace {

// True if the graph already carries a layout plan: only a plan has clones that change the order. Clones that
// come from torch do not.
bool is_planned(const Graph& graph) {
  for (const Node& node : graph.nodes())
    if (node.op == Op::kClone &&
        !(graph.type(graph.operands(node)[0]).order == graph.type(graph.result(node)).order))
      return true;
  return false;
}

// Copies the graph value by value and adds a clone for each transpose of the plan.
class PlanWriter {
 public:
  PlanWriter(const Graph& graph, const layout::LayoutPlan& plan)
      : graph_(graph),
        plan_(plan),
        views_(layout::views_of(graph)),
        map_(graph.values().size()),
        reordered_(graph.values().size()) {
    out_.name = graph.name;
    out_.stage = graph.stage;
    for (const layout::Transpose& each : plan.transposes)
      reordered_[each.value.index()].push_back({each.to, {}});
  }

  Graph run() && {
    for (const Input& input : graph_.inputs()) {
      const Value& value = graph_.value(input.value);
      set_made(input.value,
               out_.add_input(input.kind, value.name, value.type, input.path, input.boundary, input.initial));
    }
    for (const Node& node : graph_.nodes()) copy(node);
    for (Output output : graph_.outputs()) {
      const Node* producer = graph_.producer(output.value);
      const DimOrder& order = layout::boundary_order(graph_, output);
      output.value = in_order(output.value, order, producer != nullptr ? producer->origin : nullptr);
      out_.add_output(std::move(output));
    }
    return std::move(out_);
  }

 private:
  struct Reordered {
    DimOrder order;
    ValueId id;
  };

  void copy(const Node& node) {
    const auto& wanted = plan_.options[graph_.id(node).index()].operands;
    std::vector<ValueId> operands;
    for (const ValueId id : graph_.operands(node))
      operands.push_back(in_order(id, wanted[operands.size()], node.origin));
    const NodeId made = out_.add_copy(graph_, node, operands);
    for (std::uint32_t r = 0; r < node.result_count; ++r)
      set_made(graph_.result(node, r), out_.result(out_.node(made), r));
  }

  void set_made(ValueId value, ValueId made) {
    map_[value.index()] = made;
    out_.set_order(made, plan_.order[value.index()]);
  }

  // The value in this order. A clone or view that this needs is emitted at its first use, with the origin of
  // that use, and shared by all later uses.
  ValueId in_order(ValueId value, const DimOrder& order, const OriginRef& origin) {
    if (!value.valid()) return value;
    if (graph_.value(value).kind == ValueKind::kConstant) return constant(value);
    const Shape& shape = graph_.type(value).shape;
    if (layout::same_in_memory(shape, plan_.order[value.index()], order)) return map_[value.index()];
    for (Reordered& each : reordered_[value.index()]) {
      if (!layout::same_in_memory(shape, each.order, order)) continue;
      if (!each.id.valid()) each.id = cloned(value, each.order, origin);
      return each.id;
    }
    if (views_[value.index()].of != value) return viewed(value, order, origin);
    throw InternalError({.where = "assign-dim-order", .what = "an order that the plan lacks"});
  }

  ValueId cloned(ValueId value, const DimOrder& order, const OriginRef& origin) {
    TensorType type = graph_.type(value);
    type.order = order;
    const CloneAttrs attrs{order.axes(type.rank())};
    const NodeId clone = out_.add_node(Op::kClone, share(attrs), std::span(&map_[value.index()], 1),
                                       std::span(&type, 1), origin, graph_.value(value).name + ".order");
    return out_.result(out_.node(clone));
  }

  // Makes `value`, a view, in another order: permutes and reshapes its data, taken in a matching order.
  ValueId viewed(ValueId value, const DimOrder& order, const OriginRef& origin) {
    const layout::View& view = views_[value.index()];
    const DimOrder of_data = view.of_data(order);
    ValueId made = in_order(view.of, of_data, origin);
    const std::string name = graph_.value(value).name + ".view";
    TensorType type = graph_.type(value);
    type.order = order;
    const Dims perm = shown_axes(view);
    const Shape shown = permuted(graph_.type(view.of).shape, perm);
    if (!is_identity_permutation(perm)) {
      TensorType turned = type;
      turned.shape = shown;
      if (shown != type.shape) turned.order = layout::relabelled(of_data, perm);
      made = emit(Op::kPermute, PermuteAttrs{perm}, made, turned, origin, name);
    }
    if (shown != type.shape) made = emit(Op::kReshape, ShapeAttrs{type.shape}, made, type, origin, name);
    reordered_[value.index()].push_back({order, made});
    return made;
  }

  // The axes of the data in the order in which the view has them, followed by the axes that the view lacks.
  static Dims shown_axes(const layout::View& view) {
    Dims out;
    for (const std::int64_t axis : view.axes)
      if (axis != layout::View::kAdded) out.push_back(axis);
    for (std::size_t axis = 0; axis < view.rank; ++axis)
      if (!out.contains(static_cast<std::int64_t>(axis))) out.push_back(static_cast<std::int64_t>(axis));
    return out;
  }

  ValueId emit(Op op, Attrs attrs, ValueId operand, const TensorType& type, const OriginRef& origin,
               const std::string& name) {
    const NodeId made =
        out_.add_node(op, share(std::move(attrs)), std::span(&operand, 1), std::span(&type, 1), origin, name);
    return out_.result(out_.node(made));
  }

  ValueId constant(ValueId value) {
    ValueId& made = map_[value.index()];
    if (made.valid()) return made;
    made = out_.add_constant(graph_.value(value).constant);
    out_.set_qparams(made, graph_.type(value).qparams);
    out_.try_rename(made, graph_.value(value).name);
    return made;
  }

  const Graph& graph_;
  const layout::LayoutPlan& plan_;
  std::vector<layout::View> views_;
  Graph out_;
  std::vector<ValueId> map_;
  std::vector<std::vector<Reordered>> reordered_;
};

}  // namespace

std::optional<Graph> assign_dim_order(const Graph& graph, const PassOptions& options) {
  if (is_planned(graph)) return std::nullopt;
  const layout::LayoutPlan plan = layout::plan_layout(graph, options.objective, {}, options.layout_needs);
  if (!plan.transposes.empty()) return PlanWriter(graph, plan).run();
  bool same = true;
  for (std::size_t i = 0; i < plan.order.size(); ++i)
    same = same && plan.order[i] == graph.values()[i].type.order;
  if (same) return std::nullopt;
  Graph out = graph;
  for (std::uint32_t i = 0; i < plan.order.size(); ++i) out.set_order(ValueId(i), plan.order[i]);
  return out;
}

}  // namespace tosaic::passes
