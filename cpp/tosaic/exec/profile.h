// profile: the time that each step of a run takes.
//
//   run    | inputs | step | step            | ... | outputs |
//   region                   | step | step |
//
// The clock is read once after each step that has something to do, once before the first step and once at the
// end. The time between two readings belongs to the step, so the parts add up to the time of the run. A step
// of control flow contains the steps of its regions, once for each time that a region runs.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tosaic/exec/prepare.h"

namespace tosaic::exec {

struct StepEvent {
  const Step* step = nullptr;       // of the graph or of a region
  std::int64_t begin = 0, end = 0;  // nanoseconds since the start of the run
};

// The times of one run. Its clock starts when it is made; RunOptions::times passes it to the run.
class RunTimes {
 public:
  RunTimes() : start_(std::chrono::steady_clock::now()) {}

  // Nanoseconds from the start to the last reading of the clock.
  [[nodiscard]] std::int64_t last() const { return last_; }
  // Reads the clock.
  std::int64_t read() {
    const auto passed = std::chrono::steady_clock::now() - start_;
    return last_ = std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count();
  }
  // Reads the clock at the end of a step that began at `begin`.
  void add(const Step& step, std::int64_t begin) { events_.push_back({&step, begin, read()}); }

  // In the order in which the steps ended. Between the start and the first event, the inputs are checked and
  // converted; between the last event and last(), the outputs are converted.
  [[nodiscard]] const std::vector<StepEvent>& events() const { return events_; }

 private:
  std::chrono::steady_clock::time_point start_;
  std::int64_t last_ = 0;
  std::vector<StepEvent> events_;
};

// What one execution of a step computes and moves, as its types say.
struct StepWork {
  std::uint64_t multiply_adds = 0;
  // Operands and results, each once. Values between fused nodes are neither read nor written. An operator
  // that only moves elements, such as a slice or an embedding, reads at most as many bytes of its first
  // operand as it writes. Operands that are a part of the result of a concatenation already are neither read
  // nor written.
  std::uint64_t bytes_read = 0, bytes_written = 0;
};

// A step with its place in the program.
struct StepPlace {
  const Step* step = nullptr;          // of the Prepared, which owns it
  std::shared_ptr<const Graph> graph;  // the graph or region that has the step
  // The node that the step computes, and the nodes of the same graph that are fused with it.
  std::vector<NodeId> nodes;
  std::string kernel;                        // "conv.gemm.avx512", "override", "cond", "while_loop"
  std::optional<DType> factors = {};         // kernels::Kernel::factors
  std::optional<std::uint32_t> parent = {};  // index in the list: the step whose region has this one
  std::uint32_t region = 0;                  // of the parent
  StepWork work = {};
};

// kernels::multiply_adds() of a node.
[[nodiscard]] std::uint64_t multiply_adds(const Graph& graph, const Node& node);

// All steps with something to do, and after a step of control flow the steps of its regions. A step that an
// earlier step computes too is not in the list.
[[nodiscard]] std::vector<StepPlace> profiled_steps(const Prepared& prepared);

}  // namespace tosaic::exec
