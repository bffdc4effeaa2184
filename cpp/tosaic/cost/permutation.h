// permutation: the passes that a TRANSPOSE takes.
//
//   [14,16,14,48] by (0,2,1,3)     five passes
//   [1,3,224,224] by (0,2,3,1)     one pass: [1,3,50176] by (0,2,1)
//
// An NPU permutes three axes in one pass. Vela sorts more axes by swaps of two axes, and a swap in the middle
// moves the axes to the ends and back.
#pragma once

#include <vector>

#include "tosaic/cost/machine.h"
#include "tosaic/ir/dims.h"

namespace tosaic::cost {

enum class Axis : std::uint8_t { kHeight, kWidth, kDepth };

struct Pass {
  Extent from, to;
  Axis channels_from = Axis::kDepth;  // the axis of `from` that is the depth of `to`
  bool moves_all = false;             // no axis stays in its place
};

// Empty if no element moves.
[[nodiscard]] std::vector<Pass> passes_of(const Shape& shape, const Dims& permutation);

}  // namespace tosaic::cost
