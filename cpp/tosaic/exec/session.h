// session: runs a prepared graph and stores the values of its state between runs.
//
// A run allocates only its outputs: arenas and staging memory are reused from run to run. It uses up to
// PrepareOptions::kernels.threads threads; the results do not depend on their number. If the graph has no
// state, several threads may run it at once, each with its own arena. If it has state, runs take turns.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tosaic/exec/prepare.h"
#include "tosaic/exec/profile.h"

namespace tosaic::exec {

struct TraceRequest {
  bool all = false;
  std::vector<std::string> nodes;  // names of nodes of the graph itself, not of its regions
};

struct RunOptions {
  NodeFunction observer;  // called after each node, also in regions
  // One flag for each value of the graph. If set, the observer is called only for nodes outside of regions
  // with a flagged result. A chain of nodes runs as one kernel unless a value inside of the chain is flagged.
  const std::vector<bool>* watched = nullptr;
  TraceRequest trace;           // which results to return
  RunTimes* times = nullptr;    // not null: gets the time of each step
  bool check_constants = true;  // false: the caller has checked, e.g. because it holds a lock of the owner
  std::function<void()> between_steps;  // may throw to stop the run
};

struct TracedValue {
  ValueId value;
  Array array;  // dense, in the graph's axes
};

struct RunResult {
  std::vector<Array> outputs;      // in the order of Session::outputs(); empty after run_into
  std::vector<TracedValue> trace;  // in execution order
};

class Session {
 public:
  explicit Session(Prepared prepared);
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  [[nodiscard]] const Prepared& prepared() const;
  // inputs() has the indices of the graph inputs that the caller passes. outputs() has the indices of the
  // graph outputs that the caller gets: the user outputs and the mutated user inputs. Mutations of state stay
  // in the session.
  [[nodiscard]] std::span<const std::uint32_t> inputs() const;
  [[nodiscard]] std::span<const std::uint32_t> outputs() const;
  // The names of inputs() and outputs() in messages, in the same order.
  [[nodiscard]] std::vector<std::string> input_names() const;
  [[nodiscard]] std::vector<std::string> output_names() const;

  // Runs the graph. An array that is dense in the order of the graph's axes is read in place; other arrays
  // are copied first. Throws LayoutMismatch for a wrong dtype, shape or strides, and InvalidGraph for a wrong
  // number of inputs, a value out of range, or a changed constant. The error has the input, what was expected
  // and what was found. If a run fails, the state is unchanged.
  [[nodiscard]] RunResult run(std::span<const ArrayView> inputs, const RunOptions& options = {});
  // Runs the graph and writes the outputs into the caller's memory. If an output array is dense and 64-byte
  // aligned, and overlaps no input, the last kernels write into it directly; otherwise the output is copied.
  RunResult run_into(std::span<const ArrayView> inputs, std::span<const MutableArrayView> outputs,
                     const RunOptions& options = {});

  // The array as the graph reads it for input `input` (its index in the graph's inputs()): dense, in the
  // graph's dtype and axes.
  [[nodiscard]] Array imported(std::uint32_t input, const ArrayView& array) const;

  // The current value of a state input, by path, or of a variable, by name. Throws InvalidGraph if there is
  // no state of that name. set_state() copies `value`; reset_state() restores all initial values.
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

}  // namespace tosaic::exec
