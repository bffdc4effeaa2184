#include "tosaic/tosa/reader/tensors.h"

#include <limits>

#include "tosaic/tosa/reader/lists.h"
#include "tosaic/tosa/schema_map.h"

namespace tosaic::tosa {
namespace {

TensorType tensor_type(const schema::TosaTensor& tensor) {
  const std::string name = "tensor " + quoted_readable(view(tensor.name()));
  TensorType type;
  const auto code = static_cast<std::uint32_t>(tensor.type());
  const std::optional<DType> dtype = dtype_from_code(code);
  if (!dtype)
    fail<UnsupportedOp>({}, name + " has an unknown dtype", "a dtype of TOSA 1.0", dtype_code_name(code));
  type.dtype = *dtype;
  if (tensor.is_unranked()) fail<UnsupportedOp>({}, name + " has no rank: shapes must be static");
  if (length(tensor.shape()) > kMaxRank)
    fail<UnsupportedOp>({}, name + " has too many axes", "at most " + std::to_string(kMaxRank),
                        std::to_string(length(tensor.shape())));
  for (std::size_t i = 0; i < length(tensor.shape()); ++i) type.shape.push_back(at(tensor.shape(), i));
  return type;
}

}  // namespace

std::string_view TensorEntry::name() const {
  return view(tensor != nullptr ? tensor->name() : shape->name());
}

TensorTable::TensorTable(const schema::TosaBasicBlock& block) {
  const std::size_t count = length(block.tensors()) + length(block.shapes());
  entries_.reserve(count);
  index_.reserve(count);
  for (std::size_t i = 0; i < length(block.tensors()); ++i) {
    TensorEntry entry;
    entry.tensor = at(block.tensors(), i);
    entry.type = tensor_type(*entry.tensor);
    entry.is_variable = entry.tensor->variable();
    add(std::move(entry));
  }
  for (std::size_t i = 0; i < length(block.shapes()); ++i) {
    TensorEntry entry;
    entry.shape = at(block.shapes(), i);
    add(std::move(entry));
  }
}

void TensorTable::add(TensorEntry entry) {
  const std::string_view name = entry.name();
  if (name.empty()) fail<InvalidGraph>({}, "a tensor has no name");
  static_cast<void>(utf8_text({}, "the name of a tensor", name));
  if (!index_.emplace(name, static_cast<std::uint32_t>(entries_.size())).second)
    fail<InvalidGraph>({}, "two tensors are named " + quoted_readable(name));
  entries_.push_back(std::move(entry));
}

std::uint32_t TensorTable::index_of(const Place& place, std::string_view name) const {
  const auto it = index_.find(name);
  if (it == index_.end()) fail<InvalidGraph>(place, "no tensor is named " + quoted_readable(name));
  return it->second;
}

std::string declared_type(const schema::TosaTensor& tensor) {
  const auto code = static_cast<std::uint32_t>(tensor.type());
  const std::optional<DType> dtype = dtype_from_code(code);
  std::string text = (dtype ? std::string(to_string(*dtype)) : dtype_code_name(code)) + "[";
  for (std::size_t i = 0; i < length(tensor.shape()); ++i)
    text += (i == 0 ? "" : ",") + std::to_string(at(tensor.shape(), i));
  return text + "]";
}

void check_extents(const Place& place, const TensorEntry& entry) {
  const std::string name = "tensor " + quoted_readable(entry.name());
  for (const std::int64_t extent : entry.type.shape)
    if (extent < 1)
      fail<InvalidGraph>(place, name + " has an extent that is not positive", "at least 1",
                         std::to_string(extent));
  std::int64_t count = std::numeric_limits<std::int64_t>::max() / 8;
  for (const std::int64_t extent : entry.type.shape) count /= extent;
  if (count == 0)
    fail<InvalidGraph>(place, name + " is too large", "at most 2^60 elements", to_string(entry.type.shape));
}

}  // namespace tosaic::tosa
