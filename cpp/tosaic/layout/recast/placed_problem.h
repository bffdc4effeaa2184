// placed_problem: states the choice of a placement for each node as a problem for the solver.
//
// The variables are the nodes, the inputs, the outputs, and one extra variable with a single state. The extra
// variable makes one tensor for each node that may be recast (compute in another shape, recast.h). A
// transpose of that tensor represents the recast of the node. A recast costs less than any transpose of data.
#pragma once

#include <optional>
#include <vector>

#include "tosaic/layout/objective.h"
#include "tosaic/layout/recast/placed_options.h"
#include "tosaic/layout/solver/solver.h"

namespace tosaic::layout {

class PlacedProblem {
 public:
  // The arguments must outlive this object.
  PlacedProblem(const Graph& graph, Placements& placements,
                const std::vector<std::vector<PlacedOption>>& options, const target::LayoutNeeds& needs);

  // Sets the weights of the tensors. Returns false if the costs are too large to be added up.
  [[nodiscard]] bool weigh(const Objective& objective);
  [[nodiscard]] const Problem& problem() const { return problem_; }

  // True if the node makes a view: a reshape, or a permute that can be relabelled to every placement in which
  // its result may be read. Readers of a view read the data of its operand.
  [[nodiscard]] bool is_view(std::size_t node) const { return is_view_[node]; }
  // The node that makes the value as a view of its operand, or null.
  [[nodiscard]] const Node* view(ValueId value) const;
  // The placement that the operand of a view has if the result of the view has `placement`.
  [[nodiscard]] std::optional<PlacementId> in_front(const Node& view, PlacementId placement) const;
  // The placement that the result of a view has if the operand of the view has `placement`.
  [[nodiscard]] std::optional<PlacementId> behind(const Node& view, PlacementId placement) const;

 private:
  [[nodiscard]] PlacementId id(ValueId value, const DimOrder& order);
  void find_views();
  [[nodiscard]] std::optional<PlacementId> relabelled_by(const Node& view, ValueId from,
                                                         PlacementId placement, bool inverse) const;
  void state_node(std::uint32_t n);
  void state_recast(std::uint32_t n);
  void make(ValueId value, VariableId variable, const PlacementIds& placements);
  void read(ValueId value, VariableId variable, PlacementIds placements);
  [[nodiscard]] StateOrders numbered(std::size_t tensor, const PlacementIds& placements);
  [[nodiscard]] bool weigh(const Objective& objective, int bits);

  const Graph& graph_;
  Placements& placements_;
  const std::vector<std::vector<PlacedOption>>& options_;
  const target::LayoutNeeds& needs_;
  Problem problem_;
  std::vector<bool> is_view_;                            // by node
  std::vector<std::optional<std::uint32_t>> tensor_of_;  // by value
  std::vector<ValueId> data_;                            // by tensor: the value that owns the data
  std::vector<PlacementIds> known_;                      // by tensor: its placements by number
  std::size_t first_recast_ = 0;                         // the first tensor that represents a recast
};

}  // namespace tosaic::layout
