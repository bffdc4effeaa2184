// An element q of an i8 image is sampled as the f32 number max(q, -127), and the sample is rounded half to
// even to i8. The factor 1 / 127 of the image and the factor 127 of the result cancel.
#include "tosaic/kernels/custom_sampler.h"

#include <algorithm>
#include <cmath>

#include "tosaic/kernels/block.h"
#include "tosaic/kernels/float_sampler.h"
#include "tosaic/kernels/scratch.h"
#include "tosaic/kernels/wide.h"

namespace tosaic::kernels {
namespace {

constexpr float kSnorm = 127;

bool has_dtypes(const Request& request, std::initializer_list<DType> operands, DType result) {
  if (request.operands.size() != operands.size() || request.results.size() != 1) return false;
  std::size_t i = 0;
  for (const DType dtype : operands)
    if (request.operands[i++].dtype != dtype) return false;
  return request.results[0].dtype == result;
}

Kernel sample_snorm(const Request& request, const FloatSampler& sampler) {
  const std::int64_t pixels = num_elements(request.operands[0].shape);
  const std::int64_t places = num_elements(request.operands[1].shape);
  const std::int64_t results = num_elements(request.results[0].shape);
  ScratchPlan plan;
  const std::size_t scratch_at = plan.take<std::byte>(static_cast<std::int64_t>(sampler.scratch_bytes));
  const std::size_t image_at = plan.take<float>(pixels), grid_at = plan.take<float>(places),
                    result_at = plan.take<float>(results);
  Kernel kernel;
  kernel.scratch_bytes = plan.bytes();
  kernel.run = [=, run = sampler.run](const Arrays& arrays) {
    auto* image = piece<float>(arrays.scratch, image_at);
    auto* grid = piece<float>(arrays.scratch, grid_at);
    auto* made = piece<float>(arrays.scratch, result_at);
    const float scale = *reinterpret_cast<const float*>(arrays.operands[2]);
    const std::int32_t zero_point = *reinterpret_cast<const std::int32_t*>(arrays.operands[3]);
    const auto in_parallel = [&](std::int64_t count, const auto& work) {
      parallel_for(arrays.team, {.count = count, .step = 64, .unit_cost = 2 * cost::kCopy}, work);
    };
    in_parallel(pixels, [&](std::int64_t begin, std::int64_t end, Worker) {
      widen(DType::kI8, arrays.operands[0] + begin, end - begin, 0, image + begin);
      for (std::int64_t i = begin; i < end; ++i) image[i] = std::max(image[i], -kSnorm);
    });
    in_parallel(places, [&](std::int64_t begin, std::int64_t end, Worker) {
      widen(DType::kI8, arrays.operands[1] + begin, end - begin, zero_point, grid + begin);
      for (std::int64_t i = begin; i < end; ++i) grid[i] *= scale;
    });
    run(image, grid, made, {arrays.scratch + scratch_at, arrays.team});
    auto* to = reinterpret_cast<std::int8_t*>(arrays.results[0]);
    in_parallel(results, [&](std::int64_t begin, std::int64_t end, Worker) {
      for (std::int64_t i = begin; i < end; ++i)
        to[i] = static_cast<std::int8_t>(std::clamp(std::nearbyint(made[i]), -kSnorm, kSnorm));
    });
  };
  return kernel;
}

}  // namespace

Kernel prepare_custom_sampler(const GridSampleAttrs& attrs, const Request& request) {
  const bool floats = has_dtypes(request, {DType::kF32, DType::kF32}, DType::kF32);
  if (!floats && !has_dtypes(request, {DType::kI8, DType::kI8, DType::kF32, DType::kI32}, DType::kI8))
    fail_unsupported(request);
  const FloatSampler sampler =
      float_sampler(attrs, request.operands[0].shape, request.operands[1].shape, true, request.options);
  Kernel kernel;
  if (floats) {
    kernel.scratch_bytes = sampler.scratch_bytes;
    kernel.run = [run = sampler.run](const Arrays& arrays) {
      run(reinterpret_cast<const float*>(arrays.operands[0]),
          reinterpret_cast<const float*>(arrays.operands[1]), reinterpret_cast<float*>(arrays.results[0]),
          {arrays.scratch, arrays.team});
    };
  } else {
    kernel = sample_snorm(request, sampler);
  }
  kernel.name = request.options.reference ? "custom_sampler.reference"
                                          : "custom_sampler." + std::string(to_string(request.options.isa));
  return kernel;
}

}  // namespace tosaic::kernels
