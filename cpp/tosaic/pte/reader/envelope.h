// envelope: checks the file as a whole, before anything in it is interpreted.
#pragma once

#include <pte_generated.h>

#include "tosaic/ir/storage.h"

namespace tosaic::pte {

struct Envelope {
  const schema::Program* program = nullptr;
  Storage segments;  // begins where offset 0 of the segments is
};

// Throws unless the file is complete, and the program is a well-formed flatbuffer of the version that we
// read. The bytes are aligned to 16.
[[nodiscard]] Envelope checked_envelope(const Storage& file);

}  // namespace tosaic::pte
