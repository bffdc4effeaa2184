// narrow_integers: finds the ranges of inputs under which the integers of a graph fit i32.
//
// TOSA has no i64, and leaves the overflow of i32 sums undefined where torch wraps (products wrap in both).
// The search assumes a range for each integer input, and asks analysis/ranges for the ranges of all values.
// The input ranges shrink until nothing overflows, then grow again as far as possible. The executor checks
// each input against its range in every run.
//
// A target without profile INT represents integers in f32. There the same ranges show which values are too
// large for f32 and have to be i32 instead (f32_integers.h).

#include <algorithm>

#include "tosaic/analysis/ranges/ranges.h"
#include "tosaic/passes/legalize_tosa/f32_integers.h"
#include "tosaic/passes/legalize_tosa/legalizer.h"

namespace tosaic::passes {
namespace {

using analysis::IntegerRanges;
using analysis::integers_of_bits;

// The dtypes whose overflow is a problem: results of narrower dtypes wrap.
bool can_overflow(DType dtype) { return dtype == DType::kI64 || dtype == DType::kI32; }

void set_wide(IntegerPlan& plan, F32Integers found) {
  plan.wide_values = std::move(found.wide_values);
  plan.wide_nodes = std::move(found.wide_nodes);
}

// By node: true if the result may exceed its dtype, and then wraps.
std::vector<bool> wrapping(const Graph& graph, const IntegerRanges& ranges) {
  std::vector<bool> wraps;
  for (const Node& node : graph.nodes()) {
    const DType dtype = node.result_count == 1 ? graph.type(graph.result(node)).dtype : DType::kBool;
    wraps.push_back(is_integer(dtype) && !analysis::range_of_dtype(dtype).contains(ranges.computed(node)));
  }
  return wraps;
}

// By value: true if one of `nodes` depends on the value. For a division among `nodes`, only the dividend
// counts, since a smaller range of the divisor does not prevent an overflow.
std::vector<bool> behind(const Graph& graph, const std::vector<const Node*>& nodes) {
  std::vector<bool> seen(graph.values().size(), false);
  const auto see = [&](const Node& node, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i)
      if (const ValueId operand = graph.operands(node)[i]; operand.valid()) seen[operand.index()] = true;
  };
  for (const Node* node : nodes) see(*node, analysis::is_division(node->op) ? 1 : node->operand_count);
  for (std::size_t n = graph.nodes().size(); n-- > 0;) {
    const Node& node = graph.nodes()[n];
    bool needed = false;
    for (std::uint32_t r = 0; r < node.result_count; ++r) needed = needed || seen[node.first_result + r];
    if (needed) see(node, node.operand_count);
  }
  return seen;
}

struct Overflow {
  std::vector<const Node*> of_i32;  // an i64 or i32 result may not fit i32
  std::vector<const Node*> of_f32;  // target without INT: more than 24 bits, and no rule that computes in i32

  [[nodiscard]] bool empty() const { return of_i32.empty() && of_f32.empty(); }
  [[nodiscard]] std::vector<const Node*> all() const {
    std::vector<const Node*> nodes = of_i32;
    nodes.insert(nodes.end(), of_f32.begin(), of_f32.end());
    return nodes;
  }
};

void report(const Graph& graph, const Overflow& overflow, std::vector<ErrorParts>& problems) {
  for (const Node* node : overflow.of_f32)
    problems.push_back(located(
        {.where = "legalize-tosa",
         .what = "an integer result may leave the 24 bits that f32 counts exactly, and the target has no "
                 "integer arithmetic",
         .hint = "Bound the operands, e.g. with clamp, or lower for TOSA-1.0+INT+FP"},
        node->origin, graph.node_name(*node)));
  for (const Node* node : overflow.of_i32) {
    const bool wide = graph.type(graph.result(*node)).dtype == DType::kI64;
    problems.push_back(located({.where = "legalize-tosa",
                                .what = wide ? "an i64 result may not fit i32, and TOSA has no i64"
                                             : "an i32 result may overflow, which TOSA leaves undefined",
                                .hint = "Bound the operands, e.g. with clamp"},
                               node->origin, graph.node_name(*node)));
  }
}

// The search for input ranges under which nothing overflows ("the proof holds").
class InputSearch {
 public:
  InputSearch(const Graph& graph, bool integer_arithmetic)
      : graph_(graph),
        in_f32_(!integer_arithmetic),
        known_(analysis::initial_integer_ranges(graph)),
        inputs_(graph.inputs().size(), integers_of_bits(31)) {}

  // Shrinks the ranges of all inputs that an overflowing node depends on, step by step, until the proof
  // holds. Returns what may still overflow when no range can shrink further; empty if the proof holds.
  Overflow shrink() {
    std::vector<int> steps(inputs_.size(), 0);
    for (;;) {
      const Overflow overflow = overflowing();
      if (overflow.empty()) return overflow;
      const std::vector<bool> seen = behind(graph_, overflow.all());
      bool narrowed = false;
      for (std::size_t i = 0; i < inputs_.size(); ++i) {
        if (!is_free(i) || !seen[graph_.inputs()[i].value.index()] || steps[i] == kMostSteps) continue;
        inputs_[i] = after(++steps[i]);
        narrowed = true;
      }
      if (!narrowed) return overflow;
    }
  }

