// verdicts: which nodes of a program a claimant takes, before the program is lowered.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "tosaic/claimant/claimant.h"
#include "tosaic/claimant/rules.h"
#include "tosaic/claimant/verdict.h"
#include "tosaic/ir/graph.h"

namespace tosaic::claimant {

// Returns a verdict for each node of a graph that pipeline::before_integers() returned. The graph is at stage
// quantized, or at stage exported. The claimant's limits are applied first, and then the user's rules
// (rules.h).
//
// A claimant without profile FP takes no node that reads or writes floats. There is one exception: nodes that
// compute with floats between integers are a region (partition/float_regions.h), and the claimant takes all
// of its nodes if the region lowers to integer arithmetic. The graph has to be one that
// partition::with_own_dequantize() returned.
//
// Throws InvalidGraph if the graph is at another stage, or if a rule is wrong.
[[nodiscard]] std::vector<Verdict> verdicts(const std::shared_ptr<const Graph>& graph,
                                            const Claimant& claimant, std::span<const Rule> rules = {},
                                            Unmatched unmatched = Unmatched::kRefused);

}  // namespace tosaic::claimant
