// prepare: makes a graph ready to run on this machine.
//
//   Graph --prepare--> Prepared: the steps in order (a kernel with packed weights, places of operands and
//                      results) and the memory plan
//
// A Prepared is immutable: any number of sessions and threads may use one. prepare() throws if a constant
// operand of a kernel is unbound or was changed since import.
//
// A kernel that can also compute the nodes that follow is fused with them (fuse.h):
//
//   x -> conv -> a -> rescale -> b -> clamp -> c        conv's step writes c; the other two steps do nothing
//
// prepare() works at every stage. Foreign nodes (opaque, tosa.custom) and operators without a kernel need an
// override.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tosaic/exec/array.h"
#include "tosaic/ir/graph.h"
#include "tosaic/kernels/kernel.h"
#include "tosaic/memory/plan.h"

namespace tosaic::exec {

// One node at run time. An override gets it to write the results; an observer gets it after the results are
// written. An absent optional operand has null data and rank 0. The views are dense and are valid during the
// call only.
struct NodeCall {
  const Graph& graph;
  const Node& node;
  const std::string& name;
  std::span<const ArrayView> operands;
  std::span<const MutableArrayView> results;
};
using NodeFunction = std::function<void(const NodeCall&)>;

// Callables that run in place of kernels, also inside regions. An override for a node outranks one for its
// operator. Several threads may call the same callable at once.
struct Overrides {
  std::map<std::string, NodeFunction> nodes;  // by node name
  // By operator name ("add"). The key of an opaque node is its target ("lib.op.default"), of a custom node
  // "domain.name".
  std::map<std::string, NodeFunction> ops;
};

struct PrepareOptions {
  kernels::Options kernels;
  Overrides overrides;
  memory::PlanOptions memory;
};

class Prepared;

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
};

struct Step {
  NodeId node;
  StepKind kind = StepKind::kKernel;
  std::string name;    // of the node
  std::string kernel;  // "conv.gemm.avx512", "view", "override", "fused", "cond", "while_loop"
  std::uint32_t first_operand = 0, operand_count = 0;  // places in a frame's pointer tables
  std::uint32_t first_result = 0, result_count = 0;
  std::size_t scratch_offset = 0, scratch_bytes = 0;
  std::function<void(const kernels::Arrays&)> run;  // of a kernel step
  NodeFunction override;
  std::uint32_t variable = 0;  // index into Prepared::Data::variables of the outermost graph
  std::vector<Prepared> regions;
  std::vector<std::size_t> region_offsets;  // into the step's scratch: offset of each region's arena
  Fusion fusion;
  bool is_fused = false;  // into an earlier step, which computes this one too if the run fuses
  std::vector<std::size_t>
      carried_offsets;  // while_loop: into the scratch, two sets of carried values, then the flag
};

class Prepared {
 public:
  [[nodiscard]] const Graph& graph() const { return *data_->graph; }
  [[nodiscard]] const std::shared_ptr<const Graph>& shared_graph() const { return data_->graph; }
  [[nodiscard]] std::span<const Step> steps() const { return data_->steps; }
  [[nodiscard]] const memory::MemoryPlan& memory() const { return data_->memory; }
  // Throws InvalidGraph if the owner of a constant changed it since import. May call into the owner (torch).
  void check_constants() const;

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
    bool written = false;  // by some node
  };
  struct Data {
    std::shared_ptr<const Graph> graph;
    std::vector<Step> steps;
    memory::MemoryPlan memory;
    std::vector<ConstantRef> constants;                  // of this graph and its regions, each once
    std::vector<ValueId> operand_values, result_values;  // the value of each place in the pointer tables
    std::vector<Patch> operand_patches, result_patches;
    std::vector<std::uint32_t> copied_outputs;  // outputs that no step writes: copied at the end of the run
    std::vector<Variable> variables;            // in order of declaration; empty in regions
  };
  explicit Prepared(std::shared_ptr<const Data> data) : data_(std::move(data)) {}
  [[nodiscard]] const Data& data() const { return *data_; }

 private:
  std::shared_ptr<const Data> data_;
};

// Throws UnsupportedOp (no kernel; a foreign node without an override) and InvalidGraph (an unbound or
// changed constant; an override that names no node or operator). The error names the node that it concerns,
// if any.
[[nodiscard]] Prepared prepare(std::shared_ptr<const Graph> graph, const PrepareOptions& options = {});

// Runs `body`. An error of this library that `body` throws is thrown again with the node's name, module path
// and source line added.
void with_node_location(const Node& node, const std::string& name, const std::function<void()>& body);

// The override for the node, or null.
[[nodiscard]] const NodeFunction* find_override(const Graph& graph, const Node& node,
                                                const Overrides& overrides);

// The kernel's view of a value. If `with_constant`, a constant's bytes are included.
[[nodiscard]] kernels::Operand kernel_operand(const Graph& graph, ValueId value, bool with_constant);

}  // namespace tosaic::exec
