// plan_calls: the layout plan of an imported graph, reported for the calls from which the graph was imported.
//
// Composite operators are expanded before planning, so that the plan equals the plan of `lower`.
// Elementwise operators (quantize and dequantize among them) and grid_sample are not expanded. The plan of
// the expanded graph is then reported for the imported graph: an order for each value that both graphs have,
// and, for each call, the order in which it reads each value. A call that became several operators may read a
// value in several orders. If one of these is the order in which the value is made, that order is reported;
// if none is, the order of the first of these operators.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tosaic/layout/plan.h"
#include "tosaic/layout/review.h"
#include "tosaic/pipeline/boundary_orders.h"

namespace tosaic::pipeline {

// `call` (the FX name of an origin) reads a value of the imported graph in this order.
struct CallRead {
  std::string call;
  ValueId value;
  DimOrder order;
};

struct CallPlan {
  std::shared_ptr<const Graph> graph;           // the graph that was planned, with composites expanded
  layout::LayoutPlan plan;                      // the layout plan of `graph`
  layout::PlanReview review;                    // the review of `plan`; it suggests no order for grids
  std::vector<std::optional<DimOrder>> orders;  // by value index of the imported graph
  std::vector<CallRead> reads;                  // one for each call and value
  std::vector<DimOrder> outputs;                // by output: its order at the boundary of the graph
};

[[nodiscard]] CallPlan plan_calls(const std::shared_ptr<const Graph>& imported, const BoundaryOrders& orders,
                                  const layout::Objective& objective);

// By input: true if its elements are the coordinates of a grid_sample, directly or through elementwise
// operators (quantize and dequantize among them). Coordinates are innermost, whatever the order of images
// is.
[[nodiscard]] std::vector<bool> carries_grid(const Graph& graph);

}  // namespace tosaic::pipeline
