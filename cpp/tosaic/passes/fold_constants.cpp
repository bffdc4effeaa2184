// fold-constants: what depends on no input is computed once, here.
//
//   %i = arange(){...}  %j = unsqueeze(%i)  %m = le(%i, %j)      ->      constant %m: bool[32,32]
//
// A large broadcast is not written out where all who read it broadcast by themselves: `expand` stays, and
// `full` becomes an expand of one number, for `simplify` to drop. Where another folded node reads it, it is
// computed for that.
//
// A value without elements depends on nothing either: sums, concatenations and products with such operands
// become what can run where empty tensors cannot.
//
// A cond whose predicate is known becomes the branch taken.
//
// Not folded: foreign nodes, nodes with regions or variables, and operands whose data is not bound (a text
// form read without its weights). Values whose only use is another folded node leave no constant behind.

#include <algorithm>

#include "tosaic/exec/fold.h"
#include "tosaic/ir/control_flow.h"
#include "tosaic/ir/quantized.h"
#include "tosaic/ir/rewriter.h"
#include "tosaic/passes/match.h"
#include "tosaic/passes/pass.h"
#include "tosaic/passes/regions.h"
#include "tosaic/quant/quantize.h"

namespace tosaic::passes {
namespace {

constexpr std::size_t kLargeBytes = 64 * 1024;

// At stage quantized an operator over labelled integers means its numbers: only what moves the integers
// themselves is run, and quantize nodes, which make them.
bool runs_on_integers(const Graph& graph, const Node& node) {
  if (graph.stage != Stage::kQuantized || node.op == Op::kQuantize) return true;
  if (node.op == Op::kDequantize) return false;
  return !means_numbers(graph, node) || keeps_numbers(graph, node);
}

bool may_fold(const Graph& graph, const Node& node) {
  return !is_foreign(node.op) && node.regions.empty() && node.result_count != 0 && !touches_variables(node) &&
         runs_on_integers(graph, node);
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
    for (const Node& node : graph.nodes())
      for (std::uint32_t r = 0; r < node.result_count; ++r)
        constant_[node.first_result + r] = depends_on_nothing(node);
  }

  std::optional<Graph> run() {
    for (const Node& node : graph_.nodes()) {
      if (const Graph* branch = taken_branch(node)) {
        static_cast<void>(rewriter_.out(node));
        std::vector<ValueId> inputs = rewriter_.map_operands(node);
        inputs.erase(inputs.begin());
        rewriter_.replace(node, inline_region(rewriter_, node, *branch, inputs));
      } else if (!constant_of_node(node)) {
        rewriter_.keep(node);
      } else if (is_left_to_users(node)) {
        leave(node);
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
    if (may_fold(graph_, node) && is_empty(node)) return true;
    return may_fold(graph_, node) && std::all_of(operands.begin(), operands.end(), [this](ValueId operand) {
             return !operand.valid() || constant_[operand.index()];
           });
  }

  [[nodiscard]] bool constant_of_node(const Node& node) const {
    return node.result_count != 0 && constant_[node.first_result];
  }

  // True if `user`, which runs, gives the same without the broadcast: its other operands have the whole
  // shape.
  [[nodiscard]] bool broadcasts(const Node& user, ValueId value) const {
    if (user.op == Op::kSdpa) return true;  // masks
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
      return constant_of_node(user) || broadcasts(user, value);
    });
  }

  void leave(const Node& node) {
    if (node.op == Op::kExpand) {
      rewriter_.keep(node);
      return;
    }
    const auto& full = Graph::attrs<FullAttrs>(node);
    const double number = as_double(full.value);
    const ValueId one = rewriter_.constant(
        node, make_constant("", full.dtype, Dims::filled(full.shape.size(), 1), std::span(&number, 1)));
    rewriter_.replace(node, rewriter_.emit(node, Op::kExpand, ShapeAttrs{full.shape}, {one}));
  }

  // The branch of a cond whose predicate is known, else null.
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

  // The results of a constant node, computed on first use.
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
      if (operand.valid() && !constant_[operand.index()]) return false;  // its node could not be run
      const Node* producer = operand.valid() ? graph_.producer(operand) : nullptr;
      if (producer != nullptr && !evaluate(*producer)) return false;
      operands.push_back(operand.valid() ? known_[operand.index()] : nullptr);
    }
    std::optional<std::vector<ConstantRef>> results = exec::evaluate(graph_, node, operands);
    if (!results) results = quantized(node, operands);
    if (!results) return false;
    for (std::uint32_t r = 0; r < node.result_count; ++r) known_[node.first_result + r] = (*results)[r];
    return true;
  }

  // At stage quantized, the integers of a float constant: weights and biases that nobody quantized ahead.
  [[nodiscard]] std::optional<std::vector<ConstantRef>> quantized(
      const Node& node, const std::vector<ConstantRef>& operands) const {
    const QParamsRef& label = graph_.type(graph_.result(node)).qparams;
    if (graph_.stage != Stage::kQuantized || node.op != Op::kQuantize || !label || !operands[0] ||
        !operands[0]->storage.bound() || !is_float(operands[0]->dtype))
      return std::nullopt;
    const Elements elements(*operands[0]);
    std::vector<float> values(elements.size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(elements.as_double(i));
    quant::Quantized made = quant::quantize(values, operands[0]->shape, *label);
    if (made.counts.nans != 0) return std::nullopt;
    auto out = std::make_shared<Constant>();
    out->kind = ConstantKind::kFolded;
    out->dtype = label->storage;
    out->shape = operands[0]->shape;
    out->storage = std::move(made.storage);
    return std::vector<ConstantRef>{std::move(out)};
  }

  void fold(const Node& node) {
    if (!evaluate(node)) {
      for (std::uint32_t r = 0; r < node.result_count; ++r) constant_[node.first_result + r] = false;
      rewriter_.keep(node);
      return;
    }
    std::vector<ValueId> ids;
    for (std::uint32_t r = 0; r < node.result_count; ++r) {
      const ValueId result = graph_.result(node, r);
      ids.push_back(rewriter_.constant(node, known_[result.index()]));
      rewriter_.out(node).set_order(ids.back(), graph_.type(result).order);
      rewriter_.out(node).set_qparams(ids.back(), graph_.type(result).qparams);
    }
    rewriter_.replace(node, ids);
  }

  const Graph& graph_;
  Rewriter rewriter_;
  std::vector<ConstantRef> known_;  // by value: what it is, where that has been computed
  std::vector<bool> constant_;      // by value: depends on no input
};

}  // namespace

std::optional<Graph> fold_constants(const Graph& graph) {
  std::optional<Graph> out = Folding(graph).run();
  if (!out) return out;
  std::optional<Graph> clean = dead_code(*out);
  return clean ? std::move(clean) : std::move(out);
}

}  // namespace tosaic::passes
