#include "tosaic/exec/prepare.h"

#include <algorithm>
#include <set>

#include "tosaic/base/error_text.h"
#include "tosaic/base/near_names.h"
#include "tosaic/base/rethrow.h"
#include "tosaic/exec/fuse.h"
#include "tosaic/exec/row_group.h"
#include "tosaic/exec/steps.h"
#include "tosaic/ir/control_flow.h"
#include "tosaic/ir/custom_sampler.h"
#include "tosaic/ir/quantized.h"
#include "tosaic/kernels/custom_sampler.h"
#include "tosaic/kernels/packs.h"

namespace tosaic::exec {
namespace {

std::size_t round_up(std::size_t bytes) {
  return (bytes + memory::kAlignment - 1) / memory::kAlignment * memory::kAlignment;
}

const NodeFunction* find(const std::map<std::string, NodeFunction>& table, const std::string& key) {
  const auto it = table.find(key);
  return it == table.end() ? nullptr : &it->second;
}

bool is_foreign_key(const std::string& key) {
  return key.find('.') != std::string::npos || key.find("::") != std::string::npos;
}

// "domain.name" of a foreign node; empty for an opaque node without a name.
std::string foreign_name(const Node& node) {
  if (node.op == Op::kTosaCustom) {
    const auto& custom = Graph::attrs<TosaCustomAttrs>(node);
    return custom.domain_name + "." + custom.operator_name;
  }
  const auto& opaque = Graph::attrs<OpaqueAttrs>(node);
  return opaque.name.empty() ? std::string() : opaque.domain + "." + opaque.name;
}

// The attributes of the grid sampler that a foreign node computes, if ir/custom_sampler.h describes the node.
std::optional<GridSampleAttrs> known_sampler(const Node& node) {
  if (node.op == Op::kTosaCustom) {
    const auto& custom = Graph::attrs<TosaCustomAttrs>(node);
    return parse_custom_sampler(custom.domain_name, custom.operator_name);
  }
  if (node.op != Op::kOpaque) return std::nullopt;
  const auto& opaque = Graph::attrs<OpaqueAttrs>(node);
  return parse_custom_sampler(opaque.domain, opaque.name);
}

// The name by which messages call a foreign node. It is also a key in Overrides::ops.
std::string foreign_target(const Node& node) {
  return node.op == Op::kOpaque ? Graph::attrs<OpaqueAttrs>(node).target : foreign_name(node);
}

// The keys that overrides for a graph and its regions may have.
struct Keys {
  std::set<std::string> nodes;  // names of nodes
  std::set<std::string> ops;    // names of foreign operators
  bool has_custom = false;
};

void collect_keys(const Graph& graph, Keys& keys) {
  for (const Node& node : graph.nodes()) {
    keys.nodes.insert(graph.node_name(node));
    if (is_foreign(node.op)) keys.ops.insert(foreign_target(node));
    if (is_foreign(node.op) && !foreign_name(node).empty()) keys.ops.insert(foreign_name(node));
    keys.has_custom = keys.has_custom || node.op == Op::kTosaCustom;
    for (const auto& region : node.regions) collect_keys(*region, keys);
  }
}

// A tosa.custom does not record the target of the opaque node that it was before lowering, so in a graph with
// such nodes every name of a foreign operator may be a target.
bool has_key(const Keys& keys, const std::string& name) {
  return parse_op(name) || keys.ops.contains(name) || (keys.has_custom && is_foreign_key(name));
}

[[noreturn]] void refuse_key(const Keys& keys, const std::string& name) {
  std::vector<KnownName> known;
  for (const std::string& key : keys.ops) known.push_back({key});
  for (std::size_t i = 0; i < kOpCount; ++i) known.push_back({std::string(info(static_cast<Op>(i)).name)});
  std::string hint = did_you_mean(name, known);
  if (hint.empty()) {
    for (const std::string& key : keys.ops) hint += (hint.empty() ? "'" : ", '") + key + "'";
    hint = hint.empty() ? "The graph has no foreign operators" : "Foreign operators of the graph are " + hint;
  }
  throw InvalidGraph({.where = "prepare",
                      .what = "an override names no operator",
                      .expected = "the name of an operator, or a foreign operator of the graph",
                      .got = quoted(name),
                      .hint = std::move(hint)});
}

void verify_overrides(const Graph& graph, const Overrides& overrides) {
  if (overrides.nodes.empty() && overrides.ops.empty()) return;
  Keys keys;
  collect_keys(graph, keys);
  const auto require_function = [](const std::string& name, const NodeFunction& function) {
    if (!function)
      throw InvalidGraph({.where = "prepare",
                          .what = "the override of '" + name + "' is empty",
                          .expected = "a function that computes the node",
                          .got = "an empty std::function"});
  };
  for (const auto& [name, function] : overrides.nodes) {
    if (!keys.nodes.contains(name))
      throw InvalidGraph(
          {.where = "prepare", .what = "an override names no node of the graph", .got = quoted(name)});
    require_function(name, function);
  }
  for (const auto& [name, function] : overrides.ops) {
    if (!has_key(keys, name)) refuse_key(keys, name);
    require_function(name, function);
  }
}

bool all_results_empty(const Graph& graph, const Node& node) {
  for (std::uint32_t i = 0; i < node.result_count; ++i)
    if (graph.type(graph.result(node, i)).bytes() != 0) return false;
  return true;
}

[[noreturn]] void refuse_foreign(const Node& node) {
  const std::string name = foreign_target(node);
  const bool is_custom = node.op == Op::kTosaCustom;
  const std::string operator_hint = is_custom
                                        ? "'my_library::my_operator', kernel, domain='" +
                                              Graph::attrs<TosaCustomAttrs>(node).domain_name + "', name='" +
                                              Graph::attrs<TosaCustomAttrs>(node).operator_name + "'"
                                        : quoted(name) + ", kernel";
  throw UnsupportedOp(
      {.where = "prepare",
       .what = "no kernel for the foreign operator '" + name + "'",
       .hint = "Describe it, program.with_operators([tosaic.ports.ForeignOp(" + operator_hint + ")]), " +
               (is_custom ? "where domain and name are those of the file"
                          : "where the target is that of the torch operator") +
               ", or override it with a function of the operands: program.with_overrides({'" + name +
               "': function}), in C++ PrepareOptions::overrides.ops[\"" + name + "\"]"});
}

using Variables = std::vector<Variable>;

class Preparer {
 public:
  // `variables` are the variables of the program; its regions share them.
  Preparer(std::shared_ptr<const Graph> graph, const PrepareOptions& options, Variables& variables)
      : options_(options), data_(std::make_shared<Prepared::Data>()), variables_(variables) {
    data_->graph = std::move(graph);
  }

