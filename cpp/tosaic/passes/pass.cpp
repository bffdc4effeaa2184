#include "tosaic/passes/pass.h"

#include <algorithm>
#include <array>

#include "tosaic/passes/regions.h"

namespace tosaic::passes {
namespace {

// A pass that is the same for every target, on regions first.
template <std::optional<Graph> (*Run)(const Graph&)>
std::optional<Graph> plain(const Graph& graph, const PassOptions& options) {
  std::optional<Graph> inner =
      in_regions(graph, [&options](const Graph& region) { return plain<Run>(region, options); });
  std::optional<Graph> outer = Run(inner ? *inner : graph);
  return outer ? std::move(outer) : std::move(inner);
}

constexpr Stage kAny = Stage::kExported;

constexpr std::array<Pass, 9> kPasses{{
    {"fold-constants", "Runs nodes that depend on no input and keeps their results.", kAny, kAny,
     plain<fold_constants>},
    {"dead-code", "Drops nodes and constants that no output needs.", kAny, kAny, plain<dead_code>},
    {"common-subexpressions", "Merges equal nodes and equal constants.", kAny, kAny,
     plain<common_subexpressions>},
    {"simplify", "Removes identities and shortens chains of views, permutes, casts and broadcasts.", kAny,
     kAny, plain<simplify>},
    {"fold-batch-norm", "Folds batch norms with constant statistics into the convolution before them.",
     Stage::kExported, Stage::kExported, plain<fold_batch_norm>},
    {"decompose", "Expands composite operators into operators that a TOSA target has a counterpart for.",
     Stage::kExported, Stage::kExported, plain<decompose>},
    {"assign-dim-order", "Writes the layout plan onto the values.", Stage::kExported, Stage::kExported,
     plain<assign_dim_order>},
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
