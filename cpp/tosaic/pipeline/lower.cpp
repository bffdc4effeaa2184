#include "tosaic/pipeline/lower.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "tosaic/base/work.h"
#include "tosaic/ir/own_constants.h"
#include "tosaic/ir/verify.h"
#include "tosaic/pipeline/refusals.h"
#include "tosaic/target/support.h"

namespace tosaic::pipeline {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

passes::PassOptions pass_options(const target::TargetSpec& target, const LowerOptions& options) {
  const passes::FloatIoForm by_default =
      target.has(target::Profile::kFp) ? passes::FloatIoForm::kFloat : passes::FloatIoForm::kConverted;
  return {.target = target,
          .inputs = options.inputs.value_or(by_default),
          .outputs = options.outputs.value_or(by_default),
          .objective = options.objective};
}

// The inputs and outputs of a graph as text: paths of inputs, each once, and kinds and paths of outputs. A
// pass may split an input into several of one path, as quantize-boundary does.
std::string ports_of(const Graph& graph) {
  std::set<std::string> paths;
  for (const Input& input : graph.inputs()) paths.insert(input.path);
  std::string text = "inputs";
  for (const std::string& path : paths) text += " '" + path + "'";
  text += ", outputs";
  for (const Output& output : graph.outputs())
    text += (output.kind == OutputKind::kMutation ? " new value of '" : " '") + output.path + "'";
  return text;
}

void require_stage(const passes::Pass& pass, const Graph& taken, const Graph& given) {
  const Stage claimed = pass.stage_after(taken.stage);
  if (given.stage == claimed) return;
  throw InvalidGraph({.where = "pipeline",
                      .what = "pass '" + pass.name + "' returns a graph at another stage than it claims",
                      .expected = std::string(to_string(claimed)),
                      .got = std::string(to_string(given.stage))});
}

// Throws unless the inputs and outputs are the same: a lowering may not change what the caller passes in and
// gets back.
void require_ports(const passes::Pass& pass, const Graph& taken, const Graph& given) {
  const std::string before = ports_of(taken), after = ports_of(given);
  if (before != after)
    throw InvalidGraph({.where = "pipeline",
                        .what = "pass '" + pass.name + "' returns a graph with other inputs or outputs",
                        .expected = before,
                        .got = after});
}

// True if the caller's arrays fit both types: integers may represent floats, and narrower integers may do.
bool fits(const TensorType& before, const TensorType& after) {
  const bool is_other_float = is_float(before.dtype) && is_float(after.dtype) && before.dtype != after.dtype;
  return before.shape == after.shape && !is_other_float;
}

// The types of inputs and outputs, but for legalization, which makes shapes physical.
void require_port_types(const passes::Pass& pass, const Graph& taken, const Graph& given) {
  if (given.stage == Stage::kTosa && taken.stage != Stage::kTosa) return;
  const auto require = [&](const char* side, const std::string& path, ValueId before, ValueId after) {
    if (fits(taken.type(before), given.type(after))) return;
    throw InvalidGraph({.where = "pipeline",
                        .what = "pass '" + pass.name + "' changes the type of " + side + " '" + path + "'",
                        .expected = to_string(taken.type(before)),
                        .got = to_string(given.type(after))});
  };
  std::map<std::pair<InputKind, std::string_view>, ValueId> inputs;
  for (const Input& before : taken.inputs()) inputs.try_emplace({before.kind, before.path}, before.value);
  for (const Input& after : given.inputs())
    if (const auto found = inputs.find({after.kind, after.path}); found != inputs.end())
      require("input", after.path, found->second, after.value);
  for (std::size_t i = 0; i < given.outputs().size(); ++i)
    require("output", given.outputs()[i].path, taken.outputs()[i].value, given.outputs()[i].value);
}

void verify_result(const passes::Pass& pass, const Graph& graph) {
  try {
    verify(graph);
  } catch (const InvalidGraph& error) {
    std::vector<ErrorParts> each = error.each();
    for (ErrorParts& parts : each)
      parts.what = "pass '" + pass.name + "' returns a broken graph: " + parts.what;
    throw InvalidGraph("pipeline", "rules are broken by what pass '" + pass.name + "' returns", each);
  }
}

class Run {
 public:
  Run(std::shared_ptr<const Graph> graph, const target::TargetSpec& target, const LowerOptions& options)
      : graph_(std::move(graph)), options_(options), pass_options_(pass_options(target, options)) {
    const auto start = std::chrono::steady_clock::now();
    const std::uint64_t before = work::total();
    if (options_.verify_each) verify(*graph_);
    const std::size_t nodes = graph_->nodes().size();
    timings_.push_back({"verify", "", 0, seconds_since(start), false, nodes, nodes, work::total() - before});
  }

