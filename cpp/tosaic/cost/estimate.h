// estimate: what a graph at stage tosa costs on an NPU, by our own model.
//
//   const Estimate cost = estimate(graph, *machine_named("..."));
//   cost.cycles                    of one run
//   cost.rows[0].node, .cycles     of a command, with the nodes that it computes
//
// It needs no tool and takes microseconds for a node, so a search may ask it. The model follows that of Vela
// 5.2; docs/measured/cost_model.md compares the two.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tosaic/cost/machine.h"
#include "tosaic/ir/graph.h"

namespace tosaic::cost {

struct Row {
  NodeId node;
  std::vector<NodeId> fused;  // computed along with it; in the order of the graph
  std::string_view name;      // what the device does: "conv2d", "memory_copy"
  std::int64_t cycles = 0;
  std::int64_t computing = 0;      // the others wait for memory
  std::int64_t near = 0, far = 0;  // of access to SRAM and to the other memory, at the same time
  std::int64_t bytes = 0;          // of results that are in use meanwhile
  std::int64_t macs = 0;
};

struct Estimate {
  std::vector<Row> rows;                             // each has cycles; each node with a result is in one row
  std::int64_t cycles = 0, computing = 0, macs = 0;  // sums of the rows
  std::int64_t result_bytes = 0;                     // the most in use
  std::int64_t constant_bytes = 0;
};

[[nodiscard]] Estimate estimate(const Graph& graph, const Machine& machine, const MemorySystem& system,
                                const MemoryMode& mode);

// The same with the system and mode for which payloads are compiled.
[[nodiscard]] Estimate estimate(const Graph& graph, const Machine& machine);

// By name; an empty name stands for the usual one. Throws InvalidGraph, with the names there are.
struct Named {
  const Machine& machine;
  const MemorySystem& system;
  const MemoryMode& mode;
};
[[nodiscard]] Named named(std::string_view machine, std::string_view system, std::string_view mode);

}  // namespace tosaic::cost
