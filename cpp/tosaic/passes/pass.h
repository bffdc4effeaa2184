// Pass: a named step that makes a changed graph from a graph, or nothing if it has nothing to change.
//
// A pass reads the graph once and builds nothing before the first change. It preserves names and origins, and
// it preserves the meaning: a run computes identical integers, and floats within the tolerance of the
// kernels. Applied to its own output, a pass changes nothing. Passes do not verify their graphs: the pipeline
// does.
//
// A pass is a value (a name, its stages, a function), so you can make a pass of your own and put it into a
// pipeline::Pipeline.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/layout/objective.h"
#include "tosaic/target/integer_semantics.h"
#include "tosaic/target/layout_needs.h"
#include "tosaic/target/spec.h"

namespace tosaic::passes {

// The form, in the lowered program, of a float input that is quantized first, or of a float output that is
// dequantized last.
enum class FloatIoForm : std::uint8_t {
  kFloat,      // floats
  kConverted,  // integers; a run converts the caller's float arrays to and from them
  kInteger,    // integers, and the caller's arrays are integers too
};

// The forms of all inputs, or of all outputs: a default, and exceptions by index.
struct FloatIoForms {
  FloatIoForm by_default = FloatIoForm::kConverted;
  std::vector<std::optional<FloatIoForm>> by_index = {};  // may be shorter than the list of inputs (outputs)

  [[nodiscard]] FloatIoForm at(std::size_t index) const {
    return index < by_index.size() ? by_index[index].value_or(by_default) : by_default;
  }
};

// What a pass may have to know about the lowering of which it is a part.
struct PassOptions {
  target::TargetSpec target = target::parse_target("TOSA-1.0+FP+INT+int16+variable");
  FloatIoForms inputs = {}, outputs = {};                 // by index in the graph that the pass takes
  layout::Objective objective = layout::Measure::kBytes;  // what the layout plan minimises
  // The dim orders that the target's operators take. A claimant other than TOSA sets its own table.
  target::LayoutNeeds layout_needs = target::tosa_layout_needs();
  // How the target computes with integers. A claimant other than TOSA sets its own.
  target::IntegerSemantics semantics = target::tosa_semantics();
};

// A set of stages.
class StageSet {
 public:
  constexpr StageSet() = default;
  constexpr StageSet(std::initializer_list<Stage> stages) {
    for (const Stage stage : stages) bits_ |= bit(stage);
  }
  [[nodiscard]] static constexpr StageSet all() {
    StageSet all;
    for (const Stage stage : kAllStages) all.add(stage);
    return all;
  }

  [[nodiscard]] constexpr bool has(Stage stage) const { return (bits_ & bit(stage)) != 0; }
  [[nodiscard]] constexpr bool empty() const { return bits_ == 0; }
  constexpr void add(Stage stage) { bits_ |= bit(stage); }
  constexpr bool operator==(const StageSet&) const = default;

 private:
  static constexpr unsigned bit(Stage stage) { return 1u << static_cast<unsigned>(stage); }
  unsigned bits_ = 0;
};
// "exported, integer"
[[nodiscard]] std::string to_string(const StageSet& stages);
// The stages of the set, in the order of the enumerators of Stage.
[[nodiscard]] std::vector<Stage> stages_of(const StageSet& stages);

struct Pass {
  using Function = std::function<std::optional<Graph>(const Graph&, const PassOptions&)>;

  std::string name;            // "fold-constants"
  std::string summary;         // one sentence for `tosaic passes`
  StageSet takes;              // a pipeline does not run the pass on a graph at another stage
  std::optional<Stage> makes;  // the stage of the changed graph; without one, the stage of the graph it took
  Function run;
  bool always = false;  // it changes every graph that it takes, so after it no graph is at the old stage
  std::vector<std::string> needs = {};      // names of passes that must have run before
  std::vector<std::string> serves_as = {};  // names of passes that it replaces in the `needs` of other passes
  bool divides = false;  // it makes values in parts, so the changed graph lacks values that the old one has

