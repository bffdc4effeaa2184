#include "tosaic/layout/review.h"

#include <chrono>

#include "tosaic/base/work.h"
#include "tosaic/layout/remedies.h"

namespace tosaic::layout {
namespace {

// The inputs and outputs for which a caller may declare another order.
FreeBoundaries declarable(const Graph& graph, const std::vector<bool>& fixed_inputs) {
  FreeBoundaries free;
  for (std::size_t i = 0; i < graph.inputs().size(); ++i) {
    const Input& input = graph.inputs()[i];
    const bool is_fixed = i < fixed_inputs.size() && fixed_inputs[i];
    free.inputs.push_back(input.kind == InputKind::kUser && !input.boundary.physical && !is_fixed);
  }
  for (const Output& output : graph.outputs())
    free.outputs.push_back(output.kind == OutputKind::kUser && !output.boundary.physical);
  return free;
}

}  // namespace

PlanReview review_plan(const Graph& graph, const LayoutPlan& plan, const Objective& objective,
                       const std::vector<bool>& fixed_inputs) {
  PlanReview out;
  const auto start = std::chrono::steady_clock::now();
  out.bound = proven_bound(plan.problem, plan.certificate);
  out.check_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const std::uint64_t before = work::total();
  out.explanations =
      explain(graph, plan, remedies_of(graph, plan, objective, declarable(graph, fixed_inputs)));
  out.visits = work::total() - before;
  return out;
}

}  // namespace tosaic::layout
