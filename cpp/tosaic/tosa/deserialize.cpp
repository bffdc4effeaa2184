#include "tosaic/tosa/deserialize.h"

#include <algorithm>
#include <cstdint>

#include "tosaic/tosa/reader/reader.h"

namespace tosaic::tosa {
namespace {

// The alignment of a file in memory, in bytes, at which its elements can be read in place. Files that are not
// aligned are copied.
constexpr std::size_t kAlignment = 8;

Storage aligned_copy(std::span<const std::byte> file) {
  Storage copy = Storage::allocate(file.size());
  std::copy(file.begin(), file.end(), copy.writable());
  return copy;
}

}  // namespace

Read read(const Storage& file) {
  if (reinterpret_cast<std::uintptr_t>(file.bytes().data()) % kAlignment != 0)
    return read_program(aligned_copy(file.bytes()));
  return read_program(file);
}

Graph deserialize(const Storage& file) { return read(file).graph; }

Graph deserialize(std::span<const std::byte> file) { return deserialize(aligned_copy(file)); }

}  // namespace tosaic::tosa
