// encode: writes a planned file as a flatbuffer.
//
// In the flatbuffer, a large constant is a hole: memory that is never written. The caller puts the constant
// in its place. Memory that is never touched costs nothing, whereas a second copy of the weights would.
#pragma once

#include <tosa_generated.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tosaic/tosa/serialize.h"
#include "tosaic/tosa/writer/file_plan.h"

namespace tosaic::tosa {

// The place of a constant in a flatbuffer that does not contain the elements.
struct Hole {
  std::size_t from_end = 0;  // bytes from the first byte of the elements to the end of the flatbuffer
  ConstantRef constant;
};

struct EncodedFile {
  flatbuffers::FlatBufferBuilder builder;
  std::vector<Hole> holes;  // from back to front
};

// File offsets of the constants after the flatbuffer, in order of the tensors; empty if all data is inline.
using ConstantOffsets = std::vector<std::uint64_t>;

// `reserve` is the initial size of the buffer in bytes.
[[nodiscard]] EncodedFile encode(const FilePlan& file, const SerializeOptions& options, std::size_t reserve,
                                 const ConstantOffsets& offsets);

}  // namespace tosaic::tosa
