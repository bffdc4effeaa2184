#include "tosaic/tosa/reader/operands.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "tosaic/tosa/constant_operands.h"
#include "tosaic/tosa/reader/attributes.h"
#include "tosaic/tosa/reader/constants.h"
#include "tosaic/tosa/reader/definitions.h"

namespace tosaic::tosa {
namespace {

constexpr std::size_t kMaxShapeLength = 2 * kMaxRank;  // entries of a shape value: padding has two per axis

using ElementBytes = std::array<std::byte, 8>;  // one element as it is in memory, then zeros

std::int64_t integer_at(DType dtype, const std::byte* bytes) {
  return static_cast<std::int64_t>(load_element(dtype, bytes));
}

// The weight zero point of an i8 weight with one element per channel. ExecuTorch writes such lists: either
// the tensor is declared with one element per channel, or it is declared with one element and its data holds
// more. (In other files, the rest of the data is zero padding.)
//
// Returns the packed list. Returns nothing if the operand is one element, or if it is malformed; reading it
// as one element then reports the error.
std::optional<std::span<const std::byte>> zero_point_list(const Place& place, FileState& file,
                                                          const TensorEntry& entry, const Shape& result) {
  const bool is_list = entry.type.rank() == 1 && !result.empty() && result.back() > 1;
  if (!is_list) return std::nullopt;
  const auto channels = static_cast<std::size_t>(result.back());
  if (entry.type.shape[0] == result.back()) return packed_elements(place, file, entry);
  if (entry.type.shape[0] != 1) return std::nullopt;
  const std::span<const std::byte> data = raw_bytes(place, file.bytes, entry);
  const bool long_enough = data.size() >= channels && data.size() - channels < kDataAlignment;
  const std::span<const std::byte> rest = data.subspan(std::min<std::size_t>(1, data.size()));
  const bool padded = std::all_of(rest.begin(), rest.end(), [](std::byte b) { return b == std::byte{0}; });
  if (!long_enough || (padded && data.size() <= kDataAlignment)) return std::nullopt;
  file.budget.spend_bytes(place, channels);
  return data.first(channels);
}

// Reads the constant operands of one operator. visit_constant_operands() calls one method for each, in order.
class ConstantOperandReader {
 public:
  ConstantOperandReader(const Place& place, BlockState& state, std::size_t first)
      : place_(place), state_(state), next_(first) {}

  void zero_point(const char* name, DType dtype, std::int64_t& value, bool is_unsigned) {
    value = zero_point_in(name, dtype, next_element(name, dtype));
    if (is_unsigned && value < 0) value += std::int64_t{1} << (8 * byte_size(dtype));
  }
  void weight_zero_point(const char* name, DType dtype, std::int64_t& value) {
    value =
        zero_point_in(name, dtype, dtype == DType::kI8 ? next_of_channels(name) : next_element(name, dtype));
  }
  void elements(const char* name, DType dtype, std::vector<std::int64_t>& values) {
    TensorEntry& entry = next_constant(name, false);
    if (entry.type.dtype != dtype || entry.type.rank() != 1)
      fail<InvalidGraph>(place_, "the operand " + std::string(name) + " has the wrong type",
                         std::string(to_string(dtype)) + " of rank 1", to_string(entry.type));
    const std::byte* at = constant_elements(place_, state_.file, entry).bytes().data();
    values.clear();
    for (std::int64_t i = 0; i < entry.type.shape[0]; ++i, at += byte_size(dtype))
      values.push_back(integer_at(dtype, at));
  }
  void element(const char* name, DType dtype, Scalar& value) {
    value = scalar_at(dtype, next_element(name, dtype).data());
  }
  void shift(const char* name, std::int64_t& value) {
    value = integer_at(DType::kI8, next_element(name, DType::kI8).data());
    if (value < 0 || value > 63)
      fail<InvalidGraph>(place_, std::string(name) + " is out of range", "0 to 63", std::to_string(value));
  }
  void dims(const char* name, Dims& value) {
    const std::vector<std::int64_t> list = next_shape(name);
    if (list.size() > kMaxRank)
      fail<UnsupportedOp>(place_, std::string(name) + " is too long",
                          "at most " + std::to_string(kMaxRank) + " entries", std::to_string(list.size()));
    value = Dims(std::span<const std::int64_t>(list));
  }
  void padding(const char* name, Dims& before, Dims& after) {
    const std::vector<std::int64_t> list = next_shape(name);
    if (list.size() % 2 != 0)
      fail<InvalidGraph>(place_, std::string(name) + " has an odd number of entries", "two per axis",
                         std::to_string(list.size()));
    before = after = Dims();
    for (std::size_t i = 0; i < list.size(); i += 2) {
      before.push_back(list[i]);
      after.push_back(list[i + 1]);
    }
  }

