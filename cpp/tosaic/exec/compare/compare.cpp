#include "tosaic/exec/compare/compare.h"

#include <algorithm>

#include "tosaic/exec/compare/outputs.h"
#include "tosaic/exec/compare/quantized_behind.h"
#include "tosaic/exec/compare/replay.h"
#include "tosaic/exec/compare/rows.h"

namespace tosaic::exec {
namespace {

std::vector<FxId> by_name(const std::set<FxId>& ids, const FxNodes& fx) {
  std::vector<FxId> out(ids.begin(), ids.end());
  std::ranges::sort(out, {}, [&fx](FxId id) -> const std::string& { return fx.name(id); });
  return out;
}

// Maps each FX node whose value b quantizes as the result of another FX node to that other node.
std::map<FxId, FxId> moved_nodes(const CompareOptions& options, const FxNodes& fx) {
  std::map<FxId, FxId> out;
  if (options.quantized_b == nullptr) return out;
  const Graph& graph = *options.quantized_b;
  const std::map<std::string, std::string> behind = quantized_behind(graph);
  const NodesOfFx nodes(graph, fx);
  std::map<std::string, FxId> owners;
  for (const Node& node : graph.nodes())
    if (node.result_count != 0) owners.emplace(graph.node_name(node), nodes.owner(node));
  for (const auto& [from, to] : behind) {
    const FxId own = owners[from], last = owners[to];
    if (own.valid() && last.valid() && own != last) out.emplace(own, last);
  }
  return out;
}

// The names of values of graph a that are inside an FX node or operands of it, so they are not compared as
// results.
OtherValues other_values(const RunValues& a, const NodesOfFx& nodes) {
  OtherValues out;
  for (const Node& node : a.graph().nodes()) {
    const FxId owner = nodes.owner(node);
    if (!owner.valid() || node.result_count == 0) continue;
    const std::vector<const Node*>& own = nodes.of(owner);
    if (own.empty() || own.back() == &node) continue;
    const ValueId value = a.graph().result(node);
    const Node& last = *own.back();
    if (last.op == Op::kDequantize && a.graph().operands(last)[0] == value) continue;
    const std::string& name = a.graph().value(value).name;
    const bool is_float_of_one = node.op == Op::kDequantize &&
                                 out.operands.contains(a.graph().value(a.graph().operands(node)[0]).name);
    if (!a.qparams(value) && !is_float_of_one) continue;
    (std::ranges::find(own, &node) == own.end() ? out.operands : out.intermediates).insert(name);
  }
  return out;
}

Errors errors_of(const CompareOptions& options) {
  if (!options.local) return Errors::kTotal;
  return options.bounds ? Errors::kJudged : Errors::kMeasured;
}

}  // namespace

ComparedRuns compare_runs(const std::shared_ptr<const Graph>& a, const std::shared_ptr<const Graph>& b,
                          std::span<const ArrayView> inputs_a, std::span<const ArrayView> inputs_b,
                          const CompareOptions& options, std::span<const NamedArray> reference) {
  const TracedRun run_a(a, inputs_a, options.a), run_b(b, inputs_b, options.b);
  const RunValues values_a(*a, run_a.result.trace, options.canonical_a.get());
  const RunValues values_b(*b, run_b.result.trace, options.canonical_b.get());

  FxNodes fx;
  for (const std::string& name : options.left_out) fx.leave_out(name);
  std::vector<Reference> references = given_values(reference, fx);
  fx.add_origins_of(*a, *b);
  const NodesOfFx nodes_a(*a, fx);
  std::set<FxId> several;
  if (reference.empty()) {
    several = with_several_values(*a, nodes_a, fx);
    references = final_values(values_a, nodes_a, several);
  } else {
    add_qparams(references, nodes_a);
  }

  mark_several(references);

  const Matcher matcher(values_b, fx, a->stage, moved_nodes(options, fx), other_values(values_a, nodes_a));
  LocalReference local(*a, options.a);
  local.set_rescale_error(rescale_error(*b));
  set_inputs(local, *a, run_a.session, inputs_a);
  std::map<FxResult, ReplayedResult> replayed =
      replay(values_a, nodes_a, matcher, references, errors_of(options), local);
  CompareOptions how = options;
  if (options.local && is_quantized_otherwise(replayed)) {
    drop_bounds(replayed);
    how.bounds = false;
  }
  RowWriter rows(a.get(), fx, matcher, options.threshold_db);
  for (const Reference& each : references) rows.add(each, replayed);
  for (const FxId id : by_name(several, fx)) rows.add_unmatched(id, "several values in a");

  ComparedRuns out;
  out.other_qparams = options.bounds && !how.bounds;
  out.report = std::move(rows).finish();
  out.outputs = compare_outputs({run_a, values_a, inputs_a}, {run_b, values_b, inputs_b},
                                options.local ? &local : nullptr, how);
  return out;
}

Comparison compare(const std::shared_ptr<const Graph>& a, const std::shared_ptr<const Graph>& b,
                   std::span<const ArrayView> inputs_a, std::span<const ArrayView> inputs_b,
                   const CompareOptions& options) {
  return compare_runs(a, b, inputs_a, inputs_b, options).report;
}

Comparison compare_traces(std::span<const NamedArray> reference, const std::shared_ptr<const Graph>& b,
                          std::span<const ArrayView> inputs_b, const CompareOptions& options) {
  const TracedRun run_b(b, inputs_b, options.b);
  const RunValues values_b(*b, run_b.result.trace);
  FxNodes fx;
  std::vector<Reference> references = given_values(reference, fx);
  mark_several(references);
  const Matcher matcher(values_b, fx, std::nullopt);
  RowWriter rows(nullptr, fx, matcher, options.threshold_db);
  for (const Reference& each : references) rows.add(each, {});
  return std::move(rows).finish();
}

}  // namespace tosaic::exec
