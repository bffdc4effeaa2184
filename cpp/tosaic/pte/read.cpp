#include "tosaic/pte/read.h"

#include <algorithm>
#include <cstdint>

#include "tosaic/pte/reader/data.h"
#include "tosaic/pte/reader/envelope.h"
#include "tosaic/pte/reader/methods.h"

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

File read(const Storage& bytes) {
  const Storage whole = aligned(bytes);
  const Envelope envelope = checked_envelope(whole);
  State state(whole, envelope.segments);
  File file;
  read_data(state, *envelope.program, file);
  file.methods = read_methods(state, *envelope.program, file);
  return file;
}

}  // namespace tosaic::pte
