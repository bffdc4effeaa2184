// Session: runs a prepared graph and holds the values of its state between runs.
//
// `run` allocates nothing but the outputs: arenas and staging memory are kept from run to run. Runs of a
// graph without state may go on in several threads at once, each with an arena of its own; with state they
// take turns.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tosaic/exec/prepare.h"

namespace tosaic::exec {

struct TraceRequest {
  bool all = false;
  std::vector<std::string> nodes;  // names of nodes of the graph itself, not of its regions
};

struct RunOptions {
  NodeFunction observer;        // called after each node, in regions too
  TraceRequest trace;           // results to keep
  bool profile = false;         // time each step
  bool check_constants = true;  // callers who hold a lock of the owner may check before the call instead
  std::function<void()> between_steps;  // may throw to stop the run
};

struct TracedValue {
  ValueId value;
  Array array;  // dense, in the graph's axes
};

struct RunResult {
  std::vector<Array> outputs;              // as Session::outputs(); none from run_into
  std::vector<TracedValue> trace;          // in order of the values
  std::vector<std::uint64_t> nanoseconds;  // per step, if profiled
};

class Session {
 public:
  explicit Session(Prepared prepared);
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  [[nodiscard]] const Prepared& prepared() const;
  // Indices into the graph's inputs() that callers give, and into its outputs() that they get: the user
  // outputs and mutated user inputs. Mutations of state stay inside.
  [[nodiscard]] std::span<const std::uint32_t> inputs() const;
  [[nodiscard]] std::span<const std::uint32_t> outputs() const;

  // Arrays that are dense in the graph's order are read where they lie; others are copied first. Throws
  // LayoutMismatch (dtype, shape, strides) and InvalidGraph (number of inputs, value out of range, changed
  // constant), naming input, expected and found. When a run fails, the state is what it was.
  [[nodiscard]] RunResult run(std::span<const ArrayView> inputs, const RunOptions& options = {});
  // The same into memory of the caller; where that is dense and 64-byte aligned the last kernels write it
  // themselves.
  RunResult run_into(std::span<const ArrayView> inputs, std::span<const MutableArrayView> outputs,
                     const RunOptions& options = {});

  // An input (index into the graph's inputs()) as the graph sees it: dense, in its dtype and axes.
  [[nodiscard]] Array imported(std::uint32_t input, const ArrayView& array) const;

  // The present value of a state input, by its path, or of a variable, by its name. Throws InvalidGraph for
  // an unknown one.
  [[nodiscard]] Array state(const std::string& path) const;
  void set_state(const std::string& path, const ArrayView& value);
  void reset_state();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Runs a graph once.
[[nodiscard]] std::vector<Array> run(std::shared_ptr<const Graph> graph, std::span<const ArrayView> inputs,
                                     const PrepareOptions& options = {});

// How messages call an input or output: its path, else the name of its value.
[[nodiscard]] std::string border_name(const Graph& graph, ValueId value, const std::string& path);

}  // namespace tosaic::exec
