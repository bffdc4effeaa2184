#include "tosaic/tosa/reader/constants.h"

#include <algorithm>
#include <memory>

#include "tosaic/tosa/schema_map.h"

namespace tosaic::tosa {

bool has_data(const schema::TosaTensor& tensor) { return length(tensor.data()) != 0 || tensor.offset() > 1; }

std::span<const std::byte> raw_bytes(const Place& place, const Storage& file, const TensorEntry& entry) {
  const schema::TosaTensor& tensor = *entry.tensor;
  const std::string name = "constant " + quoted_readable(entry.name());
  if (length(tensor.data()) != 0)
    return {reinterpret_cast<const std::byte*>(tensor.data()->data()), tensor.data()->size()};
  if (tensor.offset() <= 1) fail<InvalidGraph>(place, name + " has no data");
  if (tensor.offset() > file.size() || tensor.size() > file.size() - tensor.offset())
    fail<InvalidGraph>(place, name + " lies beyond the end of the file: it is truncated",
                       "bytes " + std::to_string(tensor.offset()) + " to " +
                           std::to_string(tensor.offset() + std::min(tensor.size(), ~tensor.offset())),
                       std::to_string(file.size()) + " bytes");
  return file.bytes().subspan(tensor.offset(), tensor.size());
}

std::span<const std::byte> packed_elements(const Place& place, FileState& file, const TensorEntry& entry) {
  const std::span<const std::byte> bytes = raw_bytes(place, file.bytes, entry);
  const std::size_t needed =
      packed_size(entry.type.dtype, static_cast<std::size_t>(num_elements(entry.type.shape)));
  if (bytes.size() < needed || bytes.size() - needed >= kDataAlignment)
    fail<InvalidGraph>(place, "constant " + quoted_readable(entry.name()) + " has the wrong size",
                       std::to_string(needed) + " bytes", std::to_string(bytes.size()) + " bytes");
  file.budget.spend_bytes(place, needed);
  return bytes.first(needed);
}

const Storage& constant_elements(const Place& place, FileState& file, TensorEntry& entry) {
  if (entry.constant) return *entry.constant;
  const std::span<const std::byte> packed = packed_elements(place, file, entry);
  const DType dtype = entry.type.dtype;
  const bool aligned = reinterpret_cast<std::uintptr_t>(packed.data()) % kDataAlignment == 0;
  if (same_layout(dtype) && aligned) {
    entry.constant.emplace(std::make_shared<const Storage>(file.bytes), packed.data(), packed.size());
  } else {
    Storage storage = Storage::allocate(entry.type.bytes());
    unpack(dtype, packed, {storage.writable(), storage.size()});
    entry.constant = std::move(storage);
  }
  return *entry.constant;
}

ValueId add_constant(const Place& place, BlockState& state, TensorEntry& entry) {
  auto constant = std::make_shared<Constant>();
  constant->name = std::string(entry.name());
  constant->dtype = entry.type.dtype;
  constant->shape = entry.type.shape;
  constant->storage = constant_elements(place, state.file, entry);
  return state.graph.add_constant(std::move(constant));
}

}  // namespace tosaic::tosa
