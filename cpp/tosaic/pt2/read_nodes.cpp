#include <algorithm>
#include <functional>
#include <unordered_map>
#include <utility>

#include "tosaic/base/error.h"
#include "tosaic/base/error_text.h"
#include "tosaic/pt2/module_stacks.h"
#include "tosaic/pt2/nodes.h"
#include "tosaic/pt2/read_arguments.h"

namespace tosaic::pt2 {
namespace {

constexpr std::size_t kDeepestGraph = 50;
constexpr std::size_t kLongestName =
    1024;  // of a call with several results, whose names begin with the name of the call
constexpr std::int64_t kPositional = 1, kKeyword = 2;
constexpr std::string_view kHigherOrder = "higher_order.";

[[noreturn]] void refuse_beyond(const std::string& what) {
  throw UnsupportedOp({.where = "pt2", .what = what});
}

// The name of an operator without the prefix of torch or of ExecuTorch.
std::string_view target_of(std::string_view name) {
  for (const std::string_view prefix : {"torch.ops.", "executorch.exir.dialects.edge._ops."}) {
    if (!name.starts_with(prefix)) continue;
    name.remove_prefix(prefix.size());
    if (!name.starts_with(kHigherOrder) && std::ranges::count(name, '.') < 2)
      throw WrongJson("namespace, name and overload of an operator", quoted(name));
    return name;
  }
  if (name.starts_with('#'))
    refuse_beyond("the operator " + quoted(name) + " is of an extension of torch's format");
  return name;
}

// What all graphs of a program share.
struct Shared {
  ProgramNodes& program;
  const ParameterNames& parameter_names;
  ModuleStacks stacks;
  std::unordered_map<std::string_view, std::string_view> decoded =
      {};  // stack traces by their text in the file

  std::unordered_map<std::reference_wrapper<const TensorMeta>, std::uint32_t, decltype(&hash_of),
                     std::equal_to<TensorMeta>>
      tensors{0, &hash_of};  // positions in `program.tensors`

  // Stores each type once: most weights and results have the type of another one.
  TensorRef tensor(TensorMeta meta) {
    if (const auto known = tensors.find(meta); known != tensors.end()) return {known->second};
    const auto position = static_cast<std::uint32_t>(program.tensors.size());
    program.tensors.push_back(std::move(meta));
    tensors.emplace(program.tensors.back(), position);
    return {position};
  }

  // Decodes each stack trace once: calls from one source line have the same trace.
  std::string_view trace(Json value) {
    if (value.kind() != JsonKind::kString || !value.has_escapes()) return text(value, program.texts);
    const auto known = decoded.find(value.raw());
    return known != decoded.end() ? known->second : decoded[value.raw()] = text(value, program.texts);
  }
};

class GraphReader {
 public:
  GraphReader(Json graph, std::span<const std::string> constant_names, Shared& shared, std::size_t depth)
      : graph_(mapping(graph)),
        constant_names_(constant_names),
        shared_(shared),
        depth_(depth),
        texts_(shared.program.texts),
        scope_{graph_, by_name_, texts_, [this](Json nested) { return nested_graph(nested); }} {
    if (depth > kDeepestGraph)
      throw WrongJson("at most " + std::to_string(kDeepestGraph) + " nested graphs", std::to_string(depth));
    tensors_.reserve(mapping(entry(graph_, "tensor_values")).size());
    by_name_.reserve(tensors_.bucket_count());
    for_each_entry(entry(graph_, "tensor_values"),
                   [&](Json key, Json value) { tensors_.insert_or_assign(text(key, texts_), value); });
  }

  std::vector<Node> read() {
    std::size_t i = 0;
    for_each_item(entry(graph_, "inputs"), [&](Json each) {
      read_part([&] { return "input " + std::to_string(i) + " of the graph"; },
                [&] { placeholder(i, each); });
      ++i;
    });
    i = 0;
    for_each_item(entry(graph_, "nodes"), [&](Json each) {
      read_part([&] { return "node " + std::to_string(i) + " of the graph"; }, [&] { call(each); });
      ++i;
    });
    read_part([] { return std::string("the output of the graph"); }, [&] { output(); });
    return std::move(nodes_);
  }

 private:
  using Recorded = std::optional<Argument>;

  // ---- nodes ----

  std::uint32_t add(Node node) {
    for (const Argument& each : node.args) add_inputs(each, node.inputs);
    for (const auto& [key, each] : node.kwargs) add_inputs(each, node.inputs);
    nodes_.push_back(std::move(node));
    last_reader_.push_back(0);
    return static_cast<std::uint32_t>(nodes_.size() - 1);
  }

