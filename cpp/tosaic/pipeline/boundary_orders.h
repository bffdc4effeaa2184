// boundary_orders: dim orders that the caller declares for the inputs and outputs of a graph.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::pipeline {

// How an array is laid out in memory at an input or output. The array has the logical shape, and its axes are
// in this order in memory; or, if `physical`, it is row-major with its shape permuted by this order.
struct BoundaryOrder {
  DimOrder order;
  bool physical = false;
};

// The declared orders, by index of the input or output. Inputs and outputs without a declared order, or
// beyond the end of the list, stay as they were traced.
struct BoundaryOrders {
  std::vector<std::optional<BoundaryOrder>> inputs, outputs;
};

// Returns the graph with these orders at its inputs and outputs, or the same graph if no order is declared.
// Throws InvalidGraph for an order of another rank.
[[nodiscard]] std::shared_ptr<const Graph> with_boundary_orders(std::shared_ptr<const Graph> graph,
                                                                const BoundaryOrders& orders);

}  // namespace tosaic::pipeline
