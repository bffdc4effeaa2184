// constants: the elements of constants, in the flatbuffer or after it, and as they are in memory.
//
//   data: [7, 0, 0, 0, 0, 0, 0, 0]     an i8 tensor of one element, padded with zeros to 8 bytes
//   offset: 4096, size: 4              the bytes from 4096 of the file on
//
// Elements that have the same bytes in memory as in the file are not copied: the constant shares the file's
// memory.
#pragma once

#include <cstddef>
#include <span>

#include "tosaic/tosa/reader/state.h"

namespace tosaic::tosa {

// True if the file has elements for the tensor: a constant, or the initial value of a variable.
[[nodiscard]] bool has_data(const schema::TosaTensor& tensor);
// The bytes of a constant with their padding. Throws if there are none, or if they are beyond the end.
[[nodiscard]] std::span<const std::byte> raw_bytes(const Place& place, const Storage& file,
                                                   const TensorEntry& entry);
// The bytes of a constant without their padding; elements of less than a byte are still packed. Throws if the
// file has too few bytes for the shape, or more than the padding explains.
[[nodiscard]] std::span<const std::byte> packed_elements(const Place& place, FileState& file,
                                                         const TensorEntry& entry);
// The elements of a constant, unpacked as in memory. The entry stores the elements at the first call.
[[nodiscard]] const Storage& constant_elements(const Place& place, FileState& file, TensorEntry& entry);
// The constant as a value of the graph.
[[nodiscard]] ValueId add_constant(const Place& place, BlockState& state, TensorEntry& entry);

}  // namespace tosaic::tosa
