// choose-shapes: lets elementwise operators compute in other shapes if that transposes fewer bytes.
//
//   %p: f32[1,2,2,4] = max_pool(%x)               %p: f32[1,2,2,4] = max_pool(%x)
//   %a: f32[1,4,2,2] = reshape(%p)                %b.mul: f32[1,2,2,4] = mul(%p, %c)
//   %b: f32[1,4,2,2] = mul(%a, %c)           ->   %d: f32[1,2,4,2] = reshape(%b.mul)
//   %d: f32[1,2,4,2] = reshape(%b)                %y: f32[1,2,4,2] = max_pool(%d)
//   %y: f32[1,2,4,2] = max_pool(%d)
//
// A reshape goes through a third shape if one transpose in that shape replaces two: one in front of the
// reshape and one after it.
//
//   %a: f32[1,2,4,2] = reshape(%p)        ->   %a.reshape: f32[2,2,2,2] = reshape(%p)
//                                              %a: f32[1,2,4,2] = reshape(%a.reshape)
//
// Both are decided for the whole graph (layout/recast/recast.h). The new graph is used only if its layout
// plan costs less than the plan of the old graph.

#include <algorithm>
#include <utility>
#include <vector>

#include "tosaic/ir/rewriter.h"
#include "tosaic/layout/plan.h"
#include "tosaic/layout/recast/recast.h"
#include "tosaic/passes/match.h"
#include "tosaic/passes/pass.h"

namespace tosaic::passes {
namespace {

bool has_plan(const Graph& graph) {
  return std::any_of(graph.values().begin(), graph.values().end(), [](const Value& value) {
    return value.kind == ValueKind::kResult && !value.type.order.is_identity();
  });
}

// The cost of the graph's layout plan. First: the cost that the objective counts. Second: the cost that
// decides a tie.
std::pair<std::int64_t, std::int64_t> plan_cost(const Graph& graph, const PassOptions& options) {
  const layout::Objective& objective = options.objective;
  const layout::LayoutPlan plan = layout::plan_layout(graph, objective, {}, options.layout_needs);
  const auto count = static_cast<std::int64_t>(plan.transposes.size());
  if (const auto* measure = std::get_if<layout::Measure>(&objective))
    return *measure == layout::Measure::kBytes ? std::pair(plan.bytes, count) : std::pair(count, plan.bytes);
  std::int64_t cost = 0;
  for (const layout::Transpose& each : plan.transposes) cost += each.cost;
  return {cost, count};
}

class Recasting {
 public:
  Recasting(const Graph& graph, const layout::Recasts& recasts, std::size_t most_axes)
      : graph_(graph),
        most_axes_(most_axes),
        cuts_(graph.nodes().size()),
        rewriter_(graph),
        source_(graph.values().size()) {
    for (const auto* each : {&recasts.nodes, &recasts.reshapes})
      for (const layout::Recast& recast : *each) cuts_[recast.node.index()] = &recast.cuts;
  }

  std::optional<Graph> run() && {
    for (const Node& node : graph_.nodes()) {
      const layout::Cuts* cuts = cuts_[graph_.id(node).index()];
      if (node.op == Op::kReshape && (cuts != nullptr || source_[graph_.operands(node)[0].index()].valid()))
        pass_on(node, cuts);
      else if (const std::optional<Shape> shape = cuts != nullptr ? chosen_shape(node, *cuts) : std::nullopt)
        recast(node, *shape);
      else
        rewriter_.copy(node);
    }
    std::optional<Graph> out = std::move(rewriter_).finish();
    for (auto* const pass : {dead_code, common_subexpressions})
      if (std::optional<Graph> next = out ? pass(*out) : std::nullopt) out = std::move(next);
    return out;
  }

 private:
  // A shape that has the cuts (row-major strides, layout/placement.h). Returns nothing if there is none.
  // Shapes of neighbouring reshapes are tried first, since each saves a reshape.
  [[nodiscard]] std::optional<Shape> chosen_shape(const Node& node, const layout::Cuts& cuts) const {
    const Shape& own = graph_.type(graph_.result(node)).shape;
    std::vector<Shape> at_hand;
    for (const ValueId operand : graph_.operands(node))
      if (operand.valid() && constant_of(graph_, operand) == nullptr && graph_.type(operand).shape == own)
        note_in_front(operand, at_hand);
    note_behind(graph_.result(node), at_hand);
    at_hand.push_back(least_shape(cuts));
    for (const Shape& shape : at_hand)
      if (layout::fits(graph_, node, cuts, shape, most_axes_)) return shape;
    return std::nullopt;
  }

  // The shape with these cuts and no axis of extent 1.
  static Shape least_shape(const layout::Cuts& cuts) {
    Shape shape;
    for (std::size_t i = cuts.size(); i-- > 1;) shape.push_back(cuts[i] / cuts[i - 1]);
    return shape;
  }

