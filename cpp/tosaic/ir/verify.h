// verify: is this graph well-formed, does every stored type equal the inferred one, and may it stand at its
// stage?
//
//   structure   ids in range, operands defined before use, names unique, results and producers agree, operand
//   counts
//               and attribute structs as in ops.def, constants as large as their type, borders, mutations,
//               regions
//   types       stored result types equal infer() in dtype and shape (dim order and qparams are annotations)
//   stage       exported, quantized, integer: canonical operators; tosa: tosa.* only, identity dim orders,
//   rank <= 6
//
// What a target's profile, extensions and levels allow is the target layer's question.
#pragma once

#include <vector>

#include "tosaic/base/error.h"
#include "tosaic/ir/graph.h"

namespace tosaic {

struct VerifyOptions {
  bool types = true;
  bool stage = true;
};

// Throws the first problem: SpecViolation for the stage's rules, UnsupportedOp where infer() says so, else
// InvalidGraph.
void verify(const Graph& graph, const VerifyOptions& options = {});

// All problems, in order. Nodes with broken structure are not inferred.
[[nodiscard]] std::vector<ErrorParts> check(const Graph& graph, const VerifyOptions& options = {});

// Largest extent of an axis; together with the limit on bytes it keeps arithmetic on shapes within 64 bits.
inline constexpr std::int64_t kMaxExtent = std::int64_t{1} << 48;

}  // namespace tosaic
