// since: the version of TOSA in which an operator, a dtype, or an operator with a dtype appeared.
//
//   {.version = {1, 1}, .op = Op::kTosaNew}                            an operator
//   {.version = {1, 1}, .dtype = DType::kNew}                          a dtype, wherever it occurs
//   {.version = {1, 1}, .op = Op::kTosaAdd, .dtype = DType::kF64}      an operator that took another dtype
//
// Operators and dtypes that no row names are of TOSA 1.0. tosaic has no operator and no dtype of a later
// version yet, so there are no rows.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "tosaic/ir/dtype.h"
#include "tosaic/ir/graph.h"
#include "tosaic/ir/op.h"

namespace tosaic {

struct TosaVersion {
  std::uint8_t major = 1, minor = 0;
  auto operator<=>(const TosaVersion&) const = default;
};
// "1.0"
[[nodiscard]] std::string to_string(TosaVersion version);

struct SinceRow {
  TosaVersion version;
  std::optional<Op> op = {};        // absent: every operator
  std::optional<DType> dtype = {};  // of an operand or result; absent: every dtype
};
[[nodiscard]] std::span<const SinceRow> newer_than_1_0();

// The first version of TOSA that allows this node of stage tosa.
[[nodiscard]] TosaVersion since(const Graph& graph, const Node& node,
                                std::span<const SinceRow> newer = newer_than_1_0());
// The least version of TOSA that has everything in a graph at stage tosa, with its regions.
[[nodiscard]] TosaVersion least_version(const Graph& graph,
                                        std::span<const SinceRow> newer = newer_than_1_0());

}  // namespace tosaic
