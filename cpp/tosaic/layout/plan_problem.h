// plan_problem: states the choice of layout options as a problem for the solver.
//
// The variables are the nodes, then the graph inputs, then the graph outputs. The states of a node are its
// layout options. The states of an input or output are the orders that it may have: one, unless the plan may
// choose. There is a tensor for each value that is made; constants are not made. The tensor is read by the
// readers of all views of the value (views.h). Nodes that make views choose nothing.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tosaic/layout/choices.h"
#include "tosaic/layout/objective.h"
#include "tosaic/layout/solver/solver.h"
#include "tosaic/layout/views.h"

namespace tosaic::layout {

// The orders that each graph input and output may have, by index. The declared order is first.
struct BoundaryOrders {
  std::vector<ValueOrders> inputs, outputs;
};

class PlanProblem {
 public:
  // The arguments must outlive this object. Throws InvalidGraph if a cost of the caller is negative or too
  // large (plan.h).
  PlanProblem(const Graph& graph, const std::vector<View>& views, const Choices& choices,
              const BoundaryOrders& boundary, const Objective& objective, const target::LayoutNeeds& needs);

  [[nodiscard]] const Problem& problem() const { return problem_; }
  [[nodiscard]] Problem release() && { return std::move(problem_); }
  // The order of the value's data that has this number in the problem.
  [[nodiscard]] const DimOrder& order(ValueId value, std::uint8_t number) const {
    return orders_[value.index()][number];
  }
  // The number of the problem's tensor that is this value's data; none for constants and views.
  [[nodiscard]] const std::optional<std::uint32_t>& tensor(ValueId value) const {
    return tensor_of_[value.index()];
  }
  // The cost of a transpose of the tensor as the objective counts it. The tensor's weight in the problem
  // differs, because it also decides ties.
  [[nodiscard]] Cost cost(std::uint32_t tensor) const { return cost_[tensor]; }

 private:
  void state_node(std::uint32_t n);
  [[nodiscard]] Access boundary_access(VariableId variable, ValueId value, const ValueOrders& orders);
  [[nodiscard]] std::uint8_t number_of(ValueId value, const DimOrder& of_value);
  void make(ValueId value, const Access& made);
  void read(ValueId value, const Access& access);
  [[nodiscard]] Cost callers_cost(ValueId value) const;
  void require_room() const;
  [[noreturn]] void refuse(ValueId value, const std::string& what, const std::string& expected,
                           Cost got) const;

  const Graph& graph_;
  const std::vector<View>& views_;
  const Choices& choices_;
  const target::LayoutNeeds& needs_;
  const TransposeCost* callers_cost_;  // null if the objective is a Measure
  bool by_count_;
  Problem problem_;
  std::vector<bool> can_be_transposed_;                  // by tensor
  std::vector<Cost> cost_;                               // by tensor
  std::vector<std::optional<std::uint32_t>> tensor_of_;  // by value
  std::vector<ValueOrders> orders_;                      // by value that owns data: its orders by number
};

}  // namespace tosaic::layout
