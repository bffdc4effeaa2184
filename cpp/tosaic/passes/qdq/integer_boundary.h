// integer_boundary: makes float inputs and outputs of a graph integers. quantize-boundary and extract_io()
// say which ones.
#pragma once

#include <optional>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/passes/pass.h"

namespace tosaic::passes {

struct IntegerBoundary {
  FloatIoForms inputs = {}, outputs = {};
  bool unread_too = false;  // inputs that nobody reads become i8 of scale 1
  bool states = true;       // states become integers, too
  // By index: an input (output) whose entry is not null has integers with these parameters. If the value has
  // other parameters inside of the program, the program converts the integers.
  std::vector<QParamsRef> requantized_inputs = {}, requantized_outputs = {};
};

// Returns nothing if no input or output changes. quantize_boundary.cpp says which inputs stay floats.
[[nodiscard]] std::optional<Graph> with_integer_boundary(const Graph& graph, const IntegerBoundary& wanted);

}  // namespace tosaic::passes
