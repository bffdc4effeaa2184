// Liveness: from which step to which step each value is needed.
//
//   node i is step i; inputs and constants exist from step 0; outputs are needed until step nodes().size()
//
// An operand is live until the step that reads it, this step included. A result is live from the step that
// writes it. So the operands and the results of a node are live together at the node's step. A result without
// readers is live only at the step that writes it.
#pragma once

#include <cstdint>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::analysis {

// The first and the last step at which a value is needed, both inclusive.
struct Lifetime {
  std::uint32_t first = 0, last = 0;
  bool operator==(const Lifetime&) const = default;
};

// One lifetime per value of the graph.
[[nodiscard]] std::vector<Lifetime> liveness(const Graph& graph);

}  // namespace tosaic::analysis
