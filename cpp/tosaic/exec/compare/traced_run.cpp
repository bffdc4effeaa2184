#include "tosaic/exec/compare/traced_run.h"

#include "tosaic/exec/compare/labels.h"
#include "tosaic/exec/compare/numbers.h"
#include "tosaic/ir/attributes.h"

namespace tosaic::exec {
namespace {

bool has_unsigned_results(const Node& node) {
  if (node.op == Op::kTosaRescale) return Graph::attrs<TosaRescaleAttrs>(node).output_unsigned;
  return node.op == Op::kRescale && Graph::attrs<RescaleAttrs>(node).rescale.output_unsigned;
}

}  // namespace

TracedRun::TracedRun(const std::shared_ptr<const Graph>& graph, std::span<const ArrayView> inputs,
                     const PrepareOptions& options)
    : session(prepare(graph, options)) {
  RunOptions run_options;
  run_options.trace.all = true;
  result = session.run(inputs, run_options);
}

RunValues::RunValues(const Graph& graph, const std::vector<TracedValue>& trace, const Graph* canonical)
    : graph_(graph), views_(graph.values().size()), qparams_(labels(graph, canonical)) {
  for (std::uint32_t i = 0; i < views_.size(); ++i)
    if (const ConstantRef& constant = graph.values()[i].constant; constant && constant->storage.bound())
      views_[i] = ArrayView::dense(constant->storage.bytes().data(), constant->dtype, constant->shape);
  for (const TracedValue& traced : trace) views_[traced.value.index()] = traced.array.view();
  std::vector<bool> is_unsigned(views_.size(), false);
  for (const Node& node : graph.nodes()) {
    const bool found = moves_elements(node.op) && graph.operands(node)[0].valid()
                           ? bool{is_unsigned[graph.operands(node)[0].index()]}
                           : has_unsigned_results(node);
    for (std::uint32_t r = 0; found && r < node.result_count; ++r) {
      const std::size_t at = graph.result(node, r).index();
      is_unsigned[at] = true;
      if (views_[at].dtype == DType::kI8) views_[at].dtype = DType::kU8;
      if (views_[at].dtype == DType::kI16) views_[at].dtype = DType::kU16;
    }
  }
}

}  // namespace tosaic::exec
