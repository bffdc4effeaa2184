// methods: reads the methods of a file.
#pragma once

#include "tosaic/pte/reader/state.h"

namespace tosaic::pte {

// The methods of a file whose data is in `file` already.
[[nodiscard]] std::vector<Method> read_methods(State& state, const schema::Program& program,
                                               const File& file);

}  // namespace tosaic::pte
