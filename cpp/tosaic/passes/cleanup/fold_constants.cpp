// fold-constants: computes at compile time every node that depends on no input.
//
//   %i = arange(){...}  %j = unsqueeze(%i)  %m = le(%i, %j)      ->      constant %m: bool[32,32]
//
// A broadcast whose result has more than 64 KiB is not computed if all of its readers broadcast by
// themselves: an `expand` stays, and a `full` becomes an expand of one number, which `simplify` removes. If
// another folded node reads the broadcast, the broadcast is computed for that node.
//
// A value without elements is constant, too, whatever the operands of its node are. Sums, concatenations and
// products of such values then become constants, so they run on targets that have no empty tensors.
//
// A cond whose predicate is constant is replaced by the branch that it takes.
//
// Constants that are quantized, or computed from dequantized constants, have the float meaning of the q/dq
// graph at every stage: they are rounded where the source rounds, and never computed by the multipliers or
// tables of integer arithmetic.
//
//   quantize(%table)                            ->   constant: i8, rounded as torch rounds it
//   cos(mul(dequantize(%a), dequantize(%b)))    ->   constant: f32
//   permute(dequantize(%weight))                     stays: integer operators read the integers of %weight
//   f16: cast(dequantize(%weight))                   stays, too
//
// Foreign nodes, nodes with regions or variables, and nodes over constants whose data is not bound (a text
// form read without its weights) are not folded. A folded value that only folded nodes read adds no constant
// to the graph.

#include <algorithm>

#include "tosaic/exec/fold.h"
#include "tosaic/ir/control_flow.h"
#include "tosaic/ir/infer.h"
#include "tosaic/ir/quantized.h"
#include "tosaic/ir/rewriter.h"
#include "tosaic/ir/shared_storages.h"
#include "tosaic/passes/match.h"
#include "tosaic/passes/pass.h"
#include "tosaic/passes/regions.h"
#include "tosaic/quant/quantize.h"

namespace tosaic::passes {
namespace {

constexpr std::size_t kLargeBytes = 64 * 1024;

bool may_fold(const Node& node) {
  return !is_foreign(node.op) && node.regions.empty() && node.result_count != 0 && !touches_variables(node);
}

bool is_expanded(const Graph&, const Node& node) { return info(node.op).runs_as_expansion(); }

// True if the operator computes with the numbers that integers with qparams represent (stage quantized only).
bool computes_numbers(const Graph& graph, const Node& node) {
  return graph.stage == Stage::kQuantized && computes_dequantized(graph, node) &&
         !runs_on_integers(graph, node);
}

class Folding {
 public:
  explicit Folding(const Graph& graph) : graph_(graph), rewriter_(graph), known_(graph.values().size()) {
    constant_.assign(graph.values().size(), false);
    for (std::size_t i = 0; i < known_.size(); ++i) {
      const ConstantRef& constant = graph.values()[i].constant;
      if (!constant || !constant->storage.bound()) continue;
      known_[i] = constant;
      constant_[i] = true;
    }
    integers_.resize(graph.values().size());
    for (const Node& node : graph.nodes()) {
      for (std::uint32_t r = 0; r < node.result_count; ++r)
        constant_[node.first_result + r] = depends_on_nothing(node);
      if (is_constant_node(node)) integers_[node.first_result] = weight_qparams(node);
    }
  }

  std::optional<Graph> run() {
    for (const Node& node : graph_.nodes()) {
      if (const Graph* branch = taken_branch(node)) {
        static_cast<void>(rewriter_.begin_output(node));
        std::vector<ValueId> inputs = rewriter_.map_operands(node);
        inputs.erase(inputs.begin());
        rewriter_.replace(node, inline_region(rewriter_, node, *branch, inputs));
      } else if (!is_constant_node(node)) {
        rewriter_.copy(node);
      } else if (integers_[node.first_result]) {
        rewriter_.copy(node);
      } else if (is_left_to_users(node)) {
        retain_broadcast(node);
      } else {
        fold(node);
      }
    }
    return std::move(rewriter_).finish();
  }

 private:
  [[nodiscard]] bool is_empty(const Node& node) const {
    for (std::uint32_t r = 0; r < node.result_count; ++r)
      if (num_elements(graph_.type(graph_.result(node, r)).shape) != 0) return false;
    return true;
  }

  [[nodiscard]] bool depends_on_nothing(const Node& node) const {
    const std::span<const ValueId> operands = graph_.operands(node);
    if (may_fold(node) && is_empty(node)) return true;
    return may_fold(node) && std::all_of(operands.begin(), operands.end(), [this](ValueId operand) {
             return !operand.valid() || constant_[operand.index()];
           });
  }

  [[nodiscard]] bool is_constant_node(const Node& node) const {
    return node.result_count != 0 && constant_[node.first_result];
  }

