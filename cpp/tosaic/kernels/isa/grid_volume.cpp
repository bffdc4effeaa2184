#include "tosaic/kernels/isa/grid_volume.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

using Index = std::int64_t;
using Int = std::int32_t;

// The padded positions of one axis and, for bilinear samples, voxels and weights.
struct alignas(64) Line {
  float at[kVolumeBlock];
  Int whole[kVolumeBlock];     // from -2 to the extent + 1
  float second[kVolumeBlock];  // the weight of voxel whole + 1
};

// Comparisons with NaN are false, so NaN becomes `high`, as in torch.
[[gnu::always_inline]] inline float clipped(float x, float high) {
  const float low = x < 0.0F ? 0.0F : x;
  return low < high ? low : high;
}

[[gnu::always_inline]] inline float reflected(float x, const VolumeAxis& axis) {
  if (axis.turn == 0) return 0.0F;
  const float away = __builtin_fabsf(x - axis.low);
  const float extra = away - __builtin_truncf(away / axis.turn) * axis.turn, rest = axis.turn - extra;
  return (extra < rest ? extra : rest) + axis.low;
}

template <GridPadding P>
void positions(const VolumeAxis& axis, bool align_corners, const float* grid, Index count, float* to) {
  const VolumeAxis own = axis;  // the compiler cannot know that `to` does not overlap it
  for (Index i = 0; i < count; ++i) {
    const float shifted = grid[3 * i] + 1.0F;
    float x = align_corners ? shifted / 2.0F * own.last : (shifted * (own.last + 1.0F) - 1.0F) / 2.0F;
    if constexpr (P == GridPadding::kReflection) x = reflected(x, own);
    if constexpr (P != GridPadding::kZeros) x = clipped(x, own.last);
    to[i] = x;
  }
}

// A whole position as an integer. Positions far outside and NaN become -2 or last + 2.
[[gnu::always_inline]] inline Int near_volume(float whole, float last) {
  const float low = whole > -2.0F ? whole : -2.0F;
  return static_cast<Int>(low < last + 2.0F ? low : last + 2.0F);
}

[[gnu::always_inline]] inline bool is_inside(Int at, Int last) { return (at >= 0) & (at <= last); }

void nearest_taps(const VolumeLayout& layout, Index count, const Line (&lines)[3], VolumeTaps& taps) {
  const VolumeAxis x = layout.axes[0], y = layout.axes[1], z = layout.axes[2];
  const Int last_x = static_cast<Int>(x.last), last_y = static_cast<Int>(y.last),
            last_z = static_cast<Int>(z.last);
  for (Index i = 0; i < count; ++i) {
    const Int column = near_volume(__builtin_rintf(lines[0].at[i]), x.last),
              row = near_volume(__builtin_rintf(lines[1].at[i]), y.last),
              slice = near_volume(__builtin_rintf(lines[2].at[i]), z.last);
    const bool inside = is_inside(column, last_x) & is_inside(row, last_y) & is_inside(slice, last_z);
    taps.offsets[0][i] = inside ? column * x.stride + row * y.stride + slice * z.stride : kVolumeOutside;
  }
}

void bilinear_taps(const VolumeLayout& layout, Index count, Line (&lines)[3], VolumeTaps& taps) {
  for (int axis = 0; axis < 3; ++axis) {
    Line& line = lines[axis];
    const float last = layout.axes[axis].last;
    for (Index i = 0; i < count; ++i) {
      const float whole = __builtin_floorf(line.at[i]);
      line.second[i] = line.at[i] - whole;
      line.whole[i] = near_volume(whole, last);
    }
  }
  const VolumeAxis x = layout.axes[0], y = layout.axes[1], z = layout.axes[2];
  const Int last_x = static_cast<Int>(x.last), last_y = static_cast<Int>(y.last),
            last_z = static_cast<Int>(z.last);
  for (int k = 0; k < 8; ++k) {
    const int right = k & 1, down = k >> 1 & 1, back = k >> 2;
    for (Index i = 0; i < count; ++i) {
      const Int column = lines[0].whole[i] + right, row = lines[1].whole[i] + down,
                slice = lines[2].whole[i] + back;
      const bool inside = is_inside(column, last_x) & is_inside(row, last_y) & is_inside(slice, last_z);
      const float fx = lines[0].second[i], fy = lines[1].second[i], fz = lines[2].second[i];
      const float weight =
          (right != 0 ? fx : 1.0F - fx) * (down != 0 ? fy : 1.0F - fy) * (back != 0 ? fz : 1.0F - fz);
      taps.offsets[k][i] = inside ? column * x.stride + row * y.stride + slice * z.stride : kVolumeOutside;
      taps.weights[k][i] = inside ? weight : 0.0F;
    }
  }
}

template <GridPadding P>
void taps_of(const VolumeLayout& layout, const float* grid, Index count, VolumeTaps& taps) {
  Line lines[3];
  for (int axis = 0; axis < 3; ++axis)
    positions<P>(layout.axes[axis], layout.align_corners, grid + axis, count, lines[axis].at);
  if (layout.nearest)
    nearest_taps(layout, count, lines, taps);
  else
    bilinear_taps(layout, count, lines, taps);
}

void taps(const VolumeLayout& layout, const float* grid, Index count, VolumeTaps& found) {
  switch (layout.padding) {
    case GridPadding::kZeros:
      return taps_of<GridPadding::kZeros>(layout, grid, count, found);
    case GridPadding::kBorder:
      return taps_of<GridPadding::kBorder>(layout, grid, count, found);
    case GridPadding::kReflection:
      return taps_of<GridPadding::kReflection>(layout, grid, count, found);
  }
}

[[gnu::always_inline]] inline float voxel(const float* volume, Int at) {
  const float found = volume[at < 0 ? 0 : at];  // a load without a condition, which becomes a gather
  return at < 0 ? 0.0F : found;
}

void sums(const VolumeLayout& layout, const VolumeTaps& taps, Index count, const float* volume, float* to) {
  if (layout.nearest) {
    for (Index i = 0; i < count; ++i) to[i] = voxel(volume, taps.offsets[0][i]);
    return;
  }
  for (Index i = 0; i < count; ++i) {
    float sum = 0;
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) sum += voxel(volume, taps.offsets[k][i]) * taps.weights[k][i];
    to[i] = sum;
  }
}

}  // namespace

extern const VolumeKernels kVolumeKernels;
const VolumeKernels kVolumeKernels = {taps, sums};

}  // namespace tosaic::kernels::TOSAIC_ISA