  // Moves each bound outward again as far as the proof still holds, one bound after the other.
  void grow() {
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (!is_free(i)) continue;
      inputs_[i].high = furthest(inputs_[i].high, integers_of_bits(31).high,
                                 [&](std::int64_t bound) { return holds_with(i, {inputs_[i].low, bound}); });
      inputs_[i].low = furthest(inputs_[i].low, integers_of_bits(31).low,
                                [&](std::int64_t bound) { return holds_with(i, {bound, inputs_[i].high}); });
    }
  }

  [[nodiscard]] IntegerPlan plan() {
    const IntegerRanges ranges = found();
    IntegerPlan plan;
    if (in_f32_) set_wide(plan, f32_integers(graph_, ranges, Legalizer::Part::kProgram));
    plan.wraps = wrapping(graph_, ranges);
    plan.inputs = inputs_;
    return plan;
  }

 private:
  static constexpr int kMostSteps = 24;

  // Step 1 only drops the lowest i32, which i32 cannot negate. Every further step drops one bit.
  static ValueRange after(int step) {
    if (step == 1) return {integers_of_bits(31).low + 1, integers_of_bits(31).high};
    return integers_of_bits(32 - step);
  }

  [[nodiscard]] bool is_free(std::size_t i) const {
    return can_overflow(graph_.type(graph_.inputs()[i].value).dtype);
  }

  [[nodiscard]] IntegerRanges found() {
    for (std::size_t i = 0; i < inputs_.size(); ++i)
      if (is_free(i)) known_[graph_.inputs()[i].value.index()] = inputs_[i];
    return {graph_, known_, {31, in_f32_ ? kF32IntegerBits : 31}};
  }

  [[nodiscard]] Overflow overflowing() {
    const IntegerRanges ranges = found();
    Overflow overflow;
    for (const Node* node : ranges.overflowing())
      (in_f32_ && !node->regions.empty() ? overflow.of_f32 : overflow.of_i32).push_back(node);
    if (in_f32_) {
      const std::vector<const Node*> refused =
          f32_integers(graph_, ranges, Legalizer::Part::kProgram).refused;
      overflow.of_f32.insert(overflow.of_f32.end(), refused.begin(), refused.end());
    }
    return overflow;
  }

  bool holds_with(std::size_t i, ValueRange range) {
    std::swap(inputs_[i], range);
    const bool holds = overflowing().empty();
    std::swap(inputs_[i], range);
    return holds;
  }

  // The bound nearest to `limit` for which `holds` is true, by bisection. The caller has made sure that
  // `holds` is true for `bound`.
  template <class F>
  static std::int64_t furthest(std::int64_t bound, std::int64_t limit, F holds) {
    if (bound == limit || holds(limit)) return limit;
    while (std::abs(limit - bound) > 1) {
      const std::int64_t middle = bound + (limit - bound) / 2;
      (holds(middle) ? bound : limit) = middle;
    }
    return bound;
  }

  const Graph& graph_;
  bool in_f32_;                     // the target has no profile INT
  std::vector<ValueRange> known_;   // by value: initial ranges
  std::vector<ValueRange> inputs_;  // assumed ranges by input
};

bool has_integers(const Graph& graph) {
  return std::any_of(graph.values().begin(), graph.values().end(), [](const Value& value) {
    return value.kind != ValueKind::kConstant && is_signed_integer(value.type.dtype);
  });
}

}  // namespace

IntegerPlan narrow_integers(const Graph& graph, bool integer_arithmetic, std::vector<ErrorParts>& problems) {
  if (!has_integers(graph)) {
    IntegerPlan plan;
    plan.inputs.resize(graph.inputs().size(), integers_of_bits(31));
    return plan;
  }
  InputSearch search(graph, integer_arithmetic);
  const Overflow overflow = search.shrink();
  if (overflow.empty())
    search.grow();
  else
    report(graph, overflow, problems);
  return search.plan();
}

IntegerPlan narrow_region_integers(const Graph& region, bool integer_arithmetic) {
  std::vector<ValueRange> known = analysis::initial_integer_ranges(region);
  const int bits = integer_arithmetic ? 31 : kF32IntegerBits;
  for (const Input& input : region.inputs())
    if (can_overflow(region.type(input.value).dtype)) known[input.value.index()] = integers_of_bits(bits);
  const IntegerRanges ranges(region, std::move(known), {bits, bits});
  IntegerPlan plan;
  if (!integer_arithmetic) set_wide(plan, f32_integers(region, ranges, Legalizer::Part::kRegion));
  plan.wraps = wrapping(region, ranges);
  return plan;
}

}  // namespace tosaic::passes
