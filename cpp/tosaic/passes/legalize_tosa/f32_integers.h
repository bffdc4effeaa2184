// f32_integers: decides which integers a target without profile INT represents in f32, and which in i32.
//
// On such a target, arithmetic on i32 is composed of a few i32 operators (legalize_wide_integers.cpp), which
// is expensive. f32 is exact up to 24 bits. So a value is i32 ("wide") only if its range exceeds 24 bits and
// one of its readers needs it exactly. Graph outputs are read exactly.
#pragma once

#include <vector>

#include "tosaic/analysis/ranges/ranges.h"
#include "tosaic/passes/legalize_tosa/legalizer.h"

namespace tosaic::passes {

inline constexpr int kF32IntegerBits = 24;

// True if the dtype is a signed integer of torch, which f32 represents on a target without profile INT.
[[nodiscard]] bool is_signed_integer(DType dtype);

struct F32Integers {
  std::vector<bool> wide_values;  // by value: true if it is i32
  std::vector<bool> wide_nodes;   // by node: true if it computes in i32
  // The nodes that read or produce integers beyond 24 bits and have no rule for them.
  std::vector<const Node*> refused;
};

// If `part` is a region, all integers are proven to fit 24 bits, even if their range in `ranges` is wider.
[[nodiscard]] F32Integers f32_integers(const Graph& graph, const analysis::IntegerRanges& ranges,
                                       Legalizer::Part part);

}  // namespace tosaic::passes
