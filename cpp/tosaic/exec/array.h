// array: typed, strided memory, for the arrays that callers pass in and the arrays that the executor returns.
#pragma once

#include <cstddef>
#include <span>

#include "tosaic/ir/storage.h"
#include "tosaic/ir/type.h"

namespace tosaic::exec {

// A view of memory that others own, for reading. Strides are in bytes and may be negative or zero.
struct ArrayView {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;
  Dims strides;

  // A row-major view of `data`.
  static ArrayView dense(const std::byte* data, DType dtype, const Shape& shape);
};

// A view of memory that others own, for writing. No two elements overlap.
struct MutableArrayView {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;
  Dims strides;

  static MutableArrayView dense(std::byte* data, DType dtype, const Shape& shape);
  [[nodiscard]] ArrayView read() const { return {data, dtype, shape, strides}; }
};

// An array that owns its memory (64-byte aligned). It has strides because the dim order of an output's memory
// may differ from the order of its axes.
struct Array {
  Storage storage;
  DType dtype = DType::kF32;
  Shape shape;
  Dims strides;

  // A new row-major array. Its elements are not set.
  static Array allocate(DType dtype, const Shape& shape);
  [[nodiscard]] ArrayView view() const { return {storage.bytes().data(), dtype, shape, strides}; }
};

// Row-major strides in bytes.
[[nodiscard]] Dims dense_strides(DType dtype, const Shape& shape);
// True if the elements are stored row-major without gaps. Strides of axes of extent 1 are ignored; an empty
// array is dense.
[[nodiscard]] bool is_dense(const Shape& shape, const Dims& strides, DType dtype);
// The view whose axis i is axis axes[i] of `view`.
[[nodiscard]] ArrayView permuted(const ArrayView& view, const Dims& axes);
[[nodiscard]] MutableArrayView permuted(const MutableArrayView& view, const Dims& axes);
// The dtype in which callers without the narrow dtype store the same bytes: i8 for i4, and i64 for i48. Any
// other dtype is its own container.
[[nodiscard]] DType container(DType dtype);
// The view with the dtype that the caller means: callers without bf16 and f8 may pass such values as unsigned
// integers of the same width. For any other `declared` dtype, returns `view`.
[[nodiscard]] ArrayView as_declared(ArrayView view, DType declared);
// The first byte that the view touches and one past the last byte. The two are equal for empty arrays.
[[nodiscard]] std::pair<const std::byte*, const std::byte*> extent(const ArrayView& view);

// Copies the elements, in the order of the axes, without converting them. Throws InternalError if the shapes
// or the element sizes differ.
void copy(const ArrayView& from, const MutableArrayView& to);

// Copies integers of one dtype into another. Stops at the first element outside [min, max] and returns its
// flat index; the elements after it are not checked and not copied. Returns -1 if all elements were copied.
[[nodiscard]] std::int64_t convert_integers(const ArrayView& from, const MutableArrayView& to,
                                            std::int64_t min, std::int64_t max);

// Reads the elements begin .. begin + out.size(), counted in the order of the axes, as doubles. f16, bf16 and
// f8 values are converted exactly.
void read_doubles(const ArrayView& view, std::size_t begin, std::span<double> out);
// Does the same as read_doubles(), for integer and bool dtypes.
void read_integers(const ArrayView& view, std::size_t begin, std::span<std::int64_t> out);

}  // namespace tosaic::exec
