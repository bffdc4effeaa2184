// Pass: a named function graph -> changed graph, or nothing where nothing matches.
//
// A pass reads the graph once; while nothing matches it builds nothing. It keeps names, origins and the
// meaning: the results of a run are identical for integers and within the kernels' tolerance for floats.
// Applying a pass to its own output changes nothing. Passes do not verify; the pipeline does, before and
// after.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string_view>

#include "tosaic/ir/graph.h"
#include "tosaic/layout/objective.h"

namespace tosaic::passes {

// Floats at the border that are quantized first, or were dequantized last, are, in the program:
enum class FloatBorder : std::uint8_t {
  kFloat,      // floats
  kConverted,  // integers that the caller's floats are converted to and from when it runs
  kInteger,    // integers, and so are the caller's arrays
};

// What a pass must know of the target.
struct PassOptions {
  bool integer_arithmetic = true;  // the target has profile INT
  bool float_arithmetic = true;    // the target has profile FP
  bool wide_integers = true;       // the target has int16
  FloatBorder inputs = FloatBorder::kConverted, outputs = FloatBorder::kConverted;
  RoundingMode rounding_mode = RoundingMode::kSingleRound;  // of multipliers that lower-to-integer makes
  bool control_flow = false;                                // the target has COND_IF and WHILE_LOOP
  bool transforms = false;                                  // the target has FFT2D and RFFT2D
  std::vector<DType> variable_dtypes = {DType::kI8, DType::kF16, DType::kF32};  // that variables may have
  std::size_t max_list_size = 64;                         // of tensors, as the target's level limits them
  layout::Objective objective = layout::Measure::kBytes;  // what assign-dim-order makes least
};

struct Pass {
  std::string_view name;     // "fold-constants"
  std::string_view summary;  // one sentence for `tosaic passes`
  Stage from, to;
  std::optional<Graph> (*run)(const Graph&, const PassOptions&);
};

// All passes, in the order in which the pipeline first uses them.
[[nodiscard]] std::span<const Pass> all_passes();
[[nodiscard]] const Pass* find_pass(std::string_view name);

// Nodes whose operands are all constants are run and replaced by their results.
[[nodiscard]] std::optional<Graph> fold_constants(const Graph& graph);
// Nodes and constants that no output needs are dropped. Inputs stay.
[[nodiscard]] std::optional<Graph> dead_code(const Graph& graph);
// Quantize and dequantize nodes give way to qparams on values; stage exported -> quantized. Nothing where the
// graph has neither.
[[nodiscard]] std::optional<Graph> fold_qdq(const Graph& graph);
// Operators over values with qparams become what they mean: dequantize, the operator in f32, quantize; stage
// quantized -> exported. Values keep names and labels.
[[nodiscard]] std::optional<Graph> unfold_qdq(const Graph& graph);
// Inputs that are quantized, and outputs that are dequantized, become integers at the border; stage integer.
[[nodiscard]] std::optional<Graph> quantize_borders(const Graph& graph, const PassOptions& options);
// Nodes with equal operator, attributes and operands become one; so do equal constants.
[[nodiscard]] std::optional<Graph> common_subexpressions(const Graph& graph);
// Identities, chains of views, permutes and casts are shortened; broadcasts that elementwise users do anyway
// go away.
[[nodiscard]] std::optional<Graph> simplify(const Graph& graph);
// Elementwise operators between a reshape that joins axes and another reshape compute in front of both.
[[nodiscard]] std::optional<Graph> sink_reshapes(const Graph& graph);
// Elementwise operators compute in other shapes where the layout plan then moves less.
[[nodiscard]] std::optional<Graph> choose_shapes(const Graph& graph, const PassOptions& options = {});
// conv/linear -> batch_norm with constant statistics becomes one conv/linear, folded in double precision.
[[nodiscard]] std::optional<Graph> fold_batch_norm(const Graph& graph);
// Composite operators are expanded into operators that a TOSA target has a counterpart for.
[[nodiscard]] std::optional<Graph> decompose(const Graph& graph);
// The same for the composites that `wanted` picks, in regions too, and for what they expand into.
[[nodiscard]] std::optional<Graph> expand_composites(
    const Graph& graph, const std::function<bool(const Graph&, const Node&)>& wanted);
// The layout plan is written onto the values.
[[nodiscard]] std::optional<Graph> assign_dim_order(const Graph& graph, const PassOptions& options = {});
// Canonical operators over values with dim orders -> TOSA operators over physical shapes.
[[nodiscard]] std::optional<Graph> legalize_tosa(const Graph& graph, const PassOptions& options = {});
// State inputs and their new values -> variables that are read and written.
[[nodiscard]] std::optional<Graph> state_to_variables(const Graph& graph, const PassOptions& options = {});

}  // namespace tosaic::passes
