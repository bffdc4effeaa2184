// review: what is reported about a plan in addition to the plan itself. This is the bound that its
// certificate proves, why each transpose is there, and which orders of graph inputs and outputs would save
// transposes.
#pragma once

#include <cstdint>
#include <vector>

#include "tosaic/layout/explain.h"
#include "tosaic/layout/objective.h"
#include "tosaic/layout/plan.h"

namespace tosaic::layout {

struct PlanReview {
  Cost bound = 0;                         // the lower bound that the certificate proves; it was checked
  double check_seconds = 0;               // how long that check took
  std::vector<Explanation> explanations;  // one per transpose of the plan, in the same order
  std::uint64_t visits = 0;               // the work of the explanations (base/work.h)
};

// Reviews the plan that plan_layout() made of `graph` for `objective`. An order is suggested for user inputs
// and outputs whose arrays have the logical shape, except for the inputs in `fixed_inputs` (by index; missing
// entries are false). Throws InternalError if the certificate does not hold.
[[nodiscard]] PlanReview review_plan(const Graph& graph, const LayoutPlan& plan, const Objective& objective,
                                     const std::vector<bool>& fixed_inputs = {});

}  // namespace tosaic::layout
