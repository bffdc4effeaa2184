// io_quantization: which integers a float input or output of a graph may become.
//
//   input %x: f32                     its readers quantize it, possibly after movements
//   %p = permute(%x)                  (reshape, permute, slice, pad with 0 ...), and nothing
//   %w: f32 = cast(%p)                else reads it; a cast stands there if %x is f16 or bf16
//   %q: i8 = quantize(%w)
//
//   %f: f32 = dequantize(%i: i8)      it is dequantized, possibly before movements
//   %y = permute(%f)                  and before a cast to f16 or bf16
//   output %y
//
// Movements commute with quantization. An axis with one scale for each index is followed through them
// (qparams_after() in quantized.h), and through padding with 0 of other axes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/ir/quantized.h"

namespace tosaic::passes {

// True for f16 and bf16.
[[nodiscard]] inline bool is_half(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

// True if the node converts f16 or bf16 to f32, which changes no number.
[[nodiscard]] bool widens(const Graph& graph, const Node& node);

// True if the node rounds f32 to f16 or bf16.
[[nodiscard]] bool narrows(const Graph& graph, const Node& node);

// True if the node has one float operand and one result, and moves the elements of the operand.
[[nodiscard]] bool moves_one_float(const Graph& graph, const Node& node);

// The parameters of the result of a movement whose operand has the parameters `from`. Returns nothing if the
// axis of the scales is not a whole axis of the result.
[[nodiscard]] std::optional<QParamsRef> qparams_behind(const Graph& graph, const Node& movement,
                                                       const QParamsRef& from);

// The parameters with which the operand of a movement is quantized, if its result is quantized with
// `of_result`. Returns nothing if the axis of the scales is not a whole axis of the operand, or if the
// movement inserts an integer that does not represent 0.
[[nodiscard]] std::optional<QuantizeAttrs> quantization_before(const Graph& graph, const Node& movement,
                                                               const QuantizeAttrs& of_result);

struct ReadersQuantization {
  std::vector<QuantizeAttrs> found;  // the different parameters, in the order of the readers
  // Why the value has to stay a float: the first reader that does not quantize it, as a part of a sentence
  // such as "'relu' reads it as floats (node 'relu_1')". Empty if all readers quantize it.
  std::string obstacle;
};
[[nodiscard]] ReadersQuantization quantization_by_readers(const Graph& graph, ValueId id);

struct DequantizedOutput {
  const Node* dequantize = nullptr;
  std::vector<const Node*> movements;  // from the dequantize node to the output, in order, without casts
  QParamsRef qparams;                  // of the output; its axis is an axis of the output
};
// Returns nothing if the value is not made by a dequantize node and movements after it.
[[nodiscard]] std::optional<DequantizedOutput> dequantized_output(const Graph& graph, ValueId id);

// What a movement node does on integers: padding inserts the zero point.
[[nodiscard]] Attrs attrs_on_integers(const Node& movement, std::int64_t zero_point);

}  // namespace tosaic::passes
