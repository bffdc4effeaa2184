// Which part of the depth of a product reads the image, if its rows are patches: near the upper and lower
// edges, the first or the last taps of all patches of an output line are in the padding.
//
//   taps h of a 3x3 convolution        0       1       2
//   first output line                  -    [from              to)
//   lines between                   [from                      to)
//   last output line                [from          to)
//
// Integers do not multiply the other taps: a block of gathered patches is cut where the depths change. This
// cannot change results, since padding is the zero point.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "tosaic/kernels/isa/gemm.h"

namespace tosaic::kernels {

// A part of the depth, in whole steps.
struct Depths {
  std::int64_t from = 0, to = 0;
  bool operator==(const Depths&) const = default;
};

// The taps along an axis, from the first one that reads the image for an output coordinate to the last one.
template <class T>
[[nodiscard]] Depths taps_inside(const Patches<T>& patches, std::size_t axis, std::int64_t output) {
  const auto is_outside = [&](std::int64_t tap) {
    const std::int64_t at = output * patches.step[axis] + patches.offset[axis][tap];
    return at < 0 || at >= patches.in[axis];
  };
  Depths taps{0, patches.taps[axis]};
  while (taps.from < taps.to && is_outside(taps.from)) ++taps.from;
  while (taps.from < taps.to && is_outside(taps.to - 1)) --taps.to;
  return taps;
}

// The depths of an output line: from the first line of the image that its patches reach to the last one.
template <class T>
[[nodiscard]] Depths depths_of_line(const Patches<T>& patches, std::int64_t line) {
  constexpr std::int64_t step = Arithmetic<T>::kStep;
  const std::int64_t run = patches.taps[2] * patches.channels;
  const Depths d = taps_inside(patches, 0, line / patches.out[1] % patches.out[0]);
  const Depths h = taps_inside(patches, 1, line % patches.out[1]);
  if (d.from == d.to || h.from == h.to) return {};
  return {(d.from * patches.taps[1] + h.from) * run / step * step,
          whole_steps<T>(((d.to - 1) * patches.taps[1] + h.to) * run)};
}

// The different depths of the lines. The first ones are the whole depth, which has no others if there were
// too many.
template <class T>
[[nodiscard]] std::vector<Depths> depths_of_lines(const Patches<T>& patches, std::int64_t depth) {
  constexpr std::size_t most = 16;
  std::vector<Depths> found{{0, whole_steps<T>(depth)}};
  for (std::int64_t line = 0; line < patches.out[0] * patches.out[1]; ++line) {
    const Depths depths = depths_of_line(patches, line);
    if (std::find(found.begin(), found.end(), depths) == found.end()) found.push_back(depths);
    if (found.size() > most) return {found.front()};
  }
  return found;
}

// Rows of a block that have the same depths.
struct Segment {
  std::int64_t row = 0, rows = 0;  // the first one, and their number
  std::size_t depths = 0;          // their number in depths_of_lines()
};

// A block of rows, cut into segments.
class Segments {
 public:
  [[nodiscard]] const Segment* begin() const { return segments_.data(); }
  [[nodiscard]] const Segment* end() const { return segments_.data() + count_; }

  // One segment of the whole depth.
  explicit Segments(std::int64_t rows) : count_(1) { segments_[0] = {0, rows, 0}; }

  // Cuts rows [row, row + rows) of the patches, if that takes less time: segments may have tiles of fewer
  // rows.
  template <class T>
  Segments(const Patches<T>& patches, const std::vector<Depths>& all, std::int64_t row, std::int64_t rows,
           std::int64_t max_rows) {
    if (all.size() == 1) {
      *this = Segments(rows);
      return;
    }
    double time = 0;
    for (std::int64_t at = row; at < row + rows; ++count_) {
      if (count_ == segments_.size()) break;
      const Depths depths = depths_of_line(patches, at / patches.out[2]);
      std::int64_t end = at;
      do end = (end / patches.out[2] + 1) * patches.out[2];
      while (end < row + rows && depths_of_line(patches, end / patches.out[2]) == depths);
      end = std::min(end, row + rows);
      const auto number = std::find(all.begin(), all.end(), depths) - all.begin();
      segments_[count_] = {at - row, end - at, static_cast<std::size_t>(number)};
      time += time_of(end - at, max_rows) * static_cast<double>(depths.to - depths.from);
      at = end;
    }
    const Segment& last = segments_[count_ - 1];
    if (last.row + last.rows < rows || time >= time_of(rows, max_rows) * static_cast<double>(all.front().to))
      *this = Segments(rows);
  }

 private:
  // The time of a step of `rows` rows, in rows.
  [[nodiscard]] static double time_of(std::int64_t rows, std::int64_t max_rows) {
    constexpr double kTileRows = 0.4;  // what a tile takes in addition to its rows
    constexpr double kFewRows = 4;     // fewer ones take no less time
    const std::int64_t tiles = (rows + max_rows - 1) / max_rows;
    const double tile_rows = static_cast<double>(rows) / static_cast<double>(tiles);
    return static_cast<double>(tiles) * (std::max(tile_rows, kFewRows) + kTileRows);
  }

  std::array<Segment, 8> segments_;
  std::size_t count_ = 0;
};

}  // namespace tosaic::kernels
