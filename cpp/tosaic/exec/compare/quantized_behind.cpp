#include "tosaic/exec/compare/quantized_behind.h"

#include <vector>

#include "tosaic/exec/compare/numbers.h"
#include "tosaic/ir/quantized.h"

namespace tosaic::exec {
namespace {

// True if the node bounds the numbers of its operand, or selects some of them.
bool loses_numbers(const Graph& graph, const Node& node) {
  std::int64_t left = 0;
  for (std::uint32_t r = 0; r < node.result_count; ++r)
    left += num_elements(graph.type(graph.result(node, r)).shape);
  return !rearranges(node) || left < num_elements(graph.type(graph.operands(node)[0]).shape);
}

}  // namespace

std::map<std::string, std::string> quantized_behind(const Graph& quantized) {
  std::vector<ValueId> behind(quantized.values().size());
  std::map<std::string, std::string> out;
  const std::span<const Node> nodes = quantized.nodes();
  for (std::size_t n = nodes.size(); n-- > 0;) {
    const Node& node = nodes[n];
    if (node.result_count == 0 || !commutes_with_quantize(node)) continue;
    const ValueId result = quantized.result(node);
    const ValueId last = behind[result.index()];
    if (!last.valid() && !loses_numbers(quantized, node)) continue;
    for (const ValueId id : quantized.operands(node)) {
      if (!id.valid() || quantized.value(id).kind != ValueKind::kResult) continue;
      const QParamsRef& own = quantized.type(id).qparams;
      if (!own || !is_same(own, quantized.type(result).qparams)) continue;
      if (quantized.users(id).size() != 1 || quantized.is_output(id)) continue;
      behind[id.index()] = last.valid() ? last : result;
      out.emplace(quantized.value(id).name, quantized.value(behind[id.index()]).name);
    }
  }
  return out;
}

}  // namespace tosaic::exec
