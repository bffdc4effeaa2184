// override: calls the functions that run in place of a kernel (Overrides, prepare.h).
#pragma once

#include <span>
#include <string>

#include "tosaic/exec/prepare.h"

namespace tosaic::exec {

// The arguments of a foreign node that are not tensors, as its attributes have them; "" for other nodes.
[[nodiscard]] std::string foreign_arguments(const Node& node);

// Calls the function. If it throws a std::logic_error or std::runtime_error, throws InvalidGraph with its
// text and the name of the node. An error of tosaic gets the name of the node. All other exceptions pass
// unchanged, Python's among them.
void call_override(const NodeFunction& function, const NodeCall& call);

// Copies the arrays that an override returned into the results of the node. An array may have any strides,
// and the container dtype of a narrow integer. Throws InvalidGraph for another number of arrays, and
// LayoutMismatch for an array of another dtype or shape.
void store_results(const NodeCall& call, std::span<const ArrayView> returned);

}  // namespace tosaic::exec
