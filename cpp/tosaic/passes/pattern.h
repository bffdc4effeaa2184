// pattern: finds expressions of several nodes in a graph.
//
//   const Pattern x = value(0);
//   const Pattern silu = node(Op::kMul, {x, node(Op::kSigmoid, {x})});     x * sigmoid(x), in either order
//   if (const std::optional<Match> found = match(graph, silu, result)) ..  found->values[0] is x
//
// A pattern is a function from a value to all ways to read it as the expression. A slot that occurs twice
// stands for one value. The nodes of a match must compute f32. Their results, except the last one, must have
// no reader outside of the match, so that a pass may replace the nodes by one node. Only a value with fewer
// elements than the last result, such as the norm of each row, may have other readers: to compute it twice
// costs little.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::passes {

// What the slots of a pattern stand for, and the nodes of the expression.
struct Match {
  std::array<ValueId, 5> values;                 // by slot; invalid if the slot is not bound
  std::array<std::optional<double>, 4> numbers;  // by slot
  std::optional<Dims> axes;                      // of all reductions
  std::vector<NodeId> nodes;                     // without duplicates
};
using Matches = std::vector<Match>;
// All matches of a value that extend `so_far`.
using Pattern = std::function<Matches(const Graph& graph, ValueId id, const Match& so_far)>;

// Any value: the first occurrence binds the slot, and the others must be the same value.
[[nodiscard]] Pattern value(std::size_t slot);
// A constant, which binds the slot.
[[nodiscard]] Pattern constant(std::size_t slot);
// A constant of one element, which bound_number() binds to a slot of Match::numbers.
[[nodiscard]] Pattern bound_number(std::size_t slot);
[[nodiscard]] Pattern number(double expected);
// A node with the operator's default attributes. The operands of add and mul may be swapped.
[[nodiscard]] Pattern node(Op op, std::vector<Pattern> operands);
// A reduction that retains its axes with extent 1. All reductions of a pattern have equal axes.
[[nodiscard]] Pattern reduction(Op op, Pattern operand);
// A mean over retained axes, or a sum over them that is divided by the number of summed elements.
[[nodiscard]] Pattern mean(const Pattern& operand);
// The matches of `pattern`, with `number` bound to a slot of Match::numbers.
[[nodiscard]] Pattern with_number(std::size_t slot, double number, Pattern pattern);
// var or std over retained axes; the slot of Match::numbers is bound to the correction.
[[nodiscard]] Pattern spread(Op op, Pattern operand, std::size_t slot);
// The root of the sum of squares over retained axes.
[[nodiscard]] Pattern euclidean_norm(Pattern operand);
// max(operand, number). The number is bound to a slot of Match::numbers.
[[nodiscard]] Pattern at_least_number(Pattern operand, std::size_t slot);
// Matches the pattern at the value itself, or at the operand of an expand that makes the value.
[[nodiscard]] Pattern behind_expand(Pattern pattern);
[[nodiscard]] Pattern either(std::vector<Pattern> options);
// A value that matches both patterns.
[[nodiscard]] Pattern both(Pattern first, Pattern second);
// factor * x, and factor * x * y. The factor may be spread over several products with, and quotients by,
// constants of one element. It may be off by one unit of f32.
[[nodiscard]] Pattern scaled(double factor, Pattern x);
[[nodiscard]] Pattern product(double factor, Pattern x, Pattern y);

// The first match of the value, or nothing.
[[nodiscard]] std::optional<Match> match(const Graph& graph, const Pattern& pattern, ValueId id);

}  // namespace tosaic::passes
