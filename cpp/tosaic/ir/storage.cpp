#include "tosaic/ir/storage.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

#include "tosaic/base/error.h"
#include "tosaic/base/large_pages.h"
#include "tosaic/ir/attributes.h"
#include "tosaic/ir/deferred.h"
#include "tosaic/ir/recipe.h"
#include "tosaic/ir/stored_type.h"
#include "tosaic/ir/unset_storage.h"

namespace tosaic {
namespace {

constexpr std::size_t kAlignment = 64;

// Storage of at least this many bytes is mapped directly from the system, with large pages if available. The
// system zeroes it.
constexpr std::size_t kMappedBytes = std::size_t{4} << 20;

// The deleter of storage from allocate(). Storage::writable() recognises such storage by it.
struct AlignedDelete {
  std::size_t mapped = 0;  // bytes to unmap at `base`; 0: the memory is from operator new
  void* base = nullptr;
  void operator()(const void* memory) const {
    if (mapped != 0) {
      munmap(base, mapped);
    } else {
      ::operator delete(const_cast<void*>(memory), std::align_val_t{kAlignment});
    }
  }
};

// Mapped memory is zero; other memory is not set.
std::shared_ptr<const void> aligned_memory(std::size_t size) {
  if (size >= kMappedBytes) {
    const std::size_t bytes = size + kLargePage;
    void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) throw std::bad_alloc();
    const std::size_t skip = (kLargePage - reinterpret_cast<std::uintptr_t>(base) % kLargePage) % kLargePage;
    void* memory = static_cast<std::byte*>(base) + skip;
    advise_large_pages(memory, size);
    return {memory, AlignedDelete{bytes, base}};
  }
  return {::operator new(std::max<std::size_t>(size, 1), std::align_val_t{kAlignment}), AlignedDelete{}};
}

// A binary floating-point format of at most 16 bits. With `finite_only` (OCP E4M3), there are no infinities,
// the largest exponent encodes numbers too, and NaN is the encoding with all bits but the sign set. Numbers
// beyond the range then become NaN, as in torch and TOSA.
struct SmallFloat {
  int exponent_bits, mantissa_bits;
  bool finite_only;