  // Prepares the outermost graph, which stores the variables of the whole program.
  Prepared prepare_program() && {
    std::shared_ptr<Prepared::Data> data = data_;
    Prepared prepared = std::move(*this).prepare();
    data->variables = variables_;
    return prepared;
  }

  Prepared prepare() && {
    const Graph& graph = *data_->graph;
    data_->threads = options_.kernels.threads;
    for (const Value& value : graph.values())
      if (value.constant) data_->constants.push_back(value.constant);
    data_->steps.resize(graph.nodes().size());
    needs_.resize(graph.nodes().size());
    for (const Node& node : graph.nodes()) {
      const std::string name = graph.node_name(node);
      with_node_location(node, name, [&] { add_step(node, name); });
    }
    fuse_steps();
    if (!options_.kernels.reference && options_.memory.share)
      group_rows(graph, data_->steps, needs_, options_.kernels, options_.least_group_bytes);
    drop_duplicate_constants();
    data_->memory = memory::plan_memory(graph, needs_, options_.memory);
    place_pointers();
    find_copied_outputs();
    return Prepared(data_);
  }

 private:
  const Graph& graph() const { return *data_->graph; }
  Step& step(const Node& node) { return data_->steps[graph().id(node).index()]; }
  memory::NodeNeeds& needs(const Node& node) { return needs_[graph().id(node).index()]; }

  void add_step(const Node& node, const std::string& name) {
    Step& out = step(node);
    out.node = graph().id(node);
    out.name = name;
    if (const NodeFunction* override = find_override(graph(), node, options_.overrides)) {
      out.kind = StepKind::kOverride;
      out.kernel = "override";
      out.override = *override;
      needs(node).writes_all = true;
    } else if (is_cond(node.op) || is_while_loop(node.op)) {
      add_regions(node, out);
    } else if (known_sampler(node)) {
      add_kernel(node, out);
    } else if (is_foreign(node.op)) {
      refuse_foreign(node);
    } else if (info(node.op).has(kEffect)) {
      add_variable(node, out);
    } else if (all_results_empty(graph(), node)) {
      out.kind = StepKind::kView;
      out.kernel = "empty";
    } else if (options_.memory.share && memory::view_offsets(graph(), node)) {
      out.kind = StepKind::kView;
      out.kernel = "view";
    } else {
      add_kernel(node, out);
    }
    out.scratch_bytes = needs(node).scratch_bytes;
  }

