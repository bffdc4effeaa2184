// placed_options: the layout options of nodes in placements (placement.h), which do not depend on shapes.
//
// A node has the options of options.h, as placements. An elementwise operator also has options in other
// shapes. If one of these is chosen, the node is recast.
#pragma once

#include <unordered_map>
#include <vector>

#include "tosaic/base/small_vector.h"
#include "tosaic/ir/graph.h"
#include "tosaic/layout/placement.h"
#include "tosaic/target/layout_needs.h"

namespace tosaic::layout {

using PlacementId = std::uint32_t;
using PlacementIds = SmallVector<PlacementId, 3>;

// Numbers placements; number 0 is the placement of one element.
class Placements {
 public:
  Placements() { known_.emplace_back(); }

  [[nodiscard]] PlacementId id(const Placement& placement);
  [[nodiscard]] PlacementId id(const Shape& shape, const DimOrder& order);
  [[nodiscard]] const Placement& operator[](PlacementId id) const { return known_[id]; }

 private:
  std::unordered_map<std::uint64_t, PlacementId> ids_;
  std::vector<Placement> known_;
};

// A layout option of a node, in placements.
struct PlacedOption {
  PlacementIds operands, results;
  bool recast = false;  // the node computes in another shape
};

struct PlacedChoices {
  std::vector<std::vector<PlacedOption>> options;  // by node
  // False if every option is also an option of the plan (choices.h): then a recast can save nothing.
  bool more_than_orders = false;
};

// Placements are offered from node to node until no value is offered a new one, as choices.h offers orders.
[[nodiscard]] PlacedChoices placed_choices_of(const Graph& graph, const target::LayoutNeeds& needs,
                                              Placements& placements);

}  // namespace tosaic::layout
