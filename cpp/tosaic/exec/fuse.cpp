#include "tosaic/exec/fuse.h"

#include "tosaic/exec/steps.h"

namespace tosaic::exec {
namespace {

constexpr std::uint32_t kNobody = 0xffffffffU;

}  // namespace

ChainFinder::ChainFinder(const Graph& graph, std::function<bool(std::uint32_t)> takes_part)
    : graph_(graph), takes_part_(std::move(takes_part)), reader_(graph.values().size(), kNobody) {
  std::vector<std::uint32_t> reads(reader_.size(), 0);
  for (std::uint32_t i = 0; i < graph.nodes().size(); ++i)
    for (const ValueId operand : graph.operands(graph.nodes()[i]))
      if (operand.valid()) {
        ++reads[operand.index()];
        reader_[operand.index()] = i;
      }
  for (const Output& output : graph.outputs()) ++reads[output.value.index()];
  for (std::size_t i = 0; i < reads.size(); ++i)
    if (reads[i] != 1) reader_[i] = kNobody;
}

// Returns the only reader of the node's only result. Returns nothing if there is no such reader, if the
// reader has further operands or several results, or if it may not be part of a chain.
std::optional<std::uint32_t> ChainFinder::follower(std::uint32_t node) const {
  const Node& from = graph_.nodes()[node];
  if (from.result_count != 1) return std::nullopt;
  const std::uint32_t reader = reader_[from.first_result];
  if (reader == kNobody || !takes_part_(reader)) return std::nullopt;
  const Node& to = graph_.nodes()[reader];
  return to.operand_count == 1 && to.result_count == 1 ? std::optional(reader) : std::nullopt;
}

std::optional<Chain> ChainFinder::find(std::uint32_t node, const kernels::Options& options) const {
  std::optional<std::uint32_t> next = takes_part_(node) ? follower(node) : std::nullopt;
  if (!next) return std::nullopt;
  const Node& head = graph_.nodes()[node];
  std::vector<kernels::Operand> operands;
  for (const ValueId operand : graph_.operands(head))
    operands.push_back(kernel_operand(graph_, operand, true));
  const kernels::Operand result = kernel_operand(graph_, graph_.result(head), false);
  std::optional<Chain> found;
  std::vector<std::uint32_t> nodes;
  std::vector<kernels::Follower> followers;
  for (; next; next = follower(nodes.back())) {
    const Node& last = graph_.nodes()[*next];
    nodes.push_back(*next);
    followers.push_back({last.op, last.attrs.get()});
    kernels::Kernel kernel = kernels::prepare_fused(
        {head.op, head.attrs.get(), operands, std::span(&result, 1), options, followers});
    if (!kernel.run) break;
    found = Chain{nodes, std::move(kernel)};
  }
  return found;
}

}  // namespace tosaic::exec
