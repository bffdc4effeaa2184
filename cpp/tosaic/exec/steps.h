// steps: the result of prepare(), which has a step for each node of a graph, and the tables of pointers that
// the steps read. The runner executes the steps. Users of the library see a Prepared only as a handle.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tosaic/exec/prepare.h"
#include "tosaic/kernels/kernel.h"

namespace tosaic::exec {

enum class StepKind : std::uint8_t {
  kKernel,
  kView,  // nothing to run
  kOverride,
  kCond,
  kWhileLoop,
  kReadVariable,
  kWriteVariable
};

// A kernel that computes a step and the steps that follow it in a chain. It writes the results of the last
// follower.
struct Fusion {
  std::function<void(const kernels::Arrays&)> run;  // empty: there is no such kernel
  std::vector<std::uint32_t> followers;             // step indices, in execution order
  std::string kernel;                               // its name
  std::optional<DType> factors;                     // Kernel::factors
};

class RowGroup;  // row_group.h

struct Step {
  NodeId node;
  StepKind kind = StepKind::kKernel;
  std::string name;    // the name of the node
  std::string kernel;  // "conv.gemm.avx512", "view", "override", "fused", "cond", "while_loop"
  std::uint32_t first_operand = 0, operand_count = 0;  // places in a frame's pointer tables
  std::uint32_t first_result = 0, result_count = 0;
  std::size_t scratch_offset = 0, scratch_bytes = 0;
  std::function<void(const kernels::Arrays&)> run;  // runs the kernel of a step that has one
  NodeFunction override;
  std::uint32_t variable = 0;  // index into Prepared::Data::variables of the outermost graph
  std::vector<Prepared> regions;
  std::vector<std::size_t> region_offsets;  // into the step's scratch: offset of each region's arena
  Fusion fusion;
  // If not null, this step is the last step of a group, and computes the whole group if the run fuses.
  std::shared_ptr<const RowGroup> group = {};
  bool is_fused = false;         // another step computes this one, too, if the run fuses
  std::optional<DType> factors;  // Kernel::factors
  // while_loop: offsets in the scratch of two sets of carried values and then of the flag
  std::vector<std::size_t> carried_offsets;
};

// A place in a pointer table whose address is known only at run time, because the value is in a graph input
// or output.
struct Patch {
  std::uint32_t place = 0;
  memory::Location location;
};

// A variable of the program, which a session holds from run to run.
struct Variable {
  std::string name;
  TensorType type;
  ConstantRef initial;   // null: must be written before it is read
  bool written = false;  // some node writes it
};

struct Prepared::Data {
  std::shared_ptr<const Graph> graph;
  std::vector<Step> steps;
  memory::MemoryPlan memory;
  std::vector<ConstantRef> constants;                  // all of this graph and its regions, each once
  std::vector<ValueId> operand_values, result_values;  // the value of each place in the pointer tables
  std::vector<Patch> operand_patches, result_patches;
  std::vector<std::uint32_t> copied_outputs;  // outputs that no step writes: copied at the end of the run
  std::vector<Variable> variables;            // in order of declaration; empty in regions
  kernels::Threads threads = {};
};

// True if the step runs something. `fuses`: the run uses the kernels of chains.
[[nodiscard]] inline bool has_work(const Step& step, bool fuses) {
  return step.kind != StepKind::kView && !(fuses && step.is_fused);
}

// Runs `body`. An error of this library that `body` throws is thrown again with the node's name, module path
// and source line added.
void with_node_location(const Node& node, const std::string& name, const std::function<void()>& body);

// The overrides that prepare() takes for the graph: those for its nodes, for operators of tosaic, and for its
// foreign operators.
[[nodiscard]] Overrides overrides_for(const Graph& graph, Overrides overrides);

// True if the node has a model.
[[nodiscard]] bool has_model(const Graph& graph, const Node& node, const Overrides& overrides);

// The model or override for the node. Returns null if there is none.
[[nodiscard]] const NodeFunction* find_override(const Graph& graph, const Node& node,
                                                const Overrides& overrides);

// The kernel's view of a value. If `with_constant`, a constant's bytes are included.
[[nodiscard]] kernels::Operand kernel_operand(const Graph& graph, ValueId value, bool with_constant);

}  // namespace tosaic::exec
