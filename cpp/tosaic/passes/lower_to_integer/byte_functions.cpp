#include "tosaic/passes/lower_to_integer/byte_functions.h"

#include <array>

#include "tosaic/exec/fold.h"
#include "tosaic/ir/rewriter.h"
#include "tosaic/passes/match.h"
#include "tosaic/passes/pass.h"
#include "tosaic/quant/requantize.h"

namespace tosaic::passes {
namespace {

using Bytes = std::array<std::int8_t, 256>;  // f(q) is at index q + 128

std::int8_t at(const Bytes& f, std::int64_t q) { return f[static_cast<std::size_t>(q + 128)]; }

bool is_byte_function(const Graph& graph, const Node& node) {
  if (node.op != Op::kTosaClamp && node.op != Op::kTosaTable && node.op != Op::kRescale) return false;
  if (graph.type(graph.operands(node)[0]).dtype != DType::kI8) return false;
  if (graph.type(graph.result(node)).dtype != DType::kI8) return false;
  if (node.op == Op::kRescale) {
    const auto& attrs = Graph::attrs<RescaleAttrs>(node);
    if (attrs.axis) return false;
    const ValueRange defined = quant::defined_inputs(attrs.rescale, 0);
    return defined.contains(-128) && defined.contains(127);
  }
  return node.op != Op::kTosaTable || constant_of(graph, graph.operands(node)[1]) != nullptr;
}

ConstantRef table_of(const Bytes& f, const std::string& name) {
  return constant_over(name, ConstantKind::kFolded, DType::kI8, {256},
                       Storage::of(std::vector<std::int8_t>(f.begin(), f.end())));
}

// The results of the node for all 256 inputs. Returns nothing if the node cannot be run.
std::optional<Bytes> values_of(const Graph& graph, const Node& node) {
  Bytes all{};
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = static_cast<std::int8_t>(static_cast<std::int64_t>(i) - 128);
  Graph alone;
  alone.stage = Stage::kInteger;
  const ConstantRef ramp = table_of(all, "bytes");
  std::vector<ValueId> ids{alone.add_constant(ramp)};
  std::vector<ConstantRef> constants{ramp};
  if (node.op == Op::kTosaTable) {
    constants.push_back(graph.value(graph.operands(node)[1]).constant);
    ids.push_back(alone.add_constant(constants.back()));
  }
  const ValueId result = alone.add(node.op, *node.attrs, ids, nullptr);
  const auto found = exec::evaluate(alone, *alone.producer(result), constants);
  if (!found) return std::nullopt;
  const auto* bytes = reinterpret_cast<const std::int8_t*>(found->front()->bytes().data());
  std::copy_n(bytes, all.size(), all.begin());
  return all;
}

class Joining {
 public:
  explicit Joining(const Graph& graph) : graph_(graph), rewriter_(graph) {}

  std::optional<Graph> run() {
    for (const Node& node : graph_.nodes())
      if (!is_byte_function(graph_, node) || (!joins(node) && !moves_before_pad(node))) rewriter_.copy(node);
    return std::move(rewriter_).finish();
  }

 private:
  // The producer of operand 0, or null if the operand has other readers.
  [[nodiscard]] const Node* only_for(const Node& node) const {
    const ValueId id = graph_.operands(node)[0];
    return graph_.users(id).size() == 1 && !graph_.is_output(id) ? graph_.producer(id) : nullptr;
  }

  void replace(const Node& node, ValueId made) {
    const ValueId result = graph_.result(node);
    rewriter_.begin_output(node).set_qparams(made, graph_.type(result).qparams);
    rewriter_.replace(node, made);
  }

  bool joins(const Node& node) {
    const Node* first = only_for(node);
    if (first == nullptr || !is_byte_function(graph_, *first)) return false;
    const std::optional<Bytes> f = values_of(graph_, *first), g = values_of(graph_, node);
    if (!f || !g) return false;
    Bytes both{};
    for (std::size_t i = 0; i < both.size(); ++i) both[i] = at(*g, (*f)[i]);
    static_cast<void>(rewriter_.begin_output(node));
    const ValueId x = rewriter_.map(graph_.operands(*first)[0]);
    const ValueId table = rewriter_.constant(node, table_of(both, graph_.node_name(node) + ".const"));
    replace(node, rewriter_.emit(node, Op::kTosaTable, NoAttrs{}, {x, table}, first->origin));
    return true;
  }

  bool moves_before_pad(const Node& node) {
    const Node* pad = only_for(node);
    if (pad == nullptr || pad->op != Op::kPad) return false;
    PadAttrs attrs = Graph::attrs<PadAttrs>(*pad);
    const std::optional<Bytes> f = values_of(graph_, node);
    if (!f) return false;
    if (attrs.mode == PadMode::kConstant)
      attrs.value = static_cast<std::int64_t>(at(*f, as_int(attrs.value)));
    static_cast<void>(rewriter_.begin_output(node));
    std::vector<ValueId> operands = rewriter_.map_operands(node);
    operands[0] = rewriter_.map(graph_.operands(*pad)[0]);
    const ValueId inner = rewriter_.emit(node, node.op, *node.attrs, operands);
    replace(node, rewriter_.emit(node, Op::kPad, attrs, {inner}, pad->origin));
    return true;
  }

  const Graph& graph_;
  Rewriter rewriter_;
};

}  // namespace

std::optional<Graph> join_byte_functions(const Graph& graph) {
  std::optional<Graph> result;
  for (;;) {
    std::optional<Graph> next = Joining(result ? *result : graph).run();
    if (!next) return result;
    std::optional<Graph> clean = dead_code(*next);
    result = clean ? std::move(clean) : std::move(next);
  }
}

}  // namespace tosaic::passes
