// vectors: writes byte vectors of a flatbuffer in the form that other writers of the format use.
#pragma once

#include <tosa_generated.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace tosaic::tosa {

using ByteVector = flatbuffers::Offset<flatbuffers::Vector<std::uint8_t>>;

constexpr std::size_t kDataAlignment = 8;

[[nodiscard]] constexpr std::size_t rounded_up(std::size_t size, std::size_t alignment) {
  return (size + alignment - 1) / alignment * alignment;
}

// A vector of `size` bytes, which `fill` writes, and of zeros up to a multiple of 8.
template <class Fill>
ByteVector padded_bytes(flatbuffers::FlatBufferBuilder& builder, std::size_t size, Fill fill) {
  const std::size_t padded = rounded_up(size, kDataAlignment);
  builder.ForceVectorAlignment(padded, 1, kDataAlignment);
  std::uint8_t* at = nullptr;
  const ByteVector vector = builder.CreateUninitializedVector(padded, &at);
  std::memset(at + size, 0, padded - size);
  fill(std::span(reinterpret_cast<std::byte*>(at), size));
  return vector;
}

}  // namespace tosaic::tosa
