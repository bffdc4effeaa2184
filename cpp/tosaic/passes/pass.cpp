#include "tosaic/passes/pass.h"

#include <algorithm>

#include "tosaic/passes/lower_to_integer/lower_to_integer.h"
#include "tosaic/passes/regions.h"

namespace tosaic::passes {
namespace {

// Runs a pass that takes no options: first on the regions of the graph's nodes, then on the graph itself.
template <std::optional<Graph> (*Run)(const Graph&)>
std::optional<Graph> in_all_regions(const Graph& graph, const PassOptions& options) {
  std::optional<Graph> inner =
      in_regions(graph, [&options](const Graph& region) { return in_all_regions<Run>(region, options); });
  std::optional<Graph> outer = Run(inner ? *inner : graph);
  return outer ? std::move(outer) : std::move(inner);
}

// Does the same as the function above for a pass that takes options.
template <std::optional<Graph> (*Run)(const Graph&, const PassOptions&)>
std::optional<Graph> with_options_in_all_regions(const Graph& graph, const PassOptions& options) {
  std::optional<Graph> inner = in_regions(
      graph, [&options](const Graph& region) { return with_options_in_all_regions<Run>(region, options); });
  std::optional<Graph> outer = Run(inner ? *inner : graph, options);
  return outer ? std::move(outer) : std::move(inner);
}

// Runs a pass on the outermost graph alone. Qparams do not cross the boundary of a region, so regions stay as
// they are.
template <std::optional<Graph> (*Run)(const Graph&)>
std::optional<Graph> outermost(const Graph& graph, const PassOptions&) {
  return Run(graph);
}

// Skips programs that are not quantized: there, decompose would only expand the composites again.
std::optional<Graph> run_fuse_composites(const Graph& graph, const PassOptions&) {
  const auto is_quantize = [](const Node& node) { return node.op == Op::kQuantize; };
  if (graph.stage == Stage::kExported && std::ranges::none_of(graph.nodes(), is_quantize))
    return std::nullopt;
  return fuse_composites(graph);
}

std::optional<Graph> run_lower_to_integer(const Graph& graph, const PassOptions& options) {
  return lower_to_integer(graph, integer_rules(options.target, options.semantics)).graph;
}

std::vector<Pass> make_passes() {
  using enum Stage;
  const StageSet any = StageSet::all();
  const StageSet unrounded = {kExported, kInteger, kTosa};  // at kQuantized, operators quantize results
  const StageSet canonical = {kExported, kInteger};         // canonical operators, none of TOSA's
  return {
      {"fold-constants",
       "Runs nodes that depend on no input and stores their results.",
       any,
       {},
       in_all_regions<fold_constants>},
      {"dead-code", "Drops nodes and constants that no output needs.", any, {}, in_all_regions<dead_code>},
      {"common-subexpressions",
       "Merges equal nodes and equal constants.",
       unrounded,
       {},
       in_all_regions<common_subexpressions>},
      {"simplify",
       "Removes identities and shortens chains of views, permutes, casts and broadcasts.",
       unrounded,
       {},
       in_all_regions<simplify>},
      {"fold-batch-norm",
       "Folds batch norms with constant statistics into the convolution before them.",
       {kExported},
       {},
       in_all_regions<fold_batch_norm>},
      {"widen-halves",
       "Makes floats of f16 and bf16 between dequantize and quantize nodes f32.",
       {kExported},
       {},
       widen_halves},
      {"fuse-composites",
       "Finds norms, softmaxes and activations that are spelled out in a quantized program.",
       {kExported, kQuantized},
       {},
       run_fuse_composites},
      {"bound-masks",
       "Makes large numbers of attention masks over quantized scores small.",
       {kExported},
       {},
       outermost<bound_masks>},
      {"bound-numbers",
       "Replaces numbers that saturate in all their readers by the least or largest that does not.",
       {kExported},
       {},
       outermost<bound_numbers>},
      {"fold-qdq",
       "Moves quantization from quantize and dequantize nodes onto values.",
       {kExported},
       kQuantized,
       outermost<fold_qdq>},
      {"unfold-qdq",
       "Writes operators over quantized values as what they mean: dequantize, f32, quantize.",
       {kQuantized},
       kExported,
       [](const Graph& graph, const PassOptions&) { return unfold_qdq(graph); }},
      {"lower-to-integer",
       "Makes operators over quantized values compute with their integers.",
       {kQuantized},
       kInteger,
       run_lower_to_integer,
       true,
       {"fold-qdq"}},
      {"quantize-boundary",
       "Makes inputs that are quantized and outputs that are dequantized integers.",
       canonical,
       {},
       quantize_boundary},
      {"decompose",
       "Expands composite operators into operators that a TOSA target has a counterpart for.",
       canonical,
       {},
       in_all_regions<decompose>},
      {"sink-reshapes",
       "Has elementwise operators compute in front of reshapes that join axes.",
       canonical,
       {},
       with_options_in_all_regions<sink_reshapes>},
      {"choose-shapes",
       "Has elementwise operators compute in the shapes in which the least is transposed.",
       canonical,
       {},
       choose_shapes},
      {"assign-dim-order",
       "Writes the layout plan onto the values.",
       canonical,
       {},
       assign_dim_order,
       false,
       {"decompose"}},
      {"legalize-tosa",
       "Turns canonical operators into TOSA operators over physical shapes.",
       canonical,
       kTosa,
       legalize_tosa,
       true,
       {"decompose", "assign-dim-order"}},
      {"store-constants",
       "Stores each constant once, and in the narrow dtype that it was computed from.",
       {kTosa},
       {},
       with_options_in_all_regions<store_constants>},
      {"unit-axes",
       "Gives operators four axes where a tensor would be read in two shapes otherwise.",
       {kTosa},
       {},
       with_options_in_all_regions<unit_axes>},
      {"narrow-operands",
       "Stores a constant that is combined with widened integers as narrow ones.",
       {kTosa},
       {},
       in_all_regions<narrow_operands>},
      {"split-tables",
       "Gives each table a sum, difference or product of its own to read.",
       {kTosa},
       {},
       in_all_regions<split_tables>},
      {"split-rescales",
       "Gives each reader that can compute a widening rescale by itself a rescale of its own.",
       {kTosa},
       {},
       in_all_regions<split_rescales>},
      {"split-attentions",
       "Computes attentions by heads, rows or windows where that takes less memory.",
       {kTosa},
       {},
       with_options_in_all_regions<split_attentions>,
       false,
       {},
       {},
       true},
      {"state-to-variables",
       "Makes state of a TOSA program variables, for a file of a target that has them.",
       {kTosa},
       {},
       state_to_variables},
  };
}

const std::vector<Pass>& passes() {
  static const std::vector<Pass> all = make_passes();
  return all;
}

}  // namespace

std::string to_string(const StageSet& stages) {
  std::string text;
  for (const Stage stage : stages_of(stages)) {
    if (!text.empty()) text += ", ";
    text += to_string(stage);
  }
  return text;
}

std::vector<Stage> stages_of(const StageSet& stages) {
  std::vector<Stage> out;
  for (const Stage stage : kAllStages)
    if (stages.has(stage)) out.push_back(stage);
  return out;
}

std::span<const Pass> all_passes() { return passes(); }

const Pass* find_pass(std::string_view name) {
  const std::vector<Pass>& all = passes();
  const auto it =
      std::find_if(all.begin(), all.end(), [name](const Pass& pass) { return pass.name == name; });
  return it == all.end() ? nullptr : &*it;
}

}  // namespace tosaic::passes
