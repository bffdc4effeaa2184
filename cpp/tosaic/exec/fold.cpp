#include "tosaic/exec/fold.h"

#include <algorithm>

#include "tosaic/exec/moved_constant.h"
#include "tosaic/exec/narrow_constant.h"
#include "tosaic/exec/node.h"

namespace tosaic::exec {
namespace {

constexpr std::size_t kDeferredBytes = 4096;

ConstantRef folded(const Graph& graph, ValueId value, Storage storage) {
  const Value& result = graph.value(value);
  Constant constant{result.name, ConstantKind::kFolded, result.type.dtype, result.type.shape,
                    std::move(storage)};
  return std::make_shared<const Constant>(std::move(constant));
}

// The result, to be computed later, of a node that only changes the order of axes; nothing if it is small.
std::optional<Storage> moved_later(const Node& node, std::span<const ConstantRef> operands) {
  if (node.op != Op::kPermute && node.op != Op::kTosaTranspose) return std::nullopt;
  const Constant& constant = *operands[0];
  if (constant.storage.size() < kDeferredBytes) return std::nullopt;
  return deferred_permute(constant.storage, constant.dtype, constant.shape,
                          Graph::attrs<PermuteAttrs>(node).perm);
}

}  // namespace

std::optional<std::vector<ConstantRef>> evaluate(const Graph& graph, const Node& node,
                                                 std::span<const ConstantRef> operands) {
  const bool known = std::all_of(operands.begin(), operands.end(), [](const ConstantRef& operand) {
    return !operand || operand->storage.bound();
  });
  if (!known || operands.size() != node.operand_count) return std::nullopt;
  if (info(node.op).has(kView)) return std::vector{folded(graph, graph.result(node), operands[0]->storage)};
  if (std::optional<Storage> made = computed_from_narrow(graph, node, operands))
    return std::vector{folded(graph, graph.result(node), *std::move(made))};
  if (std::optional<Storage> moved = moved_later(node, operands))
    return std::vector{folded(graph, graph.result(node), *std::move(moved))};
  std::vector<ArrayView> arrays;
  for (const ConstantRef& operand : operands)
    arrays.push_back(operand ? ArrayView::dense(operand->bytes().data(), operand->dtype, operand->shape)
                             : ArrayView{});
  std::optional<std::vector<Array>> results = run_node(graph, node, arrays);
  if (!results) return std::nullopt;
  std::vector<ConstantRef> out;
  for (std::uint32_t i = 0; i < node.result_count; ++i)
    out.push_back(folded(graph, graph.result(node, i), std::move((*results)[i].storage)));
  return out;
}

}  // namespace tosaic::exec
