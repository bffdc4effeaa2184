#include "tosaic/pt2/tensor_meta.h"

#include <functional>
#include <optional>
#include <string>

#include "tosaic/pt2/scalar_types.h"

namespace tosaic::pt2 {
namespace {

Size read_size(Json value, Texts& texts) {
  const auto [tag, held] = only_entry(value);
  if (tag.is("as_int")) return integer(held);
  if (tag.is("as_expr")) return Symbolic{text(entry(held, "expr_str"), texts)};
  throw WrongJson("as_int or as_expr", tag);
}

std::vector<Size> read_sizes(Json list, Texts& texts) {
  std::vector<Size> sizes;
  sizes.reserve(listed(list).size());
  for_each_item(list, [&](Json each) {
    const Json held = only_entry(each).second;
    const bool is_number = held.kind() == JsonKind::kInteger || held.kind() == JsonKind::kLongInteger;
    if (is_number && (held.kind() == JsonKind::kLongInteger || held.integer() < 0))
      throw WrongJson("sizes and strides of 0 to 63 bits", held);
    sizes.push_back(read_size(each, texts));
  });
  return sizes;
}

}  // namespace

std::size_t hash_of(const TensorMeta& tensor) {
  std::size_t hash = 0;
  const auto add = [&](std::size_t number) {
    hash = (hash ^ number) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  };
  const auto add_text = [&](std::string_view text) { add(std::hash<std::string_view>()(text)); };
  const auto add_size = [&](const Size& size) {
    if (const auto* const number = std::get_if<std::int64_t>(&size))
      add(static_cast<std::size_t>(*number));
    else
      add_text(std::get<Symbolic>(size).expression);
  };
  add(static_cast<std::size_t>(tensor.dtype));
  for (const Size& size : tensor.sizes) add_size(size);
  for (const Size& stride : tensor.strides) add_size(stride);
  add_size(tensor.offset);
  add_text(tensor.device);
  add(static_cast<std::size_t>(tensor.layout));
  return hash;
}

TensorMeta read_tensor(Json value, Texts& texts) {
  std::optional<Json> dtype, sizes, strides, offset, device, layout;
  for_each_entry(value, [&](Json key, Json held) {
    if (key.is("dtype")) dtype = held;
    if (key.is("sizes")) sizes = held;
    if (key.is("strides")) strides = held;
    if (key.is("storage_offset")) offset = held;
    if (key.is("device")) device = held;
    if (key.is("layout")) layout = held;
  });
  if (!dtype || !sizes || !strides || !offset || !device || !layout)
    throw WrongJson("dtype, sizes, strides, storage_offset, device and layout", value);
  TensorMeta made;
  made.sizes = read_sizes(*sizes, texts);
  made.strides = read_sizes(*strides, texts);
  if (made.sizes.size() != made.strides.size())
    throw WrongJson(std::to_string(made.sizes.size()) + " strides", std::to_string(made.strides.size()));
  made.dtype = dtype->kind() == JsonKind::kInteger ? dtype->integer() : 0;
  if (find_scalar_type(made.dtype) == nullptr) throw WrongJson("a dtype", *dtype);
  made.layout = layout->kind() == JsonKind::kInteger ? layout->integer() : 0;
  if (made.layout < 1 || made.layout > kLayouts) throw WrongJson("a layout", *layout);
  made.device = text(entry(*device, "type"), texts);
  made.offset = read_size(*offset, texts);
  return made;
}

}  // namespace tosaic::pt2
