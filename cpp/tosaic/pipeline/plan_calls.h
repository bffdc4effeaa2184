// plan_calls: the layout plan of a graph as it was imported, told by the calls that it came from.
//
// Composites are taken apart, so that the plan is the one that lowering finds; operators that compute in any
// order, quantize and dequantize among them, and grid_sample stay. What the plan says of the graph that this
// gives is told of the graph that went in: an order for each value that both have, and for each call the
// order in which it reads a value. A call that stands for several operators may read a value in several
// orders: then in the one that the value is made in, where that is among them, else in that of the first.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tosaic/layout/plan.h"
#include "tosaic/pipeline/border_orders.h"

namespace tosaic::pipeline {

// `call` (the FX name of an origin) reads a value of the imported graph in this order.
struct CallRead {
  std::string call;
  ValueId value;
  DimOrder order;
};

struct CallPlan {
  std::shared_ptr<const Graph> graph;           // what was planned
  layout::LayoutPlan plan;                      // of that
  std::vector<std::optional<DimOrder>> orders;  // by value index of the imported graph: that it is made in
  std::vector<CallRead> reads;                  // each call and value once
  std::vector<DimOrder> outputs;                // by output: the order of its border
};

[[nodiscard]] CallPlan plan_calls(const std::shared_ptr<const Graph>& imported, const BorderOrders& orders,
                                  const layout::Objective& objective);

// By input: true if its elements are the coordinates of a grid_sample, as they come or through elementwise
// operators (quantize and dequantize among them). Those lie innermost, whatever the order of images is.
[[nodiscard]] std::vector<bool> carries_grid(const Graph& graph);

}  // namespace tosaic::pipeline
