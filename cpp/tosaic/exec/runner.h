// runner: runs the steps of a prepared graph over given memory. Only files of exec/ include this header.
#pragma once

#include "tosaic/base/large_pages.h"
#include "tosaic/exec/session.h"
#include "tosaic/exec/steps.h"

namespace tosaic::exec {

// Memory that is aligned to 64 bytes and not initialised. From 1 MiB on, it consists of large pages. With
// small pages, a kernel that works on many distant rows in turn, such as a transposition, mostly waits for
// the addresses of pages.
class Memory {
 public:
  Memory() = default;
  explicit Memory(std::size_t bytes);
  [[nodiscard]] std::byte* data() const { return const_cast<std::byte*>(bytes_.data()); }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  LargeArray<std::byte> bytes_;
  std::size_t size_ = 0;
};

// The memory of a variable of the program, and whether the variable has a value yet.
struct VariablePlace {
  std::byte* data = nullptr;
  bool* known = nullptr;
};

// The pointer tables of one run over one arena. Each region has a frame of its own over a part of the arena.
class Frame {
 public:
  Frame(const Prepared& prepared, std::byte* arena);

  // `inputs` are dense, one per graph input (state included); `outputs` are dense and 64-byte aligned, one
  // per graph output. `variables` are the variables of the program, also in the frames of regions. `result`,
  // if not null, gets the trace. `team` has the threads of the run; null: the calling thread alone.
  void run(std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs,
           std::span<const VariablePlace> variables, const RunOptions& options, RunResult* result,
           Team* team);

 private:
  void find_alone(const std::vector<bool>& watched);
  [[nodiscard]] bool is_watched(const Step& step, const std::vector<bool>& watched) const;
  [[nodiscard]] bool is_alone(std::uint32_t index) const { return !alone_.empty() && alone_[index]; }
  void run_step(const Step& step, std::uint32_t index, const RunOptions& options, RunResult* result);
  void run_fused(const Step& step, std::uint32_t index, const RunOptions& options);
  void run_group(const Step& step);
  void run_group_alone(const Step& step);
  void run_work(const Step& step, std::uint32_t index, const RunOptions& options);
  void run_alone(const Step& step, std::uint32_t index, const RunOptions& options);
  void run_cond(const Step& step, std::uint32_t index, const RunOptions& options);
  void run_loop(const Step& step, std::uint32_t index, const RunOptions& options);
  void read_variable(const Step& step) const;
  void write_variable(const Step& step) const;
  void call(const Step& step, const NodeFunction& function);
  void record(const Step& step, const TraceRequest& request, RunResult& result) const;
  [[nodiscard]] const std::byte* address(const memory::Location& location) const;
  [[nodiscard]] std::span<const std::byte* const> operands(const Step& step) const;
  [[nodiscard]] std::span<std::byte* const> results(const Step& step) const;

  Prepared prepared_;
  std::byte* arena_;
  std::vector<const std::byte*> operand_table_;
  std::vector<std::byte*> result_table_;
  std::vector<std::vector<Frame>> regions_;  // per step
  std::vector<const std::byte*> region_inputs_;
  std::span<const std::byte* const> inputs_;
  std::span<std::byte* const> outputs_;
  std::span<const VariablePlace> variables_;
  Team* team_ = nullptr;
  bool fuses_ = true;        // true if this run uses fused kernels
  std::vector<bool> alone_;  // by step: run by itself although it is in a chain; empty: no step is
};

}  // namespace tosaic::exec
