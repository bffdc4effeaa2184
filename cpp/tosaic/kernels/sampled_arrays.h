// sampled_arrays: makes kernels that sample an image at a grid by loops on arrays of one type.
#pragma once

#include <array>
#include <string>
#include <type_traits>
#include <utility>

#include "tosaic/kernels/kernel.h"
#include "tosaic/kernels/scratch.h"
#include "tosaic/kernels/wide.h"

namespace tosaic::kernels {

// Runs loops(image, grid, result, workspace) on arrays of T. Arrays of other floats are converted in scratch.
template <class T, class Loops>
[[nodiscard]] Kernel kernel_in(const Request& request, std::string name, ScratchPlan plan,
                               const Loops& loops) {
  constexpr DType own = std::is_same_v<T, double> ? DType::kF64 : DType::kF32;
  const DType dtype = request.operands[0].dtype;
  const bool converts = dtype != own;
  std::array<std::int64_t, 3> counts = {num_elements(request.operands[0].shape),
                                        num_elements(request.operands[1].shape),
                                        num_elements(request.results[0].shape)};
  std::array<std::size_t, 3> at{};
  for (std::size_t i = 0; i < 3; ++i) at[i] = plan.take<T>(converts ? counts[i] : 0);
  Kernel kernel;
  kernel.name = std::move(name);
  kernel.scratch_bytes = plan.bytes();
  kernel.run = [=](const Arrays& arrays) {
    if (!converts) {
      loops(reinterpret_cast<const T*>(arrays.operands[0]), reinterpret_cast<const T*>(arrays.operands[1]),
            reinterpret_cast<T*>(arrays.results[0]), Workspace{arrays.scratch, arrays.team});
      return;
    }
    std::array<T*, 3> wide{};
    for (std::size_t i = 0; i < 3; ++i) wide[i] = piece<T>(arrays.scratch, at[i]);
    for (std::size_t i = 0; i < 2; ++i)
      widen_in_parallel(arrays.team, dtype, arrays.operands[i], counts[i], 0, wide[i]);
    loops(wide[0], wide[1], wide[2], Workspace{arrays.scratch, arrays.team});
    narrow_in_parallel(arrays.team, wide[2], counts[2], dtype, arrays.results[0]);
  };
  return kernel;
}

}  // namespace tosaic::kernels
