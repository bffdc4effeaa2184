#include "tosaic/passes/pass.h"

#include <algorithm>
#include <array>

#include "tosaic/passes/lower_to_integer.h"
#include "tosaic/passes/regions.h"

namespace tosaic::passes {
namespace {

// Runs a pass that takes no options: first on the regions of the graph's nodes, then on the graph itself.
template <std::optional<Graph> (*Run)(const Graph&)>
std::optional<Graph> plain(const Graph& graph, const PassOptions& options) {
  std::optional<Graph> inner =
      in_regions(graph, [&options](const Graph& region) { return plain<Run>(region, options); });
  std::optional<Graph> outer = Run(inner ? *inner : graph);
  return outer ? std::move(outer) : std::move(inner);
}

// Runs a pass on the outermost graph alone. Qparams do not cross the boundary of a region, so regions stay as
// they are.
template <std::optional<Graph> (*Run)(const Graph&)>
std::optional<Graph> outermost(const Graph& graph, const PassOptions&) {
  return Run(graph);
}

// Skips graphs at stage quantized. There an operator implicitly rounds its result, which the rules of these
// passes do not take into account.
template <std::optional<Graph> (*Run)(const Graph&)>
std::optional<Graph> unrounded(const Graph& graph, const PassOptions& options) {
  return graph.stage == Stage::kQuantized ? std::nullopt : plain<Run>(graph, options);
}

constexpr Stage kAny = Stage::kExported;

std::optional<Graph> run_lower_to_integer(const Graph& graph, const PassOptions& options) {
  return graph.stage == Stage::kQuantized ? std::optional(lower_to_integer(graph, options).graph)
                                          : std::nullopt;
}

constexpr std::array<Pass, 15> kPasses{{
    {"fold-constants", "Runs nodes that depend on no input and keeps their results.", kAny, kAny,
     plain<fold_constants>},
    {"dead-code", "Drops nodes and constants that no output needs.", kAny, kAny, plain<dead_code>},
    {"common-subexpressions", "Merges equal nodes and equal constants.", kAny, kAny,
     unrounded<common_subexpressions>},
    {"simplify", "Removes identities and shortens chains of views, permutes, casts and broadcasts.", kAny,
     kAny, unrounded<simplify>},
    {"fold-batch-norm", "Folds batch norms with constant statistics into the convolution before them.",
     Stage::kExported, Stage::kExported, plain<fold_batch_norm>},
    {"fold-qdq", "Moves quantization from quantize and dequantize nodes onto values.", Stage::kExported,
     Stage::kQuantized, outermost<fold_qdq>},
    {"unfold-qdq", "Writes operators over quantized values as what they mean: dequantize, f32, quantize.",
     Stage::kQuantized, Stage::kExported, outermost<unfold_qdq>},
    {"lower-to-integer", "Makes operators over quantized values compute with their integers.",
     Stage::kQuantized, Stage::kInteger, run_lower_to_integer},
    {"quantize-borders", "Makes inputs that are quantized and outputs that are dequantized integers.",
     Stage::kInteger, Stage::kInteger, quantize_borders},
    {"decompose", "Expands composite operators into operators that a TOSA target has a counterpart for.",
     Stage::kExported, Stage::kExported, plain<decompose>},
    {"sink-reshapes", "Has elementwise operators compute in front of reshapes that join axes.", kAny, kAny,
     unrounded<sink_reshapes>},
    {"choose-shapes", "Has elementwise operators compute in the shapes in which the least is transposed.",
     kAny, kAny, choose_shapes},
    {"assign-dim-order", "Writes the layout plan onto the values.", Stage::kExported, Stage::kExported,
     assign_dim_order},
    {"legalize-tosa", "Turns canonical operators into TOSA operators over physical shapes.", Stage::kExported,
     Stage::kTosa, legalize_tosa},
    {"state-to-variables", "Makes state of a TOSA program variables, for a file of a target that has them.",
     Stage::kTosa, Stage::kTosa, state_to_variables},
}};

}  // namespace

std::span<const Pass> all_passes() { return kPasses; }

const Pass* find_pass(std::string_view name) {
  const auto* const it =
      std::find_if(kPasses.begin(), kPasses.end(), [name](const Pass& p) { return p.name == name; });
  return it == kPasses.end() ? nullptr : it;
}

}  // namespace tosaic::passes
