#include "tosaic/pipeline/executable.h"

#include <algorithm>

#include "tosaic/exec/steps.h"
#include "tosaic/ir/own_constants.h"
#include "tosaic/passes/pass.h"

namespace tosaic::pipeline {
namespace {

// True if the function of the node gets the integers of quantized values.
bool takes_integers(const Graph& graph, const Node& node, const exec::Overrides& overrides) {
  return exec::has_model(graph, node, overrides) ||
         (node.op == Op::kOpaque && Graph::attrs<OpaqueAttrs>(node).integers &&
          exec::find_override(graph, node, overrides) != nullptr);
}

// True for a graph that computes large floats from constants in every run, as after pass store-constants.
bool widens_constants(const Graph& graph) {
  constexpr std::size_t kLargeBytes = 1024;
  return std::any_of(graph.nodes().begin(), graph.nodes().end(), [&](const Node& node) {
    return node.op == Op::kTosaCast && graph.value(graph.operands(node)[0]).constant != nullptr &&
           graph.type(graph.result(node)).bytes() >= kLargeBytes;
  });
}

bool is_empty(const exec::Overrides& overrides) {
  return overrides.models.empty() && overrides.nodes.empty() && overrides.ops.empty();
}

}  // namespace

std::shared_ptr<const Graph> executable(std::shared_ptr<const Graph> graph,
                                        const exec::Overrides& overrides) {
  graph = own_constants(graph);
  if (is_empty(overrides) && widens_constants(*graph))
    if (std::optional<Graph> folded = passes::fold_constants(*graph))
      graph = std::make_shared<const Graph>(std::move(*folded));
  if (graph->stage == Stage::kQuantized) {
    std::optional<Graph> numbers = passes::unfold_qdq(
        *graph,
        [&overrides](const Graph& in, const Node& node) { return takes_integers(in, node, overrides); });
    if (numbers) graph = std::make_shared<const Graph>(std::move(*numbers));
  }
  std::optional<Graph> expanded =
      passes::expand_composites(*graph, [&overrides](const Graph& in, const Node& node) {
        return info(node.op).runs_as_expansion() && exec::find_override(in, node, overrides) == nullptr;
      });
  return expanded ? std::make_shared<const Graph>(std::move(*expanded)) : std::move(graph);
}

exec::Session make_session(const std::shared_ptr<const Graph>& graph, const exec::PrepareOptions& options) {
  return exec::Session(exec::prepare(executable(graph, options.overrides), options));
}

}  // namespace tosaic::pipeline
