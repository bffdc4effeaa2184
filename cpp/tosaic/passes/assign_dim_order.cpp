// assign-dim-order: writes the layout plan onto the values; nothing moves yet.
//
//   %y: f32[1,64,56,56] = conv(%x, %w)      ->      %y: f32[1,64,56,56] order(0,2,3,1) = conv(%x, %w)

#include "tosaic/layout/assign.h"
#include "tosaic/passes/pass.h"

namespace tosaic::passes {

std::optional<Graph> assign_dim_order(const Graph& graph) {
  layout::LayoutPlan plan = layout::assign(graph);
  bool same = true;
  for (std::size_t i = 0; i < plan.order.size(); ++i)
    same = same && plan.order[i] == graph.values()[i].type.order;
  if (same) return std::nullopt;
  Graph out = graph;
  for (std::uint32_t i = 0; i < plan.order.size(); ++i) out.set_order(ValueId(i), std::move(plan.order[i]));
  return out;
}

}  // namespace tosaic::passes
