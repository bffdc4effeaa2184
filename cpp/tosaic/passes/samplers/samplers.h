// samplers: rewrites of grid samplers for devices that sample images in hardware. They are not passes of the
// default pipeline: a caller inserts them, because they change the program's inputs or need shaders.
//
// rgba: images with three channels around grid samplers get a fourth channel, so that their buffers can be
// aliased as textures.
//
//   %y = grid_sample(%x: [1,3,H,W], %g)       %x4 = pad(%x)  %y4: [1,4,H',W'] = grid_sample(%x4, %g)
//   %z = conv(%y, %w: [8,3,3,3])          ->  %z = conv(%y4, %w4: [8,4,3,3])        zeros in the new channel
//   %o = tanh(%y)                             %o = tanh(slice(%y4))
//
// Chosen inputs and outputs have four channels. The fourth channel of an input may have any finite content.
// The fourth channel of an output is zero, or was sampled from the fourth channel of an input.
//
// custom_samplers: samplers of images with four channels become the operator that ExecuTorch's VGF flow
// writes as tosa.custom.
//
//   %y: f32[1,4,H',W'] = grid_sample(%x, %g)  ->  permute, opaque {domain="com.arm.VulkanCustomShader"},
//                                                 permute
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::passes {

// By index: inputs and outputs that have four channels instead of three. Missing entries are false.
struct RgbaBoundary {
  std::vector<bool> inputs = {}, outputs = {};
};

// Takes graphs at the stages exported and quantized. Returns nothing if nothing changes. Throws InvalidGraph
// if a chosen input or output is not an image (N, 3, H, W), or is a state.
[[nodiscard]] std::optional<Graph> rgba(const Graph& graph, const RgbaBoundary& boundary = {});

// SPIR-V as base64, by form of the sampler: "image" and "image_int8", each also with "_align_corners".
using SamplerShaders = std::map<std::string, std::string>;

// Takes graphs at the stages exported and quantized. Samplers without a shader stay as they are: bicubic
// ones, samplers of several batches, and samplers of images whose integers are not SNORM (i8, scale 1/127,
// zero point 0; the result has the range -127..127). Returns nothing if nothing changes.
[[nodiscard]] std::optional<Graph> custom_samplers(const Graph& graph, const SamplerShaders& shaders);

}  // namespace tosaic::passes
