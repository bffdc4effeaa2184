#include "tosaic/quant/graph_calls.h"

#include <algorithm>
#include <unordered_set>

namespace tosaic::quant {
namespace {

// "layer1.0.conv1" is in the modules "", "layer1", "layer1.0" and "layer1.0.conv1".
std::vector<ModuleScope> scopes_of(const std::string& path, const std::map<std::string, std::string>& types) {
  std::vector<ModuleScope> scopes;
  const auto add = [&](const std::string& each) {
    const auto type = types.find(each);
    if (type != types.end() || each == path)
      scopes.push_back({each, type == types.end() ? "" : type->second});
  };
  if (!path.empty()) add("");
  for (std::size_t end = path.find('.'); end != std::string::npos; end = path.find('.', end + 1))
    add(path.substr(0, end));
  add(path);
  return scopes;
}

class Reader {
 public:
  Reader(const Graph& graph, const std::map<std::string, std::string>& types)
      : graph_(graph), types_(types) {}

  GraphCalls read() {
    find_runs();
    find_readers();
    name_calls();
    call_of_value_.assign(graph_.values().size(), NodeIndex());
    std::vector<GraphPort> inputs, outputs;
    for (const Input& input : graph_.inputs()) {
      const bool is_user = input.kind == InputKind::kUser;
      const NodeIndex at = add_leaf(input.value, is_user ? CallKind::kPlaceholder : CallKind::kGetAttr);
      if (is_user) inputs.push_back({input.path.empty() ? graph_.value(input.value).name : input.path, at});
    }
    for (std::uint32_t v = 0; v < graph_.values().size(); ++v)
      if (graph_.values()[v].kind == ValueKind::kConstant) add_leaf(ValueId(v), CallKind::kGetAttr);
    out_.of_node.assign(graph_.nodes().size(), NodeIndex());
    for (std::uint32_t r = 0; r < runs_.size(); ++r) add_call(r);
    CallNode output{.name = unique("output"), .kind = CallKind::kOutput};
    for (const Output& each : graph_.outputs()) {
      const NodeIndex from = call_of_value_[each.value.index()];
      // A new value of a state is read, too, but it is not an output that the caller knows.
      if (each.kind == OutputKind::kUser)
        outputs.push_back({each.path.empty() ? graph_.value(each.value).name : each.path, from});
      output.operands.push_back({"args[0][" + std::to_string(output.operands.size()) + "]", from});
    }
    add(std::move(output), ValueId(), {});
    out_.calls = std::make_shared<CallGraph>(std::move(nodes_), std::move(inputs), std::move(outputs));
    return std::move(out_);
  }

 private:
  // Nodes that follow each other and belong to one FX node.
  struct Run {
    std::uint32_t begin = 0, end = 0;
    OriginRef first;  // null: a node without an origin
    std::string name;
    std::vector<std::string> aliases;
  };

  static OriginRef first_leaf(const Node& node) {
    const std::vector<OriginRef> all = leaves(node.origin);
    return all.empty() ? nullptr : all.front();
  }

  void find_runs() {
    run_of_node_.resize(graph_.nodes().size());
    for (std::uint32_t n = 0; n < graph_.nodes().size(); ++n) {
      const OriginRef leaf = first_leaf(graph_.nodes()[n]);
      const bool follows = leaf && !runs_.empty() && runs_.back().first &&
                           (runs_.back().first == leaf || runs_.back().first->fx_name == leaf->fx_name);
      if (follows)
        runs_.back().end = n + 1;
      else
        runs_.push_back({n, n + 1, leaf, {}, {}});
      run_of_node_[n] = static_cast<std::uint32_t>(runs_.size() - 1);
    }
  }

  // Finds the results that are read outside of the run that computes them.
  void find_readers() {
    leaves_run_.assign(graph_.values().size(), false);
    for (std::uint32_t n = 0; n < graph_.nodes().size(); ++n)
      for (const ValueId operand : graph_.operands(graph_.nodes()[n]))
        if (operand.valid() && graph_.value(operand).kind == ValueKind::kResult &&
            run_of_node_[graph_.value(operand).producer.index()] != run_of_node_[n])
          leaves_run_[operand.index()] = true;
    for (const Output& output : graph_.outputs()) leaves_run_[output.value.index()] = true;
  }

  // Names calls before values, inputs and constants, which get other names if theirs are taken.
  void name_calls() {
    for (Run& run : runs_) {
      const std::string own = graph_.node_name(graph_.nodes()[run.end - 1]);
      const std::string& wanted = run.first && !run.first->fx_name.empty() ? run.first->fx_name : own;
      run.name = unique(taken_.contains(wanted) ? own : wanted);
    }
    for (Run& run : runs_) {
      std::vector<std::string> others;
      for (std::uint32_t n = run.begin; n < run.end; ++n) {
        const Node& node = graph_.nodes()[n];
        for (const OriginRef& leaf : leaves(node.origin)) others.push_back(leaf->fx_name);
        for (std::uint32_t i = 0; i < node.result_count; ++i)
          others.push_back(graph_.value(graph_.result(node, i)).name);
      }
      for (std::string& each : others)
        if (!each.empty() && each != run.name && !taken_.contains(each) &&
            std::ranges::find(run.aliases, each) == run.aliases.end())
          run.aliases.push_back(std::move(each));
    }
  }