  // Before lower-to-integer, an operator over quantized values means q(op(dq(x))). No kernel computes that;
  // the pass unfold-qdq replaces the operator by these three nodes. An operator that only moves integers,
  // with equal qparams before and after, runs on the integers.
  void verify_no_hidden_quantization(const Node& node) const {
    if (graph().stage != Stage::kQuantized || !computes_dequantized(graph(), node) ||
        runs_on_integers(graph(), node))
      return;
    throw UnsupportedOp({.where = "prepare",
                         .what = "an operator over quantized values of this stage cannot be run",
                         .got = std::string(info(node.op).name),
                         .hint = "Run the pass unfold-qdq, or lower the graph to integer operators first"});
  }

  void add_kernel(const Node& node, Step& out) {
    verify_no_hidden_quantization(node);
    std::vector<kernels::Operand> operands, results;
    for (const ValueId operand : graph().operands(node))
      operands.push_back(kernel_operand(graph(), operand, true));
    for (std::uint32_t i = 0; i < node.result_count; ++i)
      results.push_back(kernel_operand(graph(), graph().result(node, i), false));
    const kernels::Request request{node.op, node.attrs.get(), operands, results, options_.kernels};
    const std::optional<GridSampleAttrs> sampler = known_sampler(node);
    kernels::Kernel kernel =
        sampler ? kernels::prepare_custom_sampler(*sampler, request) : kernels::prepare(request);
    needs(node) = {kernel.scratch_bytes, kernel.in_place};
    out.run = std::move(kernel.run);
    out.kernel = std::move(kernel.name);
    out.factors = kernel.factors;
  }

  void add_variable(const Node& node, Step& out) {
    out.kernel = info(node.op).name;
    if (node.op == Op::kTosaVariable) {
      out.kind = StepKind::kView;
      declare(node);
      return;
    }
    const auto& attrs = Graph::attrs<TosaVariableAccessAttrs>(node);
    const auto found = std::find_if(variables_.begin(), variables_.end(),
                                    [&](const Variable& v) { return v.name == attrs.name; });
    if (found == variables_.end())
      throw InvalidGraph({.where = "prepare", .what = "no variable is named '" + attrs.name + "'"});
    if (found->type.dtype != attrs.dtype || found->type.shape != attrs.shape)
      throw InvalidGraph({.where = "prepare",
                          .what = "variable '" + attrs.name + "' is declared as another type",
                          .expected = to_string(found->type)});
    const bool writes = node.op == Op::kTosaVariableWrite;
    out.kind = writes ? StepKind::kWriteVariable : StepKind::kReadVariable;
    out.variable = static_cast<std::uint32_t>(found - variables_.begin());
    found->written = found->written || writes;
    needs(node).writes_all = true;
  }

  void declare(const Node& node) {
    const auto& attrs = Graph::attrs<TosaVariableAttrs>(node);
    Variable variable;
    variable.name = attrs.name;
    variable.type.dtype = attrs.dtype;
    variable.type.shape = attrs.shape;
    const std::span<const ValueId> operands = graph().operands(node);
    if (!operands.empty() && operands[0].valid()) variable.initial = graph().value(operands[0]).constant;
    for (const Variable& other : variables_)
      if (other.name == attrs.name)
        throw InvalidGraph({.where = "prepare", .what = "variable '" + attrs.name + "' is declared twice"});
    variables_.push_back(std::move(variable));
  }

  // Plans the scratch of a step with regions. For a loop, the carried values come first. One arena for each
  // region follows.
  void add_regions(const Node& node, Step& out) {
    const bool loop = is_while_loop(node.op);
    out.kind = loop ? StepKind::kWhileLoop : StepKind::kCond;
    out.kernel = info(node.op).name;
    verify_regions(node, loop ? 0 : 1);
    std::size_t top = 0;
    const auto reserve = [&top](std::size_t bytes) {
      const std::size_t at = top;
      top += round_up(std::max<std::size_t>(bytes, 1));
      return at;
    };
    if (loop) {
      for (int set = 0; set < 2; ++set)
        for (std::uint32_t i = 0; i < node.result_count; ++i)
          out.carried_offsets.push_back(reserve(graph().type(graph().result(node, i)).bytes()));
      out.carried_offsets.push_back(reserve(1));
    }
    for (const auto& region : node.regions) {
      out.regions.push_back(Preparer(region, options_, variables_).prepare());
      const Prepared::Data& inner = out.regions.back().data();
      out.region_offsets.push_back(reserve(inner.memory.all_bytes()));
      data_->constants.insert(data_->constants.end(), inner.constants.begin(), inner.constants.end());
    }
    needs(node).scratch_bytes = top;
  }

