// common-subexpressions: numbers the values from front to back, and merges nodes that compute the same.
//
//   %a = exp(%x)  %b = exp(%x)  %c = add(%a, %b)      ->      %a = exp(%x)  %c = add(%a, %a)
//
// At stage integer, qparams only say which numbers the integers represent: a value without them is merged
// with one that has them.
//
// Constants are compared by content: two weights that are tied, or that only have the same elements, become
// one. Foreign nodes, nodes with regions and nodes that touch variables are never merged.

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tosaic/ir/control_flow.h"
#include "tosaic/ir/rewriter.h"
#include "tosaic/ir/same_elements.h"
#include "tosaic/passes/pass.h"

namespace tosaic::passes {
namespace {

constexpr std::size_t kMaxComparedBytes = 256;

void append(std::string& key, const void* data, std::size_t size) {
  key.append(static_cast<const char*>(data), size);
}

// For each constant, the first one that has the same elements, type and dim order.
class FirstConstants {
 public:
  ValueId first(const Constant& constant, const DimOrder& order, ValueId value) {
    std::string key = std::string(to_string(constant.dtype)) + to_string(constant.shape) +
                      to_string(order.axes(constant.shape.size())) + "|";
    const bool is_small = constant.storage.size() <= kMaxComparedBytes;
    if (!constant.storage.bound()) {
      key += "unbound " + constant.name;
    } else if (is_small) {
      const std::span<const std::byte> bytes = constant.bytes();
      append(key, bytes.data(), bytes.size());
    } else {
      const std::uint64_t sample = sample_of(constant.storage);
      append(key, &sample, sizeof sample);
    }
    std::vector<Known>& alike = alike_[key];
    for (const Known& known : alike)
      if (is_small || !constant.storage.bound() || same_elements(known.constant->storage, constant.storage))
        return known.value;
    alike.push_back({&constant, value});
    return value;
  }

 private:
  struct Known {
    const Constant* constant;
    ValueId value;
  };
  std::unordered_map<std::string, std::vector<Known>> alike_;
};

// The operator and the operands of the node as a key.
std::string node_key(const Graph& graph, const Node& node, const std::vector<ValueId>& leader) {
  std::string key;
  append(key, &node.op, sizeof node.op);
  for (const ValueId operand : graph.operands(node)) {
    const std::uint32_t index = operand.valid() ? leader[operand.index()].index() : ~0u;
    append(key, &index, sizeof index);
  }
  return key;
}

// For each combination of operator, operands and attributes, the first node that has it. Attributes may list
// thousands of scales, so they are printed only once a second node has the same operator and operands.
class Firsts {
 public:
  explicit Firsts(const Graph& graph) : graph_(graph) {}

  // The result of the first node that equals `node`: its own result if no earlier node equals it.
  ValueId first(const Node& node, const std::vector<ValueId>& leader) {
    Group& group = groups_[node_key(graph_, node, leader)];
    if (group.first == nullptr) {
      group.first = &node;
      return graph_.result(node);
    }
    if (group.by_attrs.empty())
      group.by_attrs.emplace(to_string(*group.first->attrs), graph_.result(*group.first));
    return group.by_attrs.try_emplace(to_string(*node.attrs), graph_.result(node)).first->second;
  }

 private:
  struct Group {
    const Node* first = nullptr;
    std::unordered_map<std::string, ValueId> by_attrs;
  };
  const Graph& graph_;
  std::unordered_map<std::string, Group> groups_;
};

// Whether two values that hold the same elements may be merged: their types are equal. At stage integer, a
// value without qparams may also be merged with one that has them.
bool may_be_merged(Stage stage, TensorType kept, TensorType merged) {
  if (stage == Stage::kInteger && (kept.qparams == nullptr || merged.qparams == nullptr))
    kept.qparams = merged.qparams = nullptr;
  return kept == merged;
}

}  // namespace

std::optional<Graph> common_subexpressions(const Graph& graph) {
  FirstConstants constants;
  std::vector<ValueId> leader(graph.values().size());
  for (std::uint32_t i = 0; i < leader.size(); ++i) {
    leader[i] = ValueId(i);
    const Value& value = graph.values()[i];
    if (value.kind != ValueKind::kConstant) continue;
    leader[i] = constants.first(*value.constant, value.type.order, ValueId(i));
  }
  Rewriter rewriter(graph);
  bool merged_constants = false;
  for (std::uint32_t i = 0; i < leader.size(); ++i)
    merged_constants = merged_constants || leader[i] != ValueId(i);
  if (merged_constants) {
    rewriter.start();
    for (std::uint32_t i = 0; i < leader.size(); ++i)
      if (leader[i] != ValueId(i)) rewriter.bind(ValueId(i), rewriter.map(leader[i]));
  }
  Firsts firsts(graph);
  std::unordered_map<std::uint32_t, std::pair<ValueId, QParamsRef>>
      labels;  // by value: its copy, its qparams
  const auto labelled = [&](ValueId id) {
    TensorType type = graph.type(id);
    if (const auto found = labels.find(id.index()); found != labels.end())
      type.qparams = found->second.second;
    return type;
  };
  for (const Node& node : graph.nodes()) {
    if (is_foreign(node.op) || !node.regions.empty() || node.result_count == 0 || touches_variables(node)) {
      rewriter.copy(node);
      continue;
    }
    const ValueId like = firsts.first(node, leader);
    // Dim orders and qparams are in the type alone, not in the node's key, so types are compared as well.
    if (like == graph.result(node) ||
        !may_be_merged(graph.stage, labelled(like), graph.type(graph.result(node)))) {
      rewriter.copy(node);
      continue;
    }
    std::vector<ValueId> results;
    static_cast<void>(rewriter.begin_output(node));
    for (std::uint32_t r = 0; r < node.result_count; ++r) {
      const ValueId first(like.index() + r);
      leader[node.first_result + r] = first;
      results.push_back(rewriter.map(first));
      const QParamsRef& qparams = graph.type(ValueId(node.first_result + r)).qparams;
      if (qparams != nullptr && labelled(first).qparams == nullptr)
        labels[first.index()] = {results.back(), qparams};
    }
    rewriter.replace(node, results);
  }
  std::optional<Graph> out = std::move(rewriter).finish();
  if (!out) return out;
  for (const auto& [value, label] : labels) out->set_qparams(label.first, label.second);
  return without_dead_code(std::move(out));
}

}  // namespace tosaic::passes
