#include "tosaic/pte/read.h"

#include <algorithm>
#include <cstdint>

#include "tosaic/pte/reader/reader.h"

namespace tosaic::pte {
namespace {

// The alignment of a file in memory, in bytes, at which its numbers can be read in place. Files that are not
// aligned are copied.
constexpr std::size_t kAlignment = 16;

Storage aligned(const Storage& file) {
  if (reinterpret_cast<std::uintptr_t>(file.bytes().data()) % kAlignment == 0) return file;
  Storage copy = Storage::allocate(file.size());
  std::ranges::copy(file.bytes(), copy.writable());
  return copy;
}

}  // namespace

File read(const Storage& bytes) { return read_aligned(aligned(bytes)); }

}  // namespace tosaic::pte