  void section(std::span<const Step> steps, Section section) {
    for (const Step& step : steps)
      if (step.section == section) run(step);
  }

  // Copies the constants that are views of memory that others own, so that no later pass depends on the
  // owners. `source` is the graph that was lowered: its views are verified too, since passes may have read
  // views that the present graph no longer has.
  void own_constants(const Graph& source) {
    graph_ = tosaic::own_constants(graph_);
    verify_views(source);
  }

  [[nodiscard]] const std::shared_ptr<const Graph>& graph() const { return graph_; }
  // The last graph that a pass took at stage quantized; null if there was none.
  [[nodiscard]] const std::shared_ptr<const Graph>& quantized() const { return quantized_; }
  [[nodiscard]] std::vector<PassTiming> timings() && { return std::move(timings_); }

 private:
  void run(const Step& step) {
    const passes::Pass& pass = step.pass;
    if (graph_->stage == Stage::kQuantized) quantized_ = graph_;
    const std::size_t nodes = graph_->nodes().size();
    PassTiming timing{pass.name, std::string(to_string(step.section)), 0, 0, false, nodes, nodes, 0};
    const std::uint64_t before = work::total();
    auto start = std::chrono::steady_clock::now();
    std::optional<Graph> next;
    if (pass.takes.has(graph_->stage)) next = pass.run(*graph_, pass_options_);
    timing.seconds = seconds_since(start);
    if (next) {
      require_stage(pass, *graph_, *next);
      require_ports(pass, *graph_, *next);
      require_port_types(pass, *graph_, *next);
      graph_ = std::make_shared<const Graph>(std::move(*next));
      timing.changed = true;
      timing.nodes_after = graph_->nodes().size();
      start = std::chrono::steady_clock::now();
      if (options_.verify_each) verify_result(pass, *graph_);
      timing.verify_seconds = seconds_since(start);
      if (options_.on_change) options_.on_change(step, *graph_);
    }
    timing.visits = work::total() - before;
    timings_.push_back(std::move(timing));
  }

  std::shared_ptr<const Graph> graph_, quantized_;
  const LowerOptions& options_;
  passes::PassOptions pass_options_;
  std::vector<PassTiming> timings_;
};

// A pass that claims to make another stage may have returned no graph.
void require_tosa(const Graph& graph) {
  if (graph.stage == Stage::kTosa) return;
  throw InvalidGraph({.where = "pipeline",
                      .what = "the last pass leaves the graph at another stage",
                      .expected = std::string(to_string(Stage::kTosa)),
                      .got = std::string(to_string(graph.stage)),
                      .hint = "A pass that claims to give stage tosa returned no graph"});
}

// Lists rules that nodes break before rules that helper constants break.
void require_target(const Graph& tosa, const target::TargetSpec& target) {
  std::vector<target::Violation> violations = target::check(tosa, target);
  std::stable_partition(violations.begin(), violations.end(),
                        [](const target::Violation& violation) { return violation.node.valid(); });
  std::vector<ErrorParts> broken;
  for (const target::Violation& violation : violations) broken.push_back(violation.parts);
  if (!broken.empty()) throw SpecViolation("target", "rules of " + to_string(target) + " are broken", broken);
}

}  // namespace

