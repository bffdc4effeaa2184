#include "tosaic/pipeline/lower.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <unordered_map>

#include "tosaic/base/work.h"
#include "tosaic/ir/control_flow.h"
#include "tosaic/ir/own_constants.h"
#include "tosaic/ir/verify.h"
#include "tosaic/passes/legalizer.h"
#include "tosaic/passes/lower_to_integer.h"
#include "tosaic/passes/pass.h"
#include "tosaic/target/spec.h"
#include "tosaic/target/support.h"
#include "tosaic/target/type_support.h"

namespace tosaic::pipeline {
namespace {

constexpr std::string_view kToSimplified[] = {"fold-constants", "dead-code", "common-subexpressions",
                                              "simplify", "fold-batch-norm"};
// Only for targets with profile INT. Other targets compute quantize and dequantize nodes in floats, as they
// are.
constexpr std::string_view kToQuantized[] = {"fold-qdq", "fold-constants"};
constexpr std::string_view kToInteger[] = {"lower-to-integer", "quantize-borders"};
constexpr std::string_view kToDecomposed[] = {"decompose", "fold-constants",        "sink-reshapes",
                                              "simplify",  "common-subexpressions", "choose-shapes"};
constexpr std::string_view kToCanonical[] = {"assign-dim-order"};
constexpr std::string_view kToTosa[] = {"legalize-tosa", "fold-constants", "simplify",
                                        "common-subexpressions"};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

passes::PassOptions pass_options(const std::string& target, const LowerOptions& lower_options = {}) {
  const target::TargetSpec spec = target::parse_target(target);
  const passes::FloatBorder by_default =
      spec.has(target::Profile::kFp) ? passes::FloatBorder::kFloat : passes::FloatBorder::kConverted;
  passes::PassOptions options{
      .integer_arithmetic = spec.has(target::Profile::kInt),
      .float_arithmetic = spec.has(target::Profile::kFp),
      .wide_integers = spec.has(target::Extension::kInt16),
      .inputs = lower_options.inputs.value_or(by_default),
      .outputs = lower_options.outputs.value_or(by_default),
      .rounding_mode =
          spec.has(target::Extension::kDoubleRound) ? RoundingMode::kDoubleRound : RoundingMode::kSingleRound,
      .control_flow = spec.has(target::Extension::kControlFlow),
      .transforms = spec.has(target::Extension::kFft),
      .variable_dtypes = {},
      .max_list_size = static_cast<std::size_t>(target::limits(spec.level).max_tensor_list_size),
      .objective = lower_options.objective};
  for (const target::TypeMode& mode : target::type_modes(Op::kTosaVariable, 0))
    if (mode.need.met_by(spec.features)) options.variable_dtypes.push_back(mode.dtypes.front());
  return options;
}

class Run {
 public:
  Run(std::shared_ptr<const Graph> graph, const LowerOptions& options)
      : graph_(std::move(graph)), options_(options), pass_options_(pass_options(options.target, options)) {
    const auto start = std::chrono::steady_clock::now();
    const std::uint64_t before = work::total();
    if (options_.verify_each) verify(*graph_);
    const std::size_t nodes = graph_->nodes().size();
    timings_.push_back({"verify", 0, seconds_since(start), false, nodes, nodes, work::total() - before});
  }

  void pass(const passes::Pass& pass) {
    const std::size_t nodes = graph_->nodes().size();
    PassTiming timing{std::string(pass.name), 0, 0, false, nodes, nodes, 0};
    const std::uint64_t before = work::total();
    auto start = std::chrono::steady_clock::now();
    std::optional<Graph> next = pass.run(*graph_, pass_options_);
    timing.seconds = seconds_since(start);
    if (next) {
      graph_ = std::make_shared<const Graph>(std::move(*next));
      timing.changed = true;
      timing.nodes_after = graph_->nodes().size();
      start = std::chrono::steady_clock::now();
      if (options_.verify_each) verify(*graph_);
      timing.verify_seconds = seconds_since(start);
      if (options_.on_change) options_.on_change(pass.name, *graph_);
    }
    timing.visits = work::total() - before;
    timings_.push_back(std::move(timing));
  }

