// Samples of a volume: torch's grid_sampler_3d.
//
//   position = (coordinate + 1) / 2 * (extent - 1)         with align_corners
//              ((coordinate + 1) * extent - 1) / 2         without
//   nearest    the voxel at the padded position, rounded half to even
//   bilinear   8 voxels around the padded position
//
// The paddings are the same as for images (grid_sample.cpp). Torch has one kernel for images and another for
// volumes, and they differ in three ways. The kernel for volumes rounds positions in another order of
// operations. It clips a NaN position to the last voxel. With padding `zeros`, a sample at a NaN or infinite
// position is zero.
//
// The fast path of f32 computes the taps of 128 outputs at once, for all channels.
#include "tosaic/kernels/grid_volume.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "tosaic/kernels/block.h"
#include "tosaic/kernels/isa/grid_volume.h"
#include "tosaic/kernels/sampled_arrays.h"
#include "tosaic/kernels/spatial.h"

namespace tosaic::kernels {
namespace {

using Index = std::int64_t;

struct Sampler {
  GridSampleAttrs attrs;
  Image volume;
  Index outputs = 1;  // per volume

  [[nodiscard]] bool nearest() const { return attrs.mode == ResizeMode::kNearest; }
  // Axis 0 is x, the last axis of the volume.
  [[nodiscard]] Index extent(std::size_t axis) const { return volume.extent[2 - axis]; }
  [[nodiscard]] Index stride(std::size_t axis) const { return volume.strides()[2 - axis]; }
};

// ---- the reference ----

// The voxels of one axis and their weights; -1 is a voxel outside of the volume.
struct Taps {
  Index voxel[2] = {-1, -1};
  double weight[2] = {1, 0};
};

template <class Float>
Taps taps_of(const Sampler& s, std::size_t axis, Float coordinate) {
  const auto extent = static_cast<Float>(s.extent(axis)), last = extent - 1;
  const bool corners = s.attrs.align_corners;
  Float x = corners ? (coordinate + 1) / 2 * last : ((coordinate + 1) * extent - 1) / 2;
  if (s.attrs.padding == GridPadding::kReflection) {
    const Float low = corners ? Float{0} : Float{-0.5}, turn = 2 * (corners ? last : extent);
    const Float away = std::abs(x - low), extra = away - std::trunc(away / turn) * turn;
    x = turn == 0 ? Float{0} : std::min(extra, turn - extra) + low;
  }
  if (s.attrs.padding != GridPadding::kZeros) {
    x = x < 0 ? Float{0} : x;
    x = x < last ? x : last;  // NaN becomes `last`
  }
  Taps taps;
  const auto voxel = [&](Float whole) {
    return whole >= 0 && whole <= last ? static_cast<Index>(whole) : Index{-1};
  };
  if (s.nearest()) {
    taps.voxel[0] = voxel(std::nearbyint(x));
    return taps;
  }
  const Float whole = std::floor(x);
  for (int k = 0; k < 2; ++k) taps.voxel[k] = voxel(whole + static_cast<Float>(k));
  taps.weight[1] = x - whole;
  taps.weight[0] = 1 - (x - whole);
  return taps;
}

template <class T>
double sum_of(const Sampler& s, const std::array<Taps, 3>& axes, const T* channel) {
  double sum = 0;
  for (std::size_t k = 0; k < (s.nearest() ? 1U : 8U); ++k) {
    Index at = 0;
    double weight = 1;
    bool inside = true;
    for (std::size_t axis = 0; axis < 3; ++axis) {
      const std::size_t which = k >> axis & 1U;
      inside = inside && axes[axis].voxel[which] >= 0;
      at += axes[axis].voxel[which] * s.stride(axis);
      weight *= axes[axis].weight[which];
    }
    if (inside)
      sum += s.nearest() ? static_cast<double>(channel[at]) : static_cast<double>(channel[at]) * weight;
  }
  return sum;
}

// Positions are computed in Float, sums in double.
template <class Float, class T>
void sample_all(const Sampler& s, const T* volume, const T* grid, T* to) {
  for (Index n = 0; n < s.volume.batch; ++n)
    for (Index i = 0; i < s.outputs; ++i, grid += 3) {
      std::array<Taps, 3> axes;
      for (std::size_t axis = 0; axis < 3; ++axis)
        axes[axis] = taps_of<Float>(s, axis, static_cast<Float>(grid[axis]));
      for (Index c = 0; c < s.volume.channels; ++c) {
        const Index channel = n * s.volume.channels + c;
        to[channel * s.outputs + i] = static_cast<T>(sum_of(s, axes, volume + channel * s.volume.pixels()));
      }
    }
}

// ---- the fast path: f32 ----

VolumeLayout layout_of(const Sampler& s) {
  VolumeLayout layout;
  layout.nearest = s.nearest();
  layout.align_corners = s.attrs.align_corners;
  layout.padding = s.attrs.padding;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    const auto extent = static_cast<float>(s.extent(axis));
    layout.axes[axis] = {.last = extent - 1,
                         .low = layout.align_corners ? 0.0F : -0.5F,
                         .turn = 2 * (layout.align_corners ? extent - 1 : extent),
                         .stride = static_cast<std::int32_t>(s.stride(axis))};
  }
  return layout;
}

struct FastVolume {
  Sampler s;
  VolumeLayout layout;
  const VolumeKernels& kernels;
  PerWorker taps_of;

