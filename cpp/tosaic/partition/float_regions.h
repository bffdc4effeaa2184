// float_regions: nodes of a quantized program that compute with floats between integers.
//
//   x i8 -> dequantize -> conv -> add -> relu -> quantize -> y i8       one region of 6 nodes, with the
//   z i8 -> dequantize ----------^                                      dequantize nodes that add reads
//
// At stage quantized, most nodes read and write integers that have qparams. Between nodes that a quantizer left
// unquantized, such as a convolution and the addition behind it, there are floats. Lowering makes integer arithmetic of
// such a region as a whole, and of no part of it: so a claimant of integers takes all of the region or nothing.
//
// A dequantize node that several nodes read would join regions that only share an integer, and could make a region
// wait for itself. So each reader first gets a dequantize node of its own.
#pragma once

#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/partition/dag.h"

namespace tosaic::partition {

// The graph with a dequantize node for each reader of a dequantized value.
[[nodiscard]] Graph with_own_dequantize(const Graph& graph);

// The regions that have a quantize or dequantize node and more than one node, ascending. A region is convex: a node that
// computes between two of its nodes belongs to it, too. Regions that this joins are one.
[[nodiscard]] std::vector<std::vector<DagNode>> float_regions(const Graph& graph);

}  // namespace tosaic::partition
