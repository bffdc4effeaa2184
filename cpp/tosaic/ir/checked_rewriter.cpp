#include "tosaic/ir/checked_rewriter.h"

#include <algorithm>
#include <string>
#include <utility>

#include "tosaic/base/error.h"
#include "tosaic/base/error_text.h"
#include "tosaic/ir/infer.h"
#include "tosaic/ir/origin.h"
#include "tosaic/ir/quantized.h"
#include "tosaic/ir/verify.h"

namespace tosaic {
namespace {

InvalidGraph misuse(std::string what, std::string expected, std::string got, std::string node = {}) {
  return InvalidGraph({.where = "rewriter",
                       .what = std::move(what),
                       .expected = std::move(expected),
                       .got = std::move(got),
                       .node = std::move(node)});
}

std::string stages_of(Op op) {
  std::string text;
  for (const Stage stage : kAllStages)
    if (allowed_at(op, stage)) text += (text.empty() ? "" : ", ") + std::string(to_string(stage));
  return text;
}

// "At this stage, emit 'sigmoid'" for tosa.sigmoid, and the reverse for sigmoid. Returns "" if the stage
// lacks the operator of that name.
std::string counterpart(Op op, Stage stage) {
  constexpr std::string_view kPrefix = "tosa.";
  const OpInfo& row = info(op);
  const std::string name = row.is_tosa ? std::string(row.name.substr(kPrefix.size()))
                                       : std::string(kPrefix) + std::string(row.name);
  const std::optional<Op> other = parse_op(name);
  return other && allowed_at(*other, stage) ? "At this stage, emit " + quoted(name) : std::string();
}

std::string text_of(const QParamsRef& qparams) { return qparams ? to_string(*qparams) : "no qparams"; }

// The line of Python that passes on the qparams of a node: "qparams=node.results[0].qparams", or a list for
// an operator of several results.
std::string line_of_qparams(std::size_t results) {
  return results == 1 ? "qparams=node.results[0].qparams"
                      : "qparams=[result.qparams for result in node.results]";
}

}  // namespace

const Node& CheckedRewriter::turn_of(NodeId node) const {
  const std::span<const Node> nodes = source_->nodes();
  if (finished_) throw misuse("the rewriter is used after finish()", "a new rewriter", "a finished one");
  const auto name = [&](std::uint32_t i) {
    return i < nodes.size() ? quoted(source_->node_name(nodes[i])) : std::string("the end of the graph");
  };
  if (!node.valid() || node.index() != next_)
    throw misuse("nodes are visited in order, and each is copied or replaced once", name(next_),
                 node.valid() ? name(node.index()) : "no node");
  return nodes[next_];
}

void CheckedRewriter::require_values(std::span<const ValueId> values, const Node& at) const {
  const std::size_t count = rewriter_.current().values().size();
  for (const ValueId value : values)
    if (value.valid() && value.index() >= count)
      throw misuse("there is no such value",
                   "a value of the new graph, of which there are " + std::to_string(count),
                   std::to_string(value.index()), source_->node_name(at));
}

std::vector<ValueId> CheckedRewriter::begin_with(const Node& at, std::span<const ValueId> values) {
  std::vector<ValueId> ids(values.begin(), values.end());
  const bool are_of_source = !rewriter_.changed();
  static_cast<void>(rewriter_.begin_output(at));
  if (are_of_source)
    for (ValueId& id : ids) id = rewriter_.map(id);
  return ids;
}

void CheckedRewriter::copy(NodeId node) {
  rewriter_.copy(turn_of(node));
  emitted_.clear();
  ++next_;
}

void CheckedRewriter::replace(NodeId node, std::span<const ValueId> results) {
  const Node& old = turn_of(node);
  require_values(results, old);
  const std::string name = source_->node_name(old);
  if (results.size() != old.result_count)
    throw misuse("the replacement has another number of results", std::to_string(old.result_count),
                 std::to_string(results.size()), name);
  for (std::uint32_t i = 0; i < old.result_count; ++i) {
    if (!results[i].valid()) throw misuse("a result is replaced by no value", "a value", "none", name);
    const TensorType& wanted = source_->type(source_->result(old, i));
    const TensorType found = rewriter_.current().type(results[i]);
    const bool is_quantized = source_->stage == Stage::kQuantized;
    const bool same_numbers = same_qparams(found.qparams, wanted.qparams) ||
                              (!is_quantized && (found.qparams == nullptr || wanted.qparams == nullptr));
    const bool same_array = found.dtype == wanted.dtype && found.shape == wanted.shape;
    if (!same_array || !same_numbers) {
      ErrorParts parts =
          misuse(same_array ? "the replacement has other qparams" : "the replacement has another type",
                 to_string(wanted), to_string(found), name)
              .parts();
      if (is_quantized && wanted.qparams && found.shape == wanted.shape)
        parts.hint = "Emit it with qparams=node.results[" + std::to_string(i) + "].qparams";
      throw InvalidGraph(located(std::move(parts), old.origin, name));
    }
    if (wanted.qparams && !found.qparams && std::ranges::find(emitted_, results[i]) != emitted_.end())
      rewriter_.begin_output(old).set_qparams(results[i], wanted.qparams);
  }
  rewriter_.replace(old, begin_with(old, results));
  emitted_.clear();
  ++next_;
}

void CheckedRewriter::require_allowed(const Node& at, Op op) const {
  if (allowed_at(op, source_->stage)) return;
  throw InvalidGraph(
      {.where = "rewriter",
       .what = quoted(info(op).name) + " may not stand at stage " + std::string(to_string(source_->stage)),
       .expected = "a graph at stage " + stages_of(op),
       .got = "stage " + std::string(to_string(source_->stage)),
       .node = source_->node_name(at),
       .hint = counterpart(op, source_->stage)});
}

void CheckedRewriter::quantize_results(const Node& at, Op op, const Attrs& attrs,
                                       std::span<const ValueId> operands, std::span<const QParamsRef> qparams,
                                       std::vector<TensorType>& types) const {
  const std::string name = source_->node_name(at), who = quoted(info(op).name);
  const auto refuse = [&](std::string what, std::string expected, std::string got, std::string hint = {}) {
    ErrorParts parts = misuse(std::move(what), std::move(expected), std::move(got), name).parts();
    parts.hint = std::move(hint);
    return InvalidGraph(located(std::move(parts), at.origin, name));
  };
  if (!qparams.empty() && qparams.size() != types.size())
    throw refuse(who + " gets another number of qparams than it has results", std::to_string(types.size()),
                 std::to_string(qparams.size()));
  const bool is_quantized = source_->stage == Stage::kQuantized;
  const bool is_qdq = op == Op::kQuantize || op == Op::kDequantize;
  const bool over_quantized = std::ranges::any_of(
      operands, [&](ValueId id) { return id.valid() && rewriter_.current().type(id).qparams != nullptr; });
  for (std::size_t i = 0; i < types.size(); ++i) {
    TensorType& type = types[i];
    QParamsRef wanted = qparams.empty() ? nullptr : qparams[i];
    if (is_quantized && is_qdq) {
      const auto* const own = get_if<QuantizeAttrs>(&attrs);
      const QParamsRef given = own == nullptr ? nullptr : qparams_of(*own, own->dtype);
      if (wanted && !same_qparams(wanted, given))
        throw refuse(who + " has the qparams of its attributes", text_of(given), text_of(wanted),
                     op == Op::kDequantize ? "Its result is f32" : "Omit qparams=");
      wanted = given;
    } else if (is_quantized && wanted && type.dtype != DType::kF32) {
      throw refuse("the result of " + who + " is no f32, so it cannot be quantized", "no qparams",
                   to_string(type) + " and " + text_of(wanted));
    } else if (is_quantized && wanted) {
      type.dtype = wanted->storage;
    } else if (is_quantized && over_quantized && type.dtype == DType::kF32) {
      throw refuse(who + " computes over quantized values, so its result needs qparams",
                   "qparams of the result", "none",
                   "Write rewriter.emit(node, " + who + ", [...], " + line_of_qparams(types.size()) + ")");
    } else if (!is_quantized && wanted && type.dtype != wanted->storage) {
      throw refuse(
          "only at stage quantized does a result of " + who + " become integers by its qparams",
          "a graph at stage quantized, or a result of dtype " + std::string(to_string(wanted->storage)),
          to_string(type) + " at stage " + std::string(to_string(source_->stage)),
          source_->stage == Stage::kExported ? "Emit 'quantize', or insert the pass after 'fold-qdq'" : "");
    }
    type.qparams = wanted;
    if (const std::optional<ErrorParts> fault = qparams_fault(type))
      throw refuse("the qparams of " + who + " make no sense", fault->expected, fault->got);
  }
}

std::vector<ValueId> CheckedRewriter::emit(NodeId at, Op op, Attrs attrs, std::span<const ValueId> operands,
                                           std::span<const QParamsRef> qparams) {
  const Node& node = turn_of(at);
  require_values(operands, node);
  const std::string name = source_->node_name(node);
  if (!has_inference(op))
    throw misuse("a rewriter emits operators whose result types follow from their operands",
                 "another operator", quoted(info(op).name), name);
  require_allowed(node, op);
  // Types are inferred before the graph is copied, so that a refusal changes nothing.
  std::vector<TensorType> types = infer_node(rewriter_.current(), op, attrs, operands, node.origin, name);
  quantize_results(node, op, attrs, operands, qparams, types);
  const std::vector<ValueId> ids = begin_with(node, operands);
  Graph& out = rewriter_.begin_output(node);
  const NodeId made = out.add_node(op, share(std::move(attrs)), ids, types, node.origin,
                                   name + "." + std::string(info(op).name));
  std::vector<ValueId> results;
  for (std::size_t i = 0; i < types.size(); ++i) results.push_back(out.result(out.node(made), i));
  emitted_.insert(emitted_.end(), results.begin(), results.end());
  return results;
}

ValueId CheckedRewriter::constant(NodeId at, ConstantRef constant, QParamsRef qparams) {
  const Node& node = turn_of(at);
  if (!qparams) return rewriter_.constant(node, std::move(constant));
  TensorType type;
  type.dtype = constant->dtype;
  type.shape = constant->shape;
  type.qparams = qparams;
  const std::string name = source_->node_name(node);
  if (const std::optional<ErrorParts> fault = qparams_fault(type))
    throw misuse("the qparams of constant '" + constant->name + "' make no sense", fault->expected,
                 fault->got, name);
  if (qparams->storage != type.dtype)
    throw misuse("constant '" + constant->name + "' has another dtype than its qparams",
                 std::string(to_string(qparams->storage)), std::string(to_string(type.dtype)), name);
  const ValueId made = rewriter_.constant(node, std::move(constant));
  rewriter_.begin_output(node).set_qparams(made, std::move(qparams));
  return made;
}

ValueId CheckedRewriter::map(ValueId old) const {
  if (!old.valid()) return old;
  if (old.index() >= source_->values().size())
    throw misuse("there is no such value", "a value of the source graph", std::to_string(old.index()));
  const Value& value = source_->value(old);
  if (value.kind == ValueKind::kResult && value.producer.index() >= next_)
    throw misuse("the value is read before its node is visited", "a value of an earlier node",
                 quoted(value.name));
  return rewriter_.map(old);
}

std::optional<Graph> CheckedRewriter::finish() {
  const std::span<const Node> nodes = source_->nodes();
  if (finished_) throw misuse("the rewriter is used after finish()", "a new rewriter", "a finished one");
  if (next_ != nodes.size())
    throw misuse("not all nodes were visited",
                 "copy or replace for '" + source_->node_name(nodes[next_]) + "'", "finish()");
  finished_ = true;
  return std::move(rewriter_).finish();
}

}  // namespace tosaic