  [[nodiscard]] int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  [[nodiscard]] std::uint32_t magnitude_mask() const { return (1u << (exponent_bits + mantissa_bits)) - 1u; }
  [[nodiscard]] std::uint32_t infinity() const {
    return finite_only ? magnitude_mask() : magnitude_mask() & ~((1u << mantissa_bits) - 1u);
  }
  [[nodiscard]] std::uint32_t nan() const {
    return finite_only ? magnitude_mask() : infinity() | (1u << (mantissa_bits - 1));
  }
};

constexpr SmallFloat kF8E4M3{4, 3, true};
constexpr SmallFloat kF8E5M2{5, 2, false};
constexpr SmallFloat kF16{5, 10, false};
constexpr SmallFloat kBF16{8, 7, false};

// The magnitude is rounded to an integer number of units in the last place, which is added to the exponent
// field. A carry of the mantissa then increments the exponent, and subnormal numbers need no special case.
std::uint32_t encode(const SmallFloat& format, double value) {
  const std::uint32_t sign = std::signbit(value) ? 1u << (format.exponent_bits + format.mantissa_bits) : 0u;
  if (std::isnan(value)) return sign | format.nan();
  if (std::isinf(value)) return sign | format.infinity();
  const double magnitude = std::fabs(value);
  const int min_exponent = 1 - format.bias();
  const int exponent = magnitude == 0 ? min_exponent : std::max(std::ilogb(magnitude), min_exponent);
  const double quanta = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  const std::int64_t bits = (static_cast<std::int64_t>(exponent - min_exponent) << format.mantissa_bits) +
                            static_cast<std::int64_t>(quanta);
  if (bits >= static_cast<std::int64_t>(format.infinity())) return sign | format.infinity();
  return sign | static_cast<std::uint32_t>(bits);
}

double decode(const SmallFloat& format, std::uint32_t bits) {
  const std::uint32_t magnitude = bits & format.magnitude_mask();
  const double sign = (bits & ~format.magnitude_mask()) != 0 ? -1.0 : 1.0;
  if (format.finite_only ? magnitude == format.nan() : magnitude > format.infinity())
    return std::copysign(std::numeric_limits<double>::quiet_NaN(), sign);
  if (magnitude == format.infinity()) return sign * std::numeric_limits<double>::infinity();
  const auto field = static_cast<int>(magnitude >> format.mantissa_bits);
  const std::uint32_t fraction = magnitude & ((1u << format.mantissa_bits) - 1u);
  const std::uint32_t mantissa = field == 0 ? fraction : fraction | (1u << format.mantissa_bits);
  return sign *
         std::ldexp(static_cast<double>(mantissa), std::max(field, 1) - format.bias() - format.mantissa_bits);
}

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

template <class T>
void store(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

// Rounds half to even and saturates to [low, high]; NaN becomes 0.
std::int64_t to_integer(double value, std::int64_t low, std::int64_t high) {
  if (std::isnan(value)) return 0;
  const double rounded = std::nearbyint(value);
  if (rounded <= static_cast<double>(low)) return low;
  if (rounded >= static_cast<double>(high)) return high;
  return static_cast<std::int64_t>(rounded);
}

template <class T>
void store_integer(std::byte* at, double value) {
  store(at, static_cast<T>(to_integer(value, std::numeric_limits<T>::min(), std::numeric_limits<T>::max())));
}

std::int64_t load_integer(DType dtype, const std::byte* at) {
  if (dtype == DType::kBool) return load<std::uint8_t>(at) != 0 ? 1 : 0;
  return with_stored_type(dtype, [&](auto stored) -> std::int64_t {
    if constexpr (std::is_integral_v<decltype(stored)>)
      return load<decltype(stored)>(at);
    else
      return as_int(load_element(dtype, at));
  });
}

}  // namespace

Storage::Storage(std::shared_ptr<const void> owner, const std::byte* data, std::size_t size,
                 std::function<std::string()> changed)
    : owner_(std::move(owner)), data_(data), size_(size), changed_(std::move(changed)) {
  static constexpr std::byte kNothing{};
  if (size_ == 0 && data_ == nullptr) data_ = &kNothing;  // an empty array counts as bound
}

Storage Storage::allocate(std::size_t size) {
  Storage out = unset_storage(size);
  if (size < kMappedBytes) std::memset(out.writable(), 0, size);
  return out;
}

Storage unset_storage(std::size_t size) {
  std::shared_ptr<const void> owner = aligned_memory(size);
  const auto* data = static_cast<const std::byte*>(owner.get());
  return {std::move(owner), data, size};
}

Storage Storage::deferred(std::size_t size, std::shared_ptr<const Recipe> recipe) {
  Storage out;
  out.size_ = size;
  out.deferred_ = std::make_shared<Deferred>(size, std::move(recipe));
  return out;
}

std::span<const std::byte> Storage::bytes() const {
  return deferred_ != nullptr ? deferred_->bytes() : std::span(data_, size_);
}

std::string Storage::change_message() const {
  if (deferred_ != nullptr) return deferred_->change_message();
  return changed_ ? changed_() : std::string();
}

bool Storage::is_view() const {
  return deferred_ != nullptr ? deferred_->is_view() : static_cast<bool>(changed_);
}

Storage Storage::part(std::size_t begin, std::size_t size) const {
  if (deferred_ != nullptr || begin + size > size_)
    throw InternalError({.where = "storage", .what = "a part of a storage is out of range"});
  return {owner_, data_ + begin, size, changed_};
}

const void* Storage::identity() const {
  if (deferred_ != nullptr) return deferred_.get();
  return data_;
}

const std::byte* Storage::in_memory() const { return deferred_ != nullptr ? deferred_->in_memory() : data_; }

std::shared_ptr<const Recipe> Storage::recipe() const {
  return deferred_ != nullptr ? deferred_->recipe() : nullptr;
}

std::byte* Storage::writable() {
  if (std::get_deleter<AlignedDelete>(owner_) == nullptr)
    throw InternalError({.where = "storage", .what = "only storage from allocate() can be written"});
  if (owner_.use_count() != 1)
    throw InternalError({.where = "storage",
                         .what = "shared storage cannot be written",
                         .expected = "one owner",
                         .got = std::to_string(owner_.use_count())});
  return const_cast<std::byte*>(data_);
}

std::span<const std::byte> Constant::bytes() const {
  require_elements();
  return storage.bytes();
}

void Constant::require_elements() const {
  if (!storage.bound())
    throw InvalidGraph({.where = "storage",
                        .what = "constant '" + name + "' has no data",
                        .hint = "It was read from a text form without its weights; bind them first"});
  require_unchanged();
  const std::size_t expected = static_cast<std::size_t>(num_elements(shape)) * byte_size(dtype);
  if (storage.size() != expected)
    throw InvalidGraph({.where = "storage",
                        .what = "constant '" + name + "' has the wrong size",
                        .expected = std::to_string(expected) + " bytes",
                        .got = std::to_string(storage.size())});
}

void Constant::require_unchanged() const {
  if (const std::string message = storage.change_message(); !message.empty())
    throw InvalidGraph({.where = "storage",
                        .what = "constant '" + name + "' was changed after import: " + message,
                        .hint = "Import the model again"});
}

Elements::Elements(const Constant& constant)
    : constant_(&constant), bytes_(constant.bytes()), width_(byte_size(constant.dtype)) {}

const std::byte* Elements::at(std::size_t i) const {
  if (i >= size())
    throw InternalError({.where = "storage",
                         .what = "element of constant '" + constant_->name + "' is out of range",
                         .expected = "an index below " + std::to_string(size()),
                         .got = std::to_string(i)});
  return bytes_.data() + i * width_;
}

double Elements::as_double(std::size_t i) const { return load_element(constant_->dtype, at(i)); }
std::int64_t Elements::as_int(std::size_t i) const { return load_integer(constant_->dtype, at(i)); }

double element_as_double(const Constant& constant, std::size_t i) { return Elements(constant).as_double(i); }
std::int64_t element_as_int(const Constant& constant, std::size_t i) { return Elements(constant).as_int(i); }

ValueRange extremes_of(const Constant& constant) {
  if (constant.dtype == DType::kI8) {     // a fast path: weights have millions of elements
    constexpr std::uint8_t kSign = 0x80;  // with this bit flipped, signed bytes compare like unsigned ones
    std::uint8_t low = 0xff, high = 0;
    for (const std::byte byte : constant.bytes()) {
      const auto value = static_cast<std::uint8_t>(static_cast<std::uint8_t>(byte) ^ kSign);
      low = std::min(low, value);
      high = std::max(high, value);
    }
    return {low - kSign, high - kSign};
  }
  ValueRange limits{std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min()};
  const Elements elements(constant);
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const std::int64_t value = elements.as_int(i);
    limits = {std::min(limits.low, value), std::max(limits.high, value)};
  }
  return limits;
}

