#include "tosaic/pt2/weights.h"

#include "tosaic/base/error_text.h"
#include "tosaic/ir/dims.h"
#include "tosaic/pt2/scalar_types.h"

namespace tosaic::pt2 {

namespace {

// Sizes or strides as numbers; nothing if one is symbolic.
std::optional<std::vector<std::int64_t>> numbers_of(const std::vector<Size>& sizes) {
  std::vector<std::int64_t> numbers;
  numbers.reserve(2 * sizes.size());
  for (const Size& size : sizes) {
    const auto* const number = std::get_if<std::int64_t>(&size);
    if (number == nullptr) return std::nullopt;
    numbers.push_back(*number);
  }
  return numbers;
}

// The number of elements if they lie densely in row-major order, and are at least one and at most `most`.
std::optional<std::uint64_t> dense_count(const std::vector<std::int64_t>& sizes,
                                         const std::vector<std::int64_t>& strides, std::uint64_t most) {
  std::uint64_t count = 1;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    const auto size = static_cast<std::uint64_t>(sizes[i]);
    if (size != 1 && static_cast<std::uint64_t>(strides[i]) != count) return std::nullopt;
    if (size == 0 || count > most / size) return std::nullopt;
    count *= size;
  }
  return count <= most ? std::optional(count) : std::nullopt;
}

}  // namespace

WeightList::WeightList(Json document, const std::string& what) {
  read_part([&] { return "the entry " + quoted(what); },
            [&] {
              for_each_entry(entry(document, "config"), [&](Json key, Json value) {
                entries_.insert_or_assign(text(key, texts_), value);
              });
            });
}

std::optional<Weight> WeightList::find(std::string_view name) {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return std::nullopt;
  Weight weight;
  read_part([&] { return "the entry of " + quoted(name); },
            [&] {
              weight.path = text(entry(found->second, "path_name"), texts_);
              weight.is_pickled = boolean(entry(found->second, "use_pickle"));
              if (!weight.is_pickled) weight.meta = read_tensor(entry(found->second, "tensor_meta"), texts_);
            });
  return weight;
}

ConstantRef WeightViews::view(std::string_view name, ConstantKind kind, const TensorMeta& meta,
                              std::span<const std::byte> storage) {
  if (meta.device != "cpu" || meta.layout != kStrided) return nullptr;
  const ScalarType* const type = find_scalar_type(meta.dtype);
  const auto* const offset = std::get_if<std::int64_t>(&meta.offset);
  std::optional<std::vector<std::int64_t>> sizes = numbers_of(meta.sizes);
  const std::optional<std::vector<std::int64_t>> strides = numbers_of(meta.strides);
  if (type == nullptr || !type->dtype || offset == nullptr || *offset < 0 || !sizes || !strides ||
      sizes->size() > kMaxRank)
    return nullptr;
  const std::uint64_t room = storage.size() / type->size;  // in elements
  const auto begin = static_cast<std::uint64_t>(*offset);
  const std::optional<std::uint64_t> count =
      begin > room ? std::nullopt : dense_count(*sizes, *strides, room - begin);
  if (!count) return nullptr;
  const std::byte* const data = storage.data() + begin * type->size;
  if (reinterpret_cast<std::uintptr_t>(data) % type->size != 0) return nullptr;
  const Shape shape = Dims(*sizes);
  sizes->insert(sizes->end(), strides->begin(), strides->end());
  ConstantRef& known = known_[Key(data, *type->dtype, std::move(*sizes))];
  if (known != nullptr) return known;
  auto changed = [name = std::string(name), changed = changed_] {
    const std::string message = changed();
    return message.empty() ? message : "the memory of " + quoted(name) + ": " + message + "; open it again";
  };
  return known = constant_over(std::string(name), kind, *type->dtype, shape,
                               Storage(owner_, data, *count * type->size, std::move(changed)));
}

}  // namespace tosaic::pt2
