// quantize-boundary: replaces float inputs of the graph by the integers to which they are quantized, and
// float outputs by the integers from which they are dequantized.
//
//   input %x: f32                   ->  input %x: i8 boundary(source=f32 q(..))
//   %p = pad(%x)                        %q = pad(%x)
//   %q: i8 = quantize(%p)
//
//   %y: f32 = dequantize(%i: i8)    ->  output %i: i8 boundary(source=f32 q(..))
//   output %y
//
// With FloatIoForm::kConverted, a run quantizes and dequantizes the caller's arrays, so its results are the
// same. With kInteger, the caller's arrays are integers too.
//
// An input may be moved before it is quantized, since movements commute with quantization. An input that is
// quantized in several ways becomes several inputs, next to each other and with the same path. A run makes
// all of them from the caller's one array.
//
//   input %x: f32 path="x"     ->  input %x: i8 path="x" boundary(source=f32 q(..))
//   %a: i8 = quantize(%x)          input %x_1: i16 path="x" boundary(source=f32 q(..))
//   %b: i16 = quantize(%x)
//
// Some inputs stay floats: inputs that are also read as floats; with kInteger, inputs that are quantized in
// several ways; with kConverted, inputs and outputs that are quantized by channel.
//
// State, such as the keys and values that an attention layer has seen, becomes integers if the scale, zero
// point and dtype with which the program reads it belong to its new value, too. So its initial value is
// quantized here, and a run stores the integers. If the new value has a wider range, a clamp bounds the value
// that is read. The caller does not see states, so the forms that the options ask for do not matter.
//
//   state %k: f32 initial=[..]      ->  state %k: i8 initial=[..]
//   %q: i8 = quantize(%k)               %n: i8 = index_put(%k, ..)
//   %n: i8 = index_put(%q, ..)          output %n updates %k
//   %f: f32 = dequantize(%n)
//   output %f updates %k
//
// On a target without floats, an input that nobody reads becomes i8 of scale 1, so that the file has an input
// for each of the caller's arrays.
//
// An input that the program writes and its new value must both be integers of one dtype, or both floats,
// because the new value is stored to the input. With kInteger, both must have the same scale and zero point.

#include "tosaic/passes/pass.h"
#include "tosaic/passes/qdq/integer_boundary.h"

namespace tosaic::passes {

std::optional<Graph> quantize_boundary(const Graph& graph, const PassOptions& options) {
  const bool is_float = options.target.has(target::Profile::kFp);
  if (graph.stage != Stage::kInteger && (graph.stage != Stage::kExported || is_float)) return std::nullopt;
  return with_integer_boundary(
      graph, {.inputs = options.inputs, .outputs = options.outputs, .unread_too = !is_float});
}

}  // namespace tosaic::passes
