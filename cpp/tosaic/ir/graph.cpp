#include "tosaic/ir/graph.h"

#include "tosaic/base/work.h"
#include "tosaic/ir/control_flow.h"
#include "tosaic/ir/infer.h"

namespace tosaic {
namespace {

constexpr std::array<std::string_view, kAllStages.size()> kStageNames{"exported", "quantized", "integer",
                                                                      "tosa"};

}  // namespace

std::string_view to_string(Stage stage) { return kStageNames.at(static_cast<std::size_t>(stage)); }

std::optional<Stage> parse_stage(std::string_view text) {
  for (const Stage stage : kAllStages)
    if (to_string(stage) == text) return stage;
  return std::nullopt;
}

std::string_view to_string(ValueKind kind) {
  switch (kind) {
    case ValueKind::kInput:
      return "input";
    case ValueKind::kConstant:
      return "constant";
    case ValueKind::kResult:
      return "result";
  }
  return "";
}

bool BoundaryFormat::operator==(const BoundaryFormat& other) const {
  const bool same = source_dtype == other.source_dtype && range_min == other.range_min &&
                    range_max == other.range_max && order == other.order && physical == other.physical;
  if (!same || qparams == other.qparams) return same;
  return qparams && other.qparams && *qparams == *other.qparams;
}

bool allowed_at(Op op, Stage stage) {
  const OpInfo& row = info(op);
  if (stage == Stage::kTosa) return row.is_tosa;
  if (!row.is_tosa)
    return stage == Stage::kInteger ||
           (op != Op::kIntegerConv && op != Op::kIntegerGridSample && op != Op::kRescale);
  if (stage != Stage::kInteger || op == Op::kTosaRescale) return false;
  const bool moves = row.has(kMovement) || row.has(kView);
  return !moves && !row.has(kEffect) && !is_foreign(op) && !is_cond(op) && !is_while_loop(op);
}

struct Graph::Users {
  std::vector<std::uint32_t> begin;  // indices into `nodes`; one entry more than there are values
  std::vector<NodeId> nodes;
  std::vector<bool> is_output;
};

std::string Graph::unique_name(std::string wanted) {
  const auto [it, fresh] = names_.try_emplace(wanted, 1u);
  if (fresh) return wanted;
  for (;;) {
    work::add(1);
    std::string candidate = wanted + "_" + std::to_string(it->second++);
    if (names_.try_emplace(candidate, 1u).second) return candidate;
  }
}

ValueId Graph::add_input(InputKind kind, std::string input_name, TensorType type, std::string path,
                         BoundaryFormat boundary, ConstantRef initial) {
  const ValueId id(static_cast<std::uint32_t>(values_.size()));
  Value value;
  value.type = std::move(type);
  value.kind = ValueKind::kInput;
  value.result_index = static_cast<std::uint32_t>(inputs_.size());
  value.name = unique_name(input_name.empty() ? "input" : std::move(input_name));
  values_.push_back(std::move(value));
  inputs_.push_back({id, kind, std::move(path), std::move(initial), std::move(boundary)});
  users_.reset();
  return id;
}

ValueId Graph::add_constant(ConstantRef constant) {
  const auto [it, fresh] =
      constants_.try_emplace(constant.get(), ValueId(static_cast<std::uint32_t>(values_.size())));
  if (!fresh) return it->second;
  Value value;
  value.type.dtype = constant->dtype;
  value.type.shape = constant->shape;
  value.kind = ValueKind::kConstant;
  value.name = unique_name(constant->name.empty() ? "constant" : constant->name);
  value.constant = std::move(constant);
  values_.push_back(std::move(value));
  users_.reset();
  return it->second;
}

NodeId Graph::add_node(Op op, AttrsRef attrs, std::span<const ValueId> operands,
                       std::span<const TensorType> results, OriginRef origin, std::string node_name,
                       std::vector<std::shared_ptr<const Graph>> regions) {
  work::add(1 + operands.size() + results.size());
  const NodeId id(static_cast<std::uint32_t>(nodes_.size()));
  Node node;
  node.op = op;
  node.operand_begin = static_cast<std::uint32_t>(operands_.size());
  node.operand_count = static_cast<std::uint32_t>(operands.size());
  node.first_result = static_cast<std::uint32_t>(values_.size());
  node.result_count = static_cast<std::uint32_t>(results.size());
  node.attrs = std::move(attrs);
  node.origin = std::move(origin);
  node.regions = std::move(regions);
  for (const ValueId operand : operands) {
    if (operand.valid() && operand.index() >= values_.size())
      throw InvalidGraph(located({.where = "graph",
                                  .what = "operand does not exist before its user",
                                  .expected = "an id below " + std::to_string(values_.size()),
                                  .got = std::to_string(operand.index())},
                                 node.origin, node_name));
    operands_.push_back(operand);
  }
  if (node_name.empty()) node_name = std::string(info(op).name);
  for (std::size_t i = 0; i < results.size(); ++i) {
    Value value;
    value.type = results[i];
    value.kind = ValueKind::kResult;
    value.result_index = static_cast<std::uint32_t>(i);
    value.producer = id;
    value.name = unique_name(i == 0 ? node_name : node_name + "." + std::to_string(i));
    values_.push_back(std::move(value));
  }
  nodes_.push_back(std::move(node));
  users_.reset();
  return id;
}

std::vector<std::shared_ptr<const Graph>> Graph::regions_at(const Node& node, Stage stage) {
  std::vector<std::shared_ptr<const Graph>> out;
  for (const auto& region : node.regions) {
    if (region->stage == stage) {
      out.push_back(region);
      continue;
    }
    auto copy = std::make_shared<Graph>(*region);
    copy->stage = stage;
    for (Node& inner : copy->nodes_) inner.regions = regions_at(inner, stage);
    out.push_back(std::move(copy));
  }
  return out;
}

NodeId Graph::add_copy(const Graph& source, const Node& node, std::span<const ValueId> operands) {
  std::vector<TensorType> types;
  for (std::uint32_t r = 0; r < node.result_count; ++r) types.push_back(source.type(source.result(node, r)));
  const NodeId copy = add_node(node.op, node.attrs, operands, types, node.origin, source.node_name(node),
                               regions_at(node, stage));
  for (std::uint32_t r = 0; r < node.result_count; ++r) {
    const Value& old = source.value(source.result(node, r));
    const ValueId fresh = result(nodes_[copy.index()], r);
    if (r != 0) try_rename(fresh, old.name);
    values_[fresh.index()].source = old.source;
    values_[fresh.index()].canonical_order = old.canonical_order;
  }
  return copy;
}

ValueId Graph::add(Op op, Attrs attributes, std::span<const ValueId> operands, OriginRef origin,
                   std::string node_name) {
  const std::vector<TensorType> types = infer_node(*this, op, attributes, operands, origin, node_name);
  const NodeId id =
      add_node(op, share(std::move(attributes)), operands, types, std::move(origin), std::move(node_name));
  return result(nodes_[id.index()]);
}

void Graph::add_output(Output output) {
  outputs_.push_back(std::move(output));
  users_.reset();
}

std::shared_ptr<const Graph> Graph::with_constants(
    const Graph& source, const std::function<ConstantRef(const ConstantRef&)>& replaced) {
  auto out = std::make_shared<Graph>(source);
  bool changed = false;
  out->constants_.clear();
  for (std::uint32_t i = 0; i < out->values_.size(); ++i) {
    ConstantRef& constant = out->values_[i].constant;
    if (!constant) continue;
    ConstantRef fresh = replaced(constant);
    changed = changed || fresh != constant;
    constant = std::move(fresh);
    out->constants_.emplace(constant.get(), ValueId(i));
  }
  for (Node& node : out->nodes_)
    for (auto& region : node.regions)
      if (std::shared_ptr<const Graph> fresh = with_constants(*region, replaced)) {
        region = std::move(fresh);
        changed = true;
      }
  return changed ? out : nullptr;
}

void Graph::try_rename(ValueId value, const std::string& wanted) {
  if (names_.try_emplace(wanted, 1u).second) values_[value.index()].name = wanted;
}

ValueId Graph::find_value(std::string_view value_name) const {
  for (std::uint32_t v = 0; v < values_.size(); ++v)
    if (values_[v].name == value_name) return ValueId(v);
  return {};
}

std::string Graph::node_name(const Node& node) const {
  if (node.result_count != 0) return values_[node.first_result].name;
  const std::vector<OriginRef> from = leaves(node.origin);
  return from.empty() ? std::string(info(node.op).name) : from.front()->fx_name;
}

std::span<const NodeId> Graph::users(ValueId id) const {
  if (!users_) {
    work::add(nodes_.size() + values_.size() + operands_.size());
    auto users = std::make_shared<Users>();
    users->begin.assign(values_.size() + 1, 0u);
    for (const ValueId operand : operands_)
      if (operand.valid()) ++users->begin[operand.index() + 1];
    for (std::size_t i = 1; i < users->begin.size(); ++i) users->begin[i] += users->begin[i - 1];
    users->nodes.resize(users->begin.back());
    std::vector<std::uint32_t> next(users->begin.begin(), users->begin.end() - 1);
    for (std::size_t n = 0; n < nodes_.size(); ++n)
      for (const ValueId operand : this->operands(nodes_[n]))
        if (operand.valid()) users->nodes[next[operand.index()]++] = NodeId(static_cast<std::uint32_t>(n));
    users->is_output.assign(values_.size(), false);
    for (const Output& output : outputs_) users->is_output[output.value.index()] = true;
    users_ = std::move(users);
  }
  const std::uint32_t first = users_->begin[id.index()];
  return {users_->nodes.data() + first, users_->begin[id.index() + 1] - first};
}

bool Graph::is_output(ValueId id) const {
  static_cast<void>(users(id));
  return users_->is_output[id.index()];
}

}  // namespace tosaic
