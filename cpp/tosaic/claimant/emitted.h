// emitted: whether the operators of TOSA in a file are within the limits of the device that gets the file.
//
// A verdict (verdicts.h) is about the operators that a node becomes alone, in logical dim order. Among other
// nodes and in another dim order, a node may become other operators, and the layout plan adds transposes. So
// the lowered graph of a group is judged, too, before it becomes a file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tosaic/claimant/claimant.h"
#include "tosaic/claimant/verdict.h"
#include "tosaic/ir/graph.h"

namespace tosaic::claimant {

struct EmittedReason {
  std::string node;  // the name of the operator in the lowered graph
  Reason reason;     // names the call from which the operator comes
};

// Whether the dim orders of inputs and outputs are those of the file. If they are still to be planned,
// transposes of inputs and outputs are not judged.
enum class Borders : std::uint8_t { kOpen, kPlanned };

// All limits of the claimant that a graph at stage tosa exceeds, in the order of the graph. Empty if the
// claimant's groups are not lowered to TOSA, or if it has no limits.
[[nodiscard]] std::vector<EmittedReason> exceeded_limits(const Graph& tosa, const Claimant& claimant,
                                                         Borders borders = Borders::kPlanned);

}  // namespace tosaic::claimant