  void run(const float* volume, const float* grid, float* to, const Workspace& workspace) const {
    const Index blocks = (s.outputs + kVolumeBlock - 1) / kVolumeBlock, channels = s.volume.channels;
    const Loop loop{.count = s.volume.batch * blocks,
                    .unit_cost = static_cast<double>(kVolumeBlock * (channels + 4)) * 4 * cost::kScattered};
    parallel_for(workspace.team, loop, [&](Index begin, Index end, Worker worker) {
      auto& taps = *piece<VolumeTaps>(taps_of.of(workspace.scratch, worker), 0);
      for (Index unit = begin; unit < end; ++unit) {
        const Index n = unit / blocks, i = unit % blocks * kVolumeBlock;
        const Index count = std::min(kVolumeBlock, s.outputs - i);
        kernels.taps(layout, grid + 3 * (n * s.outputs + i), count, taps);
        for (Index c = n * channels; c < (n + 1) * channels; ++c)
          kernels.sums(layout, taps, count, volume + c * s.volume.pixels(), to + c * s.outputs + i);
      }
    });
  }
};

}  // namespace

Kernel prepare_grid_volume(const Request& request) {
  const auto& attrs = attrs_of<GridSampleAttrs>(request);
  const Shape& grid = request.operands[1].shape;
  const Sampler s{attrs, image_of(request.operands[0].shape, 3, false), grid[1] * grid[2] * grid[3]};
  if (request.operands[0].dtype == DType::kF64)
    return kernel_in<double>(request, kernel_name(request, "f64"), {},
                             [s](const double* volume, const double* at, double* to, const Workspace&) {
                               sample_all<double>(s, volume, at, to);
                             });
  if (request.options.reference || s.volume.pixels() > std::numeric_limits<std::int32_t>::max())
    return kernel_in<double>(request, kernel_name(request), {},
                             [s](const double* volume, const double* at, double* to, const Workspace&) {
                               sample_all<float>(s, volume, at, to);
                             });
  ScratchPlan plan, own;
  own.take<VolumeTaps>(1);
  const FastVolume fast{s, layout_of(s), TOSAIC_SELECT_ISA(request.options.isa, kVolumeKernels),
                        plan.take_each(own, request.options.threads.count)};
  return kernel_in<float>(request, kernel_name(request), plan,
                          [fast](const float* volume, const float* at, float* to,
                                 const Workspace& workspace) { fast.run(volume, at, to, workspace); });
}

}  // namespace tosaic::kernels