  void verify_regions(const Node& node, std::size_t first_operand) const {
    const auto fail = [](std::string what) {
      throw InvalidGraph({.where = "prepare", .what = std::move(what)});
    };
    const auto operands = graph().operands(node).subspan(first_operand);
    const bool loop = is_while_loop(node.op);
    if (node.regions.size() != 2) fail("control flow needs two regions");
    if (loop && operands.size() < node.result_count) fail("a loop carries more values than it is given");
    for (std::size_t r = 0; r < 2; ++r) {
      const Graph& region = *node.regions[r];
      if (region.inputs().size() != operands.size()) fail("a region does not take the operands of its node");
      for (std::size_t i = 0; i < operands.size(); ++i) {
        const Input& input = region.inputs()[i];
        if (input.kind != InputKind::kUser ||
            !same_array(region.type(input.value), graph().type(operands[i])))
          fail("input " + std::to_string(i) + " of a region differs from the operand");
      }
      if (loop && r == 0) {
        if (region.outputs().size() != 1 || region.type(region.outputs()[0].value).dtype != DType::kBool ||
            num_elements(region.type(region.outputs()[0].value).shape) != 1)
          fail("the condition of a loop must give one bool");
        continue;
      }
      if (region.outputs().size() != node.result_count)
        fail("a region does not give the results of its node");
      for (std::uint32_t i = 0; i < node.result_count; ++i) {
        const TensorType& type = graph().type(graph().result(node, i));
        if (!same_array(region.type(region.outputs()[i].value), type) ||
            (loop && !same_array(graph().type(operands[i]), type)))
          fail("result " + std::to_string(i) + " of a region differs from the node's");
      }
    }
    const ValueId predicate = loop ? ValueId() : graph().operands(node)[0];
    if (!loop && num_elements(graph().type(predicate).shape) != 1) fail("the predicate must be one element");
  }

  static bool same_array(const TensorType& a, const TensorType& b) {
    return a.dtype == b.dtype && a.shape == b.shape;
  }

  // A chain runs either fused or step by step. Both use the same operand and result places, so the results of
  // all its steps own their memory from the first step on (NodeNeeds::writer).
  void fuse_steps() {
    const ChainFinder chains(graph(), [this](std::uint32_t i) {
      return data_->steps[i].kind == StepKind::kKernel && !data_->steps[i].is_fused;
    });
    for (std::uint32_t i = 0; i < data_->steps.size(); ++i) {
      std::optional<Chain> chain = chains.find(i, options_.kernels);
      if (!chain) continue;
      Step& first = data_->steps[i];
      first.fusion = {std::move(chain->kernel.run), chain->followers, std::move(chain->kernel.name),
                      chain->kernel.factors};
      first.scratch_bytes = std::max(first.scratch_bytes, chain->kernel.scratch_bytes);
      needs_[i].scratch_bytes = first.scratch_bytes;
      needs_[i].is_hidden = true;
      for (const std::uint32_t follower : chain->followers) {
        needs_[follower].is_hidden = follower != chain->followers.back();
        data_->steps[follower].is_fused = true;
        data_->steps[follower].kernel = "fused";
        needs_[follower].writer = i;
      }
    }
  }

  void drop_duplicate_constants() {
    std::set<const Constant*> seen;
    std::erase_if(data_->constants,
                  [&](const ConstantRef& constant) { return !seen.insert(constant.get()).second; });
  }

  void place_pointers() {
    for (const Node& node : graph().nodes()) {
      Step& out = step(node);
      out.scratch_offset = data_->memory.scratch[out.node.index()];
      out.first_operand = static_cast<std::uint32_t>(data_->operand_values.size());
      out.operand_count = node.operand_count;
      out.first_result = static_cast<std::uint32_t>(data_->result_values.size());
      out.result_count = node.result_count;
      for (const ValueId operand : graph().operands(node))
        add_pointer(operand, data_->operand_values, data_->operand_patches);
      for (std::uint32_t i = 0; i < node.result_count; ++i)
        add_pointer(graph().result(node, i), data_->result_values, data_->result_patches);
    }
  }

