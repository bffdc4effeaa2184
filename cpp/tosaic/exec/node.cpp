#include "tosaic/exec/node.h"

#include "tosaic/exec/override.h"
#include "tosaic/exec/runner.h"
#include "tosaic/exec/steps.h"
#include "tosaic/ir/control_flow.h"

namespace tosaic::exec {
namespace {

std::vector<Array> allocate_results(const Graph& graph, const Node& node) {
  std::vector<Array> results;
  for (std::uint32_t i = 0; i < node.result_count; ++i) {
    const TensorType& type = graph.type(graph.result(node, i));
    results.push_back(Array::allocate(type.dtype, type.shape));
  }
  return results;
}

void compute(const NodeFunction& function, const Graph& graph, const Node& node,
             std::span<const ArrayView> operands, std::vector<Array>& results) {
  std::vector<MutableArrayView> writes;
  for (Array& result : results)
    writes.push_back(MutableArrayView::dense(result.storage.writable(), result.dtype, result.shape));
  call_override(function, {graph, node, graph.node_name(node), operands, writes});
}

// The kernel of the node. Returns nothing if there is none.
std::optional<kernels::Kernel> find_kernel(const Graph& graph, const Node& node,
                                           const kernels::Options& options) {
  std::vector<kernels::Operand> operands, results;
  for (const ValueId operand : graph.operands(node))
    operands.push_back(kernel_operand(graph, operand, false));
  for (std::uint32_t i = 0; i < node.result_count; ++i)
    results.push_back(kernel_operand(graph, graph.result(node, i), false));
  try {
    return kernels::prepare({node.op, node.attrs.get(), operands, results, options});
  } catch (const UnsupportedOp&) {
    return std::nullopt;
  }
}

bool has_no_kernel(const Node& node) {
  return is_foreign(node.op) || is_cond(node.op) || is_while_loop(node.op) || info(node.op).has(kEffect);
}

}  // namespace

std::optional<std::vector<Array>> run_node(const Graph& graph, const Node& node,
                                           std::span<const ArrayView> operands,
                                           const PrepareOptions& options) {
  std::vector<Array> results = allocate_results(graph, node);
  if (const NodeFunction* override = find_override(graph, node, options.overrides)) {
    compute(*override, graph, node, operands, results);
    return results;
  }
  if (has_no_kernel(node)) return std::nullopt;
  std::size_t bytes = 0;
  std::vector<std::byte*> writes;
  for (Array& result : results) {
    bytes += result.storage.size();
    writes.push_back(result.storage.writable());
  }
  if (bytes == 0) return results;
  const std::optional<kernels::Kernel> kernel = find_kernel(graph, node, options.kernels);
  if (!kernel) return std::nullopt;
  std::vector<const std::byte*> reads;
  for (const ArrayView& operand : operands) reads.push_back(operand.data);
  const Memory scratch(kernel->scratch_bytes);
  with_node_location(node, graph.node_name(node), [&] { kernel->run({reads, writes, scratch.data()}); });
  return results;
}

std::uint32_t in_place_operands(const Graph& graph, const Node& node) {
  if (has_no_kernel(node) || node.result_count == 0) return 0;
  const std::optional<kernels::Kernel> kernel = find_kernel(graph, node, {.reference = true});
  return kernel ? kernel->in_place : 0;
}

}  // namespace tosaic::exec