 private:
  // The next operand. Throws unless it is a constant: a shape value or a tensor.
  TensorEntry& next_constant(const char* name, bool wants_shape) {
    TensorEntry& entry = state_.tensors.find(place_, name_at(place_.op->inputs(), next_++));
    if ((entry.shape != nullptr) != wants_shape)
      fail<InvalidGraph>(place_, "the operand " + std::string(name) + " is of the wrong kind",
                         wants_shape ? "a shape value" : "a tensor",
                         wants_shape ? "a tensor" : "a shape value");
    if (entry.is_input || !is_constant(*state_.place(entry.producer).op))
      fail<UnsupportedOp>(place_, "the operand " + std::string(name) + " is computed when the program runs",
                          "a constant", quoted_readable(entry.name()));
    return entry;
  }

  // The only element of the next operand.
  ElementBytes next_element(const char* name, DType dtype) {
    TensorEntry& entry = next_constant(name, false);
    TensorType wanted;
    wanted.dtype = dtype;
    wanted.shape = Shape{1};
    if (!(entry.type == wanted))
      fail<InvalidGraph>(place_, "the operand " + std::string(name) + " has the wrong type",
                         to_string(wanted), to_string(entry.type));
    ElementBytes bytes{};
    const std::span<const std::byte> stored = constant_elements(place_, state_.file, entry).bytes();
    std::copy(stored.begin(), stored.end(), bytes.begin());
    return bytes;
  }

  // The i8 element that all channels have. Throws if they differ.
  ElementBytes next_of_channels(const char* name) {
    const std::size_t next = next_;
    const TensorEntry& peek = state_.tensors.find(place_, name_at(place_.op->inputs(), next));
    if (peek.tensor == nullptr || peek.type.dtype != DType::kI8) return next_element(name, DType::kI8);
    const Shape& result = state_.tensors.find(place_, name_at(place_.op->outputs(), 0)).type.shape;
    const TensorEntry& entry = next_constant(name, false);
    const auto list = zero_point_list(place_, state_.file, entry, result);
    if (!list) {
      next_ = next;
      return next_element(name, DType::kI8);
    }
    const auto text = [&list](std::size_t i) { return std::to_string(integer_at(DType::kI8, &(*list)[i])); };
    for (std::size_t i = 1; i < list->size(); ++i)
      if ((*list)[i] != list->front())
        fail<UnsupportedOp>(place_, std::string(name) + " differs by channel",
                            "one zero point for all channels",
                            text(0) + " for channel 0 and " + text(i) + " for channel " + std::to_string(i));
    state_.file.notes.push_back({.rule = "repeated-zero-point",
                                 .message = prefix_of(place_) + "the " + std::to_string(list->size()) +
                                            " elements of " + name + ", one a channel, are all " + text(0) +
                                            " and are read as one",
                                 .name = result_name(place_)});
    return {list->front()};
  }

  std::int64_t zero_point_in(const char* name, DType dtype, const ElementBytes& bytes) const {
    const double read = load_element(dtype, bytes.data());
    if (is_float(dtype) && !(read == 0))
      fail<InvalidGraph>(place_, std::string(name) + " of a float operand is not zero", "0",
                         std::to_string(read));
    return static_cast<std::int64_t>(read);
  }

  std::vector<std::int64_t> next_shape(const char* name) {
    const schema::TosaShape& shape = *next_constant(name, true).shape;
    if (shape.rank() > kMaxShapeLength)
      fail<UnsupportedOp>(place_, "the operand " + std::string(name) + " is too long",
                          "at most " + std::to_string(kMaxShapeLength) + " entries",
                          std::to_string(shape.rank()));
    const std::size_t needed = shape.rank() * sizeof(std::int64_t);
    const bool placeholder =
        shape.rank() == 0 && length(shape.data()) == sizeof(std::int64_t);  // some writers store one element
    if (length(shape.data()) != needed && !placeholder)
      fail<InvalidGraph>(place_,
                         "the shape value " + quoted_readable(view(shape.name())) + " has the wrong size",
                         std::to_string(needed) + " bytes", std::to_string(length(shape.data())) + " bytes");
    std::vector<std::int64_t> values(shape.rank());
    if (needed != 0) std::memcpy(values.data(), shape.data()->data(), needed);
    return values;
  }

  const Place& place_;
  BlockState& state_;
  std::size_t next_;  // index of the next operand
};

}  // namespace

ValueId value_of(const Place& place, BlockState& state, std::string_view name) {
  TensorEntry& entry = state.tensors.find(place, name);
  if (entry.value.valid()) return entry.value;
  if (entry.tensor == nullptr)
    fail<InvalidGraph>(place, quoted_readable(name) + " is a shape value", "a tensor");
  if (entry.is_variable) fail<InvalidGraph>(place, quoted_readable(name) + " is a variable", "a tensor");
  if (entry.producer == TensorEntry::kNone)
    fail<InvalidGraph>(place, "nothing defines " + quoted_readable(name));
  entry.value = add_constant(place, state, entry);
  return entry.value;
}

Attrs read_constant_operands(const Place& place, BlockState& state, Attrs attributes,
                             std::span<const DType> operands, std::size_t first) {
  ConstantOperandReader reader(place, state, first);
  visit([&](auto& attrs) { visit_constant_operands(attrs, operands, reader); }, attributes);
  return attributes;
}

}  // namespace tosaic::tosa
