// Pass: a named function that takes a graph and returns the changed graph, or nothing if it found nothing to
// change.
//
// A pass that finds nothing to change builds no graph. Value names, origins and the meaning of the program
// stay: the results of a run are identical for integers, and within the kernels' tolerance for floats. (The
// exception is lower-to-integer, which states the bound of its own error.) Applying a pass to its own output
// changes nothing. Passes do not verify graphs; the pipeline verifies its input and the result of each pass.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string_view>

#include "tosaic/ir/graph.h"
#include "tosaic/layout/objective.h"

namespace tosaic::passes {

// How a program represents float inputs that it quantizes before any other use, and float outputs that it
// dequantizes last.
enum class FloatBorder : std::uint8_t {
  kFloat,      // the program has float inputs and outputs
  kConverted,  // the program has integers; running it converts the caller's floats to and from them
  kInteger,    // the program has integers, and the caller's arrays hold these integers
};

// What a pass must know about the target, and the caller's choices.
struct PassOptions {
  bool integer_arithmetic = true;  // the target has profile INT
  bool float_arithmetic = true;    // the target has profile FP
  bool wide_integers = true;       // the target has int16
  FloatBorder inputs = FloatBorder::kConverted, outputs = FloatBorder::kConverted;
  RoundingMode rounding_mode = RoundingMode::kSingleRound;  // of the rescales that lower-to-integer emits
  bool control_flow = false;                                // the target has COND_IF and WHILE_LOOP
  bool transforms = false;                                  // the target has FFT2D and RFFT2D
  std::vector<DType> variable_dtypes = {DType::kI8, DType::kF16, DType::kF32};  // dtypes of variables
  std::size_t max_list_size = 64;                         // most tensors in a list, by the target's level
  layout::Objective objective = layout::Measure::kBytes;  // what the layout plan minimizes
};

struct Pass {
  std::string_view name;     // "fold-constants"
  std::string_view summary;  // one sentence for `tosaic passes`
  Stage from, to;
  std::optional<Graph> (*run)(const Graph&, const PassOptions&);
};

// All passes. Those of the pipeline come in the order in which it first uses them. unfold-qdq and
// state-to-variables are not run by `lower`: the first one prepares a quantized graph for execution, the
// second one prepares a TOSA graph for its file.
[[nodiscard]] std::span<const Pass> all_passes();
// Null if there is no pass of that name.
[[nodiscard]] const Pass* find_pass(std::string_view name);

// Runs nodes whose operands are all constants and replaces them by their results.
[[nodiscard]] std::optional<Graph> fold_constants(const Graph& graph);
// Removes nodes and constants that no output needs. Inputs and nodes with an effect stay.
[[nodiscard]] std::optional<Graph> dead_code(const Graph& graph);
// Moves quantization from quantize and dequantize nodes to qparams on values; stage exported -> quantized.
// Returns nothing if the graph has no such node.
[[nodiscard]] std::optional<Graph> fold_qdq(const Graph& graph);
// Replaces each operator over values with qparams by what it means: dequantize, the operator in f32,
// quantize; stage quantized -> exported. Values retain their names and qparams.
[[nodiscard]] std::optional<Graph> unfold_qdq(const Graph& graph);
// Turns float inputs that are quantized, and float outputs that are dequantized, into integer inputs and
// outputs. Runs at stage integer, and at stage exported if the target has no floats.
[[nodiscard]] std::optional<Graph> quantize_borders(const Graph& graph, const PassOptions& options);
// Merges nodes with equal operator, attributes and operands, and equal constants.
[[nodiscard]] std::optional<Graph> common_subexpressions(const Graph& graph);
// Removes identities, merges chains of reshapes and of permutes, and removes broadcasts that elementwise
// readers do by themselves.
[[nodiscard]] std::optional<Graph> simplify(const Graph& graph);
// Moves elementwise operators in front of a reshape that joins axes where that may save a transpose.
[[nodiscard]] std::optional<Graph> sink_reshapes(const Graph& graph);
// Lets elementwise operators compute in other shapes where the layout plan then moves less.
[[nodiscard]] std::optional<Graph> choose_shapes(const Graph& graph, const PassOptions& options = {});
// conv/linear followed by batch_norm with constant statistics becomes one conv/linear, folded in double
// precision.
[[nodiscard]] std::optional<Graph> fold_batch_norm(const Graph& graph);
// Expands composite operators into operators that a TOSA target has a counterpart for.
[[nodiscard]] std::optional<Graph> decompose(const Graph& graph);
// Expands only the composites for which `wanted` returns true, also in regions and among the nodes of an
// expansion.
[[nodiscard]] std::optional<Graph> expand_composites(
    const Graph& graph, const std::function<bool(const Graph&, const Node&)>& wanted);
// Writes the layout plan onto the values and adds a clone for each transpose.
[[nodiscard]] std::optional<Graph> assign_dim_order(const Graph& graph, const PassOptions& options = {});
// Replaces canonical operators over values with dim orders by TOSA operators over physical shapes.
[[nodiscard]] std::optional<Graph> legalize_tosa(const Graph& graph, const PassOptions& options = {});
// Turns state inputs and their new values into variables that are read and written.
[[nodiscard]] std::optional<Graph> state_to_variables(const Graph& graph, const PassOptions& options = {});

}  // namespace tosaic::passes