  void passes(std::span<const std::string_view> names) {
    for (const std::string_view name : names) pass(*passes::find_pass(name));
  }

  // Copies the constants that are still views into the graph, so that later passes do not read memory of
  // others. Then verifies that the views of `source` are unchanged: the passes so far have read constants
  // that the graph no longer has.
  void own_constants(const Graph& source) {
    graph_ = tosaic::own_constants(graph_);
    verify_views(source);
  }

  [[nodiscard]] const std::shared_ptr<const Graph>& graph() const { return graph_; }
  [[nodiscard]] std::vector<PassTiming> timings() && { return std::move(timings_); }

 private:
  std::shared_ptr<const Graph> graph_;
  const LowerOptions& options_;
  passes::PassOptions pass_options_;
  std::vector<PassTiming> timings_;
};

std::vector<std::pair<std::string, DimOrder>> physical_orders(const Graph& canonical, const Graph& tosa) {
  std::unordered_map<std::string_view, const Value*> by_name;
  for (const Value& value : canonical.values()) {
    const bool moved = value.kind == ValueKind::kResult && canonical.node(value.producer).op == Op::kClone;
    if (value.kind != ValueKind::kConstant && !moved) by_name.emplace(value.name, &value);
  }
  std::vector<std::pair<std::string, DimOrder>> orders;
  for (const Value& value : tosa.values()) {
    const auto it = by_name.find(value.name);
    if (it == by_name.end() || value.kind == ValueKind::kConstant) continue;
    const TensorType& logical = it->second->type;
    if (value.type.shape == passes::physical_dims(logical.shape, logical.order))
      orders.emplace_back(value.name, logical.order);
  }
  return orders;
}

Border with_order(Border border, const BorderOrder& order, const TensorType& type, const std::string& who) {
  if (!order.order.is_identity() && order.order.axes(0).size() != type.rank())
    throw InvalidGraph({.where = "lower",
                        .what = who + " has another rank than the dim order declared for it",
                        .expected = "an order of " + std::to_string(type.rank()) + " axes",
                        .got = to_string(order.order.axes(0))});
  border.order = order.order;
  border.physical = order.physical;
  return border;
}

bool quantizes(const Node& node) { return node.op == Op::kQuantize || node.op == Op::kDequantize; }

bool is_quantized(const Graph& graph) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(), quantizes) ||
         std::any_of(graph.values().begin(), graph.values().end(),
                     [](const Value& value) { return value.type.qparams != nullptr; });
}

bool computes_floats(const Graph& graph, const Node& node) {
  const auto is_number = [&](ValueId id) { return id.valid() && is_float(graph.type(id).dtype); };
  const std::span<const ValueId> operands = graph.operands(node);
  bool found = std::any_of(operands.begin(), operands.end(), is_number);
  for (std::uint32_t r = 0; r < node.result_count; ++r) found = found || is_number(graph.result(node, r));
  return found && !quantizes(node);
}

// The operators that compute with floats. Movement and views are reported only if there are no others, since
// they have the dtype of their operands.
std::vector<ErrorParts> float_operators(const Graph& graph) {
  std::vector<ErrorParts> computing, moving;
  for (const Node& node : graph.nodes()) {
    if (!computes_floats(graph, node)) continue;
    const OpInfo& row = info(node.op);
    const bool moves = row.has(kMovement) || row.has(kView);
    (moves ? moving : computing)
        .push_back(located({.where = "lower",
                            .what = "'" + std::string(row.name) + "' " + (moves ? "moves" : "computes with") +
                                    " floats: it was not quantized"},
                           node.origin, graph.node_name(node)));
  }
  return computing.empty() ? moving : computing;
}

