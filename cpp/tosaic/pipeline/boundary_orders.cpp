#include "tosaic/pipeline/boundary_orders.h"

#include <algorithm>
#include <utility>

#include "tosaic/base/error.h"

namespace tosaic::pipeline {
namespace {

BoundaryFormat with_order(BoundaryFormat boundary, const BoundaryOrder& order, const TensorType& type,
                          const std::string& who) {
  if (!order.order.is_identity() && order.order.axes(0).size() != type.rank())
    throw InvalidGraph({.where = "lower",
                        .what = who + " has another rank than the dim order declared for it",
                        .expected = "an order of " + std::to_string(type.rank()) + " axes",
                        .got = to_string(order.order.axes(0))});
  boundary.order = order.order;
  boundary.physical = order.physical;
  return boundary;
}

}  // namespace

std::shared_ptr<const Graph> with_boundary_orders(std::shared_ptr<const Graph> graph,
                                                  const BoundaryOrders& orders) {
  if (orders.inputs.empty() && orders.outputs.empty()) return graph;
  Graph out = *graph;
  for (std::size_t i = 0; i < std::min(out.inputs().size(), orders.inputs.size()); ++i) {
    const Input& input = out.inputs()[i];
    if (const std::optional<BoundaryOrder>& order = orders.inputs[i])
      out.set_input_boundary(
          i, with_order(input.boundary, *order, out.type(input.value), "input '" + input.path + "'"));
  }
  for (std::size_t i = 0; i < std::min(out.outputs().size(), orders.outputs.size()); ++i) {
    const Output& output = out.outputs()[i];
    if (const std::optional<BoundaryOrder>& order = orders.outputs[i])
      out.set_output_boundary(
          i, with_order(output.boundary, *order, out.type(output.value), "output '" + output.path + "'"));
  }
  return std::make_shared<const Graph>(std::move(out));
}

}  // namespace tosaic::pipeline
