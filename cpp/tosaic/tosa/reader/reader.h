// reader: reads a .tosa file. See tosa/deserialize.h for what a file may hold, and state.h for the steps.
#pragma once

#include "tosaic/tosa/deserialize.h"

namespace tosaic::tosa {

// The program of a file whose memory is aligned to 8 bytes.
[[nodiscard]] Read read_program(const Storage& file);

}  // namespace tosaic::tosa
