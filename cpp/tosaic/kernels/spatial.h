// spatial: shared by pools and resizes. Image has the extents of an image with three spatial axes, channels
// first or last. kernel_over() makes a kernel with one operand whose loops compute in a wide type.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <utility>

#include "tosaic/kernels/kernel.h"
#include "tosaic/kernels/scratch.h"
#include "tosaic/kernels/wide.h"

namespace tosaic::kernels {

// With fewer than three spatial axes, the leading extents are 1.
struct Image {
  std::int64_t batch = 1, channels = 1;
  std::array<std::int64_t, 3> extent{1, 1, 1};
  bool channels_last = false;

  [[nodiscard]] std::int64_t pixels() const { return extent[0] * extent[1] * extent[2]; }
  [[nodiscard]] std::int64_t size() const { return batch * channels * pixels(); }
  [[nodiscard]] std::int64_t channel_stride() const { return channels_last ? 1 : pixels(); }
  // Elements between neighbours along d, h, w.
  [[nodiscard]] std::array<std::int64_t, 3> strides() const {
    const std::int64_t unit = channels_last ? channels : 1;
    return {extent[1] * extent[2] * unit, extent[2] * unit, unit};
  }
};

// The image of this shape, which has `rank` spatial axes: (N, C, spatial...) or (C, spatial...), or with
// channels_last (N, spatial..., C).
[[nodiscard]] inline Image image_of(const Shape& shape, std::size_t rank, bool channels_last) {
  Image image{.channels_last = channels_last};
  const std::size_t first = channels_last ? 1 : shape.size() - rank;
  for (std::size_t i = 0; i < rank; ++i) image.extent[3 - rank + i] = shape[first + i];
  if (channels_last) {
    image.batch = shape[0];
    image.channels = shape.back();
  } else {
    image.channels = first > 0 ? shape[first - 1] : 1;
    image.batch = first > 1 ? shape[0] : 1;
  }
  return image;
}

// A kernel of operand 0 whose loops read and write arrays of T (double or int64). The operand minus its zero
// point is converted to T in scratch, and the result is converted from T. Arrays that hold T already are not
// converted.
template <class T>
[[nodiscard]] Kernel kernel_over(const Request& request, std::int64_t zero_point, std::string name,
                                 std::function<void(const T* from, T* to)> loops) {
  constexpr DType own = std::is_same_v<T, double> ? DType::kF64 : DType::kI64;
  const Operand& x = request.operands[0];
  const Operand& y = request.results[0];
  const bool widened = x.dtype != own || zero_point != 0;
  const bool narrowed = y.dtype != own;
  const std::int64_t x_count = num_elements(x.shape);
  const std::int64_t y_count = num_elements(y.shape);
  ScratchPlan plan;
  const std::size_t x_at = plan.take<T>(widened ? x_count : 0);
  const std::size_t y_at = plan.take<T>(narrowed ? y_count : 0);
  Kernel kernel;
  kernel.scratch_bytes = plan.bytes();
  kernel.name = std::move(name);
  kernel.run = [=, x_dtype = x.dtype, y_dtype = y.dtype, loops = std::move(loops)](const Arrays& arrays) {
    const T* from = reinterpret_cast<const T*>(arrays.operands[0]);
    if (widened) {
      widen_in_parallel(arrays.team, x_dtype, arrays.operands[0], x_count, zero_point,
                        piece<T>(arrays.scratch, x_at));
      from = piece<T>(arrays.scratch, x_at);
    }
    T* to = narrowed ? piece<T>(arrays.scratch, y_at) : reinterpret_cast<T*>(arrays.results[0]);
    loops(from, to);
    if (narrowed) narrow_in_parallel(arrays.team, to, y_count, y_dtype, arrays.results[0]);
  };
  return kernel;
}

}  // namespace tosaic::kernels
