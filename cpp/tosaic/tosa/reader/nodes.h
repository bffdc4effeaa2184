// nodes: reads an operator of the file as a node of the graph. The results of the node have the names that
// the file has for them.
#pragma once

#include <span>
#include <vector>

#include "tosaic/ir/attributes.h"
#include "tosaic/tosa/reader/state.h"

namespace tosaic::tosa {

// The types that the file declares for the results of the operator.
[[nodiscard]] std::vector<TensorType> declared_results(const Place& place, const BlockState& state);
// Throws unless the results have the types that infer() determines.
void check_results(const Place& place, const BlockState& state, Op op, const Attrs& attrs,
                   std::span<const ValueId> operands, std::span<const TensorType> declared);
// Adds the node, with the operator's location text as its origin.
void add_node(const Place& place, BlockState& state, Op op, Attrs attrs, std::span<const ValueId> operands,
              std::span<const TensorType> results);

// Reads an operator that does not access variables.
void add_operator(const Place& place, BlockState& state, Op op);

}  // namespace tosaic::tosa