// The reasons why operators of a quantized program still compute with floats: those that integer lowering
// reports, or, if there are none, the operators that were not quantized.
std::vector<ErrorParts> left_to_floats(const Graph& quantized, const std::string& target) {
  const passes::PassOptions options = pass_options(target);
  const passes::LoweredToInteger lowered = passes::lower_to_integer(quantized, options);
  if (!lowered.left.empty()) return lowered.left;
  const std::optional<Graph> bordered = passes::quantize_borders(lowered.graph, options);
  return float_operators(bordered ? *bordered : lowered.graph);
}

std::vector<ErrorParts> behind(const ErrorParts& cause, std::vector<ErrorParts> effects) {
  effects.insert(effects.begin(), cause);
  return effects;
}

// For a target without profile FP: throws UnsupportedOp with the operators that still need floats, since
// they cause all other errors. Returns if there are none.
void require_integers(const Graph& exported, const Graph& quantized, const std::string& target) {
  const std::string needs = "nodes need floats, which " + target + " lacks";
  if (quantized.stage == Stage::kQuantized && is_quantized(exported)) {
    const std::vector<ErrorParts> left = left_to_floats(quantized, target);
    if (!left.empty()) throw UnsupportedOp("lower-to-integer", needs, left);
    return;
  }
  const std::vector<ErrorParts> all = float_operators(exported);
  if (all.empty()) return;
  const ErrorParts cause{.where = "lower",
                         .what = "this program computes with floats, and " + target + " has none",
                         .hint =
                             "Quantize it first, e.g. with prepare_pt2e and convert_pt2e of torchao, or "
                             "lower it for TOSA-1.0+FP"};
  throw UnsupportedOp("lower", "problems keep this program from " + target + ": quantize it first",
                      behind(cause, all));
}

// For a target without profile INT: if the program is quantized, throws an error of type E that names this
// as the cause, followed by the parts of `error`. Returns if the program is not quantized, or if all parts
// are about foreign operators.
template <class E>
void require_floats(const Graph& exported, const E& error, const std::string& target) {
  const auto is_about_foreign = [&](const ErrorParts& parts) {
    return std::any_of(exported.nodes().begin(), exported.nodes().end(), [&](const Node& node) {
      return is_foreign(node.op) && exported.node_name(node) == parts.node;
    });
  };
  const std::vector<ErrorParts>& each = error.each();
  if (!is_quantized(exported) || std::all_of(each.begin(), each.end(), is_about_foreign)) return;
  const bool wide = std::any_of(exported.nodes().begin(), exported.nodes().end(), [](const Node& node) {
    return node.op == Op::kQuantize && Graph::attrs<QuantizeAttrs>(node).dtype == DType::kI16;
  });
  const std::string fitting = "TOSA-1.0+INT" + std::string(wide ? "+int16" : "");
  const ErrorParts cause{.where = "lower",
                         .what = "this program is quantized, and " + target + " has no integer arithmetic",
                         .hint = "Lower it for " + fitting};
  throw E("lower", "problems keep this program from " + target + ": it is quantized, lower it for " + fitting,
          behind(cause, each));
}

// Throws SpecViolation if rules of the target are broken. Rules that nodes break are listed before those
// that helper constants break.
void require_target(const Graph& tosa, const std::string& target) {
  std::vector<target::Violation> violations = target::check(tosa, target::parse_target(target));
  std::stable_partition(violations.begin(), violations.end(),
                        [](const target::Violation& violation) { return violation.node.valid(); });
  std::vector<ErrorParts> broken;
  for (const target::Violation& violation : violations) broken.push_back(violation.parts);
  if (!broken.empty()) throw SpecViolation("target", "rules of " + target + " are broken", broken);
}

}  // namespace

