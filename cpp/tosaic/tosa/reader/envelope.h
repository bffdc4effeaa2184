// envelope: checks the file as a whole, before anything in it is interpreted.
//
//   bytes 0-3  offset of the root table      bytes 4-7  "TOSA"      then tables, strings and data
//
// The version is checked before the rest of the file, because a file of another version need not be
// well-formed by this schema.
#pragma once

#include <tosa_generated.h>

#include <cstddef>
#include <span>

namespace tosaic::tosa {

// Throws unless `bytes` is a well-formed flatbuffer of a version that we read.
[[nodiscard]] const schema::TosaGraph& checked_root(std::span<const std::byte> bytes);

}  // namespace tosaic::tosa
