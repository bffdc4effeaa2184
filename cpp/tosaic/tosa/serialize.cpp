#include "tosaic/tosa/serialize.h"

#include <algorithm>
#include <bit>

#include "tosaic/base/team.h"
#include "tosaic/tosa/writer/writer.h"

static_assert(std::endian::native == std::endian::little, "elements are written as they lie in memory");

namespace tosaic::tosa {
namespace {

constexpr std::size_t kPartBytes = std::size_t{1} << 20;  // what a thread copies before it looks for more

}  // namespace

void FileImage::add(std::span<const std::byte> bytes, Owner owner) {
  pieces_.push_back(bytes);
  owners_.push_back(std::move(owner));
  size_ += bytes.size();
}

void FileImage::copy(std::byte* to, Team* team) const {
  struct Part {
    std::span<const std::byte> bytes;
    std::byte* to;
  };
  std::vector<Part> parts;
  for (std::span<const std::byte> piece : pieces_) {
    for (std::size_t at = 0; at < piece.size(); at += kPartBytes)
      parts.push_back({piece.subspan(at, std::min(kPartBytes, piece.size() - at)), to + at});
    to += piece.size();
  }
  for_each_in(team, parts.size(), [&](std::size_t index) {
    const Part& part = parts[index];
    std::copy(part.bytes.begin(), part.bytes.end(), part.to);
  });
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