std::shared_ptr<const Graph> with_border_orders(std::shared_ptr<const Graph> graph,
                                                const LowerOptions& options) {
  if (options.input_orders.empty() && options.output_orders.empty()) return graph;
  Graph out = *graph;
  for (std::size_t i = 0; i < std::min(out.inputs().size(), options.input_orders.size()); ++i) {
    const Input& input = out.inputs()[i];
    if (const std::optional<BorderOrder>& order = options.input_orders[i])
      out.set_input_border(
          i, with_order(input.border, *order, out.type(input.value), "input '" + input.path + "'"));
  }
  for (std::size_t i = 0; i < std::min(out.outputs().size(), options.output_orders.size()); ++i) {
    const Output& output = out.outputs()[i];
    if (const std::optional<BorderOrder>& order = options.output_orders[i])
      out.set_output_border(
          i, with_order(output.border, *order, out.type(output.value), "output '" + output.path + "'"));
  }
  return std::make_shared<const Graph>(std::move(out));
}

Lowered lower(const std::shared_ptr<const Graph>& graph, const LowerOptions& options) {
  static_cast<void>(target::parse_target(options.target));  // throws for a wrong target before any work
  Lowered lowered;
  if (graph->stage == Stage::kTosa) {
    lowered.exported = lowered.decomposed = lowered.canonical = lowered.tosa = own_constants(graph);
    require_target(*lowered.tosa, options.target);
    return lowered;
  }
  const passes::PassOptions target = pass_options(options.target);
  Run run(with_border_orders(graph, options), options);
  run.passes(kToSimplified);
  run.own_constants(*graph);
  lowered.exported = run.graph();
  std::shared_ptr<const Graph> quantized;
  if (target.integer_arithmetic) {
    run.passes(kToQuantized);
    quantized = run.graph();
    run.passes(kToInteger);
  }
  try {
    run.passes(kToDecomposed);
    lowered.decomposed = run.graph();
    run.passes(kToCanonical);
    lowered.canonical = run.graph();
    run.passes(kToTosa);
    lowered.tosa = run.graph();
    require_target(*lowered.tosa, options.target);
  } catch (const Error& error) {  // throws the cause instead, if it is known
    if (quantized && !target.float_arithmetic)
      require_integers(*lowered.exported, *quantized, options.target);
    if (!target.integer_arithmetic) {
      if (const auto* const unsupported = dynamic_cast<const UnsupportedOp*>(&error))
        require_floats(*lowered.exported, *unsupported, options.target);
      if (const auto* const broken = dynamic_cast<const SpecViolation*>(&error))
        require_floats(*lowered.exported, *broken, options.target);
    }
    throw;
  }
  lowered.timings = std::move(run).timings();
  lowered.orders = physical_orders(*lowered.canonical, *lowered.tosa);
  return lowered;
}

std::vector<ErrorParts> problems(const std::shared_ptr<const Graph>& graph, const LowerOptions& options) {
  static_cast<void>(target::parse_target(options.target));
  try {
    static_cast<void>(lower(graph, options));
  } catch (const UnsupportedOp& error) {
    return error.each();
  } catch (const SpecViolation& error) {
    return error.each();
  }
  return {};
}

std::shared_ptr<const Graph> file_graph(std::shared_ptr<const Graph> graph, const std::string& target) {
  std::optional<Graph> next = passes::state_to_variables(*graph, pass_options(target));
  return next ? std::make_shared<const Graph>(std::move(*next)) : std::move(graph);
}

std::shared_ptr<const Graph> run_pass(const std::string& name, const Graph& graph) {
  const passes::Pass* pass = passes::find_pass(name);
  if (pass == nullptr) {
    std::string known;
    for (const passes::Pass& row : passes::all_passes())
      known += (known.empty() ? "" : ", ") + std::string(row.name);
    throw InvalidGraph({.where = "pipeline",
                        .what = "unknown pass",
                        .expected = "one of " + known,
                        .got = "'" + name + "'"});
  }
  verify(graph);
  std::optional<Graph> next = pass->run(graph, {});
  if (!next) return nullptr;
  verify(*next);
  return std::make_shared<const Graph>(std::move(*next));
}

}  // namespace tosaic::pipeline