  // Returns the qparams of the integers if the node's result is a dequantized integer constant, which may
  // have been moved or cast to f16 or bf16. Returns null for other values. Such a result is a weight: its
  // node stays, so that integer operators find the integers.
  [[nodiscard]] QParamsRef weight_qparams(const Node& node) const {
    if (!has_integer_form(graph_.type(graph_.result(node)).dtype) || is_empty(node)) return nullptr;
    if (node.op == Op::kDequantize)
      return qparams_of(Graph::attrs<DequantizeAttrs>(node), graph_.type(graph_.operands(node)[0]).dtype);
    if (node.op == Op::kCast) return integers_[graph_.operands(node)[0].index()];
    if (node.result_count != 1 || !moves(node)) return nullptr;
    QParamsRef common;
    for (const ValueId id : graph_.operands(node)) {
      if (!id.valid() || !is_float(graph_.type(id).dtype)) continue;
      const QParamsRef& own = integers_[id.index()];
      if (!own || (common && !same_qparams(common, own))) return nullptr;
      common = own;
    }
    return common && (rearranges(node) || has_zero(*common))
               ? qparams_after(graph_, node, common).value_or(nullptr)
               : nullptr;
  }

  // `value` is a broadcast constant, and `user` is a node that is not folded. True if the node has the same
  // result without the broadcast, because another operand, which is not constant, has the whole shape.
  [[nodiscard]] bool broadcasts(const Node& user, ValueId value) const {
    if (user.op == Op::kSdpa) return true;  // the mask broadcasts
    const OpInfo& op = info(user.op);
    if (!op.has(kElementwise) || op.is_tosa) return false;
    const Shape& shape = graph_.type(graph_.result(user)).shape;
    const std::span<const ValueId> operands = graph_.operands(user);
    return std::any_of(operands.begin(), operands.end(), [&](ValueId operand) {
      return operand != value && !constant_[operand.index()] && graph_.type(operand).shape == shape;
    });
  }

  [[nodiscard]] bool is_left_to_users(const Node& node) const {
    if (node.op != Op::kExpand && node.op != Op::kFull) return false;
    const ValueId value = graph_.result(node);
    const TensorType& type = graph_.type(value);
    if (type.bytes() <= kLargeBytes || graph_.is_output(value)) return false;
    if (node.op == Op::kExpand && graph_.type(graph_.operands(node)[0]).rank() == 0) return false;
    const std::span<const NodeId> users = graph_.users(value);
    return std::all_of(users.begin(), users.end(), [&](NodeId id) {
      const Node& user = graph_.node(id);
      return is_constant_node(user) || broadcasts(user, value);
    });
  }

  void retain_broadcast(const Node& node) {
    if (node.op == Op::kExpand) {
      rewriter_.copy(node);
      return;
    }
    const auto& full = Graph::attrs<FullAttrs>(node);
    const double number = as_double(full.value);
    const ValueId one = rewriter_.constant(
        node, make_constant("", full.dtype, Dims::filled(full.shape.size(), 1), std::span(&number, 1)));
    rewriter_.replace(node, rewriter_.emit(node, Op::kExpand, ShapeAttrs{full.shape}, {one}));
  }

  // Returns the branch that a cond with a constant predicate takes, and null for other nodes.
  [[nodiscard]] const Graph* taken_branch(const Node& node) {
    if (!is_cond(node.op)) return nullptr;
    const ValueId predicate = graph_.operands(node)[0];
    if (!constant_[predicate.index()]) return nullptr;
    const Node* producer = graph_.producer(predicate);
    if (producer != nullptr && !evaluate(*producer)) return nullptr;
    const ConstantRef& known = known_[predicate.index()];
    if (!known) return nullptr;
    return node.regions[element_as_int(*known, 0) != 0 ? 0 : 1].get();
  }

  // Computes the results of a constant node and of the nodes that it reads, each on first use. Returns false
  // if one of these nodes cannot be run.
  [[nodiscard]] bool evaluate(const Node& node) {
    if (known_[node.first_result]) return true;
    if (is_empty(node)) {
      for (std::uint32_t r = 0; r < node.result_count; ++r) {
        const TensorType& type = graph_.type(graph_.result(node, r));
        known_[node.first_result + r] = make_constant("", type.dtype, type.shape, {});
      }
      return true;
    }
    std::vector<ConstantRef> operands;
    for (const ValueId operand : graph_.operands(node)) {
      if (operand.valid() && !constant_[operand.index()]) return false;  // its producer could not be run
      const Node* producer = operand.valid() ? graph_.producer(operand) : nullptr;
      if (producer != nullptr && !evaluate(*producer)) return false;
      operands.push_back(operand.valid() ? known_[operand.index()] : nullptr);
    }
    std::optional<std::vector<ConstantRef>> results;
    if (node.op == Op::kQuantize) results = quantized(node, operands);
    if (!results && !computes_numbers(graph_, node)) results = exec::evaluate(graph_, node, operands);
    if (!results) results = expanded(node, operands);
    if (!results) return false;
    for (std::uint32_t r = 0; r < node.result_count; ++r)
      known_[node.first_result + r] = storages_.shared((*results)[r]);
    return true;
  }

