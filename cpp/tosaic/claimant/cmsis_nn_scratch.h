// cmsis_nn_scratch: the temporary memory of CMSIS-NN's kernels.
//
// A kernel of CMSIS-NN allocates nothing. Its caller passes a buffer, which has no meaning before and after
// the call, so kernels that run one after another share one buffer. Its size depends on the form of the
// kernel: CMSIS-NN has three forms, for CPUs with vectors, for those with DSP instructions, and for all
// others.
#pragma once

#include <cstdint>

#include "tosaic/ir/graph.h"

namespace tosaic::claimant {

enum class CmsisNnKernels : std::uint8_t {
  kPlain,  // Cortex-M0+
  kDsp,    // Cortex-M4 and Cortex-M33
  kMve,    // Cortex-M55 and Cortex-M85
};

// The bytes of the buffers of the kernel that computes a node of a graph at stage quantized. They are 0 if
// the kernel needs none, and if CMSIS-NN has no kernel for the node.
[[nodiscard]] std::int64_t scratch_bytes(const Graph& graph, const Node& node, CmsisNnKernels kernels);

}  // namespace tosaic::claimant