Lowered lower(const std::shared_ptr<const Graph>& graph, const Pipeline& pipeline,
              const LowerOptions& options) {
  const target::TargetSpec& target = pipeline.target();
  Lowered lowered;
  if (graph->stage == Stage::kTosa) {
    lowered.exported = lowered.decomposed = lowered.canonical = lowered.tosa = own_constants(graph);
    require_target(*lowered.tosa, target);
    return lowered;
  }
  pipeline.check();
  const std::span<const Step> steps = pipeline.steps();
  Run run(with_boundary_orders(graph, options.orders), target, options);
  run.section(steps, Section::kSimplify);
  run.own_constants(*graph);
  lowered.exported = run.graph();
  run.section(steps, Section::kQuantize);
  try {
    run.section(steps, Section::kDecompose);
    lowered.decomposed = run.graph();
    run.section(steps, Section::kLayout);
    lowered.canonical = run.graph();
    run.section(steps, Section::kLegalize);
    require_tosa(*run.graph());
    lowered.tosa = run.graph();
    require_target(*lowered.tosa, target);
  } catch (const Error& error) {
    if (!target.has(target::Profile::kFp))
      refuse_floats(*lowered.exported, run.quantized() ? *run.quantized() : *lowered.exported, target);
    if (!target.has(target::Profile::kInt)) {
      if (const auto* const unsupported = dynamic_cast<const UnsupportedOp*>(&error))
        refuse_quantization(*lowered.exported, *unsupported, target);
      if (const auto* const broken = dynamic_cast<const SpecViolation*>(&error))
        refuse_quantization(*lowered.exported, *broken, target);
    }
    throw;
  }
  lowered.timings = std::move(run).timings();
  return lowered;
}

std::vector<ErrorParts> problems(const std::shared_ptr<const Graph>& graph, const Pipeline& pipeline,
                                 const LowerOptions& options) {
  try {
    static_cast<void>(lower(graph, pipeline, options));
  } catch (const UnsupportedOp& error) {
    return error.each();
  } catch (const SpecViolation& error) {
    return error.each();
  }
  return {};
}

std::shared_ptr<const Graph> before_integers(const std::shared_ptr<const Graph>& graph) {
  if (graph->stage != Stage::kExported) return graph;
  std::shared_ptr<const Graph> now = graph;
  const Pipeline pipeline = default_pipeline(passes::PassOptions().target);
  for (const Step& step : pipeline.steps()) {
    if (step.pass.name == "lower-to-integer") break;
    if (std::shared_ptr<const Graph> next = run_pass(step.pass, *now)) now = std::move(next);
  }
  return now;
}

std::shared_ptr<const Graph> file_graph(std::shared_ptr<const Graph> graph,
                                        const target::TargetSpec& target) {
  std::optional<Graph> next = passes::state_to_variables(*graph, {.target = target});
  return next ? std::make_shared<const Graph>(std::move(*next)) : std::move(graph);
}

std::shared_ptr<const Graph> run_pass(const passes::Pass& pass, const Graph& graph,
                                      const passes::PassOptions& options) {
  verify(graph);
  if (!pass.takes.has(graph.stage)) return nullptr;
  std::optional<Graph> next = pass.run(graph, options);
  if (!next) return nullptr;
  require_stage(pass, graph, *next);
  verify_result(pass, *next);
  return std::make_shared<const Graph>(std::move(*next));
}

std::shared_ptr<const Graph> run_pass(const std::string& name, const Graph& graph) {
  const passes::Pass* pass = passes::find_pass(name);
  if (pass == nullptr) {
    std::string known;
    for (const passes::Pass& row : passes::all_passes()) known += (known.empty() ? "" : ", ") + row.name;
    throw InvalidGraph({.where = "pipeline",
                        .what = "unknown pass",
                        .expected = "one of " + known,
                        .got = "'" + name + "'"});
  }
  return run_pass(*pass, graph);
}

}  // namespace tosaic::pipeline