  // Adds the nodes in an argument of the next node, each once.
  void add_inputs(const Argument& argument, std::vector<std::uint32_t>& inputs) {
    if (const auto* const node = std::get_if<NodeRef>(&argument.value)) {
      const auto reader = static_cast<std::uint32_t>(nodes_.size());
      if (std::exchange(last_reader_[node->index], reader) != reader) inputs.push_back(node->index);
    } else if (const auto* const items = std::get_if<Items>(&argument.value)) {
      for (const Argument& each : *items) add_inputs(each, inputs);
    } else if (const auto* const keyed = std::get_if<Keyed>(&argument.value)) {
      for (const auto& [key, each] : *keyed) add_inputs(each, inputs);
    }
  }

  // Sets the name by which other nodes refer to a node.
  void name(std::uint32_t node, Json name) {
    nodes_[node].name = text(name, texts_);
    if (!by_name_.emplace(nodes_[node].name, node).second) throw WrongJson("names that occur once", name);
  }

  std::string_view made_text(std::string made) { return texts_.emplace_back(std::move(made)); }

  void placeholder(std::size_t i, Json input) {
    const auto [tag, value] = only_entry(input);
    const std::uint32_t node = add({.kind = NodeKind::kPlaceholder});
    if (tag.is("as_custom_obj")) {
      name(node, entry(value, "name"));
      nodes_[node].recorded = Argument{};
    } else if (named_result(node, tag, value)) {
      return;
    } else {
      const bool has_name = i < constant_names_.size() && !constant_names_[i].empty();
      nodes_[node].name = has_name ? made_text(constant_names_[i]) : made_text("arg" + std::to_string(i));
      nodes_[node].recorded = read_constant(input, texts_);
    }
  }

  // Names a node after a tensor or number, and records its type. Returns false for other results.
  bool named_result(std::uint32_t node, Json tag, Json value) {
    if (tag.is("as_tensor")) {
      const Json tensor = entry(value, "name");
      name(node, tensor);
      nodes_[node].recorded = tensor_named(nodes_[node].name, tensor);
      return true;
    }
    if (!tag.is("as_sym_int") && !tag.is("as_sym_bool") && !tag.is("as_sym_float")) return false;
    const Json number = entry(value, "as_name");
    name(node, number);
    nodes_[node].recorded = read_symbol(tag, number, graph_, texts_);
    return true;
  }

  Argument tensor_named(std::string_view name, Json named) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) throw WrongJson("the type of a tensor", named);
    return {shared_.tensor(read_tensor(found->second, texts_))};
  }

  void call(Json call) {
    std::optional<Json> target, metadata, inputs, outputs, name;
    bool is_single = true;  // of a higher-order operator: whether it returns a tensor
    for_each_entry(call, [&](Json key, Json held) {
      if (key.is("target")) target = held;
      if (key.is("metadata")) metadata = held;
      if (key.is("inputs")) inputs = held;
      if (key.is("outputs")) outputs = held;
      if (key.is("name")) name = held;
      if (key.is("is_hop_single_tensor_return")) is_single = held.kind() == JsonKind::kBool && held.truth();
    });
    if (!target || !metadata || !inputs || !outputs)
      throw WrongJson("target, metadata, inputs and outputs", call);
    Node node{.target = target_of(text(*target, texts_))};
    if (const auto trace = find_entry(*metadata, "stack_trace")) node.stack_trace = shared_.trace(*trace);
    if (const auto modules = find_entry(*metadata, "nn_module_stack"))
      node.modules = shared_.stacks.read(text(*modules, texts_));
    arguments(node, *inputs);
    if (name && name->kind() != JsonKind::kNull) node.name = text(*name, texts_);
    const bool has_tuple = node.target.starts_with(kHigherOrder) && !is_single;
    const std::uint32_t added = add(std::move(node));
    results(added, *outputs, has_tuple);
    if (nodes_[added].name.empty())
      refuse_beyond("a node has no name, as in files of older versions of torch");
  }

  void arguments(Node& node, Json list) {
    std::optional<std::vector<std::string>> names;
    for_each_item(list, [&](Json each) {
      std::optional<Json> kind, name, arg;
      for_each_entry(each, [&](Json key, Json held) {
        if (key.is("kind")) kind = held;
        if (key.is("name")) name = held;
        if (key.is("arg")) arg = held;
      });
      if (!arg || !name) throw WrongJson("name and arg", each);
      Argument value = read_argument(*arg, scope_);
      const bool has_kind = kind && kind->kind() != JsonKind::kNull;
      const std::int64_t found = has_kind ? integer(*kind) : 0;
      const std::string_view key = text(*name, texts_);
      if (has_kind && found != kPositional && found != kKeyword && !key.empty())
        throw WrongJson("a kind of argument", *kind);
      bool is_positional = found == kPositional || key.empty();
      if (!has_kind && !is_positional) {  // written before torch recorded the kind
        if (!names) names = shared_.parameter_names(node.target);
        const std::size_t next = node.args.size();
        is_positional = next < names->size() && (*names)[next] == key && node.kwargs.empty();
      }
      if (is_positional)
        node.args.push_back(std::move(value));
      else
        node.kwargs.push_back({key, std::move(value)});
    });
  }

