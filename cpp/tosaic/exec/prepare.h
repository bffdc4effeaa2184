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
#include <utility>

#include "tosaic/exec/array.h"
#include "tosaic/ir/graph.h"
#include "tosaic/kernels/options.h"
#include "tosaic/memory/plan.h"

namespace tosaic::exec {

// One node at run time. An override gets it to write the results; an observer gets it after the results are
// written. An absent optional operand has null data and rank 0. The views are dense and are valid during the
// call only. The memory of the results is allocated, num_elements(shape) elements each, but not initialized.
// An override writes all of these elements, and nothing else.
struct NodeCall {
  const Graph& graph;
  const Node& node;
  const std::string& name;
  std::span<const ArrayView> operands;
  std::span<const MutableArrayView> results;
};
using NodeFunction = std::function<void(const NodeCall&)>;

// What passes preserve when they copy a node to another graph. Two nodes of a graph and its regions with one
// identity have the same name, operator, attributes and origin.
struct NodeIdentity {
  std::string name;
  Op op = Op::kOpaque;
  const Attrs* attrs = nullptr;
  const Origin* origin = nullptr;
  auto operator<=>(const NodeIdentity&) const = default;
};
[[nodiscard]] NodeIdentity identity_of(const Graph& graph, const Node& node);

// Callables that run in place of kernels, also inside regions. A model takes precedence over an override, and
// an override for a node over one for its operator. Several threads may call the same callable at once.
struct Overrides {
  // Models of nodes. At stage quantized, a model gets and returns the integers of quantized values, while an
  // override gets and returns the numbers that they represent.
  std::map<NodeIdentity, NodeFunction> models;
  std::map<std::string, NodeFunction> nodes;  // by node name
  // By operator name ("add"). A foreign operator has two keys: its target ("my_library.swish"), which only an
  // opaque node has, and "domain.name", by which the opaque node and the tosa.custom are found. The target
  // takes precedence.
  std::map<std::string, NodeFunction> ops;
};

struct PrepareOptions {
  kernels::Options kernels;
  Overrides overrides;
  memory::PlanOptions memory;
  // Steps are computed together, some rows at a time, if the values between them have at least
  // this number of bytes (row_group.h).
  std::size_t least_group_bytes = std::size_t{1} << 15;
};

struct Step;  // steps.h

// A graph that is ready to run. Copies share what was prepared.
class Prepared {
 public:
  [[nodiscard]] const Graph& graph() const;
  // One step for each node of the graph, in execution order.
  [[nodiscard]] std::span<const Step> steps() const;
  [[nodiscard]] const memory::MemoryPlan& memory() const;
  // Throws InvalidGraph if the owner of a constant changed it since import. May call into the owner (torch).
  void check_constants() const;

  struct Data;  // steps.h
  explicit Prepared(std::shared_ptr<const Data> data) : data_(std::move(data)) {}
  [[nodiscard]] const Data& data() const { return *data_; }

 private:
  std::shared_ptr<const Data> data_;
};

// Throws UnsupportedOp if an operator has no kernel, or a foreign node no override. Throws InvalidGraph if a
// constant is unbound or changed, if an override is empty, or if an override is for a node or a foreign
// operator that the graph does not have. The error names the node that it concerns, if any.
//
// An override for an operator of tosaic is allowed if the graph does not have the operator. In a graph with
// tosa.custom nodes, every key with "." or "::" is allowed, too: it may be the target of an opaque node
// before lowering. So one set of overrides serves a graph at every stage.
[[nodiscard]] Prepared prepare(std::shared_ptr<const Graph> graph, const PrepareOptions& options = {});

}  // namespace tosaic::exec
