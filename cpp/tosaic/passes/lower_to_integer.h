// lower-to-integer: the pass, with a report of the operators that it could not lower.
#pragma once

#include <vector>

#include "tosaic/base/error.h"
#include "tosaic/passes/pass.h"

namespace tosaic::passes {

struct LoweredToInteger {
  Graph graph;                   // stage integer
  std::vector<ErrorParts> left;  // operators over quantized values that stay operators over floats, and why
};

// `graph` is at stage quantized.
[[nodiscard]] LoweredToInteger lower_to_integer(const Graph& graph, const PassOptions& options);

}  // namespace tosaic::passes
