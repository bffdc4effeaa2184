#include "tosaic/ir/checked_rewriter.h"

#include <string>
#include <utility>

#include "tosaic/base/error.h"
#include "tosaic/ir/infer.h"

namespace tosaic {
namespace {

InvalidGraph misuse(std::string what, std::string expected, std::string got, std::string node = {}) {
  return InvalidGraph({.where = "rewriter",
                       .what = std::move(what),
                       .expected = std::move(expected),
                       .got = std::move(got),
                       .node = std::move(node)});
}

}  // namespace

const Node& CheckedRewriter::turn_of(NodeId node) const {
  const std::span<const Node> nodes = source_->nodes();
  if (finished_) throw misuse("the rewriter is used after finish()", "a new rewriter", "a finished one");
  const auto name = [&](std::uint32_t i) {
    return i < nodes.size() ? "'" + source_->node_name(nodes[i]) + "'" : std::string("the end of the graph");
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
    const TensorType& found = rewriter_.current().type(results[i]);
    if (found.dtype != wanted.dtype || !(found.shape == wanted.shape))
      throw misuse("the replacement has another type", to_string(wanted), to_string(found), name);
  }
  rewriter_.replace(old, begin_with(old, results));
  ++next_;
}

std::vector<ValueId> CheckedRewriter::emit(NodeId at, Op op, Attrs attrs, std::span<const ValueId> operands) {
  const Node& node = turn_of(at);
  require_values(operands, node);
  const std::string name = source_->node_name(node);
  if (!has_inference(op))
    throw misuse("a rewriter emits operators whose result types follow from their operands",
                 "another operator", "'" + std::string(info(op).name) + "'", name);
  if (!allowed_at(op, source_->stage))
    throw misuse("'" + std::string(info(op).name) + "' may not stand at stage " +
                     std::string(to_string(source_->stage)),
                 "an operator of this stage", "'" + std::string(info(op).name) + "'", name);
  // Types are inferred before the graph is copied, so that a refusal changes nothing.
  const std::vector<TensorType> types =
      infer_node(rewriter_.current(), op, attrs, operands, node.origin, name);
  const std::vector<ValueId> ids = begin_with(node, operands);
  Graph& out = rewriter_.begin_output(node);
  const NodeId made = out.add_node(op, share(std::move(attrs)), ids, types, node.origin,
                                   name + "." + std::string(info(op).name));
  std::vector<ValueId> results;
  for (std::size_t i = 0; i < types.size(); ++i) results.push_back(out.result(out.node(made), i));
  return results;
}

ValueId CheckedRewriter::constant(NodeId at, ConstantRef constant) {
  return rewriter_.constant(turn_of(at), std::move(constant));
}

ValueId CheckedRewriter::map(ValueId old) const {
  if (!old.valid()) return old;
  if (old.index() >= source_->values().size())
    throw misuse("there is no such value", "a value of the source graph", std::to_string(old.index()));
  const Value& value = source_->value(old);
  if (value.kind == ValueKind::kResult && value.producer.index() >= next_)
    throw misuse("the value is read before its node is visited", "a value of an earlier node",
                 "'" + value.name + "'");
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
