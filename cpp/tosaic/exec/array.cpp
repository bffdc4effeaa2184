#include "tosaic/exec/array.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "tosaic/base/error.h"
#include "tosaic/ir/stored_type.h"
#include "tosaic/ir/unset_storage.h"

namespace tosaic::exec {
namespace {

// Steps through the elements of a shape in the order of its axes, with a byte position in each of two arrays.
class Walk {
 public:
  Walk(const Shape& shape, const Dims& a, const Dims& b) : shape_(shape), a_(a), b_(b) {}

  // Visits each innermost row: visit(byte position in a, byte position in b). Stops when `visit` returns
  // false.
  template <class Visit>
  void rows(Visit&& visit) {
    if (std::find(shape_.begin(), shape_.end(), 0) != shape_.end()) return;
    for (;;) {
      if (!visit(at_a_, at_b_)) return;
      if (!advance()) return;
    }
  }

 private:
  bool advance() {
    if (shape_.size() < 2) return false;
    for (std::size_t axis = shape_.size() - 1; axis-- > 0;) {
      at_a_ += a_[axis];
      at_b_ += b_[axis];
      if (++index_[axis] < shape_[axis]) return true;
      at_a_ -= a_[axis] * shape_[axis];
      at_b_ -= b_[axis] * shape_[axis];
      index_[axis] = 0;
    }
    return false;
  }

  const Shape& shape_;
  const Dims &a_, &b_;
  std::array<std::int64_t, kMaxRank> index_{};
  std::ptrdiff_t at_a_ = 0, at_b_ = 0;
};

std::int64_t row_length(const Shape& shape) { return shape.empty() ? 1 : shape.back(); }
std::int64_t row_stride(const Dims& strides) { return strides.empty() ? 0 : strides.back(); }

template <std::size_t kBytes>
void copy_row(const std::byte* from, std::int64_t from_stride, std::byte* to, std::int64_t to_stride,
              std::int64_t count) {
  if (from_stride == static_cast<std::int64_t>(kBytes) && to_stride == from_stride) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * kBytes);
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) std::memcpy(to + i * to_stride, from + i * from_stride, kBytes);
}

// The axes sorted by descending stride. A copy that visits them in this order writes memory nearly in
// ascending order.
Dims by_stride(const Shape& shape, const Dims& strides) {
  Dims order = Dims::iota(shape.size());
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t x, std::int64_t y) {
    return std::abs(strides[static_cast<std::size_t>(x)]) > std::abs(strides[static_cast<std::size_t>(y)]);
  });
  return order;
}

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::uint32_t exponent = half >> 10 & 31u, mantissa = half & 0x3ffu;
  std::uint32_t bits = 0;
  if (exponent == 31) {
    bits = sign | 0x7f800000u | mantissa << 13;
  } else if (exponent != 0) {
    bits = sign | (exponent + 112) << 23 | mantissa << 13;
  } else {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

float bfloat_to_float(std::uint16_t half) {
  const std::uint32_t bits = std::uint32_t{half} << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Calls visit(load) with the load function of the dtype, which turns the bytes of one element into T.
template <class T, class Visit>
void with_loader(DType dtype, Visit&& visit) {
  if (dtype == DType::kBool)
    return visit([](const std::byte* at) { return static_cast<T>(*at != std::byte{0}); });
  if (dtype == DType::kF16)
    return visit([](const std::byte* at) { return static_cast<T>(half_to_float(load<std::uint16_t>(at))); });
  if (dtype == DType::kBF16)
    return visit(
        [](const std::byte* at) { return static_cast<T>(bfloat_to_float(load<std::uint16_t>(at))); });
  with_stored_type(dtype, [&](auto stored) {
    using Stored = decltype(stored);
    if constexpr (std::is_same_v<Stored, NarrowFloat>)
      visit([dtype](const std::byte* at) { return static_cast<T>(load_element(dtype, at)); });
    else
      visit([](const std::byte* at) { return static_cast<T>(load<Stored>(at)); });
  });
}

template <class T>
void read_elements(const ArrayView& view, std::size_t begin, std::span<T> out) {
  const std::int64_t step = static_cast<std::int64_t>(byte_size(view.dtype));
  if (is_dense(view.shape, view.strides, view.dtype)) {
    const std::byte* at = view.data + begin * byte_size(view.dtype);
    with_loader<T>(view.dtype, [&](auto&& element) {
      for (T& value : out) {
        value = element(at);
        at += step;
      }
    });
    return;
  }
  with_loader<T>(view.dtype, [&](auto&& element) {
    std::array<std::int64_t, kMaxRank> index{};
    std::size_t rest = begin;
    std::ptrdiff_t at = 0;
    for (std::size_t axis = view.shape.size(); axis-- > 0;) {
      index[axis] = static_cast<std::int64_t>(rest % static_cast<std::size_t>(view.shape[axis]));
      rest /= static_cast<std::size_t>(view.shape[axis]);
      at += index[axis] * view.strides[axis];
    }
    for (T& value : out) {
      value = element(view.data + at);
      for (std::size_t axis = view.shape.size(); axis-- > 0;) {
        at += view.strides[axis];
        if (++index[axis] < view.shape[axis]) break;
        at -= view.strides[axis] * view.shape[axis];
        index[axis] = 0;
      }
    }
  });
}

void store_integer(DType dtype, std::byte* at, std::int64_t value) {
  switch (byte_size(dtype)) {
    case 1: {
      const auto narrow = static_cast<std::int8_t>(value);
      std::memcpy(at, &narrow, sizeof narrow);
      return;
    }
    case 2: {
      const auto narrow = static_cast<std::int16_t>(value);
      std::memcpy(at, &narrow, sizeof narrow);
      return;
    }
    case 4: {
      const auto narrow = static_cast<std::int32_t>(value);
      std::memcpy(at, &narrow, sizeof narrow);
      return;
    }
    default:
      std::memcpy(at, &value, sizeof value);
  }
}

}  // namespace

ArrayView ArrayView::dense(const std::byte* data, DType dtype, const Shape& shape) {
  return {data, dtype, shape, dense_strides(dtype, shape)};
}

MutableArrayView MutableArrayView::dense(std::byte* data, DType dtype, const Shape& shape) {
  return {data, dtype, shape, dense_strides(dtype, shape)};
}

Array Array::allocate(DType dtype, const Shape& shape) {
  const std::size_t bytes = static_cast<std::size_t>(num_elements(shape)) * byte_size(dtype);
  return {unset_storage(bytes), dtype, shape, dense_strides(dtype, shape)};
}

Dims dense_strides(DType dtype, const Shape& shape) {
  Dims strides = contiguous_strides(shape);
  for (std::int64_t& stride : strides) stride *= static_cast<std::int64_t>(byte_size(dtype));
  return strides;
}

bool is_dense(const Shape& shape, const Dims& strides, DType dtype) {
  std::int64_t expected = static_cast<std::int64_t>(byte_size(dtype));
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return true;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    if (shape[axis] != 1 && strides[axis] != expected) return false;
    expected *= shape[axis];
  }
  return true;
}

