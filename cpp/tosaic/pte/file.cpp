#include "tosaic/pte/file.h"

#include <memory>

#include "tosaic/base/error.h"
#include "tosaic/pte/scalar_type.h"

namespace tosaic::pte {

std::uint64_t byte_size(const Tensor& tensor) {
  const ScalarType* type = find_scalar_type(tensor.scalar_type);
  std::uint64_t size = type == nullptr ? 0 : type->size;
  for (const std::int32_t extent : tensor.sizes) size *= static_cast<std::uint64_t>(extent);
  return size;
}

Storage part_of(const Storage& whole, std::uint64_t offset, std::uint64_t size) {
  if (offset > whole.size() || size > whole.size() - offset)
    throw InternalError({.where = "pte", .what = "a part of a storage is not inside it"});
  const auto owner = std::make_shared<const Storage>(whole);
  return {owner, whole.bytes().data() + offset, size};
}

std::optional<Storage> elements_of(const File& file, const Tensor& tensor) {
  if (tensor.extra && tensor.extra->location == DataLocation::kExternal) return {};
  if (tensor.data == 0) return {};
  const std::uint64_t size = byte_size(tensor);
  const Pieces* pieces = nullptr;
  if (tensor.allocation) {
    const std::uint64_t index = tensor.extra ? tensor.extra->mutable_data : 0;
    pieces = &file.mutable_data.value().at(index);
  } else if (!file.elements.empty()) {
    return part_of(file.elements.at(tensor.data), 0, size);
  } else {
    pieces = &file.constants.value();
  }
  return part_of(file.segments.at(pieces->segment).bytes, pieces->offsets.at(tensor.data), size);
}

Storage payload_of(const File& file, const Delegate& delegate) {
  return delegate.location == PayloadLocation::kInline ? file.payloads.at(delegate.index)
                                                       : file.segments.at(delegate.index).bytes;
}

}  // namespace tosaic::pte
