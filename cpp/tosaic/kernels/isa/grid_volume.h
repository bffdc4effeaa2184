// Samples of volumes: the loops that each instruction set provides. They are compiled without fused
// multiply-adds, so that all instruction sets compute the same numbers.
#pragma once

#include <cstdint>

#include "tosaic/ir/attributes.h"
#include "tosaic/kernels/isa/each_set.h"
#include "tosaic/kernels/kernel.h"

namespace tosaic::kernels {

inline constexpr std::int64_t kVolumeBlock = 128;  // outputs per block

// One spatial axis of a volume.
struct VolumeAxis {
  float last = 0;           // the position of the last voxel
  float low = 0, turn = 0;  // reflection: positions are mirrored at `low`, and repeat after `turn`
  std::int32_t stride = 0;  // elements between neighbours
};

struct VolumeLayout {
  bool nearest = false, align_corners = false;
  GridPadding padding = GridPadding::kZeros;
  VolumeAxis axes[3];  // x, y, z
};

inline constexpr std::int32_t kVolumeOutside = -1;

// The taps of a block: one for a nearest sample, otherwise eight. Bit i of a tap's index says whether it is
// the second voxel along axis i. A voxel outside of the volume is zero: it has the weight 0 and the offset
// kVolumeOutside.
struct VolumeTaps {
  alignas(64) std::int32_t offsets[8][kVolumeBlock];
  alignas(64) float weights[8][kVolumeBlock];
};

struct VolumeKernels {
  // Reads `count` triples (x, y, z).
  void (*taps)(const VolumeLayout& layout, const float* grid, std::int64_t count, VolumeTaps& taps) = nullptr;
  // The samples of one channel.
  void (*sums)(const VolumeLayout& layout, const VolumeTaps& taps, std::int64_t count, const float* volume,
               float* to) = nullptr;
};

TOSAIC_IN_EACH_SET(extern const VolumeKernels kVolumeKernels;)

}  // namespace tosaic::kernels
