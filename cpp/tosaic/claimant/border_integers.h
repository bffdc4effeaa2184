// border_integers: whether the integers that a group reads from other parts are in the range that it accepts.
//
//   h = (t * 2654435761) & 0xffffffff     on the host, in 64 bits: from 0 to 2^32 - 1
//   y = h >> 15                           takes i32 as TOSA, so this node stays on the host, too
//   z = table[y]                          y is from 0 to 2^17 - 1: a group may read it
//
// A lowered group takes i64 as i32, perhaps narrower (passes/legalize_tosa/narrow_integers), and a run checks
// its inputs. An input of the program may fail that check. A value between parts must not fail: it is not the
// user's error, and a device does not check. So each integer of another part has to be proven to fit, under
// the assumption that i64 inputs of the program fit i32. Positions that only choose elements need no proof:
// torch refuses positions that are too large.
#pragma once

#include <span>
#include <vector>

#include "tosaic/base/error.h"
#include "tosaic/ir/graph.h"

namespace tosaic::claimant {

struct UnfitReader {
  NodeId node;
  ErrorParts reason;
};

// The nodes of a group that read integers that are not proven to fit, from another part or from a node that
// has to leave the group. `group` ascends. `lowered` has, by node, whether it is in a group that is lowered
// to TOSA: its i64 results are i32. `tosa` is the lowered group, with the names of the values of `graph` at
// its inputs.
[[nodiscard]] std::vector<UnfitReader> unfit_readers(const Graph& graph, std::span<const NodeId> group,
                                                     const std::vector<bool>& lowered, const Graph& tosa);

}  // namespace tosaic::claimant
