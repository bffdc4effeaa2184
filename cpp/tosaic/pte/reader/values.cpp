#include "tosaic/pte/reader/values.h"

#include <algorithm>

#include "tosaic/pte/scalar_type.h"

namespace tosaic::pte {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 60;  // of one tensor
constexpr std::size_t kMostAxes = 16;                         // the limit of the runtime, too

struct Reader {
  State& state;
  const Method& method;
  const File& file;
};

// ---- tensors ----

void check_shape(const Place& place, const Tensor& tensor) {
  if (tensor.sizes.size() > kMostAxes)
    fail<UnsupportedOp>(place, "the tensor has too many axes", "at most " + std::to_string(kMostAxes),
                        std::to_string(tensor.sizes.size()));
  std::uint64_t size = find_scalar_type(tensor.scalar_type)->size;
  for (const std::int32_t extent : tensor.sizes) {
    if (extent < 0) fail<InvalidGraph>(place, "an extent is negative", "at least 0", std::to_string(extent));
    if (extent > 0 && size > kMostBytes / static_cast<std::uint64_t>(extent))
      fail<InvalidGraph>(place, "the tensor is too large", "at most 2^60 bytes");
    size *= static_cast<std::uint64_t>(extent);
  }
  std::vector<std::uint8_t> axes = tensor.dim_order;
  std::ranges::sort(axes);
  bool is_order = axes.size() == tensor.sizes.size();
  for (std::size_t i = 0; i < axes.size() && is_order; ++i) is_order = axes[i] == i;
  if (is_order) return;
  std::string got;
  for (const std::uint8_t axis : tensor.dim_order) got += (got.empty() ? "" : ",") + std::to_string(axis);
  fail<InvalidGraph>(place, "the dim order is no permutation of the axes",
                     std::to_string(tensor.sizes.size()) + " axes", "(" + got + ")");
}

// For a tensor with data: throws if its elements are not inside the buffer or segment to which it refers.
void check_data(const Reader& reader, const Place& place, const Tensor& tensor) {
  const std::uint64_t size = byte_size(tensor);
  const File& file = reader.file;
  const auto check_room = [&](std::uint64_t room) {
    if (size > room)
      fail<InvalidGraph>(place, "the elements are not inside their data", std::to_string(size) + " bytes",
                         std::to_string(room));
  };
  if (!tensor.allocation && !file.elements.empty()) {
    check_index(place, "the data", tensor.data, file.elements.size());
    check_room(file.elements[tensor.data].size());
    return;
  }
  const Pieces* pieces = file.constants ? &*file.constants : nullptr;
  if (tensor.allocation) {
    const std::uint64_t index = tensor.extra ? tensor.extra->mutable_data : 0;
    const std::size_t count = file.mutable_data ? file.mutable_data->size() : 0;
    check_index(place, "the list of initial states", static_cast<std::int64_t>(index), count);
    pieces = &(*file.mutable_data)[index];
  }
  check_index(place, "the data", tensor.data, pieces == nullptr ? 0 : pieces->offsets.size());
  if (pieces != nullptr)  // otherwise, no index is right
    check_room(file.segments[pieces->segment].bytes.size() - pieces->offsets[tensor.data]);
}

void check_allocation(const Reader& reader, const Place& place, const Tensor& tensor) {
  const Allocation& at = *tensor.allocation;
  const std::vector<std::int64_t>& memories = reader.method.memories;
  check_index(place, "the memory", at.memory, memories.size());
  const auto room = static_cast<std::uint64_t>(memories[at.memory]);
  if (at.offset > room || byte_size(tensor) > room - at.offset)
    fail<InvalidGraph>(place, "the tensor is not inside its memory", std::to_string(room) + " bytes",
                       std::to_string(byte_size(tensor)) + " bytes from byte " + std::to_string(at.offset));
}

template <class E, class T>
E checked_enumerator(const Place& place, const char* what, T code, T count) {
  if (code < 0 || code >= count)
    fail<UnsupportedOp>(place, std::string("unknown ") + what, "below " + std::to_string(count),
                        std::to_string(code));
  return static_cast<E>(code);
}

Extra read_extra(State& state, const Place& place, const schema::Extra& table) {
  Extra extra;
  extra.mutable_data = table.mutable_data();
  extra.name = state.text(place, "the name of the tensor", table.name());
  extra.location = checked_enumerator<DataLocation>(place, "place of data", table.location(), std::int8_t{2});
  extra.device = table.device();
  extra.device_index = table.device_index();
  if (extra.location == DataLocation::kExternal && extra.name.empty())
    fail<InvalidGraph>(place, "the tensor is in another file, and has no name");
  return extra;
}

Tensor read_tensor(const Reader& reader, const Place& place, const schema::Tensor& table) {
  State& state = reader.state;
  Tensor tensor;
  tensor.scalar_type = table.scalar_type();
  if (find_scalar_type(tensor.scalar_type) == nullptr)
    fail<UnsupportedOp>(place, "unknown dtype", "a code of ExecuTorch's scalar types",
                        std::to_string(tensor.scalar_type));
  tensor.storage_offset = table.storage_offset();
  if (tensor.storage_offset != 0)
    fail<UnsupportedOp>(place, "the tensor begins inside its memory", "storage offset 0",
                        std::to_string(tensor.storage_offset));
  tensor.sizes = state.numbers<std::int32_t>(place, table.sizes());
  tensor.dim_order = state.numbers<std::uint8_t>(place, table.dim_order());
  tensor.requires_grad = table.requires_grad();
  tensor.data = table.data();
  tensor.layout = table.layout();
  tensor.dynamism = checked_enumerator<Dynamism>(place, "kind of shape", table.dynamism(), std::int8_t{3});
  check_shape(place, tensor);
  if (const schema::Allocation* at = table.allocation(); at != nullptr) {
    tensor.allocation = Allocation{at->memory(), (std::uint64_t{at->offset_high()} << 32) | at->offset_low()};
    check_allocation(reader, place, tensor);
  }
  if (table.extra() != nullptr) tensor.extra = read_extra(state, place, *table.extra());
  const bool is_external = tensor.extra && tensor.extra->location == DataLocation::kExternal;
  if (tensor.data != 0 && !is_external) check_data(reader, place, tensor);
  return tensor;
}

// ---- values ----

Value read_value(const Reader& reader, const Place& place, const schema::Value& table) {
  State& state = reader.state;
  switch (table.kind_type()) {
    case schema::Kind::Null:
      return std::monostate();
    case schema::Kind::Int:
      if (const auto* kind = table.kind_as_Int()) return std::int64_t{kind->value()};
      break;
    case schema::Kind::Bool:
      if (const auto* kind = table.kind_as_Bool()) return kind->value();
      break;
    case schema::Kind::Double:
      if (const auto* kind = table.kind_as_Double()) return kind->value();
      break;
    case schema::Kind::Text:
      if (const auto* kind = table.kind_as_Text()) return state.text(place, "the text", kind->value());
      break;
    case schema::Kind::Tensor:
      if (const auto* kind = table.kind_as_Tensor()) return read_tensor(reader, place, *kind);
      break;
    case schema::Kind::Ints:
      if (const auto* kind = table.kind_as_Ints())
        return IntList{state.numbers<std::int64_t>(place, kind->items())};
      break;
    case schema::Kind::Doubles:
      if (const auto* kind = table.kind_as_Doubles())
        return DoubleList{state.numbers<double>(place, kind->items())};
      break;
    case schema::Kind::Bools:
      if (const auto* kind = table.kind_as_Bools())
        return BoolList{state.numbers<bool>(place, kind->items())};
      break;
    case schema::Kind::Tensors:
      if (const auto* kind = table.kind_as_Tensors())
        return TensorList{state.numbers<std::int32_t>(place, kind->items())};
      break;
    case schema::Kind::OptionalTensors:
      if (const auto* kind = table.kind_as_OptionalTensors())
        return OptionalTensorList{state.numbers<std::int32_t>(place, kind->items())};
      break;
    case schema::Kind::NONE:
      break;
    default:
      fail<UnsupportedOp>(place, "unknown kind of value", "1 to 11",
                          std::to_string(static_cast<int>(table.kind_type())));
  }
  fail<InvalidGraph>(place, "the value is missing");
}

template <class T, class Index>
void check_items(const Place& place, const std::vector<Value>& values, const std::vector<Index>& items,
                 const char* kind, bool may_be_absent) {
  for (const Index item : items) {
    if (may_be_absent && item == -1) continue;
    check_index(place, "an element of the list", item, values.size());
    const Value& value = values[static_cast<std::size_t>(item)];
    if (std::holds_alternative<T>(value)) continue;
    if (may_be_absent && std::holds_alternative<std::monostate>(value)) continue;
    fail<InvalidGraph>(place, "an element of the list is of another kind", kind,
                       "value " + std::to_string(item));
  }
}

void check_lists(const Place& outer, const std::vector<Value>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Place place{&outer, "value", static_cast<std::int64_t>(i)};
    if (const auto* ints = std::get_if<IntList>(&values[i]))
      check_items<std::int64_t>(place, values, ints->items, "an integer", false);
    if (const auto* tensors = std::get_if<TensorList>(&values[i]))
      check_items<Tensor>(place, values, tensors->items, "a tensor", false);
    if (const auto* tensors = std::get_if<OptionalTensorList>(&values[i]))
      check_items<Tensor>(place, values, tensors->items, "a tensor", true);
  }
}

}  // namespace

std::vector<Value> read_values(State& state, const Place& place, const schema::Method& table,
                               const Method& method, const File& file) {
  const Reader reader{state, method, file};
  std::vector<Value> values = state.tables(
      place, "value", table.values(),
      [&](const Place& at, const schema::Value& value) { return read_value(reader, at, value); });
  check_lists(place, values);
  return values;
}

}  // namespace tosaic::pte
