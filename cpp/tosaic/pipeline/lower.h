// lower: the order of everything, from an exported graph to a TOSA graph that its target takes.
//
//   exported --fold-constants, dead-code, common-subexpressions, simplify, fold-batch-norm--> exported
//   (simplified)
//   quantized, for targets with profile INT:
//            --fold-qdq, fold-constants--> quantized --lower-to-integer, quantize-borders--> integer
//            --decompose, fold-constants, sink-reshapes, simplify, common-subexpressions, choose-shapes,
//            assign-dim-order--> canonical
//            --legalize-tosa, fold-constants, simplify, common-subexpressions--> tosa --check against the
//            target
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

// How arrays lie at an input or output: the logical shape in an order of the axes, or the physical shape.
struct BorderOrder {
  DimOrder order;
  bool physical = false;
};

struct LowerOptions {
  std::string target = "TOSA-1.0+FP";
  // Of the program; by default floats where the target has profile FP, else converted.
  std::optional<passes::FloatBorder> inputs = {}, outputs = {};
  // By index; where there is none, and beyond the end, as traced.
  std::vector<std::optional<BorderOrder>> input_orders, output_orders;
  layout::Objective objective = layout::Measure::kBytes;
  bool verify_each = true;  // verify before the first and after every changing pass
  // Called with each graph that a pass changed.
  std::function<void(std::string_view pass, const Graph& graph)> on_change;
};

// The graph with the options' orders at its borders; the same where none is declared. Throws InvalidGraph for
// an order of another rank.
[[nodiscard]] std::shared_ptr<const Graph> with_border_orders(std::shared_ptr<const Graph> graph,
                                                              const LowerOptions& options);

struct PassTiming {
  std::string name;
  double seconds = 0;         // the pass alone
  double verify_seconds = 0;  // the verifier behind it
  bool changed = false;
  std::size_t nodes_before = 0, nodes_after = 0;
  std::uint64_t visits = 0;  // nodes and values looked at by the pass and the verifier
};

struct Lowered {
  std::shared_ptr<const Graph> exported;  // simplified
  std::shared_ptr<const Graph> decomposed;
  std::shared_ptr<const Graph> canonical;  // the same, dim orders assigned
  std::shared_ptr<const Graph> tosa;
  std::vector<PassTiming> timings;
  // The values of `tosa` that stand for a canonical value of the same name, with the order they are in.
  std::vector<std::pair<std::string, DimOrder>> orders;
};

// Throws UnsupportedOp with every node that has no lowering, or SpecViolation with every rule of the target
// that the lowered graph breaks. A graph at stage tosa is only checked. Constants of the lowered graphs are
// their own, as the elements were at this moment: views are copied.
[[nodiscard]] Lowered lower(const std::shared_ptr<const Graph>& graph, const LowerOptions& options = {});

// Everything that keeps the graph from the target, as data; empty if lower() would succeed.
[[nodiscard]] std::vector<ErrorParts> problems(const std::shared_ptr<const Graph>& graph,
                                               const LowerOptions& options = {});

// The TOSA graph as a file for the target says it: where the target has variables, they hold the state.
[[nodiscard]] std::shared_ptr<const Graph> file_graph(std::shared_ptr<const Graph> graph,
                                                      const std::string& target);

// One pass by name, verified before and after; null if nothing changed. Throws InvalidGraph for an unknown
// name or a graph at another stage than the pass takes.
[[nodiscard]] std::shared_ptr<const Graph> run_pass(const std::string& name, const Graph& graph);

}  // namespace tosaic::pipeline
