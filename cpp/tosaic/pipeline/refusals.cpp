#include "tosaic/pipeline/refusals.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tosaic/base/error_text.h"
#include "tosaic/ir/control_flow.h"
#include "tosaic/passes/lower_to_integer/lower_to_integer.h"
#include "tosaic/passes/pass.h"
#include "tosaic/passes/qdq/qdq.h"
#include "tosaic/quant/unit_of_constant.h"
#include "tosaic/target/type_support.h"

namespace tosaic::pipeline {
namespace {

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

// Why a constant that the node reads cannot be represented by integers; empty if all constants can.
std::string why_constant_is_float(const Graph& graph, const Node& node) {
  for (const ValueId id : graph.operands(node)) {
    const ConstantRef constant = id.valid() ? graph.value(id).constant : nullptr;
    const std::string reason = constant ? quant::why_no_unit(*constant) : "";
    if (!reason.empty()) return "the constant " + quoted(graph.value(id).name) + " " + reason;
  }
  return {};
}

// The error that an operator computes with floats, or moves them. A foreign operator is named by its target.
// It can compute with integers only if its description has a function for integers.
ErrorParts float_operator(const Graph& graph, const Node& node, bool moves) {
  const std::string reason = moves ? why_constant_is_float(graph, node) : "";
  const auto parts = [&](const std::string& name, std::string hint) {
    return located({.where = "lower",
                    .what = quoted(name) + " " + (moves ? "moves" : "computes with") +
                            " floats: " + (reason.empty() ? "it was not quantized" : reason),
                    .hint = std::move(hint)},
                   node.origin, graph.node_name(node));
  };
  if (node.op != Op::kOpaque) return parts(std::string(info(node.op).name), {});
  const auto& attrs = Graph::attrs<OpaqueAttrs>(node);
  if (attrs.integers) return parts(attrs.target, "Quantize all its float operands and results");
  return parts(
      attrs.target,
      "Leave it on the host, tosaic.lower(..., unsupported='split'), or quantize its operands and results "
      "and describe it with a function of integers: tosaic.ports.ForeignOp('" +
          attrs.target + "', ..., quantized=function)");
}

// The operators that compute with floats: those that a quantizer omitted, or all of them. Movement of floats
// is reported only if nothing computes with floats.
std::vector<ErrorParts> float_operators(const Graph& graph) {
  std::vector<ErrorParts> computing, moving;
  for (const Node& node : graph.nodes()) {
    if (!computes_floats(graph, node)) continue;
    const OpInfo& row = info(node.op);
    const bool moves = row.has(kMovement) || row.has(kView);
    (moves ? moving : computing).push_back(float_operator(graph, node, moves));
  }
  return computing.empty() ? moving : computing;
}

// "output 'out'", "the state 'total'" or "the new value of input 'x'".
std::string described(const Graph& graph, const Output& output) {
  if (output.kind == OutputKind::kUser) return "output " + quoted(output.path);
  const bool is_state = graph.inputs()[output.mutated_input].kind == InputKind::kState;
  return (is_state ? "the state " : "the new value of input ") + quoted(output.path);
}

// The inputs and outputs without elements: no target has such tensors.
std::vector<ErrorParts> empty_ports(const Graph& graph) {
  std::vector<ErrorParts> found;
  const auto add = [&](const std::string& what, ValueId id, std::string hint) {
    const Value& value = graph.value(id);
    if (num_elements(value.type.shape) != 0) return;
    found.push_back({.where = "lower",
                     .what = what + " of shape " + to_string(value.type.shape) +
                             " has no elements, which TOSA does not allow",
                     .node = value.name,
                     .hint = std::move(hint)});
  };
  for (const Input& input : graph.inputs())
    add("input " + quoted(input.path), input.value, "Export the module with an input that has elements");
  for (const Output& output : graph.outputs())
    add(described(graph, output), output.value, "Do not return it");
  return found;
}

bool has_axis(const passes::PortQuantization& port) {
  return std::ranges::any_of(port.found, [](const QParamsRef& each) { return each->axis.has_value(); });
}

// The inputs and outputs of floats, with the reasons why they do not become integers.
std::vector<ErrorParts> float_ports(const Graph& graph) {
  std::vector<ErrorParts> found;
  const passes::IoQuantization known = passes::io_quantization(graph);
  const auto add = [&](const std::string& what, ValueId id, const std::string& why) {
    const DType dtype = graph.type(id).dtype;
    if (!is_float(dtype)) return;
    found.push_back({.where = "lower",
                     .what = what + " stays " + std::string(to_string(dtype)) + ": " + why,
                     .node = graph.value(id).name});
  };
  for (std::size_t i = 0; i < graph.inputs().size(); ++i) {
    const Input& input = graph.inputs()[i];
    const bool is_state = input.kind == InputKind::kState;
    const std::string& obstacle = known.inputs[i].obstacle;
    add((is_state ? "the state " : "input ") + quoted(input.path), input.value,
        !obstacle.empty()           ? obstacle
        : has_axis(known.inputs[i]) ? "it has a scale for each channel, and boundaries have one"
        : is_state                  ? "it is not quantized as its new value is"
                                    : "its quantization differs from that of its new value");
  }
  for (std::size_t i = 0; i < graph.outputs().size(); ++i) {
    const Output& output = graph.outputs()[i];
    const std::string& obstacle = known.outputs[i].obstacle;
    if (output.kind == OutputKind::kUser)
      add(described(graph, output), output.value, obstacle.empty() ? "it is not dequantized" : obstacle);
  }
  return found;
}

// The outputs of floats that no operator computes: the program returns an input or a constant unchanged.
std::vector<ErrorParts> float_outputs(const Graph& graph) {
  std::vector<ErrorParts> found;
  for (const Output& output : graph.outputs()) {
    const Value& value = graph.value(output.value);
    if (!is_float(value.type.dtype) || value.kind == ValueKind::kResult) continue;
    const bool is_constant = value.kind == ValueKind::kConstant;
    std::string what = described(graph, output);
    what += is_constant ? " is the constant " : " is the input ";
    what += quoted(value.name);
    const std::string reason = is_constant ? quant::why_no_unit(*value.constant) : "";
    what += reason.empty() ? " as floats: it was not quantized" : ", which " + reason;
    std::string hint =
        reason.empty() ? "Quantize what is returned, e.g. with a rule tosaic.annotation.Outputs" : "";
    found.push_back({.where = "lower", .what = std::move(what), .hint = std::move(hint)});
  }
  return found;
}

// The operators that compute with floats; if there are none, the outputs of floats that are not computed; if
// there are none, the inputs and outputs of floats.
std::vector<ErrorParts> float_parts(const Graph& graph) {
  std::vector<ErrorParts> found = float_operators(graph);
  if (found.empty()) found = float_outputs(graph);
  return found.empty() ? float_ports(graph) : found;
}

// The reasons why operators of a quantized program still compute with floats: those that integer lowering
// reports or, if it reports none, that no quantizer has quantized an operator.
std::vector<ErrorParts> left_to_floats(const Graph& quantized, const target::TargetSpec& target) {
  const passes::LoweredToInteger lowered = passes::lower_to_integer(quantized, passes::integer_rules(target));
  if (!lowered.left.empty()) return lowered.left;
  const std::optional<Graph> with_integer_boundary =
      passes::quantize_boundary(lowered.graph, {.target = target});
  return float_parts(with_integer_boundary ? *with_integer_boundary : lowered.graph);
}

// The target `base`, with profile FP and with the extensions that the program's float dtypes and control flow
// need, such as TOSA-1.0+FP+bf16.
std::string float_target(const Graph& graph, target::TargetSpec base = {}) {
  target::TargetSpec out = std::move(base);
  out.features |= target::bit(target::Profile::kFp);
  const auto add = [&out](const target::Need* need) {
    if (need != nullptr) out = target::with_features(out, target::missing(*need, out.features));
  };
  for (const Value& value : graph.values())
    if (is_float(value.type.dtype)) add(target::constant_need(value.type.dtype));
  for (const Node& node : graph.nodes())
    if (!node.regions.empty()) add(target::untyped_need(Op::kTosaCondIf));
  return to_string(out);
}

// The reason of a program that quantizes activations with parameters of each run: they are computed from
// floats.
std::optional<ErrorParts> dynamic_quantization(const Graph& graph) {
  for (const Node& node : graph.nodes())
    for (const OriginRef& leaf : leaves(node.origin))
      if (leaf->target.find("choose_qparams") != std::string::npos)
        return located(
            {.where = "lower",
             .what = "quantization parameters are computed in every run, from floats",
             .hint = "Use static quantization: calibrate the model as it was before its activations "
                     "were quantized so, then convert"},
            leaf, leaf->fx_name);
  return std::nullopt;
}

std::vector<ErrorParts> behind(const ErrorParts& cause, std::vector<ErrorParts> effects) {
  effects.insert(effects.begin(), cause);
  return effects;
}

template <class E>
void refuse_quantized(const Graph& exported, const E& error, const target::TargetSpec& target) {
  const std::string name = to_string(target);
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
                         .what = "this program is quantized, and " + name + " has no integer arithmetic",
                         .hint = "Lower it for " + fitting};
  throw E("lower", "problems keep this program from " + name + ": it is quantized, lower it for " + fitting,
          behind(cause, each));
}

// The fault of the pipeline that is the cause of a refusal. Two faults are known: the pipeline lacks passes
// of section quantize that a quantized program needs on a target without floats, or a pass that replaces
// `decompose` leaves composites. Returns nothing if the pipeline has neither.
std::optional<ErrorParts> cause_in_pipeline(const Graph& exported, const Graph* decomposed,
                                            const Pipeline& pipeline) {
  if (!pipeline.target().has(target::Profile::kFp) && is_quantized(exported)) {
    std::string names;
    for (const std::string& name : absent_passes(pipeline, Section::kQuantize))
      names += (names.empty() ? "'" : ", '") + name + "'";
    if (!names.empty())
      return ErrorParts{
          .where = "pipeline",
          .what = "this program is quantized, and the pipeline has no " + names + ", so that floats are left",
          .hint = "Do not remove it from the pipeline"};
  }
  for (const Step& step : pipeline.steps()) {
    const std::vector<std::string>& serves = step.pass.serves_as;
    if (decomposed == nullptr || std::ranges::find(serves, "decompose") == serves.end()) continue;
    if (decomposed->stage == Stage::kTosa || !passes::decompose(*decomposed)) continue;
    return ErrorParts{.where = "pipeline",
                      .what = "pass '" + step.id() +
                              "' stands in the place of 'decompose', and does not expand " +
                              "all composite operators",
                      .hint = "Insert it before 'decompose' instead of replacing that"};
  }
  return std::nullopt;
}

template <class E>
void rethrow_behind(const ErrorParts& cause, const Error& error, const target::TargetSpec& target) {
  if (dynamic_cast<const E*>(&error) == nullptr) return;
  throw E("pipeline",
          "problems keep this program from " + to_string(target) + ": the first is a fault of the pipeline",
          behind(cause, error.each()));
}

}  // namespace