  // Appends the shapes that the value had in front of the reshapes that lead to it.
  void note_in_front(ValueId value, std::vector<Shape>& shapes) const {
    for (;;) {
      if (const ValueId source = source_[value.index()]; source.valid())
        shapes.push_back(rewriter_.current().type(source).shape);
      const Node* reshape = produced_by(graph_, value, Op::kReshape);
      if (reshape == nullptr) return;
      value = graph_.operands(*reshape)[0];
      shapes.push_back(graph_.type(value).shape);
    }
  }

  void note_behind(ValueId value, std::vector<Shape>& shapes) const {
    for (const NodeId user : graph_.users(value)) {
      const Node& node = graph_.node(user);
      if (node.op != Op::kReshape) continue;
      shapes.push_back(graph_.type(graph_.result(node)).shape);
      note_behind(graph_.result(node), shapes);
    }
  }

  // Emits a reshape whose operand was recast (computed in another shape), or a reshape that goes through a
  // third shape (`cuts` is not null).
  void pass_on(const Node& node, const layout::Cuts* cuts) {
    const ValueId operand = graph_.operands(node)[0];
    static_cast<void>(rewriter_.begin_output(node));  // ids from here on are of the new graph
    ValueId made = in_front(operand);
    if (cuts != nullptr) made = reshaped(node, made, least_shape(*cuts));
    source_[node.first_result] = made;
    rewriter_.replace(node, reshaped(node, made, graph_.type(graph_.result(node)).shape));
  }

  // The value in front of the reshapes that lead to it, in the shape in which it was computed or to which it
  // was recast.
  ValueId in_front(ValueId value) {
    for (;;) {
      if (const ValueId source = source_[value.index()]; source.valid()) return source;
      const Node* reshape = produced_by(graph_, value, Op::kReshape);
      if (reshape == nullptr) return rewriter_.map(value);
      value = graph_.operands(*reshape)[0];
    }
  }

  void recast(const Node& node, const Shape& shape) {
    const TensorType& type = graph_.type(graph_.result(node));
    static_cast<void>(rewriter_.begin_output(node));  // ids from here on are of the new graph
    std::vector<ValueId> operands;
    for (std::size_t i = 0; i < node.operand_count; ++i)
      operands.push_back(operand_in_shape(node, i, type.shape, shape));
    Attrs attrs = *node.attrs;
    if (auto* rescale = get_if<RescaleAttrs>(&attrs); rescale != nullptr && rescale->axis)
      rescale->axis = layout::axis_in(type.shape, *rescale->axis, shape);
    const ValueId made = rewriter_.emit(node, node.op, std::move(attrs), operands);
    rewriter_.begin_output(node).set_qparams(made, type.qparams);
    source_[node.first_result] = made;
    rewriter_.replace(node, reshaped(node, made, type.shape));
  }

  ValueId operand_in_shape(const Node& node, std::size_t i, const Shape& own, const Shape& shape) {
    const ValueId operand = graph_.operands(node)[i];
    if (!operand.valid() || info(node.op).is_table(i)) return rewriter_.map(operand);
    const Shape wanted = layout::operand_shape(graph_.type(operand).shape, own, shape);
    const Constant* constant = constant_of(graph_, operand);
    if (constant == nullptr || constant->shape.empty()) {
      return reshaped(node, constant == nullptr ? in_front(operand) : rewriter_.map(operand), wanted);
    }
    auto made = std::make_shared<Constant>(*constant);
    made->kind = ConstantKind::kFolded;
    made->name = graph_.value(graph_.result(node)).name + "." + constant->name;
    made->shape = wanted;
    return rewriter_.constant(node, std::move(made));
  }

  ValueId reshaped(const Node& node, ValueId value, const Shape& shape) {
    const TensorType& type = rewriter_.current().type(value);
    if (type.shape == shape) return value;
    const QParamsRef qparams = type.qparams;
    const ValueId made = rewriter_.emit(node, Op::kReshape, ShapeAttrs{shape}, {value});
    rewriter_.begin_output(node).set_qparams(made, qparams);
    return made;
  }

  const Graph& graph_;
  std::size_t most_axes_;
  std::vector<const layout::Cuts*> cuts_;  // by node
  Rewriter rewriter_;
  std::vector<ValueId> source_;  // by old value: the new value in the shape chosen for it
};

}  // namespace

std::optional<Graph> choose_shapes(const Graph& graph, const PassOptions& options) {
  if (graph.stage == Stage::kTosa || graph.stage == Stage::kQuantized || has_plan(graph)) return std::nullopt;
  std::optional<Graph> result;
  std::pair<std::int64_t, std::int64_t> least;
  for (;;) {
    const Graph& now = result ? *result : graph;
    if (!layout::may_be_recast(now)) return result;
    const layout::Recasts recasts = layout::recasts_of(now, options.objective, options.layout_needs);
    if (recasts.nodes.empty() && recasts.reshapes.empty()) return result;
    std::optional<Graph> next = Recasting(now, recasts, options.layout_needs.most_elementwise_axes).run();
    if (!next) return result;
    if (!result) least = plan_cost(now, options);
    const std::pair<std::int64_t, std::int64_t> after = plan_cost(*next, options);
    if (after >= least) return result;
    least = after;
    result = std::move(next);
  }
}

}  // namespace tosaic::passes
