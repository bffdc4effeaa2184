// Storage: bytes with an owner. Never copied by the core; numpy arrays, torch storages, mapped files and our
// own buffers all look alike. A storage that is a view of memory which its owner may still write or free says
// so, and is checked before each use; `own_constants` copies what such views show.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tosaic/ir/type.h"

namespace tosaic {

class Storage {
 public:
  Storage() = default;
  // `changed` returns a message when the owner's data changed since import (torch's version counter); else
  // "".
  Storage(std::shared_ptr<const void> owner, const std::byte* data, std::size_t size,
          std::function<std::string()> changed = {});
  // Zero-filled bytes of our own, 64-byte aligned; `writable` gives access while the caller is the only
  // owner.
  static Storage allocate(std::size_t size);
  template <class T>
  static Storage of(const std::vector<T>& values);

  [[nodiscard]] bool bound() const { return data_ != nullptr; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }
  [[nodiscard]] std::byte* writable();  // only for storage from allocate()
  [[nodiscard]] std::string changed() const { return changed_ ? changed_() : std::string(); }
  // The memory belongs to somebody who may write or free it; `changed` tells as far as the owner can.
  [[nodiscard]] bool is_view() const { return static_cast<bool>(changed_); }

 private:
  std::shared_ptr<const void> owner_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::function<std::string()> changed_;
};

template <class T>
Storage Storage::of(const std::vector<T>& values) {
  Storage storage = allocate(values.size() * sizeof(T));
  const auto* first = reinterpret_cast<const std::byte*>(values.data());
  std::copy(first, first + storage.size(), storage.writable());
  return storage;
}

enum class ConstantKind : std::uint8_t { kParameter, kBuffer, kLifted, kFolded };

// A named immutable tensor, dense and row-major. Shared between graphs.
struct Constant {
  std::string name;  // state-dict name of parameters and buffers, else the value's name
  ConstantKind kind = ConstantKind::kLifted;
  DType dtype = DType::kF32;
  Shape shape;
  Storage storage;  // unbound: a text form was parsed without its weights

  // The elements. Throws InvalidGraph if unbound or changed by its owner since import.
  [[nodiscard]] std::span<const std::byte> bytes() const;
};
using ConstantRef = std::shared_ptr<const Constant>;

// The elements of a constant of any dtype, one by one. Its owner is asked once, here, whether they changed:
// it may be Python. Throws as Constant::bytes().
class Elements {
 public:
  explicit Elements(const Constant& constant);
  [[nodiscard]] std::size_t size() const { return bytes_.size() / width_; }
  [[nodiscard]] double as_double(std::size_t i) const;
  [[nodiscard]] std::int64_t as_int(std::size_t i) const;

 private:
  [[nodiscard]] const std::byte* at(std::size_t i) const;

  const Constant* constant_;
  std::span<const std::byte> bytes_;
  std::size_t width_;
};

// A single element.
[[nodiscard]] double element_as_double(const Constant& constant, std::size_t i);
[[nodiscard]] std::int64_t element_as_int(const Constant& constant, std::size_t i);
// The least and the greatest element of a bound integer constant that has elements.
[[nodiscard]] ValueRange extremes_of(const Constant& constant);
// A one-value-per-element constant of `dtype` from doubles (rounded half to even, integers saturate).
[[nodiscard]] ConstantRef make_constant(std::string name, DType dtype, const Shape& shape,
                                        std::span<const double> values);

// One element converted to / from double; f16, bf16 and f8 by round half to even.
[[nodiscard]] double load_element(DType dtype, const std::byte* at);
void store_element(DType dtype, std::byte* at, double value);

}  // namespace tosaic