void refuse_changed_pipeline(const Graph& exported, const Graph* decomposed, const Error& error,
                             const Pipeline& pipeline) {
  const std::optional<ErrorParts> cause = cause_in_pipeline(exported, decomposed, pipeline);
  if (!cause) return;
  rethrow_behind<UnsupportedOp>(*cause, error, pipeline.target());
  rethrow_behind<SpecViolation>(*cause, error, pipeline.target());
}

void refuse_floats(const Graph& exported, const Graph& quantized, const target::TargetSpec& target) {
  const std::string name = to_string(target);
  if (const std::vector<ErrorParts> empty = empty_ports(exported); !empty.empty())
    throw UnsupportedOp("lower", "problems keep this program from " + name, empty);
  if (quantized.stage == Stage::kQuantized && is_quantized(exported)) {
    std::vector<ErrorParts> left = left_to_floats(quantized, target);
    if (left.empty()) return;
    const std::string way_out = "ower for " + float_target(exported, target) +
                                ", or leave what needs floats on the host: unsupported='split'";
    if (left.size() == 1 && left.front().hint.empty()) left.front().hint = "L" + way_out;
    if (const std::optional<ErrorParts> cause = dynamic_quantization(exported))
      throw UnsupportedOp("lower", "problems keep this program from " + name + ": quantize it statically",
                          behind(*cause, left));
    throw UnsupportedOp("lower-to-integer", "nodes need floats, which " + name + " lacks: l" + way_out, left);
  }
  const std::vector<ErrorParts> computing = float_operators(exported);
  const std::vector<ErrorParts> all = computing.empty() ? float_outputs(exported) : computing;
  if (all.empty()) return;
  const std::string verb = computing.empty() ? "returns" : "computes with";
  const ErrorParts cause{.where = "lower",
                         .what = "this program " + verb + " floats, and " + name + " has none",
                         .hint =
                             "Quantize it first, e.g. with prepare_pt2e and convert_pt2e of torchao, or "
                             "lower it for " +
                             float_target(exported)};
  const std::optional<ErrorParts> dynamic = dynamic_quantization(exported);
  throw UnsupportedOp("lower", "problems keep this program from " + name + ": quantize it first",
                      behind(dynamic.value_or(cause), all));
}

void refuse_quantization(const Graph& exported, const UnsupportedOp& error,
                         const target::TargetSpec& target) {
  refuse_quantized(exported, error, target);
}

void refuse_quantization(const Graph& exported, const SpecViolation& error,
                         const target::TargetSpec& target) {
  refuse_quantized(exported, error, target);
}

}  // namespace tosaic::pipeline
