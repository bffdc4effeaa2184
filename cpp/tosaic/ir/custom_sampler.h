// custom_sampler: the operator by which ExecuTorch's VGF flow represents a grid sampler in TOSA.
//
//   tosa.custom {domain_name="com.arm.VulkanCustomShader",
//                operator_name="torch.nn.functional.grid_sample.mode.bilinear.padding.zeros.align_corners.False",
//                implementation_attrs=<JSON: a shader, and how its operands are bound>}
//
//   operands: image (N, H, W, C), grid (N, H', W', 2)                                    f32
//             image, grid, scale and zero point of the grid: arrays with one element     i8, i8, f32, i32
//
// The name alone says what the operator computes; the JSON does not affect it. An image of i8 has the SNORM
// format of Vulkan: the integer q means max(q, -127) / 127.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tosaic/ir/attributes.h"

namespace tosaic {

inline constexpr std::string_view kCustomShaderDomain = "com.arm.VulkanCustomShader";

[[nodiscard]] std::string custom_sampler_name(const GridSampleAttrs& attrs);
// The attributes that are spelled in the name of the operator; nothing if the name is of another operator.
[[nodiscard]] std::optional<GridSampleAttrs> parse_custom_sampler(std::string_view domain,
                                                                  std::string_view name);

}  // namespace tosaic
