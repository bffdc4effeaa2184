// choices: the layout options among which a plan chooses.
//
// A node may have very many options: an elementwise operator of rank 6 has 720. Only few of them can save a
// transpose: those to which the orders of the node's neighbours lead. So the orders of the graph inputs and
// outputs, and of operators with one option, are offered to the neighbours. An order that is offered leads to
// an option of the neighbour (LayoutRules::by_operand, by_result), whose other orders are offered in turn,
// until no value is offered a new order. A node has at most 8 options.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tosaic/layout/options.h"

namespace tosaic::layout {

using ValueOrders = SmallVector<DimOrder, 3>;  // dim orders of one value

// The layout options among which the plan chooses, by node index.
struct Choices {
  std::vector<LayoutOption> options;  // the options of all nodes, one node after another
  std::vector<std::uint32_t> first;   // by node: where its options begin; one more entry for the end
  // By value: the orders that were offered for it. The order of a graph input or output is first.
  std::vector<ValueOrders> offered;

  [[nodiscard]] std::size_t size() const { return first.size() - 1; }
  [[nodiscard]] std::span<const LayoutOption> operator[](std::size_t node) const {
    return std::span(options).subspan(first[node], first[node + 1] - first[node]);
  }
};

[[nodiscard]] Choices choices_of(const Graph& graph,
                                 const target::LayoutNeeds& needs = target::tosa_layout_needs());

}  // namespace tosaic::layout
