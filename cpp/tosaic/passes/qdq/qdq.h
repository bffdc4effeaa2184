// qdq: functions over quantize and dequantize nodes that are not passes.
//
// explain_qdq reports why such nodes remain in a quantized graph.
//
// extract_io: replaces quantized float inputs and outputs of a program by their integers, before it is
// lowered.
//
//   input %x: f32                 ->  input %x: i8
//   %q: i8 = quantize(%x)
//
// With parameters of the caller's, the quantize node stays, and a dequantize node makes its operand. Integer
// lowering turns both into one rescale.
//
//   input %x: f32                 ->  input %x: u8
//   %q: i8 = quantize(%x)             %f: f32 = dequantize(%x)
//                                     %q: i8 = quantize(%f)
#pragma once

#include <string>
#include <vector>

#include "tosaic/base/error.h"
#include "tosaic/ir/graph.h"

namespace tosaic::passes {

// There is one entry for each reason why an operator next to quantized values computes in floats: an operand
// was never quantized, a result is read as a float, or the operator cannot be quantized. There is also one
// entry for a dequantize node if another operator computes with its integers, or if its integers were
// quantized with other parameters. Operators without a quantized neighbour are not reported, nor are the
// nodes that quantize an input or dequantize an output.
[[nodiscard]] std::vector<ErrorParts> explain_qdq(const Graph& quantized);

// The parameters with which one float input is quantized, or one float output is dequantized. `obstacle` says
// why it has to stay a float, as a part of a sentence; then `found` is empty.
struct PortQuantization {
  std::vector<QParamsRef> found;  // several for an input whose readers quantize it differently
  std::string obstacle;
};
struct IoQuantization {
  std::vector<PortQuantization> inputs, outputs;  // by index; empty for states and their new values
};
[[nodiscard]] IoQuantization io_quantization(const Graph& graph);

struct PortRequest {
  bool extract = false;  // become the integers with which the program computes
  QParamsRef requantize =
      nullptr;  // become integers with these parameters, which the program converts to its own
};
// Returns the graph with integers at the requested inputs and outputs. A request for an input that the
// program writes also applies to the new value of the input. Such an input stays a float if its new value
// does not have the same parameters. States and other inputs and outputs are unchanged. `graph` is at stage
// exported or quantized. A request is ignored if io_quantization() has no parameters for the port.
[[nodiscard]] Graph extract_io(const Graph& graph, const std::vector<PortRequest>& inputs,
                               const std::vector<PortRequest>& outputs);

}  // namespace tosaic::passes
