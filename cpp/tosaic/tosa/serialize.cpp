#include "tosaic/tosa/serialize.h"

#include <algorithm>
#include <bit>

#include "tosaic/base/team.h"
#include "tosaic/tosa/writer/writer.h"

static_assert(std::endian::native == std::endian::little, "elements are written as they lie in memory");

namespace tosaic::tosa {
namespace {

constexpr std::size_t kPartBytes = std::size_t{1} << 20;  // a thread copies one part at a time

}  // namespace

void FileImage::add(std::span<const std::byte> bytes, Owner owner) {
  pieces_.push_back({bytes, std::move(owner), nullptr});
  size_ += bytes.size();
}

void FileImage::add(const ConstantRef& constant) {
  if (constant->storage.recipe() == nullptr) return add(constant->bytes(), constant);
  pieces_.push_back({{}, constant, constant});
  size_ += constant->storage.size();
}

std::vector<std::span<const std::byte>> FileImage::pieces() const {
  std::vector<std::span<const std::byte>> out;
  for (const Piece& piece : pieces_) out.push_back(piece.deferred ? piece.deferred->bytes() : piece.bytes);
  return out;
}

Places FileImage::places(std::byte* to, const Owner& owner) const {
  Places places;
  for (const Piece& piece : pieces_) {
    if (piece.deferred) places.try_emplace(piece.deferred->storage.deferred_state().get(), Place{to, owner});
    to += piece.size();
  }
  return places;
}

void FileImage::copy(std::byte* to, Team* team) const {
  struct Part {
    std::span<const std::byte> bytes;
    std::byte* to;
  };
  std::vector<Part> parts;
  for (const std::span<const std::byte> piece : pieces()) {
    const bool is_there = piece.data() == to;
    for (std::size_t at = 0; !is_there && at < piece.size(); at += kPartBytes)
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
