// Arrays: typed, strided memory, as callers hold it and as the executor hands it out.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "tosaic/ir/storage.h"
#include "tosaic/ir/type.h"

namespace tosaic::exec {

// Someone's memory, to be read. Strides in bytes, of any sign.
struct ArrayView {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;
  Dims strides;

  // Row-major over `data`.
  static ArrayView dense(const std::byte* data, DType dtype, const Shape& shape);
};

// Someone's memory, to be written. Elements do not overlap.
struct MutableArrayView {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;
  Dims strides;

  static MutableArrayView dense(std::byte* data, DType dtype, const Shape& shape);
  [[nodiscard]] ArrayView read() const { return {data, dtype, shape, strides}; }
};

// Memory of our own (64-byte aligned), with strides: an output may lie in another order than its axes.
struct Array {
  Storage storage;
  DType dtype = DType::kF32;
  Shape shape;
  Dims strides;

  // Row-major.
  static Array allocate(DType dtype, const Shape& shape);
  [[nodiscard]] ArrayView view() const { return {storage.bytes().data(), dtype, shape, strides}; }
};

// Row-major strides in bytes.
[[nodiscard]] Dims dense_strides(DType dtype, const Shape& shape);
// True if the elements lie row-major without holes (axes of extent 1 and empty arrays are ignored).
[[nodiscard]] bool is_dense(const Shape& shape, const Dims& strides, DType dtype);
// The view whose axis i is axis axes[i] of `view`.
[[nodiscard]] ArrayView permuted(const ArrayView& view, const Dims& axes);
[[nodiscard]] MutableArrayView permuted(const MutableArrayView& view, const Dims& axes);
// The dtype that holds the same bytes for callers who lack the narrow one: i4 -> i8, i48 -> i64, else itself.
[[nodiscard]] DType container(DType dtype);
// First and one past the last byte touched; equal for empty arrays.
[[nodiscard]] std::pair<const std::byte*, const std::byte*> extent(const ArrayView& view);

// Copies the elements, in the order of the axes, as bytes. Shapes and element sizes agree.
void copy(const ArrayView& from, const MutableArrayView& to);

// Copies integers of one dtype into another. The index of the first element outside [min, max] (nothing is
// said of the elements after it), or -1.
[[nodiscard]] std::int64_t convert_integers(const ArrayView& from, const MutableArrayView& to,
                                            std::int64_t min, std::int64_t max);

// Elements begin .. begin+count, in the order of the axes, as doubles; f16, bf16 and f8 are exact.
void read_doubles(const ArrayView& view, std::size_t begin, std::span<double> out);
// The same for integer and bool dtypes.
void read_integers(const ArrayView& view, std::size_t begin, std::span<std::int64_t> out);

}  // namespace tosaic::exec
