// command: what an NPU does at once, as numbers.
//
//   conv2d a   rescale b   table c   add d     one command: products, and the sum in the output unit
//
// A command has the node that it is named after, and the nodes that it computes along with it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tosaic/cost/machine.h"
#include "tosaic/cost/operations.h"
#include "tosaic/cost/permutation.h"
#include "tosaic/ir/graph.h"

namespace tosaic::cost {

enum class Work : std::uint8_t {
  kConvolution,  // sums over a kernel and the channels of the input
  kDepthwise,    // sums over a kernel, for each channel
  kProduct,      // MATMUL: both operands are feature maps
  kPool,         // maxima and averages, and operators that only move or rescale elements
  kReduceSum,
  kReduceExtreme,
  kElementwise,
  kTransfer,  // memory is read and written without computing
};

// A feature map that a command reads or writes.
struct Map {
  ValueId value = {};  // invalid if no value of the graph has it
  Extent extent;
  std::int64_t bits = 8;
  bool in_bricks = false;  // stored in bricks of 16 channels, else as in the file
  bool is_near = true;     // in SRAM
  [[nodiscard]] std::int64_t stored_elements() const {
    return extent.area() * (in_bricks ? (extent.depth + 15) / 16 * 16 : extent.depth);
  }
};

struct Command {
  Work work = Work::kPool;
  std::string_view name;  // what the device does: "conv2d", "memory_copy"
  Op op = Op::kTosaIdentity;
  NodeId node;
  std::vector<NodeId> fused;
  Map input;
  std::optional<Map> second;       // of elementwise operators and of MATMUL
  std::vector<ValueId> also_read;  // by operators that follow within the command
  Map result;
  std::int64_t kernel_height = 1, kernel_width = 1;
  std::int64_t stride_height = 1, stride_width = 1;
  std::int64_t dilation_height = 1, dilation_width = 1;
  bool is_binary = false;             // elementwise, with a second operand
  bool is_permuted = false;           // the result has its axes in another order
  Axis channels_from = Axis::kDepth;  // the axis of the operand that becomes the channels
  double chained = 0;       // cycles of the output unit for an element, of elementwise operators that follow
  bool reads_wide = false;  // one of these reads a map of 32 bits
  bool has_table = false, has_clamp = false;
  std::int64_t weights = 0, weight_bits = 8;  // elements
  std::int64_t scales = 0;                    // channels with a bias and a factor
  std::int64_t repeats = 1;                   // for further parts of the operands
  std::int64_t macs = 0;                      // of all repeats; also of pools, as Vela counts them
};

// The commands of a graph at stage tosa, in the order of its nodes. Nodes in branches and loops count for the
// node that has them, once.
[[nodiscard]] std::vector<Command> commands_of(const Graph& graph, const Machine& machine);

// The cycles of the output unit for one element of a result.
[[nodiscard]] double output_cycles(const Machine& machine, Work work, Op op, std::int64_t input_bits,
                                   std::int64_t result_bits, bool is_binary);

}  // namespace tosaic::cost
