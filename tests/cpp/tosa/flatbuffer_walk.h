// flatbuffer_walk: finds a place in a flatbuffer by field numbers, so that a test can damage one field of a
// .tosa file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace tosaic::testing {

class FlatbufferPlace {
 public:
  // The root table.
  explicit FlatbufferPlace(std::vector<std::byte>& bytes) : FlatbufferPlace(bytes, 0) { follow(); }

  // The place of the value of field `number` of this table. The value must be stored in the table itself, and
  // the field must be present.
  [[nodiscard]] FlatbufferPlace field(std::size_t number) const {
    const std::size_t vtable = at_ - static_cast<std::size_t>(read<std::int32_t>(at_));
    return {*bytes_, at_ + read<std::uint16_t>(vtable + 4 + 2 * number)};
  }
  // The table or vector that a field refers to.
  [[nodiscard]] FlatbufferPlace table(std::size_t number) const {
    FlatbufferPlace place = field(number);
    place.follow();
    return place;
  }
  // The table that element i of this vector refers to.
  [[nodiscard]] FlatbufferPlace element(std::size_t i) const {
    FlatbufferPlace place{*bytes_, at_ + 4 + 4 * i};
    place.follow();
    return place;
  }
  [[nodiscard]] std::uint32_t length() const { return read<std::uint32_t>(at_); }
  [[nodiscard]] std::size_t offset() const { return at_; }

  template <class T>
  void set(T value) const {
    std::memcpy(bytes_->data() + at_, &value, sizeof(T));
  }

 private:
  FlatbufferPlace(std::vector<std::byte>& bytes, std::size_t at) : bytes_(&bytes), at_(at) {}
  template <class T>
  [[nodiscard]] T read(std::size_t at) const {
    T value;
    std::memcpy(&value, bytes_->data() + at, sizeof(T));
    return value;
  }
  void follow() { at_ += read<std::uint32_t>(at_); }

  std::vector<std::byte>* bytes_;
  std::size_t at_;
};

// The first block of the first region: the main graph of a file.
inline FlatbufferPlace main_block(std::vector<std::byte>& file) {
  return FlatbufferPlace(file).table(1).element(0).table(1).element(0);
}
inline FlatbufferPlace operators_of(std::vector<std::byte>& file) { return main_block(file).table(1); }
inline FlatbufferPlace tensors_of(std::vector<std::byte>& file) { return main_block(file).table(2); }

}  // namespace tosaic::testing
