#include "tosaic/ir/rewriter.h"

#include <algorithm>

#include "tosaic/base/work.h"

namespace tosaic {

Graph& Rewriter::begin_output(const Node& at) {
  if (started_) return out_;
  started_ = true;
  work::add(source_.nodes_.size() + source_.values_.size());
  // Everything before `at` is copied verbatim: the values before its first result, and the nodes before the
  // node itself.
  const std::uint32_t node_index = source_.id(at).index();
  const std::uint32_t value_count = at.first_result;
  out_.name = source_.name;
  out_.stage = source_.stage;
  out_.nodes_.reserve(source_.nodes_.size() + 8);
  out_.values_.reserve(source_.values_.size() + 8);
  out_.nodes_.assign(source_.nodes_.begin(), source_.nodes_.begin() + node_index);
  out_.values_.assign(source_.values_.begin(), source_.values_.begin() + value_count);
  out_.operands_.assign(source_.operands_.begin(), source_.operands_.begin() + at.operand_begin);
  out_.inputs_ = source_.inputs_;
  map_.assign(source_.values_.size(), ValueId());
  for (std::uint32_t i = 0; i < value_count; ++i) {
    const Value& value = out_.values_[i];
    map_[i] = ValueId(i);
    out_.names_.try_emplace(value.name, 1u);
    if (value.kind == ValueKind::kConstant) out_.constants_.try_emplace(value.constant.get(), ValueId(i));
  }
  // Inputs and constants may also be in the value array after this prefix.
  for (std::uint32_t i = value_count; i < source_.values_.size(); ++i) {
    const Value& value = source_.values_[i];
    if (value.kind == ValueKind::kResult) continue;
    Value copy = value;
    copy.name = out_.unique_name(copy.name);
    map_[i] = ValueId(static_cast<std::uint32_t>(out_.values_.size()));
    if (copy.kind == ValueKind::kInput) out_.inputs_[copy.result_index].value = map_[i];
    if (copy.kind == ValueKind::kConstant) out_.constants_.try_emplace(copy.constant.get(), map_[i]);
    out_.values_.push_back(std::move(copy));
  }
  first_emitted_ = out_.values_.size();
  return out_;
}

void Rewriter::start() {
  if (!source_.nodes_.empty()) {
    static_cast<void>(begin_output(source_.nodes_.front()));
    return;
  }
  out_ = source_;
  started_ = true;
  for (std::uint32_t i = 0; i < source_.values_.size(); ++i) map_.push_back(ValueId(i));
  out_.outputs_.clear();
  first_emitted_ = out_.values_.size();
}

void Rewriter::bind(ValueId old, ValueId fresh) { map_[old.index()] = fresh; }

ValueId Rewriter::map(ValueId old) const {
  if (!started_ || !old.valid()) return old;
  const ValueId fresh = map_[old.index()];
  if (!fresh.valid())
    throw InternalError(
        {.where = "rewriter", .what = "value '" + source_.value(old).name + "' was not walked yet"});
  return fresh;
}

std::vector<ValueId> Rewriter::map_operands(const Node& node) const {
  std::vector<ValueId> mapped;
  mapped.reserve(node.operand_count);
  for (const ValueId operand : source_.operands(node)) mapped.push_back(map(operand));
  return mapped;
}

void Rewriter::copy(const Node& node) {
  work::add(1 + node.operand_count);
  if (started_) copy(node, node.regions);
}

void Rewriter::copy(const Node& node, std::vector<std::shared_ptr<const Graph>> regions) {
  static_cast<void>(begin_output(node));
  Node copy = node;
  copy.regions = std::move(regions);
  copy.operand_begin = static_cast<std::uint32_t>(out_.operands_.size());
  for (const ValueId operand : source_.operands(node)) out_.operands_.push_back(map(operand));
  copy.first_result = static_cast<std::uint32_t>(out_.values_.size());
  const NodeId id(static_cast<std::uint32_t>(out_.nodes_.size()));
  for (std::uint32_t i = 0; i < node.result_count; ++i) {
    Value value = source_.values_[node.first_result + i];
    value.name = out_.unique_name(std::move(value.name));
    value.producer = id;
    map_[node.first_result + i] = ValueId(static_cast<std::uint32_t>(out_.values_.size()));
    out_.values_.push_back(std::move(value));
  }
  out_.nodes_.push_back(std::move(copy));
  first_emitted_ = out_.values_.size();
}

ValueId Rewriter::emit(const Node& at, Op op, Attrs attrs, std::span<const ValueId> operands,
                       const OriginRef& extra) {
  // Emitted results are named after the node, with a suffix; replace() renames the final one to the node's
  // name.
  OriginRef origin = extra ? merge({extra, at.origin}) : at.origin;
  return begin_output(at).add(op, std::move(attrs), operands, std::move(origin),
                              source_.node_name(at) + "." + std::string(info(op).name));
}

void Rewriter::replace(const Node& node, std::span<const ValueId> results) {
  static_cast<void>(begin_output(node));
  work::add(1 + results.size());
  if (results.size() != node.result_count)
    throw InternalError({.where = "rewriter",
                         .what = "replacement has another number of results",
                         .expected = std::to_string(node.result_count),
                         .got = std::to_string(results.size()),
                         .node = source_.node_name(node)});
  for (std::uint32_t i = 0; i < node.result_count; ++i) {
    const Value& old = source_.values_[node.first_result + i];
    Value& fresh = out_.values_[results[i].index()];
    if (fresh.type.dtype != old.type.dtype || !(fresh.type.shape == old.type.shape))
      throw InternalError({.where = "rewriter",
                           .what = "replacement has another type",
                           .expected = to_string(old.type),
                           .got = to_string(fresh.type),
                           .node = old.name});
    map_[node.first_result + i] = results[i];
    const bool is_repeated =
        std::find(results.begin(), results.begin() + i, results[i]) != results.begin() + i;
    if (fresh.kind != ValueKind::kResult || is_repeated) continue;
    Node& producer = out_.nodes_[fresh.producer.index()];
    const bool is_own = results[i].index() >= first_emitted_;
    if (!is_own && !is_inside_call(fresh.name, producer.origin, old.name, node.origin)) continue;
    producer.origin = merge({producer.origin, node.origin});
    fresh.source = old.source;
    fresh.canonical_order = old.canonical_order;
    if (out_.stage == Stage::kInteger && is_own && !fresh.type.qparams) fresh.type.qparams = old.type.qparams;
    if (out_.names_.try_emplace(old.name, 1u).second) fresh.name = old.name;
  }
  first_emitted_ = out_.values_.size();
}

std::optional<Graph> Rewriter::finish() && {
  if (!started_) return std::nullopt;
  for (const Output& output : source_.outputs_) {
    Output copy = output;
    copy.value = map(output.value);
    out_.outputs_.push_back(std::move(copy));
  }
  return std::move(out_);
}

Graph Rewriter::pruned(const Graph& source, const std::vector<bool>& live_values,
                       const std::vector<bool>& live_nodes) {
  work::add(source.nodes_.size() + source.values_.size());
  Graph out;
  out.name = source.name;
  out.stage = source.stage;
  out.inputs_ = source.inputs_;
  out.outputs_ = source.outputs_;
  std::vector<ValueId> map(source.values_.size());
  std::vector<std::uint32_t> kept_before;  // by value index: how many values before it are kept
  kept_before.reserve(source.values_.size() + 1);
  for (std::uint32_t i = 0; i < source.values_.size(); ++i) {
    kept_before.push_back(static_cast<std::uint32_t>(out.values_.size()));
    const Value& value = source.values_[i];
    const bool kept = value.kind == ValueKind::kResult     ? live_nodes[value.producer.index()]
                      : value.kind == ValueKind::kConstant ? live_values[i]
                                                           : true;
    if (!kept) continue;
    map[i] = ValueId(static_cast<std::uint32_t>(out.values_.size()));
    out.values_.push_back(value);
    out.names_.try_emplace(value.name, 1u);
    if (value.kind == ValueKind::kInput) out.inputs_[value.result_index].value = map[i];
    if (value.kind == ValueKind::kConstant) out.constants_.try_emplace(value.constant.get(), map[i]);
  }
  kept_before.push_back(static_cast<std::uint32_t>(out.values_.size()));
  for (std::size_t n = 0; n < source.nodes_.size(); ++n) {
    if (!live_nodes[n]) continue;
    Node node = source.nodes_[n];
    node.operand_begin = static_cast<std::uint32_t>(out.operands_.size());
    for (const ValueId operand : source.operands(source.nodes_[n]))
      out.operands_.push_back(operand.valid() ? map[operand.index()] : operand);
    node.first_result = kept_before[node.first_result];
    const NodeId id(static_cast<std::uint32_t>(out.nodes_.size()));
    for (std::uint32_t r = 0; r < node.result_count; ++r) out.values_[node.first_result + r].producer = id;
    out.nodes_.push_back(std::move(node));
  }
  for (Output& output : out.outputs_) output.value = map[output.value.index()];
  for (Value& value : out.values_) {
    if (!value.constant || value.constant->name.empty() || value.name == value.constant->name) continue;
    if (!out.names_.try_emplace(value.constant->name, 1u).second) continue;
    out.names_.erase(value.name);
    value.name = value.constant->name;
  }
  return out;
}

}  // namespace tosaic
