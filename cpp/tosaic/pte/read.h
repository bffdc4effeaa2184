// read: reads the bytes of a .pte file as a File.
//
//   bytes 0-3  offset of the root table      bytes 4-7  "ET12"
//   bytes 8-   "eh00", the sizes of the program and of the segments        if the file has segments
//              the program, as a flatbuffer
//              the segments
//
// The file is not trusted. It is verified as a flatbuffer first. Then every index, size and enumerator is
// checked, and that data of tensors and delegates are inside the file and planned places inside the memories.
// Memory use is limited to a small multiple of the program's size; segments and payloads are not copied.
#pragma once

#include "tosaic/ir/storage.h"
#include "tosaic/pte/file.h"

namespace tosaic::pte {

// Throws InvalidGraph (no .pte file, truncated, inconsistent) or UnsupportedOp (another version, an unknown
// kind of value or instruction), with the place: the method, and its value, instruction or delegate.
[[nodiscard]] File read(const Storage& bytes);

}  // namespace tosaic::pte
