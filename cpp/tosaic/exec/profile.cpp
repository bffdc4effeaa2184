#include "tosaic/exec/profile.h"

#include <algorithm>
#include <set>

#include "tosaic/exec/row_group.h"
#include "tosaic/exec/steps.h"

namespace tosaic::exec {
namespace {

// `last` is the node whose results the step writes.
StepWork work_of(const Prepared& prepared, const Step& step, const Node& last) {
  const Graph& graph = prepared.graph();
  const Node& node = graph.node(step.node);
  StepWork work;
  if (step.kind == StepKind::kKernel) work.multiply_adds = multiply_adds(graph, node);
  for (std::uint32_t i = 0; i < last.result_count; ++i)
    work.bytes_written += graph.type(graph.result(last, i)).bytes();
  const std::span<const ValueId> operands = graph.operands(node);
  const std::vector<bool> in_place = memory::operands_in_place(graph, node, prepared.memory());
  std::set<std::size_t> seen;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (in_place[i]) work.bytes_written -= graph.type(operands[i]).bytes();
    if (in_place[i] || !operands[i].valid() || !seen.insert(operands[i].index()).second) continue;
    const std::uint64_t bytes = graph.type(operands[i]).bytes();
    const bool is_selected_from = i == 0 && info(node.op).has(kMovement);
    work.bytes_read += is_selected_from ? std::min(bytes, work.bytes_written) : bytes;
  }
  return work;
}

// Values between the steps of the group are neither read nor written.
StepWork work_of_group(const Prepared& prepared, const RowGroup& group) {
  const Graph& graph = prepared.graph();
  StepWork work;
  std::set<std::size_t> seen;
  for (const std::uint32_t member : group.members) seen.insert(graph.nodes()[member].first_result);
  for (const std::uint32_t member : group.members) {
    const Node& node = graph.nodes()[member];
    if (prepared.steps()[member].kind == StepKind::kKernel) work.multiply_adds += multiply_adds(graph, node);
    for (const ValueId operand : graph.operands(node))
      if (operand.valid() && seen.insert(operand.index()).second)
        work.bytes_read += graph.type(operand).bytes();
  }
  work.bytes_written = graph.type(graph.result(graph.nodes()[group.members.back()])).bytes();
  return work;
}

void add_steps(const Prepared& prepared, std::optional<std::uint32_t> parent, std::uint32_t region,
               std::vector<StepPlace>& places) {
  const std::shared_ptr<const Graph>& graph = prepared.data().graph;
  const std::span<const Step> steps = prepared.steps();
  for (const Step& step : steps) {
    if (!has_work(step, true)) continue;
    const auto at = static_cast<std::uint32_t>(places.size());
    const bool is_fused = !step.group && step.fusion.run;
    StepPlace place{.step = &step,
                    .graph = graph,
                    .nodes = {step.node},
                    .kernel = is_fused ? step.fusion.kernel : step.kernel,
                    .factors = is_fused ? step.fusion.factors : step.factors,
                    .parent = parent,
                    .region = region};
    if (is_fused)
      for (const std::uint32_t follower : step.fusion.followers) place.nodes.push_back(steps[follower].node);
    if (step.group) {
      place.nodes.clear();
      for (const std::uint32_t member : step.group->members)
        if (steps[member].kind != StepKind::kView) place.nodes.push_back(steps[member].node);
      place.kernel = step.group->kernel;
      place.factors = step.group->factors;
    }
    place.work = step.group ? work_of_group(prepared, *step.group)
                            : work_of(prepared, step, graph->node(place.nodes.back()));
    places.push_back(std::move(place));
    for (std::uint32_t i = 0; i < step.regions.size(); ++i) add_steps(step.regions[i], at, i, places);
  }
}

}  // namespace

std::uint64_t multiply_adds(const Graph& graph, const Node& node) {
  std::vector<kernels::Operand> operands, results;
  for (const ValueId operand : graph.operands(node))
    operands.push_back(kernel_operand(graph, operand, false));
  for (std::uint32_t i = 0; i < node.result_count; ++i)
    results.push_back(kernel_operand(graph, graph.result(node, i), false));
  return kernels::multiply_adds({node.op, node.attrs.get(), operands, results, {}});
}

std::vector<StepPlace> profiled_steps(const Prepared& prepared) {
  std::vector<StepPlace> places;
  add_steps(prepared, std::nullopt, 0, places);
  return places;
}

}  // namespace tosaic::exec
