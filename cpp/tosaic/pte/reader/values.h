// values: reads the values of a method.
#pragma once

#include "tosaic/pte/reader/state.h"

namespace tosaic::pte {

// The values of a method whose memories are in `method` already. Throws if the elements of a tensor are not
// inside their data, if a planned place is not inside its memory, or if a list names values of another kind.
[[nodiscard]] std::vector<Value> read_values(State& state, const Place& place, const schema::Method& table,
                                             const Method& method, const File& file);

}  // namespace tosaic::pte