std::shared_ptr<Constant> constant_over(std::string name, ConstantKind kind, DType dtype, Shape shape,
                                        Storage storage) {
  const std::size_t needed = static_cast<std::size_t>(num_elements(shape)) * byte_size(dtype);
  if (needed != storage.size())
    throw InvalidGraph({.where = "constant",
                        .what = "the buffer of '" + name + "' does not fit its type",
                        .expected = std::to_string(needed) + " bytes",
                        .got = std::to_string(storage.size())});
  return std::make_shared<Constant>(
      Constant{std::move(name), kind, dtype, std::move(shape), std::move(storage)});
}

ConstantRef make_constant(std::string name, DType dtype, const Shape& shape, std::span<const double> values) {
  if (static_cast<std::size_t>(num_elements(shape)) != values.size())
    throw InternalError(
        {.where = "storage",
         .what = "constant '" + name + "' of shape " + to_string(shape) + " has the wrong count",
         .expected = std::to_string(num_elements(shape)),
         .got = std::to_string(values.size())});
  const std::size_t size = byte_size(dtype);
  Storage storage = Storage::allocate(values.size() * size);
  std::byte* at = storage.writable();
  for (const double value : values) {
    store_element(dtype, at, value);
    at += size;
  }
  return constant_over(std::move(name), ConstantKind::kFolded, dtype, shape, std::move(storage));
}

double load_element(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::kF8E4M3:
      return decode(kF8E4M3, load<std::uint8_t>(at));
    case DType::kF8E5M2:
      return decode(kF8E5M2, load<std::uint8_t>(at));
    case DType::kF16:
      return decode(kF16, load<std::uint16_t>(at));
    case DType::kBF16:
      return static_cast<double>(
          std::bit_cast<float>(static_cast<std::uint32_t>(load<std::uint16_t>(at)) << 16));
    case DType::kF32:
      return static_cast<double>(load<float>(at));
    case DType::kF64:
      return load<double>(at);
    case DType::kBool:
    case DType::kI4:
    case DType::kI8:
    case DType::kU8:
    case DType::kI16:
    case DType::kU16:
    case DType::kI32:
    case DType::kI48:
    case DType::kI64:
      break;
  }
  return static_cast<double>(load_integer(dtype, at));
}

void store_element(DType dtype, std::byte* at, double value) {
  constexpr std::int64_t kI48Limit = std::int64_t{1} << 47;
  switch (dtype) {
    case DType::kBool:
      return store(at, static_cast<std::uint8_t>(value != 0));
    case DType::kI4:
      return store(at, static_cast<std::int8_t>(to_integer(value, -8, 7)));
    case DType::kI8:
      return store_integer<std::int8_t>(at, value);
    case DType::kU8:
      return store_integer<std::uint8_t>(at, value);
    case DType::kI16:
      return store_integer<std::int16_t>(at, value);
    case DType::kU16:
      return store_integer<std::uint16_t>(at, value);
    case DType::kI32:
      return store_integer<std::int32_t>(at, value);
    case DType::kI48:
      return store(at, to_integer(value, -kI48Limit, kI48Limit - 1));
    case DType::kI64:
      return store_integer<std::int64_t>(at, value);
    case DType::kF8E4M3:
      return store(at, static_cast<std::uint8_t>(encode(kF8E4M3, value)));
    case DType::kF8E5M2:
      return store(at, static_cast<std::uint8_t>(encode(kF8E5M2, value)));
    case DType::kF16:
      return store(at, static_cast<std::uint16_t>(encode(kF16, value)));
    case DType::kBF16:
      return store(at, static_cast<std::uint16_t>(encode(kBF16, value)));
    case DType::kF32:
      return store(at, static_cast<float>(value));
    case DType::kF64:
      return store(at, value);
  }
}

}  // namespace tosaic
