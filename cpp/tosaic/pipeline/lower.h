// lower: the pass pipeline from an exported graph to a TOSA graph that the target accepts.
//
//   exported       fold-constants, dead-code, common-subexpressions, simplify, fold-batch-norm
//     |
//     |            only for targets with profile INT:
//   quantized        fold-qdq, fold-constants
//   integer          lower-to-integer, quantize-borders
//     |
//   decomposed     decompose, fold-constants, sink-reshapes, simplify, common-subexpressions, choose-shapes
//   canonical      assign-dim-order
//   tosa           legalize-tosa, fold-constants, simplify, common-subexpressions
//     |
//   check against the target
//
// Each line names a graph and the passes that make it from the graph above.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/passes/pass.h"

namespace tosaic::pipeline {

// The layout of the caller's array at an input or output. If `physical`, the array has the physical shape
// (the logical shape permuted by `order`). Otherwise it has the logical shape, in `order`.
struct BorderOrder {
  DimOrder order;
  bool physical = false;
};

struct LowerOptions {
  std::string target = "TOSA-1.0+FP";
  // How floats that are quantized first, or were dequantized last, are passed at inputs and outputs. By
  // default as floats if the target has profile FP, else converted.
  std::optional<passes::FloatBorder> inputs = {}, outputs = {};
  // By index. An input or output without an entry stays as it was traced.
  std::vector<std::optional<BorderOrder>> input_orders, output_orders;
  layout::Objective objective = layout::Measure::kBytes;
  bool verify_each = true;  // verify before the first and after every changing pass
  // Called with each graph that a pass changed.
  std::function<void(std::string_view pass, const Graph& graph)> on_change;
};

// The graph with the orders of `options` at its inputs and outputs; the same graph if none is declared.
// Throws InvalidGraph for an order of another rank than its value.
[[nodiscard]] std::shared_ptr<const Graph> with_border_orders(std::shared_ptr<const Graph> graph,
                                                              const LowerOptions& options);

struct PassTiming {
  std::string name;
  double seconds = 0;         // the pass alone
  double verify_seconds = 0;  // the verifier after it
  bool changed = false;
  std::size_t nodes_before = 0, nodes_after = 0;
  std::uint64_t visits = 0;  // nodes and values looked at by the pass and the verifier
};

struct Lowered {
  std::shared_ptr<const Graph> exported;  // simplified
  std::shared_ptr<const Graph> decomposed;
  std::shared_ptr<const Graph> canonical;  // `decomposed` with dim orders and transposes
  std::shared_ptr<const Graph> tosa;
  std::vector<PassTiming> timings;
  // The values of `tosa` that represent the value of the same name in `canonical`, with the dim order in
  // which they are.
  std::vector<std::pair<std::string, DimOrder>> orders;
};

// Throws UnsupportedOp with every node that has no lowering, or SpecViolation with every rule of the target
// that the resulting graph breaks. A graph at stage tosa is only checked. The resulting graphs own their
// constants: constants that are views of memory that others own are copied during the call.
[[nodiscard]] Lowered lower(const std::shared_ptr<const Graph>& graph, const LowerOptions& options = {});

// All reasons why lower() would throw UnsupportedOp or SpecViolation, as data; empty if it would succeed.
// Other errors are thrown.
[[nodiscard]] std::vector<ErrorParts> problems(const std::shared_ptr<const Graph>& graph,
                                               const LowerOptions& options = {});

// The TOSA graph in the form in which it is written to a file: if the target has variables, they hold the
// state.
[[nodiscard]] std::shared_ptr<const Graph> file_graph(std::shared_ptr<const Graph> graph,
                                                      const std::string& target);

// Runs one pass by name, and verifies the graph before and after it. Null if nothing changed. Throws
// InvalidGraph for an unknown name, and what verify() throws. The stage of the graph is not compared with
// Pass::from.
[[nodiscard]] std::shared_ptr<const Graph> run_pass(const std::string& name, const Graph& graph);

}  // namespace tosaic::pipeline