  void add_pointer(ValueId value, std::vector<ValueId>& table, std::vector<Patch>& patches) const {
    if (value.valid()) {
      const memory::Location& location = data_->memory.values[value.index()];
      if (location.area == memory::Area::kInput || location.area == memory::Area::kOutput)
        patches.push_back({static_cast<std::uint32_t>(table.size()), location});
    }
    table.push_back(value);
  }

  void find_copied_outputs() {
    const auto outputs = graph().outputs();
    for (std::uint32_t i = 0; i < outputs.size(); ++i) {
      const memory::Location& location = data_->memory.values[outputs[i].value.index()];
      if (location.area != memory::Area::kOutput || location.slot != i) data_->copied_outputs.push_back(i);
    }
  }

  const PrepareOptions& options_;
  std::shared_ptr<Prepared::Data> data_;
  Variables& variables_;
  std::vector<memory::NodeNeeds> needs_;
};

}  // namespace

const Graph& Prepared::graph() const { return *data_->graph; }
std::span<const Step> Prepared::steps() const { return data_->steps; }
const memory::MemoryPlan& Prepared::memory() const { return data_->memory; }

void Prepared::check_constants() const {
  for (const ConstantRef& constant : data_->constants)
    if (const std::string message = constant->storage.change_message(); !message.empty())
      throw InvalidGraph({.where = "run",
                          .what = "constant '" + constant->name + "' was changed after import: " + message,
                          .hint = "Import the program again"});
}

Prepared prepare(std::shared_ptr<const Graph> graph, const PrepareOptions& options) {
  if (options.memory.inputs_in_arena || options.memory.outputs_in_arena)
    throw InvalidGraph(
        {.where = "prepare", .what = "inputs and outputs lie in the arena only in plans that are not run"});
  verify_overrides(*graph, options.overrides);
  Variables variables;
  kernels::Packs packs;
  PrepareOptions sharing = options;
  if (sharing.kernels.packs == nullptr) sharing.kernels.packs = &packs;
  sharing.memory.place.threads = options.kernels.threads.count;
  return Preparer(std::move(graph), sharing, variables).prepare_program();
}

void with_node_location(const Node& node, const std::string& name, const std::function<void()>& body) {
  with_errors_rethrown(body, [&]<class E>(const E& error) {
    if (!error.parts().node.empty()) throw error;
    throw E(located(error.parts(), node.origin, name));
  });
}

Overrides overrides_for(const Graph& graph, Overrides overrides) {
  Keys keys;
  collect_keys(graph, keys);
  std::erase_if(overrides.nodes, [&](const auto& entry) { return !keys.nodes.contains(entry.first); });
  std::erase_if(overrides.ops, [&](const auto& entry) { return !has_key(keys, entry.first); });
  return overrides;
}

NodeIdentity identity_of(const Graph& graph, const Node& node) {
  return {graph.node_name(node), node.op, node.attrs.get(), node.origin.get()};
}

bool has_model(const Graph& graph, const Node& node, const Overrides& overrides) {
  return !overrides.models.empty() && overrides.models.contains(identity_of(graph, node));
}

const NodeFunction* find_override(const Graph& graph, const Node& node, const Overrides& overrides) {
  if (has_model(graph, node, overrides)) return &overrides.models.at(identity_of(graph, node));
  if (overrides.nodes.empty() && overrides.ops.empty()) return nullptr;
  if (const NodeFunction* own = find(overrides.nodes, graph.node_name(node))) return own;
  if (is_foreign(node.op)) {
    if (const NodeFunction* own = find(overrides.ops, foreign_target(node))) return own;
    if (const NodeFunction* own = find(overrides.ops, foreign_name(node))) return own;
  }
  return find(overrides.ops, std::string(info(node.op).name));
}

kernels::Operand kernel_operand(const Graph& graph, ValueId value, bool with_constant) {
  kernels::Operand operand;
  operand.present = value.valid();
  if (!operand.present) return operand;
  const Value& source = graph.value(value);
  operand.dtype = source.type.dtype;
  operand.shape = source.type.shape;
  if (with_constant && source.constant) operand.constant = source.constant->bytes().data();
  return operand;
}

}  // namespace tosaic::exec