  [[nodiscard]] Stage stage_after(Stage taken) const { return makes.value_or(taken); }
};

// All passes, in the order in which the pipeline of a target with all profiles first uses them.
[[nodiscard]] std::span<const Pass> all_passes();
// Returns null if there is no pass of this name.
[[nodiscard]] const Pass* find_pass(std::string_view name);

// Runs nodes whose operands are all constants and replaces them by their results.
[[nodiscard]] std::optional<Graph> fold_constants(const Graph& graph);
// Replaces outputs that turn out to be constants once the graph is simplified, such as the constant part of a
// concatenation. All other nodes stay.
[[nodiscard]] std::optional<Graph> fold_returned(const Graph& graph);
// Removes nodes and constants that no output needs. Inputs and nodes with an effect stay.
[[nodiscard]] std::optional<Graph> dead_code(const Graph& graph);
// The graph without dead code. Returns nothing for nothing. For passes whose changes leave dead code behind.
[[nodiscard]] std::optional<Graph> without_dead_code(std::optional<Graph> graph);
// Turns f16 and bf16 values between dequantize and quantize nodes into f32, with casts for their other
// readers. Returns nothing if no f16 or bf16 value is quantized or dequantized, or if the target has profile
// FP, which computes with these dtypes as torch does.
[[nodiscard]] std::optional<Graph> widen_halves(const Graph& graph, const PassOptions& options);
// Moves quantization from quantize and dequantize nodes to qparams on values; stage exported -> quantized.
// Returns nothing if the graph has no such node.
[[nodiscard]] std::optional<Graph> fold_qdq(const Graph& graph);
// Replaces each operator over values with qparams by its meaning: dequantize, the operator in f32, quantize;
// stage quantized -> exported. Values retain their names and qparams. Nodes of the outermost graph for which
// `stays` returns true are not replaced.
[[nodiscard]] std::optional<Graph> unfold_qdq(
    const Graph& graph, const std::function<bool(const Graph&, const Node&)>& stays = {});
// Turns float inputs that are quantized, and float outputs that are dequantized, into integer inputs and
// outputs. Runs at stage integer, and at stage exported if the target has no floats.
[[nodiscard]] std::optional<Graph> quantize_boundary(const Graph& graph, const PassOptions& options);
// Merges nodes with equal operator, attributes and operands, and equal constants.
[[nodiscard]] std::optional<Graph> common_subexpressions(const Graph& graph);
// Removes identities, merges chains of reshapes and of permutes, and removes broadcasts that elementwise
// readers do by themselves.
[[nodiscard]] std::optional<Graph> simplify(const Graph& graph);
// Moves elementwise operators in front of a reshape that joins axes where that may save a transpose.
[[nodiscard]] std::optional<Graph> sink_reshapes(const Graph& graph, const PassOptions& options = {});
// Lets elementwise operators compute in other shapes if the layout plan then transposes less.
[[nodiscard]] std::optional<Graph> choose_shapes(const Graph& graph, const PassOptions& options = {});
// Folds a batch_norm with constant statistics into the conv or linear in front of it. The new weights are
// computed in double precision.
[[nodiscard]] std::optional<Graph> fold_batch_norm(const Graph& graph);
// Replaces norms, softmaxes and activations that are spelled out in f32 by composite operators. Takes graphs
// at stages exported and quantized.
[[nodiscard]] std::optional<Graph> fuse_composites(const Graph& graph);
// Makes the large negative numbers of attention masks over quantized scores so small that integers can add
// them. Takes graphs at stage exported.
[[nodiscard]] std::optional<Graph> bound_masks(const Graph& graph);
// Replaces numbers far beyond those that matter to their readers by the nearest number that matters, so that
// one scale for all operands of an operator has enough bits for each. Takes graphs at stage exported.
[[nodiscard]] std::optional<Graph> bound_numbers(const Graph& graph);
// Expands composite operators into operators for which a TOSA target has a counterpart.
[[nodiscard]] std::optional<Graph> decompose(const Graph& graph);
// Expands only the composites for which `wanted` returns true, also in regions and among the nodes of an
// expansion.
[[nodiscard]] std::optional<Graph> expand_composites(
    const Graph& graph, const std::function<bool(const Graph&, const Node&)>& wanted);
// Writes the layout plan onto the values and adds a clone for each transpose.
[[nodiscard]] std::optional<Graph> assign_dim_order(const Graph& graph, const PassOptions& options = {});
// Replaces canonical operators over values with dim orders by TOSA operators over physical shapes.
[[nodiscard]] std::optional<Graph> legalize_tosa(const Graph& graph, const PassOptions& options = {});
// Stores each constant once. If a constant was folded from a narrower one (such as dequantized weights),
// stores the narrower one, and the program computes the other, if the target can. Takes graphs at stage tosa.
[[nodiscard]] std::optional<Graph> store_constants(const Graph& graph, const PassOptions& options = {});
// Gives chains of operators leading axes of extent 1 if fewer bytes are then read in two shapes. Takes graphs
// at stage tosa.
[[nodiscard]] std::optional<Graph> unit_axes(const Graph& graph, const PassOptions& options = {});
// Stores i32 constants that are combined with widened integers as narrow ones with a RESCALE. Takes graphs at
// stage tosa.
[[nodiscard]] std::optional<Graph> narrow_operands(const Graph& graph);
// Copies a sum, difference or product of bytes for each TABLE that reads it. Takes graphs at stage tosa.
[[nodiscard]] std::optional<Graph> split_tables(const Graph& graph);
// Copies each RESCALE to i32 for those of its readers that Ethos-U computes together with it. Takes graphs at
// stage tosa.
[[nodiscard]] std::optional<Graph> split_rescales(const Graph& graph);
// Computes attentions over integers by heads, rows or windows, one after the other, if this needs less
// memory. Takes graphs at stage tosa.
[[nodiscard]] std::optional<Graph> split_attentions(const Graph& graph, const PassOptions& options = {});
// Turns state inputs and their new values into variables that are read and written.
[[nodiscard]] std::optional<Graph> state_to_variables(const Graph& graph, const PassOptions& options = {});

}  // namespace tosaic::passes
