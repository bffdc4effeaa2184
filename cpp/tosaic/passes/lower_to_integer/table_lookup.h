// table_lookup: emits nodes that look up a table. The table is a constant with an entry for each integer of 8
// or 16 bits, or for each pair of integers of 8 bits.
//
//   x: i8    entries of i8    no node for the identity, CLAMP for a clamp, TABLE of 256 entries for others
//   x: i8    entries of i16   TABLE of 513 entries at 256 * x: each entry is at a knot, so it is exact.
//                             GATHER if neighbours are too far apart for TABLE, as at a pole
//   x: i16   entries of i16   as for i8, but GATHER if TABLE of 513 entries is not within one unit
//   others                    GATHER
#pragma once

#include "tosaic/passes/lower_to_integer/integer_builder.h"
#include "tosaic/passes/lower_to_integer/scaled_integer.h"

namespace tosaic::passes {

// The entry of `table`, of integers, for each integer of x.
[[nodiscard]] ValueId looked_up(IntegerBuilder& build, const ScaledInteger& x, const Constant& table);

// Positions in a table: 0 for the least integer of x (i8 or i16), and 256 * position of a + position of b for
// a pair of i8.
[[nodiscard]] ValueId position_of(IntegerBuilder& build, const ScaledInteger& x);
[[nodiscard]] ValueId position_of(IntegerBuilder& build, const ScaledInteger& a, const ScaledInteger& b);
// The entries at these positions, by GATHER. gathered() reads a table of integers. gathered_numbers() reads a
// table of floats, as i32 of at most 24 bits in a unit that is a power of two, and throws NoIntegerForm for
// an infinity or NaN. Numbers beyond `most` become `most`, with their sign.
[[nodiscard]] ValueId gathered(IntegerBuilder& build, ValueId position, const Constant& table);
[[nodiscard]] ScaledInteger gathered_numbers(IntegerBuilder& build, ValueId position, const Constant& table,
                                             double most);

}  // namespace tosaic::passes
