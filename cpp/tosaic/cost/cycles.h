// cycles: how long an NPU computes a command, and how long its memories are busy with it.
#pragma once

#include <array>

#include "tosaic/cost/block.h"
#include "tosaic/cost/command.h"
#include "tosaic/cost/machine.h"

namespace tosaic::cost {

// A machine in a chip.
struct Chip {
  const Machine& machine;
  const MemorySystem& system;
  const MemoryMode& mode;
  [[nodiscard]] const Memory& of_results(bool is_near) const { return is_near ? system.near : system.far; }
  [[nodiscard]] const Memory& of_constants() const { return mode.constants_near ? system.near : system.far; }
};

struct Cycles {
  double computing = 0;      // with the first block of the input and the last one of the result
  double near = 0, far = 0;  // access to each memory, in parallel
  [[nodiscard]] double all() const { return std::max({computing, near, far}); }
};

[[nodiscard]] Cycles cycles_of(const Command& command, const Block& block, const Chip& chip);

}  // namespace tosaic::cost