  void results(std::uint32_t node, Json outputs, bool has_tuple) {
    if (listed(outputs).size() == 0) return;
    const auto [tag, value] = only_entry(outputs.first());
    if (outputs.size() > 1) {
      nodes_[node].recorded = items(node, outputs);
    } else if (tag.is("as_none")) {
      nodes_[node].recorded = Argument{};
    } else if (tag.is("as_tensors")) {
      nodes_[node].recorded = tensor_items(node, value);
    } else if (has_tuple) {
      nodes_[node].recorded = items(node, outputs);
    } else if (!named_result(node, tag, value)) {
      throw WrongJson("a result", tag);
    }
  }

  // Adds a node for result `i` of a call.
  std::uint32_t add_item(std::uint32_t call, std::size_t i) {
    const Node& from = nodes_[call];
    if (from.name.size() > kLongestName)
      throw WrongJson("a name of at most " + std::to_string(kLongestName) + " bytes",
                      std::to_string(from.name.size()) + " bytes");
    return add({.kind = NodeKind::kGetItem,
                .name = made_text(std::string(from.name) + "." + std::to_string(i)),
                .args = {Argument{NodeRef{call}}, Argument{static_cast<std::int64_t>(i)}},
                .stack_trace = from.stack_trace,
                .modules = from.modules});
  }

  Argument items(std::uint32_t call, Json outputs) {
    Items recorded;
    for_each_item(outputs, [&](Json output) {
      const auto [tag, value] = only_entry(output);
      const std::uint32_t item = add_item(call, recorded.size());
      if (tag.is("as_tensors"))
        nodes_[item].recorded = tensor_items(item, value);
      else if (tag.is("as_none"))
        nodes_[item].recorded = Argument{};
      else if (!named_result(item, tag, value))
        throw WrongJson("a result", tag);
      recorded.push_back(*nodes_[item].recorded);
    });
    return {std::move(recorded)};
  }

  Argument tensor_items(std::uint32_t call, Json tensors) {
    Items recorded;
    for_each_item(tensors, [&](Json tensor) {
      const std::uint32_t item = add_item(call, recorded.size());
      const Json named = entry(tensor, "name");
      name(item, named);
      nodes_[item].recorded = tensor_named(nodes_[item].name, named);
      recorded.push_back(*nodes_[item].recorded);
    });
    return {std::move(recorded)};
  }

  // Adds the node of an attribute that is a graph.
  Argument nested_graph(Json value) {
    std::deque<GraphNodes>& graphs = shared_.program.graphs;
    const auto position = static_cast<std::uint32_t>(graphs.size());
    graphs.emplace_back();
    graphs[position].nodes = GraphReader(entry(value, "graph"), {}, shared_, depth_ + 1).read();
    const std::string_view name = text(entry(value, "name"), texts_);
    return {NodeRef{add({.kind = NodeKind::kAttribute,
                         .name = name,
                         .target = name,
                         .recorded = Argument{GraphRef{position}}})}};
  }

  void output() {
    Items results;
    for_each_item(entry(graph_, "outputs"),
                  [&](Json each) { results.push_back(read_argument(each, scope_)); });
    const auto single = find_entry(graph_, "is_single_tensor_return");
    Node node{.kind = NodeKind::kOutput, .name = "output"};
    if (single && boolean(*single)) {
      if (results.empty()) throw WrongJson("a result", "none");
      node.args.push_back(std::move(results.front()));
    } else {
      node.args.push_back({std::move(results)});
    }
    add(std::move(node));
  }

  Json graph_;
  std::span<const std::string> constant_names_;
  Shared& shared_;
  std::size_t depth_;
  Texts& texts_;
  std::unordered_map<std::string_view, std::uint32_t> by_name_;
  std::unordered_map<std::string_view, Json> tensors_;
  ArgumentScope scope_;
  std::vector<Node> nodes_;
  std::vector<std::uint32_t>
      last_reader_;  // for each node, the last node that has it as an argument; 0 is none
};

}  // namespace

ProgramNodes read_nodes(Json graph, std::span<const std::string> constant_names,
                        const ParameterNames& parameter_names) {
  ProgramNodes program;
  program.graphs.emplace_back();
  Shared shared{program, parameter_names, ModuleStacks(program)};
  read_part([] { return std::string("the graph"); },
            [&] { program.graphs[0].nodes = GraphReader(graph, constant_names, shared, 0).read(); });
  return program;
}

}  // namespace tosaic::pt2
