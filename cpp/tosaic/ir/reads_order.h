// reads_order: operators whose results depend only on which numbers of a row are larger than others.
#pragma once

#include "tosaic/ir/op_table.h"

namespace tosaic {

[[nodiscard]] inline bool reads_order(Op op) {
  constexpr OpTable<bool> kRows = {{Op::kArgmax, true},
                                   {Op::kArgmin, true},
                                   {Op::kArgsort, true},
                                   {Op::kCumargmax, true},
                                   {Op::kCumargmin, true}};
  return kRows.contains(op);
}

}  // namespace tosaic
