// border_orders: the dim orders of the values that cross between the parts of a split graph.
//
//   host    x -> group0 -> grid_sample -> group1 -> y         group 0 = {conv, relu}, group 1 = {conv}
//   joined  x -> conv -> relu -> grid_sample -> conv -> y     channels last, from relu to the second conv
//
// Each part is lowered alone, and a layout plan of one part does not know in which orders other parts read
// its outputs. So one plan is made for the whole program (layout/plan.h). Its graph is the host, in which the
// nodes of each part replace the call of the part. Composites of the parts are expanded.
//
// An output of a part has the dim order in which its value is made. There is one exception: if all readers in
// other parts want the same other order, the output has that order, and the part transposes the value. So all
// parts together transpose no more than the plan, unless several parts read one value in an order in which it
// is not made: the plan transposes it once, and each of the parts does.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/layout/objective.h"

namespace tosaic::partition {

// The orders at the inputs and outputs of one part, by index.
struct PartOrders {
  std::vector<DimOrder> inputs, outputs;
};

struct BorderOrders {
  std::vector<PartOrders> parts;  // by group
  std::int64_t transposes = 0;    // in the whole program, including its boundary and the inside of parts
  std::int64_t bytes = 0;         // that the transposes move
  std::int64_t cost = 0;          // by the objective
  std::int64_t bound = 0;         // no choice of orders has a lower cost
};

// `needs` are the needs of all claimants. `host` is Split::host. `parts` are the graphs of its groups before
// dim orders are assigned; they have the inputs and outputs of Part::graph. Throws InternalError if a part
// has other inputs or outputs.
[[nodiscard]] BorderOrders plan_border_orders(const Graph& host,
                                              std::span<const std::shared_ptr<const Graph>> parts,
                                              const layout::Objective& objective,
                                              const target::LayoutNeeds& needs);

}  // namespace tosaic::partition
