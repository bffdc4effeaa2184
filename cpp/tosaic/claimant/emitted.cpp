#include "tosaic/claimant/emitted.h"

#include <utility>

namespace tosaic::claimant {
namespace {

bool is_border_transpose(const Graph& tosa, const Node& node) {
  return node.op == Op::kTosaTranspose &&
         (tosa.producer(tosa.operands(node)[0]) == nullptr || tosa.is_output(tosa.result(node)));
}

}  // namespace

std::vector<EmittedReason> exceeded_limits(const Graph& tosa, const Claimant& claimant, Borders borders) {
  std::vector<EmittedReason> out;
  if (!claimant.lowers_to_tosa() || !claimant.limits) return out;
  for (const Node& node : tosa.nodes()) {
    if (borders == Borders::kOpen && is_border_transpose(tosa, node)) continue;
    std::vector<Reason> reasons;
    judge(tosa, node, *claimant.limits, claimant.name, reasons);
    for (Reason& reason : reasons) {
      reason.parts = located(std::move(reason.parts), node.origin, tosa.node_name(node));
      out.push_back({tosa.node_name(node), std::move(reason)});
    }
  }
  return out;
}

}  // namespace tosaic::claimant
