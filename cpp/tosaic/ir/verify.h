// verify: checks that a graph is well-formed, that stored types equal inferred ones, and that the graph
// satisfies the rules of its stage.
//
//   structure   ids in range, operands defined before use, unique names, consistent results and producers,
//               operand counts and attribute structs as in ops.def, sizes of constants, qparams, conversions
//               of inputs and outputs (BoundaryFormat), mutations, regions, variables
//   types       stored result types equal the types of infer() in dtype and shape; dim order and qparams are
//               annotations and are not compared
//   stage       every operator is allowed at the stage (allowed_at() in graph.h); at stage tosa also identity
//               dim orders and rank <= 6
//
// The layer target checks what a target's profile, extensions and levels allow.
#pragma once

#include <optional>
#include <vector>

#include "tosaic/base/error.h"
#include "tosaic/ir/graph.h"

namespace tosaic {

struct VerifyOptions {
  bool types = true;
  bool stage = true;
};

// Throws the first problem: SpecViolation for a rule of the stage, UnsupportedOp if infer() throws it, and
// InvalidGraph for all others.
void verify(const Graph& graph, const VerifyOptions& options = {});

// Returns all problems, in order. Types are not checked for nodes whose structure is broken.
[[nodiscard]] std::vector<ErrorParts> check(const Graph& graph, const VerifyOptions& options = {});

// What is wrong with the qparams of a value of this type: with their storage dtype, range, axis, number of
// scales, a scale or a zero point. Returns nothing if they are sound, or if there are none.
[[nodiscard]] std::optional<ErrorParts> qparams_fault(const TensorType& type);

// The largest extent of an axis. Together with the limit on bytes it bounds arithmetic on shapes to 64 bits.
inline constexpr std::int64_t kMaxExtent = std::int64_t{1} << 48;

}  // namespace tosaic
