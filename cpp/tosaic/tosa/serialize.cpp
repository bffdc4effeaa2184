#include "tosaic/tosa/serialize.h"

#include <algorithm>
#include <bit>

#include "tosaic/tosa/writer/writer.h"

static_assert(std::endian::native == std::endian::little, "elements are written as they lie in memory");

namespace tosaic::tosa {

void FileImage::add(std::span<const std::byte> bytes, Owner owner) {
  pieces_.push_back(bytes);
  owners_.push_back(std::move(owner));
  size_ += bytes.size();
}

void FileImage::copy(std::byte* to) const {
  for (const std::span<const std::byte> piece : pieces_) to = std::copy(piece.begin(), piece.end(), to);
}

FileImage lay_out(const Graph& graph, const SerializeOptions& options) {
  return write_program(graph, options);
}

Storage serialize(const Graph& graph, const SerializeOptions& options) {
  const FileImage image = lay_out(graph, options);
  Storage out = Storage::allocate(image.size());
  image.copy(out.writable());
  return out;
}

}  // namespace tosaic::tosa
