#include "tosaic/passes/pattern.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tosaic/passes/match.h"

namespace tosaic::passes {
namespace {

// The number of a constant that has one element.
std::optional<double> number_of(const Graph& graph, ValueId id) {
  const Constant* constant = constant_of(graph, id);
  if (constant == nullptr || !is_float(constant->dtype)) return std::nullopt;
  return splat_of(graph, id, 1);
}

bool alike(double a, double b) { return std::abs(a - b) <= std::ldexp(std::abs(b), -22); }

Match with_node(const Graph& graph, Match found, const Node& node) {
  const NodeId id = graph.id(node);
  if (std::ranges::find(found.nodes, id) == found.nodes.end()) found.nodes.push_back(id);
  return found;
}

Matches operands_in_order(const Graph& graph, const std::vector<Pattern>& patterns,
                          const std::vector<ValueId>& ids, const Match& so_far) {
  Matches found{so_far};
  for (std::size_t i = 0; i < patterns.size() && !found.empty(); ++i) {
    Matches next;
    for (const Match& each : found)
      for (Match& longer : patterns[i](graph, ids[i], each)) next.push_back(std::move(longer));
    found = std::move(next);
  }
  return found;
}

// A reading of a value as factor * rest. `found` includes the muls and divs between `rest` and the value.
struct Factored {
  ValueId rest;
  double factor = 1.0;
  Match found;
};

// The value with factor 1, and then with its last 1, 2 .. products with, or quotients by, constants removed.
std::vector<Factored> factored(const Graph& graph, ValueId id, const Match& so_far) {
  constexpr std::size_t kMost = 4;  // so that the time for a chain of products is linear
  std::vector<Factored> out{{id, 1.0, so_far}};
  while (out.size() < kMost) {
    const Factored& last = out.back();
    const Node* node = graph.producer(last.rest);
    if (node == nullptr || (node->op != Op::kMul && node->op != Op::kDiv)) break;
    if (*node->attrs != default_attrs(node->op)) break;
    const std::span<const ValueId> operands = graph.operands(*node);
    const std::optional<double> left = number_of(graph, operands[0]), right = number_of(graph, operands[1]);
    if (node->op == Op::kDiv ? !right || *right == 0.0 : !left && !right) break;
    const double factor = node->op == Op::kDiv ? 1.0 / *right : right ? *right : *left;
    out.push_back({operands[right ? 0 : 1], last.factor * factor, with_node(graph, last.found, *node)});
  }
  return out;
}

void append(Matches& out, Matches more) {
  for (Match& each : more) out.push_back(std::move(each));
}

bool bind_number(Match& found, std::size_t slot, double number) {
  if (found.numbers[slot] && *found.numbers[slot] != number) return false;
  found.numbers[slot] = number;
  return true;
}

// Binds the axes of a reduction, or returns false if another reduction of the match has other axes.
bool bind_axes(Match& found, const Dims& axes) {
  if (found.axes && *found.axes != axes) return false;
  found.axes = axes;
  return true;
}

bool is_closed(const Graph& graph, const Match& found, ValueId result) {
  const auto is_inside = [&](NodeId user) {
    return std::ranges::find(found.nodes, user) != found.nodes.end();
  };
  const auto is_reduced = [&](ValueId made) {
    return found.axes && num_elements(graph.type(made).shape) < num_elements(graph.type(result).shape);
  };
  return std::ranges::all_of(found.nodes, [&](NodeId id) {
    const ValueId made = graph.result(graph.node(id));
    if (graph.type(made).dtype != DType::kF32) return false;
    if (made == result || is_reduced(made)) return true;
    return std::ranges::all_of(graph.users(made), is_inside) && !graph.is_output(made);
  });
}

}  // namespace

Pattern value(std::size_t slot) {
  return [slot](const Graph&, ValueId id, const Match& so_far) -> Matches {
    if (so_far.values[slot].valid() && so_far.values[slot] != id) return {};
    Match found = so_far;
    found.values[slot] = id;
    return {std::move(found)};
  };
}

Pattern constant(std::size_t slot) {
  return [slot](const Graph& graph, ValueId id, const Match& so_far) -> Matches {
    const Constant* constant = constant_of(graph, id);
    if (constant == nullptr || constant->dtype != DType::kF32 || !constant->storage.bound()) return {};
    return value(slot)(graph, id, so_far);
  };
}

Pattern bound_number(std::size_t slot) {
  return [slot](const Graph& graph, ValueId id, const Match& so_far) -> Matches {
    const std::optional<double> known = number_of(graph, id);
    Match found = so_far;
    if (!known || !bind_number(found, slot, *known)) return {};
    return {std::move(found)};
  };
}

Pattern with_number(std::size_t slot, double number, Pattern pattern) {
  return [slot, number, pattern = std::move(pattern)](const Graph& graph, ValueId id, const Match& so_far) {
    Matches found = pattern(graph, id, so_far);
    std::erase_if(found, [&](Match& each) { return !bind_number(each, slot, number); });
    return found;
  };
}

Pattern number(double expected) {
  return [expected](const Graph& graph, ValueId id, const Match& so_far) -> Matches {
    const std::optional<double> known = number_of(graph, id);
    if (!known || !alike(*known, expected)) return {};
    return {so_far};
  };
}

Pattern node(Op op, std::vector<Pattern> operands) {
  return
      [op, operands = std::move(operands)](const Graph& graph, ValueId id, const Match& so_far) -> Matches {
        const Node* node = produced_by(graph, id, op);
        if (node == nullptr || node->operand_count != operands.size() || *node->attrs != default_attrs(op))
          return {};
        const std::span<const ValueId> given = graph.operands(*node);
        std::vector<ValueId> ids(given.begin(), given.end());
        Matches found = operands_in_order(graph, operands, ids, so_far);
        if ((op == Op::kAdd || op == Op::kMul) && ids[0] != ids[1]) {
          std::swap(ids[0], ids[1]);
          append(found, operands_in_order(graph, operands, ids, so_far));
        }
        for (Match& each : found) each = with_node(graph, std::move(each), *node);
        return found;
      };
}

Pattern reduction(Op op, Pattern operand) {
  return [op, operand = std::move(operand)](const Graph& graph, ValueId id, const Match& so_far) -> Matches {
    const Node* node = produced_by(graph, id, op);
    if (node == nullptr || !Graph::attrs<ReduceAttrs>(*node).keepdim) return {};
    Matches found = operand(graph, graph.operands(*node)[0], so_far);
    std::erase_if(found,
                  [&](Match& each) { return !bind_axes(each, Graph::attrs<ReduceAttrs>(*node).axes); });
    for (Match& each : found) each = with_node(graph, std::move(each), *node);
    return found;
  };
}

Pattern mean(const Pattern& operand) {
  return [whole = reduction(Op::kMean, operand), sum = reduction(Op::kSum, operand)](
             const Graph& graph, ValueId id, const Match& so_far) {
    Matches found = whole(graph, id, so_far);
    for (const Factored& outer : factored(graph, id, so_far)) {
      const Node* node = produced_by(graph, outer.rest, Op::kSum);
      if (node == nullptr) continue;
      const Shape& shape = graph.type(graph.operands(*node)[0]).shape;
      double count = 1.0;
      for (const std::int64_t axis : Graph::attrs<ReduceAttrs>(*node).axes)
        count *= static_cast<double>(shape[static_cast<std::size_t>(axis)]);
      if (alike(outer.factor * count, 1.0)) append(found, sum(graph, outer.rest, outer.found));
    }
    return found;
  };
}

Pattern spread(Op op, Pattern operand, std::size_t slot) {
  return [op, slot, operand = std::move(operand)](const Graph& graph, ValueId id,
                                                  const Match& so_far) -> Matches {
    const Node* node = produced_by(graph, id, op);
    if (node == nullptr) return {};
    const auto& attrs = Graph::attrs<VarAttrs>(*node);
    if (!attrs.keepdim) return {};
    Matches found = operand(graph, graph.operands(*node)[0], so_far);
    std::erase_if(found, [&](Match& each) {
      return !bind_axes(each, attrs.axes) || !bind_number(each, slot, attrs.correction);
    });
    for (Match& each : found) each = with_node(graph, std::move(each), *node);
    return found;
  };
}

Pattern euclidean_norm(Pattern operand) {
  return [operand = std::move(operand)](const Graph& graph, ValueId id, const Match& so_far) -> Matches {
    const Node* node = produced_by(graph, id, Op::kVectorNorm);
    if (node == nullptr) return {};
    const auto& attrs = Graph::attrs<VectorNormAttrs>(*node);
    if (!attrs.keepdim || attrs.ord != 2.0) return {};
    Matches found = operand(graph, graph.operands(*node)[0], so_far);
    std::erase_if(found, [&](Match& each) { return !bind_axes(each, attrs.axes); });
    for (Match& each : found) each = with_node(graph, std::move(each), *node);
    return found;
  };
}

Pattern at_least_number(Pattern operand, std::size_t slot) {
  const Pattern maximum = node(Op::kMaximum, {operand, bound_number(slot)});
  const Pattern reversed = node(Op::kMaximum, {bound_number(slot), operand});
  return [slot, operand = std::move(operand), either_order = either({maximum, reversed})](
             const Graph& graph, ValueId id, const Match& so_far) -> Matches {
    const Node* node = produced_by(graph, id, Op::kClamp);
    if (node == nullptr) return either_order(graph, id, so_far);
    const auto& attrs = Graph::attrs<ClampAttrs>(*node);
    if (!attrs.min || attrs.max) return {};
    const double least = std::visit([](auto x) { return static_cast<double>(x); }, *attrs.min);
    Matches found = operand(graph, graph.operands(*node)[0], so_far);
    std::erase_if(found, [&](Match& each) { return !bind_number(each, slot, least); });
    for (Match& each : found) each = with_node(graph, std::move(each), *node);
    return found;
  };
}

Pattern behind_expand(Pattern pattern) {
  return [pattern = std::move(pattern)](const Graph& graph, ValueId id, const Match& so_far) -> Matches {
    const Node* node = produced_by(graph, id, Op::kExpand);
    if (node == nullptr) return pattern(graph, id, so_far);
    Matches found = pattern(graph, graph.operands(*node)[0], so_far);
    for (Match& each : found) each = with_node(graph, std::move(each), *node);
    return found;
  };
}

Pattern either(std::vector<Pattern> options) {
  return [options = std::move(options)](const Graph& graph, ValueId id, const Match& so_far) {
    Matches found;
    for (const Pattern& option : options) append(found, option(graph, id, so_far));
    return found;
  };
}

Pattern both(Pattern first, Pattern second) {
  return [first = std::move(first), second = std::move(second)](const Graph& graph, ValueId id,
                                                                const Match& so_far) {
    return operands_in_order(graph, {first, second}, {id, id}, so_far);
  };
}

Pattern scaled(double factor, Pattern x) {
  return [factor, x = std::move(x)](const Graph& graph, ValueId id, const Match& so_far) {
    Matches found;
    for (const Factored& outer : factored(graph, id, so_far))
      if (alike(outer.factor, factor)) append(found, x(graph, outer.rest, outer.found));
    return found;
  };
}

Pattern product(double factor, Pattern x, Pattern y) {
  return [factor, x = std::move(x), y = std::move(y)](const Graph& graph, ValueId id, const Match& so_far) {
    Matches found;
    for (const Factored& outer : factored(graph, id, so_far)) {
      const Node* node = produced_by(graph, outer.rest, Op::kMul);
      if (node == nullptr) continue;
      const Match with_mul = with_node(graph, outer.found, *node);
      const ValueId operands[] = {graph.operands(*node)[0], graph.operands(*node)[1]};
      for (const std::size_t first : {0U, 1U})
        for (const Factored& left : factored(graph, operands[first], with_mul))
          for (const Factored& right : factored(graph, operands[1 - first], left.found))
            if (alike(outer.factor * left.factor * right.factor, factor))
              append(found, operands_in_order(graph, {x, y}, {left.rest, right.rest}, right.found));
    }
    return found;
  };
}

std::optional<Match> match(const Graph& graph, const Pattern& pattern, ValueId id) {
  for (Match& found : pattern(graph, id, Match{}))
    if (is_closed(graph, found, id)) return std::move(found);
  return std::nullopt;
}

}  // namespace tosaic::passes
