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

// Where a tensor is quantized: for all of its readers and the graph outputs, or for some readers only. A
// tensor may be quantized for all readers and a second time, with other parameters, for some of them.
//
// The placement of a constant may have elements of its own, for instance weights that were rounded with care.
// They replace the elements of the constant. Without qparams, readers get these elements as floats.
struct Placement {
  ValueId value;
  QParamsRef qparams;
  ConstantRef elements = nullptr;  // of the type of the constant
  std::vector<NodeId> users = {};
  bool for_outputs = false;  // if not for_all: also for graph outputs that return the value
  bool for_all = false;      // all readers and graph outputs; `users` and `for_outputs` are ignored
  // Integers have no minus infinity. Dequantized numbers up to this bound become minus infinity again.
  std::optional<double> infinite_below = std::nullopt;
};

// A constant with elements outside of the range of its integers.
struct Saturation {
  std::string constant;
  Counts counts;
};

struct InsertedQuantization {
  Graph graph;
  std::vector<Saturation> saturated;
};

// Placements of a value for some readers share their nodes if their qparams are equal. Such a placement adds
// no nodes if the value is quantized for all readers with the same qparams. Throws QuantMismatch for qparams
// that do not fit the value.
[[nodiscard]] InsertedQuantization insert_quantization(const Graph& graph,
                                                       std::span<const Placement> placements);

}  // namespace tosaic::quant
