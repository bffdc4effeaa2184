// float_regions: nodes of a quantized program that compute with floats between integers.
//
//   x i8 -> dequantize -> conv -> add -> relu -> quantize -> y i8       one region of 6 nodes, with the
//   z i8 -> dequantize ----------^                                      dequantize nodes that add reads
//
// At stage quantized, most nodes read and write integers that have qparams. A quantizer may leave a value
// unquantized, such as the value between a convolution and the addition after it. Nodes that such floats
// connect are a region. Lowering turns a whole region into integer arithmetic, but no part of one. So a
// claimant of integers takes all nodes of a region, or none.
//
// Two regions may read the same integers through one dequantize node. The node would make one region of them,
// and a node between the two could then wait for the region and the region for it. So with_own_dequantize()
// comes first: it copies the dequantize node for each reader.
#pragma once

#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/partition/dag.h"

namespace tosaic::partition {

// The graph with a dequantize node for each reader of a dequantized value.
[[nodiscard]] Graph with_own_dequantize(const Graph& graph);

// The regions that have a quantize or dequantize node and more than one node, ascending. A region is convex:
// a node on a path between two of its nodes belongs to it, too. Regions that this joins become one region.
[[nodiscard]] std::vector<std::vector<DagNode>> float_regions(const Graph& graph);

}  // namespace tosaic::partition
