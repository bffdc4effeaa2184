// parse: reads the text form that print.h describes, and verifies the graph.
#pragma once

#include <functional>
#include <string_view>

#include "tosaic/ir/graph.h"

namespace tosaic {

// Returns the constant for data that the text only refers to (`ref(bytes)`). `wanted` has its name, dtype and
// shape, and unbound storage. The result must have the same dtype and shape; null means that the constant
// stays unbound.
using ConstantSource = std::function<ConstantRef(const Constant& wanted)>;

// Throws InvalidGraph for malformed text, with line, column, and what was expected and found. For well-formed
// text of an invalid graph it throws what verify() throws. The length of the text bounds time and memory,
// also for malicious text.
[[nodiscard]] Graph parse(std::string_view text, const ConstantSource& constants = {});

}  // namespace tosaic