  [[nodiscard]] ConstantRef made(ValueId result, Storage storage) const {
    const TensorType& type = graph_.type(result);
    return constant_over(graph_.value(result).name, ConstantKind::kFolded, type.dtype, type.shape,
                         std::move(storage));
  }

  // The integers of a quantize node over a float constant. Numbers beyond 32 bits saturate.
  [[nodiscard]] std::optional<std::vector<ConstantRef>> quantized(
      const Node& node, const std::vector<ConstantRef>& operands) const {
    const auto& attrs = Graph::attrs<QuantizeAttrs>(node);
    const auto is_scale = [](double scale) { return scale > 0 && std::isfinite(scale); };
    if (!operands[0] || !operands[0]->storage.bound() || !is_float(operands[0]->dtype) ||
        !std::all_of(attrs.scales.begin(), attrs.scales.end(), is_scale))
      return std::nullopt;
    const Elements elements(*operands[0]);
    std::vector<float> values(elements.size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(elements.as_double(i));
    quant::Quantized integers = quant::quantize(values, operands[0]->shape, *qparams_of(attrs, attrs.dtype));
    return std::vector{made(graph_.result(node), std::move(integers.storage))};
  }

  // The results of a node without kernel, computed in a graph that holds this node alone: composites are
  // expanded, and operators over values with qparams are unfolded to operators over floats.
  [[nodiscard]] std::optional<std::vector<ConstantRef>> expanded(
      const Node& node, const std::vector<ConstantRef>& operands) const {
    Graph alone;
    alone.stage = graph_.stage;
    std::vector<ValueId> ids;
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if (operands[i] && !operands[i]->storage.bound()) return std::nullopt;
      ids.push_back(operands[i] ? alone.add_constant(operands[i]) : ValueId());
      if (operands[i]) alone.set_qparams(ids.back(), graph_.type(graph_.operands(node)[i]).qparams);
    }
    const NodeId only = alone.add_copy(graph_, node, ids);
    for (std::uint32_t r = 0; r < node.result_count; ++r) {
      const ValueId result = alone.result(alone.node(only), r);
      alone.set_qparams(result, graph_.type(graph_.result(node, r)).qparams);
      alone.add_output({.value = result,
                        .kind = OutputKind::kUser,
                        .path = std::to_string(r),
                        .mutated_input = 0,
                        .boundary = {}});
    }
    std::optional<Graph> numbers = unfold_qdq(alone);
    std::optional<Graph> parts = expand_composites(numbers ? *numbers : alone, is_expanded);
    if (!numbers && !parts) return std::nullopt;
    const std::optional<Graph> folded = fold_constants(parts ? *parts : *numbers);
    if (!folded) return std::nullopt;
    std::vector<ConstantRef> results;
    for (std::uint32_t r = 0; r < node.result_count; ++r) {
      const ConstantRef& known = folded->value(folded->outputs()[r].value).constant;
      if (!known || !known->storage.bound()) return std::nullopt;
      results.push_back(made(graph_.result(node, r), known->storage));
    }
    return results;
  }

  void fold(const Node& node) {
    if (!evaluate(node)) {
      for (std::uint32_t r = 0; r < node.result_count; ++r) constant_[node.first_result + r] = false;
      rewriter_.copy(node);
      return;
    }
    std::vector<ValueId> ids;
    for (std::uint32_t r = 0; r < node.result_count; ++r) {
      const ValueId result = graph_.result(node, r);
      ids.push_back(rewriter_.constant(node, known_[result.index()]));
      rewriter_.begin_output(node).set_order(ids.back(), graph_.type(result).order);
      rewriter_.begin_output(node).set_qparams(ids.back(), graph_.type(result).qparams);
    }
    rewriter_.replace(node, ids);
  }

  const Graph& graph_;
  Rewriter rewriter_;
  std::vector<ConstantRef> known_;    // by value: its constant, or null until it is computed
  std::vector<bool> constant_;        // by value: true if it depends on no input
  std::vector<QParamsRef> integers_;  // by value: what weight_qparams() returned
  SharedStorages storages_;           // of the constants that are computed
};

}  // namespace

std::optional<Graph> fold_constants(const Graph& graph) { return without_dead_code(Folding(graph).run()); }

}  // namespace tosaic::passes
