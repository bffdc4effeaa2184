// lower-to-integer: the pass with what it could not lower.
#pragma once

#include <vector>

#include "tosaic/base/error.h"
#include "tosaic/passes/pass.h"

namespace tosaic::passes {

struct LoweredToInteger {
  Graph graph;                   // stage integer
  std::vector<ErrorParts> left;  // operators over quantized values that stay operators over floats, and why
};

// From a graph at stage quantized.
[[nodiscard]] LoweredToInteger lower_to_integer(const Graph& graph, const PassOptions& options);

}  // namespace tosaic::passes
