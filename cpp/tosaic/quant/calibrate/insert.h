// insert: adds quantize and dequantize nodes to a graph of floats.
//
//   %a = conv(%x, %w)            %a = conv(%x.dequantize, %w.dequantize)
//   %b = relu(%a)                %b = relu(%a)
//                                %b.quantize: i8 = quantize(%b)
//   return %b                    %b.dequantize = dequantize(%b.quantize)
//                                return %b.dequantize
//
// Quantized constants become constants of integers in front of a dequantize node.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/quant/quantize.h"

namespace tosaic::quant {

// Where a tensor is quantized: for all of its readers and for the graph outputs, or for some nodes only. A
// tensor may be quantized for all readers and again, with other parameters, for some of them.
//
// The placement of a constant may have elements of its own, for instance weights that were rounded with care:
// they are quantized in the place of the constant's. Without qparams, they are read as floats.
struct Placement {
  ValueId value;
  QParamsRef qparams;
  ConstantRef elements = nullptr;  // of the type of the constant
  std::vector<NodeId> users = {};
  bool for_outputs = false;  // of placements for some readers: graph outputs that return the value, too
  bool for_all = false;      // all readers; `users` and `for_outputs` mean nothing
  // Dequantized numbers up to here were minus infinity, which integers do not have, and become it again.
  std::optional<double> infinite_below = std::nullopt;
};

// A constant some of whose elements are beyond the integers.
struct Saturation {
  std::string constant;
  Counts counts;
};

struct InsertedQuantization {
  Graph graph;
  std::vector<Saturation> saturated;
};

// Several placements of one value for some readers with equal qparams share their nodes, and a placement
// whose qparams are those with which the value is quantized for all readers adds none. Throws QuantMismatch
// for qparams that do not fit the value.
[[nodiscard]] InsertedQuantization insert_quantization(const Graph& graph,
                                                       std::span<const Placement> placements);

}  // namespace tosaic::quant