  std::string unique(const std::string& wanted) {
    std::string name = wanted;
    for (int i = 1; !taken_.insert(name).second; ++i) name = wanted + "_" + std::to_string(i);
    return name;
  }

  NodeIndex add(CallNode node, ValueId value, std::vector<NodeId> of) {
    const NodeIndex at(static_cast<std::uint32_t>(nodes_.size()));
    if (value.valid()) {
      const TensorType& type = graph_.type(value);
      node.dtype = std::string(to_string(type.dtype));
      node.shape.emplace(type.shape.begin(), type.shape.end());
      call_of_value_[value.index()] = at;
    }
    nodes_.push_back(std::move(node));
    out_.values.push_back(value);
    out_.nodes.push_back(std::move(of));
    return at;
  }

  NodeIndex add_leaf(ValueId value, CallKind kind) {
    return add({.name = unique(graph_.value(value).name), .kind = kind}, value, {});
  }

  // The results of a run of nodes that nodes outside of it read. If there are none, its last result.
  std::vector<ValueId> values_of(const Run& run) const {
    std::vector<ValueId> found;
    for (std::uint32_t n = run.begin; n < run.end; ++n) {
      const Node& node = graph_.nodes()[n];
      for (std::uint32_t i = 0; i < node.result_count; ++i)
        if (leaves_run_[graph_.result(node, i).index()]) found.push_back(graph_.result(node, i));
    }
    const Node& last = graph_.nodes()[run.end - 1];
    if (found.empty() && last.result_count > 0) found.push_back(graph_.result(last));
    return found;
  }

  void add_call(std::uint32_t r) {
    const Run& run = runs_[r];
    CallNode call{.name = run.name, .kind = CallKind::kCall};
    std::vector<NodeId> of;
    for (std::uint32_t n = run.begin; n < run.end; ++n) {
      of.emplace_back(n);
      add_operands(graph_.nodes()[n], r, n == run.begin && run.end == run.begin + 1, call);
    }
    call.target = run.first ? run.first->target : std::string(info(graph_.nodes()[run.begin].op).name);
    if (run.first) {
      call.modules = scopes_of(run.first->module_path, types_);
      call.source = run.first->source();
    }
    call.aliases = run.aliases;
    const std::vector<ValueId> found = values_of(run);
    const NodeIndex at = add(std::move(call), found.size() == 1 ? found[0] : ValueId(), std::move(of));
    for (std::uint32_t n = run.begin; n < run.end; ++n) out_.of_node[n] = at;
    if (found.size() < 2) return;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const ValueId each = found[i];
      const std::string& own = graph_.value(each).name;
      const std::string name = taken_.contains(own) ? own + "." + std::to_string(i) : own;
      CallNode item{.name = unique(name), .kind = CallKind::kCall, .target = "getitem"};
      item.operands.push_back({"args[0]", at});
      item.modules = nodes_[at.index()].modules;
      item.source = nodes_[at.index()].source;
      add(std::move(item), each, {});
    }
  }

  void add_operands(const Node& node, std::uint32_t r, bool is_alone, CallNode& call) const {
    const auto operands = graph_.operands(node);
    for (std::uint32_t i = 0; i < operands.size(); ++i) {
      const ValueId id = operands[i];
      if (!id.valid()) continue;
      const Value& value = graph_.value(id);
      if (value.kind == ValueKind::kResult && run_of_node_[value.producer.index()] == r) continue;
      // Skips a scalar among the arguments of a torch call: torch's graph has no node for it.
      if (value.kind == ValueKind::kConstant && value.type.rank() == 0) continue;
      const std::size_t place = is_alone ? i : call.operands.size();
      call.operands.push_back({"args[" + std::to_string(place) + "]", call_of_value_[id.index()],
                               std::string(info(node.op).operand_name(i))});
    }
  }

  const Graph& graph_;
  const std::map<std::string, std::string>& types_;
  std::vector<Run> runs_;
  std::vector<std::uint32_t> run_of_node_;
  std::vector<bool> leaves_run_;
  std::vector<NodeIndex> call_of_value_;
  std::unordered_set<std::string> taken_;
  std::vector<CallNode> nodes_;
  GraphCalls out_;
};

}  // namespace

GraphCalls graph_calls(const Graph& graph, const std::map<std::string, std::string>& module_types) {
  return Reader(graph, module_types).read();
}

std::vector<ReadPlace> reads_of(const Graph& graph, std::span<const NodeId> nodes, ValueId value) {
  std::vector<ReadPlace> found;
  for (std::uint32_t n = 0; n < nodes.size(); ++n) {
    const auto operands = graph.operands(graph.node(nodes[n]));
    for (std::uint32_t i = 0; i < operands.size(); ++i)
      if (operands[i] == value) found.push_back({n, i});
  }
  return found;
}

}  // namespace tosaic::quant
