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

// By node. `graph` is what pipeline::before_integers() returns: at stage quantized, or at stage exported after section
// simplify. The user's rules apply after the claimant's own (rules.h).
//
// A claimant without profile FP takes no node that reads or writes floats, unless the whole region of floats between
// integers lowers to integer arithmetic (partition/float_regions.h). Every reader of a dequantized value has to have a
// dequantize node of its own.
//
// Throws InvalidGraph for a graph at another stage, and for rules that are wrong.
[[nodiscard]] std::vector<Verdict> verdicts(const std::shared_ptr<const Graph>& graph,
                                            const Claimant& claimant, std::span<const Rule> rules = {});

}  // namespace tosaic::claimant