ArrayView permuted(const ArrayView& view, const Dims& axes) {
  return {view.data, view.dtype, tosaic::permuted(view.shape, axes), tosaic::permuted(view.strides, axes)};
}

MutableArrayView permuted(const MutableArrayView& view, const Dims& axes) {
  return {view.data, view.dtype, tosaic::permuted(view.shape, axes), tosaic::permuted(view.strides, axes)};
}

ArrayView as_declared(ArrayView view, DType declared) {
  const bool raw = view.dtype == DType::kU16 || view.dtype == DType::kU8;
  if (raw && is_float(declared) && declared != DType::kF16 && byte_size(declared) == byte_size(view.dtype))
    view.dtype = declared;
  return view;
}

DType container(DType dtype) {
  if (dtype == DType::kI4) return DType::kI8;
  if (dtype == DType::kI48) return DType::kI64;
  return dtype;
}

std::pair<const std::byte*, const std::byte*> extent(const ArrayView& view) {
  std::ptrdiff_t low = 0, high = static_cast<std::ptrdiff_t>(byte_size(view.dtype));
  for (std::size_t axis = 0; axis < view.shape.size(); ++axis) {
    if (view.shape[axis] == 0) return {view.data, view.data};
    const std::ptrdiff_t reach = (view.shape[axis] - 1) * view.strides[axis];
    (reach < 0 ? low : high) += reach;
  }
  return {view.data + low, view.data + high};
}

void copy(const ArrayView& from, const MutableArrayView& to) {
  if (from.shape != to.shape || byte_size(from.dtype) != byte_size(to.dtype))
    throw InternalError(
        {.where = "exec", .what = "arrays that differ in shape or element size cannot be copied"});
  if (is_dense(from.shape, from.strides, from.dtype) && is_dense(to.shape, to.strides, to.dtype)) {
    if (const auto bytes = static_cast<std::size_t>(num_elements(to.shape)) * byte_size(to.dtype); bytes != 0)
      std::memcpy(to.data, from.data, bytes);
    return;
  }
  const Dims order = by_stride(to.shape, to.strides);
  const ArrayView source = permuted(from, order);
  const MutableArrayView target = permuted(to, order);
  const std::int64_t count = row_length(source.shape), from_stride = row_stride(source.strides),
                     to_stride = row_stride(target.strides);
  const auto rows = [&](auto&& copy_one) {
    Walk(source.shape, source.strides, target.strides).rows([&](std::ptrdiff_t a, std::ptrdiff_t b) {
      copy_one(source.data + a, from_stride, target.data + b, to_stride, count);
      return true;
    });
  };
  switch (byte_size(from.dtype)) {
    case 1:
      return rows(copy_row<1>);
    case 2:
      return rows(copy_row<2>);
    case 4:
      return rows(copy_row<4>);
    default:
      return rows(copy_row<8>);
  }
}

std::int64_t convert_integers(const ArrayView& from, const MutableArrayView& to, std::int64_t min,
                              std::int64_t max) {
  std::int64_t bad = -1, done = 0;
  const std::int64_t count = row_length(from.shape);
  with_loader<std::int64_t>(from.dtype, [&](auto&& element) {
    Walk(from.shape, from.strides, to.strides).rows([&](std::ptrdiff_t a, std::ptrdiff_t b) {
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t value = element(from.data + a + i * row_stride(from.strides));
        if (value < min || value > max) {
          bad = done + i;
          return false;
        }
        store_integer(to.dtype, to.data + b + i * row_stride(to.strides), value);
      }
      done += count;
      return true;
    });
  });
  return bad;
}

void read_doubles(const ArrayView& view, std::size_t begin, std::span<double> out) {
  read_elements(view, begin, out);
}

void read_integers(const ArrayView& view, std::size_t begin, std::span<std::int64_t> out) {
  read_elements(view, begin, out);
}

}  // namespace tosaic::exec
