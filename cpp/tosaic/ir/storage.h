// Storage: bytes and their owner, e.g. a numpy array, a torch storage or a buffer of our own. Copies of a
// Storage share the bytes. A storage is a view if its owner may still write or free the memory. Views are
// checked before each use; own_constants() replaces them by copies. The bytes of a deferred storage are
// computed when they are first read (recipe.h).
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tosaic/ir/type.h"

namespace tosaic {

class Deferred;
class Recipe;

class Storage {
 public:
  Storage() = default;
  // With `changed` the storage is a view. `changed` returns a message if the owner's data changed since
  // import, as far as the owner can notice (torch's version counter), and "" if not.
  Storage(std::shared_ptr<const void> owner, const std::byte* data, std::size_t size,
          std::function<std::string()> changed = {});
  // Zero-filled bytes of our own, aligned to 64 bytes. writable() returns them as long as there is one owner.
  static Storage allocate(std::size_t size);
  template <class T>
  static Storage of(const std::vector<T>& values);
  // `size` bytes that the recipe computes.
  static Storage deferred(std::size_t size, std::shared_ptr<const Recipe> recipe);

  [[nodiscard]] bool bound() const { return data_ != nullptr || deferred_ != nullptr; }
  [[nodiscard]] std::size_t size() const { return size_; }
  // The bytes. Computes a deferred storage; throws InvalidGraph if the owner of one of its sources changed
  // the source since import.
  [[nodiscard]] std::span<const std::byte> bytes() const;
  [[nodiscard]] std::byte* writable();  // InternalError unless from allocate() and with one owner
  [[nodiscard]] std::string change_message() const;
  // True if another owner may write or free the memory of the bytes or, if they are not computed yet, the
  // memory from which they will be computed. change_message() then reports changes.
  [[nodiscard]] bool is_view() const;
  // The bytes [begin, begin + size) of a storage that is not deferred, with the same owner.
  [[nodiscard]] Storage part(std::size_t begin, std::size_t size) const;

  // An address that storages have in common if they share their bytes. It is not the address of the bytes.
  [[nodiscard]] const void* identity() const;
  // The bytes if they can be read without computing them, else null.
  [[nodiscard]] const std::byte* in_memory() const;
  // How the bytes will be computed; null if they are computed.
  [[nodiscard]] std::shared_ptr<const Recipe> recipe() const;
  // Null for a storage that never was deferred.
  [[nodiscard]] const std::shared_ptr<Deferred>& deferred_state() const { return deferred_; }

 private:
  std::shared_ptr<const void> owner_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::function<std::string()> changed_;
  std::shared_ptr<Deferred> deferred_;
};

template <class T>
Storage Storage::of(const std::vector<T>& values) {
  Storage storage = allocate(values.size() * sizeof(T));
  const auto* first = reinterpret_cast<const std::byte*>(values.data());
  std::copy(first, first + storage.size(), storage.writable());
  return storage;
}

enum class ConstantKind : std::uint8_t { kParameter, kBuffer, kLifted, kFolded };

// A named immutable tensor, dense and row-major. Graphs share constants.
struct Constant {
  std::string name;  // parameters and buffers: the name in the state dict; others: the value's name
  ConstantKind kind = ConstantKind::kLifted;
  DType dtype = DType::kF32;
  Shape shape;
  Storage storage;  // unbound if a text form was parsed without its weights

  // The elements. Throws InvalidGraph if the storage is unbound, has the wrong size, or was changed by its
  // owner since import.
  [[nodiscard]] std::span<const std::byte> bytes() const;
  // Throws what bytes() throws if the owner changed the storage. Does not compute a deferred storage.
  void require_unchanged() const;
  // Throws what bytes() throws. Does not compute a deferred storage.
  void require_elements() const;
};
using ConstantRef = std::shared_ptr<const Constant>;

// The elements of a constant of any dtype, one by one. The constructor checks once whether the owner changed
// them, because the check may call Python. It throws what Constant::bytes() throws. An index out of range is
// an InternalError. as_int() truncates floats and saturates.
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

// A single element, with all checks of Elements.
[[nodiscard]] double element_as_double(const Constant& constant, std::size_t i);
[[nodiscard]] std::int64_t element_as_int(const Constant& constant, std::size_t i);
// The smallest and the largest element of an integer constant, which must be bound and not empty.
[[nodiscard]] ValueRange extremes_of(const Constant& constant);
// A constant with these elements. Throws InvalidGraph if the storage does not have the size of the type.
[[nodiscard]] std::shared_ptr<Constant> constant_over(std::string name, ConstantKind kind, DType dtype,
                                                      Shape shape, Storage storage);
// A constant of kind kFolded with one double per element. Values are rounded half to even, and integers
// saturate. Throws InternalError if the number of values is not that of `shape`.
[[nodiscard]] ConstantRef make_constant(std::string name, DType dtype, const Shape& shape,
                                        std::span<const double> values);

// Convert one element to and from double. store_element() rounds half to even; integers saturate, and NaN
// becomes 0 in integers.
[[nodiscard]] double load_element(DType dtype, const std::byte* at);
void store_element(DType dtype, std::byte* at, double value);

}  // namespace tosaic
