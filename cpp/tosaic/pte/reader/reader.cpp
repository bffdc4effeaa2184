#include "tosaic/pte/reader/reader.h"

#include "tosaic/pte/reader/data.h"
#include "tosaic/pte/reader/envelope.h"
#include "tosaic/pte/reader/methods.h"

namespace tosaic::pte {

File read_aligned(const Storage& bytes) {
  const Envelope envelope = checked_envelope(bytes);
  State state(bytes, envelope.segments);
  File file;
  read_data(state, *envelope.program, file);
  file.methods = read_methods(state, *envelope.program, file);
  return file;
}

}  // namespace tosaic::pte
