// prepare: a graph made ready to run on this machine.
//
//   Graph --prepare--> Prepared: steps in order (kernel with packed weights, where operands and results lie),
//   memory plan, constants checked. Immutable: any number of sessions and threads may use one.
//
// Steps that a kernel can do together with the one before them are fused (fuse.h):
//
//   x -> conv -> a -> rescale -> b -> clamp -> c        conv's step writes c, the others have nothing to do
//
// Works at every stage. Foreign nodes (opaque, tosa.custom), and anything the kernels do not know, need an
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

// One node as it runs: to overrides before (results to be written), to observers after. An absent optional
// operand has null data and rank 0. The views are dense and die with the call.
struct NodeCall {
  const Graph& graph;
  const Node& node;
  const std::string& name;
  std::span<const ArrayView> operands;
  std::span<const MutableArrayView> results;
};
using NodeFunction = std::function<void(const NodeCall&)>;

// Callables that take the place of kernels, also inside regions. A node's own override outranks its
// operator's. Several threads may call one at once.
struct Overrides {
  std::map<std::string, NodeFunction> nodes;  // by node name
  // By operator name ("add"); foreign nodes by target ("lib.op.default"), custom ones by "domain.name".
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

// A kernel that does a step and the ones that follow from it alone: it gives the results of the last.
struct Fusion {
  std::function<void(const kernels::Arrays&)> run;  // none: there is no such kernel
  std::vector<std::uint32_t> followers;             // steps, in order
};

struct Step {
  NodeId node;
  StepKind kind = StepKind::kKernel;
  std::string name;    // of the node
  std::string kernel;  // "conv.gemm.avx512", "view", "override", "fused", "cond", "while_loop"
  std::uint32_t first_operand = 0, operand_count = 0;  // places in a frame's pointer tables
  std::uint32_t first_result = 0, result_count = 0;
  std::size_t scratch_offset = 0, scratch_bytes = 0;
  std::function<void(const kernels::Arrays&)> run;  // kernels
  NodeFunction override;
  std::uint32_t variable = 0;  // into Prepared::Data::variables, of the outermost graph
  std::vector<Prepared> regions;
  std::vector<std::size_t> region_offsets;  // into the step's scratch: each region's arena
  Fusion fusion;
  bool is_fused = false;  // into an earlier step, which runs it where it runs fused
  std::vector<std::size_t>
      carried_offsets;  // while_loop: into the scratch, two sets of carried values, then the flag
};

class Prepared {
 public:
  [[nodiscard]] const Graph& graph() const { return *data_->graph; }
  [[nodiscard]] const std::shared_ptr<const Graph>& shared_graph() const { return data_->graph; }
  [[nodiscard]] std::span<const Step> steps() const { return data_->steps; }
  [[nodiscard]] const memory::MemoryPlan& memory() const { return data_->memory; }
  // Throws InvalidGraph if a constant's owner changed it since import. May call into the owner (torch).
  void check_constants() const;

  // A place in a table of pointers that is known only when run: the value lies in an input or an output.
  struct Patch {
    std::uint32_t place = 0;
    memory::Location location;
  };
  // A variable of the program, which a session holds from run to run.
  struct Variable {
    std::string name;
    TensorType type;
    ConstantRef initial;   // none: to be written before it is read
    bool written = false;  // by some node
  };
  struct Data {
    std::shared_ptr<const Graph> graph;
    std::vector<Step> steps;
    memory::MemoryPlan memory;
    std::vector<ConstantRef> constants;                  // of this graph and its regions, each once
    std::vector<ValueId> operand_values, result_values;  // what each place of the pointer tables points at
    std::vector<Patch> operand_patches, result_patches;
    std::vector<std::uint32_t> copied_outputs;  // outputs that no step writes: copied at the end
    std::vector<Variable> variables;            // in order of declaration; empty in regions
  };
  explicit Prepared(std::shared_ptr<const Data> data) : data_(std::move(data)) {}
  [[nodiscard]] const Data& data() const { return *data_; }

 private:
  std::shared_ptr<const Data> data_;
};

// Throws UnsupportedOp (no kernel, foreign without override), InvalidGraph (unbound or changed constants, an
// override that names nothing), each with the node it concerns.
[[nodiscard]] Prepared prepare(std::shared_ptr<const Graph> graph, const PrepareOptions& options = {});

// Runs `body`; errors of ours that it throws are thrown again with the node's name, module path and source
// line.
void with_node_location(const Node& node, const std::string& name, const std::function<void()>& body);

// The callable that takes the node's place, or null.
[[nodiscard]] const NodeFunction* find_override(const Graph& graph, const Node& node,
                                                const Overrides& overrides);

// The kernel's view of a value; `with_constant` gives it the bytes of constants.
[[nodiscard]] kernels::Operand kernel_operand(const Graph& graph, ValueId value, bool with_constant);

}  // namespace tosaic::exec
