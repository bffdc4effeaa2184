// lower: runs a pipeline on an exported graph. The result is a TOSA graph that the target can run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/ir/places.h"
#include "tosaic/passes/constant_notes.h"
#include "tosaic/passes/pass.h"
#include "tosaic/pipeline/boundary_orders.h"
#include "tosaic/pipeline/pipeline.h"

namespace tosaic::pipeline {

// The forms of quantized float inputs or outputs (passes/pass.h). Without a default, it is kFloat if the
// target has profile FP, and kConverted if the target lacks it.
struct IoForms {
  std::optional<passes::FloatIoForm> by_default = {};
  std::vector<std::optional<passes::FloatIoForm>> by_index = {};  // exceptions; may be shorter than the list
};

struct LowerOptions {
  IoForms inputs = {}, outputs = {};
  BoundaryOrders orders = {};
  layout::Objective objective = layout::Measure::kBytes;
  target::IntegerSemantics semantics = target::tosa_semantics();
  std::uint32_t threads = 1;  // that compute constants
  bool verify_each = true;    // verify the graph before the first pass, and each graph that a pass changed
  // If set, called with the lowered graph before its constants are computed. They are computed in the places
  // that it returns.
  std::function<Places(const std::shared_ptr<const Graph>& tosa)> places = {};
  // Called with each graph that a pass changed.
  std::function<void(const Step& step, const Graph& graph)> on_change = {};
};

struct PassTiming {
  std::string name, section;
  double seconds = 0;         // time in the pass
  double verify_seconds = 0;  // time in the verifier after the pass
  bool changed = false;
  std::size_t nodes_before = 0, nodes_after = 0;
  std::uint64_t visits = 0;  // nodes and values that the pass and the verifier looked at
};

struct Lowered {
  std::shared_ptr<const Graph> exported;    // after section simplify
  std::shared_ptr<const Graph> decomposed;  // after section decompose
  std::shared_ptr<const Graph> canonical;   // after section layout: dim orders are assigned
  std::shared_ptr<const Graph> tosa;        // after section legalize
  std::shared_ptr<const Graph> whole;  // `tosa` before values were made in parts, which loses their names
  std::vector<passes::ConstantNote> notes;  // on the constants of `tosa`
  std::vector<PassTiming> timings;          // the first entry, "verify", is for the graph that was passed in
  double constants_seconds = 0;             // for the elements of constants that passes deferred
  double check_seconds = 0;                 // for the rules of the target
};

// Throws InvalidGraph if the order of the pipeline has faults, or if a pass returns a graph that is broken or
// at another stage than the pass claims. A pass that is not tosaic's own may throw: for an error of tosaic,
// throws an error of the same class that names the pass; for a std::logic_error or std::runtime_error, throws
// InvalidGraph. Throws UnsupportedOp with every node that has no lowering, and SpecViolation with every rule
// of the target that the lowered graph breaks. A graph at stage tosa is only checked. The lowered graphs own
// their constants: later changes of the source's memory do not affect them.
[[nodiscard]] Lowered lower(const std::shared_ptr<const Graph>& graph, const Pipeline& pipeline,
                            const LowerOptions& options = {});

// What lower() would return for a graph, or the reasons for which it would fail.
struct Trial {
  std::vector<ErrorParts> problems;   // all reasons for which lower() would fail, as data
  std::shared_ptr<const Graph> tosa;  // as Lowered::tosa, null if there are problems
};

// The constants of the graph that it returns are computed by their first reader, possibly from the source's
// memory.
[[nodiscard]] Trial try_to_lower(const std::shared_ptr<const Graph>& graph, const Pipeline& pipeline,
                                 const LowerOptions& options = {});

// The graph after the passes of section simplify and the passes before lower-to-integer. If the program is
// quantized, the graph is at stage quantized, and it has only operators for which integer arithmetic
// exists. A graph at another stage than exported is returned as it is.
[[nodiscard]] std::shared_ptr<const Graph> before_integers(const std::shared_ptr<const Graph>& graph);

// The graph after the sections before layout. It has the operators for which dim orders are planned.
// Throws what lower() throws until then.
[[nodiscard]] std::shared_ptr<const Graph> before_layout(const std::shared_ptr<const Graph>& graph,
                                                         const Pipeline& pipeline,
                                                         const LowerOptions& options = {});

// The TOSA graph in the form that a file for the target has: state is in variables if the target has
// variables. If the program has state, call this function on Lowered::tosa, and serialize what it returns.
[[nodiscard]] std::shared_ptr<const Graph> file_graph(std::shared_ptr<const Graph> graph,
                                                      const target::TargetSpec& target);

// Runs one pass, and verifies the graph before and after it. Returns null if nothing changed, or if the pass
// does not take a graph at this stage. Throws InvalidGraph for an unknown name.
[[nodiscard]] std::shared_ptr<const Graph> run_pass(const std::string& name, const Graph& graph);
[[nodiscard]] std::shared_ptr<const Graph> run_pass(const passes::Pass& pass, const Graph& graph,
                                                    const passes::PassOptions& options = {});

}  // namespace tosaic::pipeline
