// GraphLowering: walks a graph whose values carry qparams and makes the graph that computes with the
// integers.
//
// A node takes one of these routes:
//
//   quantize                 rounds a ScaledInteger, or emits a FunctionTable
//   dequantize               begins a ScaledInteger
//   foreign                  calls a kernel over integers of a foreign operator
//   copied                   has no integers that represent numbers, or moves them unchanged
//   computed                 is lowered by lower_node(). If that fails, these are tried in order:
//                              deferred    its float becomes a FunctionTable for the readers
//                              sampled     lower_as_smooth_function() computes it
//                              in floats   it stays between dequantize and quantize, and is reported
//
// A float between two nodes is a ScaledInteger only if all of its readers quantize it in the end, or if the
// target has no floats. Other floats stay floats, with their precision.
#pragma once

#include <vector>

#include "tosaic/passes/lower_to_integer/rule_context.h"

namespace tosaic::passes {

class GraphLowering {
 public:
  // `floats`, by value of the source: true if it stays a float, provided that the target has floats.
  GraphLowering(const Graph& source, const IntegerRules& rules, const std::vector<bool>& floats);
  GraphLowering(const GraphLowering&) = delete;
  GraphLowering& operator=(const GraphLowering&) = delete;

  [[nodiscard]] LoweredToInteger run();
  // After run(): the values that were rounded to another unit only to be read as floats.
  [[nodiscard]] const std::vector<ValueId>& rounded_for_floats() const {
    return values_.rounded_for_floats();
  }

 private:
  enum class Route : std::uint8_t { kQuantize, kDequantize, kForeign, kCopied, kComputed };

  [[nodiscard]] Route route_of(const NodeView& view) const;
  [[nodiscard]] bool may_be_scaled(ValueId id) const;
  [[nodiscard]] bool computes_from_counts(const NodeView& view) const;
  [[nodiscard]] bool makes_numbers(const NodeView& view) const;
  [[nodiscard]] bool places_constants(const NodeView& view) const;
  [[nodiscard]] bool continues_numbers(const Node& node) const;
  [[nodiscard]] bool reads_table(const Node& node) const;

  void add_inputs();
  void add_outputs();
  void lower(const Node& node);
  void lower_quantize(const RuleContext& ctx);
  void lower_dequantize(const RuleContext& ctx);
  void lower_computed(const RuleContext& ctx);
  [[nodiscard]] Outcome check_operands_and_results(const NodeView& view) const;
  [[nodiscard]] bool lower_tables(const RuleContext& ctx);
  [[nodiscard]] bool defer(const RuleContext& ctx, const std::string& reason);
  void number_deferred(ValueId id);
  void number_deferred_operands(const Node& node);

  const Graph& source_;
  NewGraph made_;
  ValueMap values_;
  std::vector<bool> ends_quantized_;  // by value of the source: all readers quantize it in the end
};

}  // namespace tosaic::passes
