#include "tosaic/pipeline/lower.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "tosaic/base/error_text.h"
#include "tosaic/base/rethrow.h"
#include "tosaic/base/team.h"
#include "tosaic/base/work.h"
#include "tosaic/exec/boundary.h"
#include "tosaic/ir/own_constants.h"
#include "tosaic/ir/verify.h"
#include "tosaic/passes/place_notes.h"
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
          .inputs = {options.inputs.by_default.value_or(by_default), options.inputs.by_index},
          .outputs = {options.outputs.by_default.value_or(by_default), options.outputs.by_index},
          .objective = options.objective,
          .semantics = options.semantics};
}

// The path of an input or output, and the shape of the caller's array, as text: "'args[0]' [1,3,8,8]".
template <class Port>
std::string port_of(const Graph& graph, const Port& port) {
  const Shape shape = exec::array_format(graph.stage, graph.type(port.value), port.boundary).shape;
  return quoted(port.path) + " " + to_string(shape);
}

// The inputs and outputs of a graph as text: paths and shapes of inputs, each once, and kinds, paths and
// shapes of outputs. A pass may split an input into several of one path, as quantize-boundary does.
std::string ports_of(const Graph& graph) {
  std::set<std::string> inputs;
  for (const Input& input : graph.inputs()) inputs.insert(port_of(graph, input));
  std::string text = "inputs";
  for (const std::string& input : inputs) text += " " + input;
  text += ", outputs";
  for (const Output& output : graph.outputs())
    text += (output.kind == OutputKind::kMutation ? " new value of " : " ") + port_of(graph, output);
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

// Throws unless the caller of both graphs passes in and gets back the same arrays: a lowering may not change
// inputs and outputs. Their floats may become integers, as in quantize-boundary, and their integers narrower
// integers, as in legalize-tosa, but floats may not become floats of another dtype. Both graphs are valid.
void require_same_boundary(const passes::Pass& pass, const Graph& taken, const Graph& given) {
  const std::string ports = ports_of(taken), given_ports = ports_of(given);
  if (ports != given_ports)
    throw InvalidGraph({.where = "pipeline",
                        .what = "pass '" + pass.name + "' returns a graph with other inputs or outputs",
                        .expected = ports,
                        .got = given_ports});
  const auto require_type = [&](const char* side, const std::string& path, ValueId before, ValueId after) {
    const DType was = taken.type(before).dtype, is = given.type(after).dtype;
    if (was == is || !is_float(was) || !is_float(is)) return;
    throw InvalidGraph({.where = "pipeline",
                        .what = "pass '" + pass.name + "' changes the type of " + side + " '" + path + "'",
                        .expected = to_string(taken.type(before)),
                        .got = to_string(given.type(after))});
  };
  std::map<std::pair<InputKind, std::string_view>, ValueId> inputs;
  for (const Input& before : taken.inputs()) inputs.try_emplace({before.kind, before.path}, before.value);
  for (const Input& after : given.inputs())
    if (const auto found = inputs.find({after.kind, after.path}); found != inputs.end())
      require_type("input", after.path, found->second, after.value);
  for (std::size_t i = 0; i < given.outputs().size(); ++i)
    require_type("output", given.outputs()[i].path, taken.outputs()[i].value, given.outputs()[i].value);
}

// How the text of an error names the pass that is at fault. `lead` starts the text of each fault, and
// `headline` describes several faults. The fault is in the code of the pass, or in the graph that it returns.
struct Blame {
  std::string lead, headline;
};

template <class E>
[[noreturn]] void rethrow(const E& error, const Blame& blame) {
  std::vector<ErrorParts> each = error.each();
  for (ErrorParts& parts : each)
    if (!parts.what.starts_with(blame.lead)) parts.what = blame.lead + ": " + parts.what;
  throw E("pipeline", blame.headline, each);
}

// Runs `body`. An error of tosaic that `body` throws is thrown again, as an error of the same class, with
// `blame` in its text.
void with_blame(const Blame& blame, const std::function<void()>& body) {
  with_errors_rethrown(body, [&blame](const auto& error) { rethrow(error, blame); });
}

[[noreturn]] void refuse_exception(const passes::Pass& pass, const std::exception& error) {
  throw InvalidGraph({.where = "pipeline",
                      .what = "pass '" + pass.name + "' threw an exception",
                      .got = quoted(error.what())});
}

// Errors of tosaic's own passes are about the program, and name its nodes. Errors of other passes name the
// pass.
bool is_of_tosaic(const passes::Pass& pass) { return passes::find_pass(pass.name) != nullptr; }

std::optional<Graph> result_of(const passes::Pass& pass, const Graph& graph,
                               const passes::PassOptions& options) {
  if (!pass.run)
    throw InvalidGraph({.where = "pipeline",
                        .what = "pass '" + pass.name + "' has no function",
                        .expected = "Pass::run, a function of the graph",
                        .got = "an empty function"});
  if (is_of_tosaic(pass)) return pass.run(graph, options);
  std::optional<Graph> result;
  const std::string name = "pass '" + pass.name + "'";
  with_exceptions_refused(
      [&] {
        with_blame({name + " failed", "faults in " + name}, [&] { result = pass.run(graph, options); });
      },
      [&](const std::exception& error) { refuse_exception(pass, error); });
  return result;
}

void verify_result(const passes::Pass& pass, const Graph& graph) {
  const std::string name = "pass '" + pass.name + "'";
  const Blame blame{name + " returns a broken graph", "rules are broken by what " + name + " returns"};
  if (!is_of_tosaic(pass)) return with_blame(blame, [&] { verify(graph); });
  try {
    verify(graph);
  } catch (const InvalidGraph& error) {
    rethrow(error, blame);
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

  // From here on, constants are not views of memory that others own, but copies of it, made later.
  void own_constants_later() { graph_ = tosaic::own_constants_later(graph_); }

  // Computes the constants, so that the graphs do not depend on memory of others. `source` is the graph that
  // was lowered: its views are verified, since passes and copies have read them.
  void compute_constants(const Graph& source, std::span<const std::shared_ptr<const Graph>> stages,
                         const Places& places) {
    std::vector<std::shared_ptr<const Graph>> others(stages.begin(), stages.end());
    others.insert(others.end(), seen_.begin(), seen_.end());
    std::optional<Team> team;
    if (options_.threads > 1) team.emplace(options_.threads);
    tosaic::compute_constants(*graph_, others, team ? &*team : nullptr, places);
    verify_views(source);
  }

  [[nodiscard]] const std::shared_ptr<const Graph>& graph() const { return graph_; }
  // The first pass that was skipped because it does not take graphs at the stage of graph(); null if there is
  // none. Passes that take only stage tosa do not count.
  [[nodiscard]] const Step* skipped() const {
    const auto found = std::ranges::find_if(skipped_, [this](const Skipped& each) {
      return each.stage == graph_->stage && !(each.step->pass.takes == passes::StageSet{Stage::kTosa});
    });
    return found == skipped_.end() ? nullptr : found->step;
  }
  // The last graph in which no value is divided: if the last passes that changed the graph have
  // Pass::divides, the graph before these passes. Otherwise graph().
  [[nodiscard]] const std::shared_ptr<const Graph>& whole() const { return whole_ ? whole_ : graph_; }
  // The last graph that a pass took at stage quantized; null if there was none.
  [[nodiscard]] const std::shared_ptr<const Graph>& quantized() const { return quantized_; }
  [[nodiscard]] std::vector<PassTiming> timings() && { return std::move(timings_); }

 private:
  struct Skipped {
    const Step* step;
    Stage stage;  // the stage of the graph that the pass does not take
  };

  void run(const Step& step) {
    const passes::Pass& pass = step.pass;
    if (graph_->stage == Stage::kQuantized) quantized_ = graph_;
    const std::size_t nodes = graph_->nodes().size();
    PassTiming timing{pass.name, std::string(to_string(step.section)), 0, 0, false, nodes, nodes, 0};
    const std::uint64_t before = work::total();
    auto start = std::chrono::steady_clock::now();
    std::optional<Graph> next;
    if (pass.takes.has(graph_->stage))
      next = result_of(pass, *graph_, pass_options_);
    else
      skipped_.push_back({&step, graph_->stage});
    timing.seconds = seconds_since(start);
    if (next) {
      require_stage(pass, *graph_, *next);
      start = std::chrono::steady_clock::now();
      if (options_.verify_each) verify_result(pass, *next);
      timing.verify_seconds = seconds_since(start);
      require_same_boundary(pass, *graph_, *next);
      if (!pass.divides)
        whole_ = nullptr;  // it would lack what this pass changed
      else if (whole_ == nullptr)
        whole_ = graph_;
      graph_ = std::make_shared<const Graph>(std::move(*next));
      timing.changed = true;
      timing.nodes_after = graph_->nodes().size();
      if (options_.on_change) {
        options_.on_change(step, *graph_);
        seen_.push_back(graph_);
      }
    }
    timing.visits = work::total() - before;
    timings_.push_back(std::move(timing));
  }

  std::shared_ptr<const Graph> graph_, quantized_, whole_;
  std::vector<std::shared_ptr<const Graph>> seen_;  // the graphs that on_change got
  const LowerOptions& options_;
  passes::PassOptions pass_options_;
  std::vector<PassTiming> timings_;
  std::vector<Skipped> skipped_;
};

// Refuses a lowering that ends at another stage than tosa. The message names the first pass that was skipped
// at that stage, and the pass of the default pipeline that makes a graph of a stage which the skipped pass
// takes.
void require_tosa(const Run& run, const Pipeline& pipeline) {
  const Stage stage = run.graph()->stage;
  if (stage == Stage::kTosa) return;
  std::string hint;
  if (const Step* const skipped = run.skipped()) {
    hint = "Pass " + quoted(skipped->id()) + " was skipped, because it takes graphs at stage " +
           passes::to_string(skipped->pass.takes);
    const Pipeline full = default_pipeline(passes::PassOptions().target);
    const auto leads = std::ranges::find_if(full.steps(), [&](const Step& step) {
      return step.pass.takes.has(stage) && step.pass.makes && skipped->pass.takes.has(*step.pass.makes);
    });
    if (leads != full.steps().end()) {
      const std::vector<std::string> absent = absent_passes(pipeline, leads->section);
      const bool is_absent = std::ranges::find(absent, leads->pass.name) != absent.end();
      hint += ". The pipeline " +
              (is_absent ? "lacks " + quoted(leads->pass.name)
                         : "has " + quoted(leads->pass.name) + ", or a pass in its place,") +
              (is_absent ? ", which makes" : " which did not make") + " a graph at stage " +
              std::string(to_string(*leads->pass.makes));
    }
  }
  const auto claims = std::ranges::find_if(pipeline.steps(),
                                           [](const Step& step) { return step.pass.makes == Stage::kTosa; });
  if (hint.empty() && claims != pipeline.steps().end())
    hint = "Pass " + quoted(claims->id()) + " claims to make a graph at stage tosa, and returned none";
  throw InvalidGraph({.where = "pipeline",
                      .what = "the passes of the pipeline do not lead to stage tosa",
                      .expected = "a graph at stage tosa after the last pass",
                      .got = "a graph at stage " + std::string(to_string(stage)),
                      .hint = std::move(hint)});
}

// ": lower for TOSA-1.0+FP+bf16", if extensions that the target lacks are all that is missing.
std::string target_that_has_all(const std::vector<target::Violation>& violations,
                                const target::TargetSpec& target) {
  target::Features missing = 0;
  for (const target::Violation& violation : violations) {
    if (violation.missing == 0) return "";
    missing |= violation.missing;
  }
  if (target::extensions_of(missing) == 0) return "";
  return ": lower for " + to_string(target::with_features(target, missing));
}

// Throws SpecViolation if the target cannot run the graph. Lists the rules that nodes break first, and then
// those that helper constants break.
void require_target(const Graph& tosa, const target::TargetSpec& target) {
  std::vector<target::Violation> violations = target::check(tosa, target);
  std::stable_partition(violations.begin(), violations.end(),
                        [](const target::Violation& violation) { return violation.node.valid(); });
  std::vector<ErrorParts> broken;
  for (const target::Violation& violation : violations) broken.push_back(violation.parts);
  if (!broken.empty())
    throw SpecViolation(
        "target", "rules of " + to_string(target) + " are broken" + target_that_has_all(violations, target),
        broken);
}

// Does the same as lower(), but computes the constants of the graphs only if `constants` is true.
Lowered lower_graph(const std::shared_ptr<const Graph>& graph, const Pipeline& pipeline,
                    const LowerOptions& options, bool constants) {
  const target::TargetSpec& target = pipeline.target();
  Lowered lowered;
  if (graph->stage == Stage::kTosa) {
    lowered.exported = lowered.decomposed = lowered.canonical = lowered.tosa = own_constants(graph);
    lowered.whole = lowered.tosa;
    require_target(*lowered.tosa, target);
    return lowered;
  }
  pipeline.check();
  const std::span<const Step> steps = pipeline.steps();
  Run run(with_boundary_orders(graph, options.orders), target, options);
  run.own_constants_later();
  run.section(steps, Section::kSimplify);
  lowered.exported = run.graph();
  run.section(steps, Section::kQuantize);
  try {
    run.section(steps, Section::kDecompose);
    lowered.decomposed = run.graph();
    run.section(steps, Section::kLayout);
    lowered.canonical = run.graph();
    run.section(steps, Section::kLegalize);
    lowered.tosa = run.graph();
    lowered.whole = run.whole();
    const auto end = std::chrono::steady_clock::now();
    if (lowered.tosa->stage == Stage::kTosa) require_target(*lowered.tosa, target);
    lowered.check_seconds = seconds_since(end);
  } catch (const Error& error) {
    refuse_changed_pipeline(*lowered.exported, lowered.decomposed.get(), error, pipeline);
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
  require_tosa(run, pipeline);
  const Places places = constants && options.places ? options.places(lowered.tosa) : Places();
  lowered.notes = passes::constant_notes(*lowered.tosa, *graph, target);
  std::ranges::move(passes::place_notes(*lowered.exported), std::back_inserter(lowered.notes));
  const auto begin = std::chrono::steady_clock::now();
  if (constants)
    run.compute_constants(
        *graph, std::array{lowered.exported, lowered.decomposed, lowered.canonical, lowered.whole}, places);
  lowered.constants_seconds = seconds_since(begin);
  lowered.timings = std::move(run).timings();
  return lowered;
}

}  // namespace

Lowered lower(const std::shared_ptr<const Graph>& graph, const Pipeline& pipeline,
              const LowerOptions& options) {
  return lower_graph(graph, pipeline, options, true);
}

Trial try_to_lower(const std::shared_ptr<const Graph>& graph, const Pipeline& pipeline,
                   const LowerOptions& options) {
  try {
    return {{}, lower_graph(graph, pipeline, options, false).tosa};
  } catch (const UnsupportedOp& error) {
    return {error.each(), nullptr};
  } catch (const SpecViolation& error) {
    return {error.each(), nullptr};
  }
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

std::shared_ptr<const Graph> before_layout(const std::shared_ptr<const Graph>& graph,
                                           const Pipeline& pipeline, const LowerOptions& options) {
  Run run(with_boundary_orders(graph, options.orders), pipeline.target(), options);
  for (const Section section : {Section::kSimplify, Section::kQuantize, Section::kDecompose})
    run.section(pipeline.steps(), section);
  return run.graph();
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
  std::optional<Graph> next = result_of(pass, graph, options);
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
    throw InvalidGraph(
        {.where = "pipeline", .what = "unknown pass", .expected = "one of " + known, .got = quoted(name)});
  }
  return run_pass(*pass, graph);
}

}  // namespace tosaic::pipeline
