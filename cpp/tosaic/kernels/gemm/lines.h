// Convolutions of floats whose patches are not gathered: a tile of output pixels of one line reads the lines
// of the input in place. Adjacent rows of A begin one step of a pixel apart, and a row consists of one run
// for each line that the patch reaches (isa/gemm.h, Run).
//
// Padding of floats is not multiplied: a line beyond the upper or lower edge has no run, and Run::not_first
// and Run::not_last skip the padding of the first and the last pixel of a line. Whether a product is skipped
// depends on its pixel only, so that infinite weights have the same results in all parts of a product. If
// other pixels reach beyond the left or right edge too, the lines of a block of output lines are copied once
// with their padding, which is then multiplied.
#pragma once

#include <array>
#include <numeric>

#include "tosaic/kernels/gemm/gemm.h"

namespace tosaic::kernels {

// The lines that a block of output lines reads. A line of outputs is (batch, d, h). All lines of a block have
// the same batch and d.
template <class T>
class Lines {
 public:
  explicit Lines(const Patches<T>& patches) : p_(patches) {}

  [[nodiscard]] std::int64_t line_elements() const { return width() * p_.channels; }
  // Scratch for the copied lines of a block of `lines` output lines. Copying may write a vector beyond the
  // last element.
  [[nodiscard]] std::int64_t elements(std::int64_t lines) const {
    return copies() ? p_.taps[0] * reach(lines) * line_elements() + kVectorBytes : 0;
  }
  // How many elements of input are copied for each output line, in blocks of `lines` output lines.
  [[nodiscard]] double copied(std::int64_t lines) const {
    return copies()
               ? static_cast<double>(p_.taps[0] * reach(lines) * line_elements()) / static_cast<double>(lines)
               : 0;
  }
  // The elements between the runs of adjacent output pixels, and of adjacent output lines if lines are always
  // copied.
  [[nodiscard]] std::int64_t stride() const { return p_.step[2] * p_.channels; }
  [[nodiscard]] std::int64_t line_stride() const { return p_.step[1] * line_elements(); }

  // Finds the input lines that output lines [first, end) read, and copies them if necessary.
  void load(const GemmKernels<T>& kernels, std::int64_t first, std::int64_t end, Factor<T>* scratch) {
    const std::int64_t plane = first / p_.out[1];
    image_ = p_.input + plane / p_.out[0] * p_.batch_stride;
    depth_ = plane % p_.out[0] * p_.step[0];
    if (!copies()) return;
    first_height_ = first % p_.out[1] * p_.step[1] + p_.offset[1][0];
    reach_ = reach(end - first);
    copied_ = scratch;
    for (std::int64_t tap = 0; tap < p_.taps[0]; ++tap)
      for (std::int64_t i = 0; i < reach_; ++i) {
        Factor<T>* to = copied_ + (tap * reach_ + i) * line_elements();
        if (const Source<T>* line = line_of_image(tap, first_height_ + i))
          copy_padded(kernels, line, to);
        else if (!kReadsInPlace<T>)
          pad(to, line_elements());
      }
  }

  // The runs of depths [from, from + depth) for pixels [pixel, end_pixel) of an output line. Returns their
  // number.
  template <std::size_t kMost>
  std::int64_t runs(std::int64_t line, std::int64_t pixel, std::int64_t end_pixel, std::int64_t from,
                    std::int64_t depth, std::array<Run<T>, kMost>& to) const {
    const std::int64_t whole = p_.taps[2] * p_.channels;
    const bool skips = skips_columns();
    const std::int64_t not_first = skips && pixel == 0 ? taps_before() * p_.channels : 0;
    const std::int64_t not_last = skips && end_pixel == p_.out[2] ? taps_behind() * p_.channels : 0;
    std::int64_t count = 0;
    for (std::int64_t at = 0; at < depth;) {
      const std::int64_t tap = (from + at) / whole, begin = (from + at) % whole;
      const std::int64_t size = std::min(whole - begin, depth - at);
      if (const Factor<T>* first = line_at(tap / p_.taps[1], tap % p_.taps[1], line))
        to[static_cast<std::size_t>(count++)] = {
            first + pixel * stride() + begin, size, at, std::clamp<std::int64_t>(not_first - begin, 0, size),
            std::clamp<std::int64_t>(begin + size - (whole - not_last), 0, size)};
      at += size;
    }
    return count;
  }

  // True if Run::not_first or Run::not_last may be greater than 0.
  [[nodiscard]] bool skips_columns() const { return !copies() && taps_before() + taps_behind() > 0; }
  // The fraction of the runs of all output lines, and of the products of a run, that are not skipped.
  [[nodiscard]] double part_of_lines() const { return inside(0) * inside(1); }
  [[nodiscard]] double part_of_line() const { return copies() ? 1 : inside(2); }

 private:
  // The number of pixels of an input line that the patches of an output line span.
  [[nodiscard]] std::int64_t width() const {
    return (p_.out[2] - 1) * p_.step[2] + p_.offset[2][p_.taps[2] - 1] - p_.offset[2][0] + 1;
  }
  // The number of lines of a plane that `lines` output lines read.
  [[nodiscard]] std::int64_t reach(std::int64_t lines) const {
    return (lines - 1) * p_.step[1] + p_.offset[1][p_.taps[1] - 1] - p_.offset[1][0] + 1;
  }
  // True if lines are copied. Lines of quads always are, because copying converts bytes to factors.
  [[nodiscard]] bool copies() const {
    if (!kReadsInPlace<T>) return true;
    if (p_.out[2] > 1 &&
        (p_.step[2] + p_.offset[2][0] < 0 || p_.offset[2][0] + width() - p_.step[2] > p_.in[2]))
      return true;
    return taps_before() + taps_behind() > p_.taps[2];
  }
  // The taps that reach beyond the left edge for the first pixel of a line, and beyond the right edge for the
  // last one.
  [[nodiscard]] std::int64_t taps_before() const {
    return std::clamp<std::int64_t>(-p_.offset[2][0], 0, p_.taps[2]);
  }
  [[nodiscard]] std::int64_t taps_behind() const {
    return std::clamp<std::int64_t>(p_.offset[2][0] + width() - p_.in[2], 0, p_.taps[2]);
  }

  // The fraction of the taps along an axis that read the image, not padding, over all output coordinates.
  [[nodiscard]] double inside(std::size_t axis) const {
    std::int64_t count = 0;
    for (std::int64_t tap = 0; tap < p_.taps[axis]; ++tap) {
      const std::int64_t offset = p_.offset[axis][tap], step = p_.step[axis];
      const std::int64_t first = ceil_div(std::max<std::int64_t>(-offset, 0), step);
      const std::int64_t end = ceil_div(std::max<std::int64_t>(p_.in[axis] - offset, 0), step);
      count += std::max<std::int64_t>(std::min(end, p_.out[axis]) - first, 0);
    }
    return static_cast<double>(count) / static_cast<double>(p_.taps[axis] * p_.out[axis]);
  }

  // The first pixel of a line of the input; null if the line is outside.
  [[nodiscard]] const Source<T>* line_of_image(std::int64_t depth_tap, std::int64_t height) const {
    const std::int64_t depth = depth_ + p_.offset[0][depth_tap];
    if (depth < 0 || depth >= p_.in[0] || height < 0 || height >= p_.in[1]) return nullptr;
    return image_ + depth * p_.stride[0] + height * p_.stride[1];
  }

  // The first element that the patch of pixel 0 of an output line reads with these taps; null if floats read
  // only padding.
  [[nodiscard]] const Factor<T>* line_at(std::int64_t depth_tap, std::int64_t height_tap,
                                         std::int64_t output) const {
    const std::int64_t height = output % p_.out[1] * p_.step[1] + p_.offset[1][height_tap];
    if constexpr (kReadsInPlace<T>) {
      const T* line = line_of_image(depth_tap, height);
      if (line == nullptr || !copies())
        return line == nullptr ? nullptr : line + p_.offset[2][0] * p_.channels;
    }
    return copied_ + (depth_tap * reach_ + height - first_height_) * line_elements();
  }

  void pad(Factor<T>* to, std::int64_t count) const {
    std::fill_n(to, count, static_cast<Factor<T>>(p_.zero_point + kZeroPointOffset<T>));
  }

  void copy_padded(const GemmKernels<T>& kernels, const Source<T>* line, Factor<T>* to) const {
    const std::int64_t left = std::clamp<std::int64_t>(-p_.offset[2][0], 0, width());
    const std::int64_t end = std::clamp<std::int64_t>(p_.in[2] - p_.offset[2][0], left, width());
    const Source<T>* from = line + (p_.offset[2][0] + left) * p_.channels;
    const std::int64_t count = (end - left) * p_.channels;
    pad(to, left * p_.channels);
    if constexpr (kReadsInPlace<T>)
      std::copy_n(from, count, to + left * p_.channels);
    else
      kernels.gather_rows(from, count, p_.zero_point, 1, count, to + left * p_.channels, count);
    pad(to + end * p_.channels, (width() - end) * p_.channels);
  }

  static constexpr std::int64_t kVectorBytes = 64;
  const Patches<T>& p_;
  const Source<T>* image_ = nullptr;
  std::int64_t depth_ = 0, first_height_ = 0, reach_ = 0;
  Factor<T>* copied_ = nullptr;
};

// The number of output lines of a block, for a product whose blocks have `rows` rows.
[[nodiscard]] constexpr std::int64_t lines_of_block(std::int64_t rows, const std::int64_t (&out)[3]) {
  return std::clamp<std::int64_t>(rows / std::max<std::int64_t>(out[2], 1), 1,
                                  std::max<std::int64_t>(out[1], 1));
}

// The end of the block of output lines that begins at line `first`. A block does not extend beyond a plane.
template <class T>
[[nodiscard]] std::int64_t end_of_lines(const GemmBlocking& blocking, const GemmProblem<T>& problem,
                                        std::int64_t first) {
  const Patches<T>& patches = *problem.patches;
  const std::int64_t plane_end = (first / patches.out[1] + 1) * patches.out[1];
  return std::min({first + lines_of_block(blocking.rows, patches.out), plane_end,
                   ceil_div(problem.rows, patches.out[2])});
}

// True if reading lines is possible, and takes less time than gathering patches. Lines save the gathering,
// but the rows of a tile have to be in one output line, so that tiles may have fewer rows. And they save
// products with padding.
template <class T>
[[nodiscard]] bool prefers_lines(const GemmKernels<T>& kernels, const GemmBlocking& blocking,
                                 const Patches<T>& patches, std::int64_t cols, std::int64_t depth) {
  // Nanoseconds: of a multiply-add, and of gathering one element of a patch or of a line.
  constexpr double kMultiplyAdd = std::is_same_v<T, double> ? 0.05 : 0.02, kGather = 0.12;
  constexpr double kTileRows = 0.4;  // the fixed time of a tile, in times of a row
  // Addresses that are equal modulo 4096 are in one cache set, which has at least eight ways: seven for the
  // rows of a tile and one for B.
  constexpr std::int64_t cache_set = 4096, most_in_set = 7;
  if (!patches.row_is_contiguous || patches.out[2] == 0 || depth == 0) return false;
  const Lines<T> lines(patches);
  const std::int64_t width = patches.out[2], count = lines_of_block(blocking.rows, patches.out);
  const std::int64_t sets = cache_set / std::gcd(cache_set, lines.stride() * kFactorBytes<T>);
  const std::int64_t tile_rows = ceil_div(width, ceil_div(width, kernels.max_rows));
  if (sets * most_in_set < tile_rows) return false;
  // A tile of fewer rows takes as long as one of this many: its multiply-adds wait for each other.
  const double few_rows = kernels.max_rows > 8 ? 5 : 4;
  // The time of `rows` rows, if the loops of a tile compute the fraction `part` of their products.
  const auto time = [&](std::int64_t rows, double part) {
    const auto tiles = static_cast<double>(ceil_div(rows, kernels.max_rows));
    return static_cast<double>(depth * cols) * kMultiplyAdd * tiles *
           (std::max(part * static_cast<double>(rows) / tiles, few_rows) + kTileRows);
  };
  const double by_lines =
      time(width, lines.part_of_line()) * lines.part_of_lines() + kGather * lines.copied(count);
  const double by_patches =
      time(blocking.rows, 1) * static_cast<double>(width) / static_cast<double>(blocking.rows) +
      kGather * static_cast<double>(width * depth);
  return by_lines < by_patches;
}

// Computes the problem, whose rows are patches, without gathering them. `gathered` is scratch of
// Lines::elements(). Sums go to C.
template <class T>
void multiply_lines(const GemmKernels<T>& kernels, const GemmBlocking& blocking,
                    const GemmProblem<T>& problem) {
  const Patches<T>& patches = *problem.patches;
  const Bands<T>& bands = problem.bands;
  const std::int64_t width = patches.out[2];
  Lines<T> lines(patches);
  std::array<Run<T>, 512 / sizeof(T)> runs;  // the most runs of a band
  GemmBlock<T> block;
  block.a_stride = lines.stride();
  block.runs = runs.data();
  block.runs_are_whole = !lines.skips_columns();
  block.c_stride = problem.c_stride;
  for (std::int64_t row = problem.first_row; row < problem.rows;) {
    const std::int64_t first = row / width;
    const std::int64_t end = end_of_lines(blocking, problem, first);
    lines.load(kernels, first, end, problem.gathered);
    for (std::int64_t from = 0; from < bands.depth; from += bands.band) {
      set_band(block, problem, from);
      for (std::int64_t col = 0; col < problem.cols; col += blocking.cols) {
        set_columns(block, blocking, problem, from, col);
        for (std::int64_t line = first; line < end; ++line) {
          const std::int64_t begin = std::max(row, line * width);
          block.rows = std::min(problem.rows, (line + 1) * width) - begin;
          const std::int64_t pixel = begin - line * width;
          block.num_runs = lines.runs(line, pixel, pixel + block.rows, from, block.depth, runs);
          if (block.num_runs == 0 && block.accumulate && !block.clamp) continue;
          block.c = problem.c + begin * problem.c_stride + col;
          fetch_next(blocking, problem, from, col, block, line - first, end - first);
          kernels.multiply(block);
        }
      }
    }
    row = std::min(problem.rows, end * width);
  }
}

// ---- quads ----

// Lines are read only if a patch has at most this many runs.
inline constexpr std::size_t kMostRuns = 64;

// True if reading lines of quads is possible, and takes less time than gathering patches.
[[nodiscard]] inline bool prefers_lines(const GemmKernels<Quads>& kernels, const GemmBlocking& blocking,
                                        const Patches<Quads>& patches, std::int64_t cols,
                                        std::int64_t depth) {
  constexpr double kGather = 0.03, kCopy = 0.03;  // an element of a patch, or of a line, in nanoseconds
  constexpr double kRowStep = 0.4;                // nanoseconds: 64 bytes of a row times 16 columns
  constexpr std::int64_t step_bytes = 64, step_cols = 16;
  const std::int64_t run = patches.taps[2] * patches.channels, num_runs = patches.taps[0] * patches.taps[1];
  if (!kernels.reads_lines || !patches.row_is_contiguous || patches.out[2] == 0 || depth == 0 ||
      blocking.depth < depth || run % Arithmetic<Quads>::kStep != 0 || num_runs > std::int64_t{kMostRuns})
    return false;
  const std::int64_t width = patches.out[2], tile_rows = kernels.max_rows;
  const double step = kRowStep * static_cast<double>(ceil_div(cols, step_cols));
  const double by_lines = step * static_cast<double>(ceil_div(width, tile_rows) * tile_rows * num_runs *
                                                     ceil_div(run, step_bytes)) +
                          kCopy * Lines<Quads>(patches).copied(lines_of_block(blocking.rows, patches.out));
  const double by_patches = step * static_cast<double>(width * ceil_div(depth, step_bytes)) +
                            kGather * static_cast<double>(width * depth);
  return by_lines < by_patches;
}

// Computes the problem, whose rows are patches, by reading copies of its lines. `gathered` is scratch of
// Lines::elements(). There is one band, the zero point of B is 0, and finished sums go to C or are rescaled.
inline void multiply_lines(const GemmKernels<Quads>& kernels, const GemmBlocking& blocking,
                           const GemmProblem<Quads>& problem) {
  const Patches<Quads>& patches = *problem.patches;
  const std::int64_t width = patches.out[2];
  Lines<Quads> lines(patches);
  std::array<Run<Quads>, kMostRuns> runs;
  RescaleTables<std::int32_t> rescale;
  GemmBlock<Quads> block;
  set_band(block, problem, 0);
  block.a_stride = lines.stride();
  block.line_stride = lines.line_stride();
  block.runs = runs.data();
  block.c_stride = problem.c_stride;
  block.bytes_stride = problem.bytes_stride;
  for (std::int64_t row = problem.first_row; row < problem.rows;) {
    const std::int64_t first = row / width;
    const std::int64_t end = end_of_lines(blocking, problem, first);
    lines.load(kernels, first, end, problem.gathered);
    while (row < std::min(problem.rows, end * width)) {
      // The rows are whole output lines, or a part of one line.
      const std::int64_t line = row / width, pixel = row % width;
      const std::int64_t whole = std::min(end, problem.rows / width) - line;
      block.line_rows = pixel == 0 && whole > 0 ? width : std::min(width - pixel, problem.rows - row);
      block.rows = pixel == 0 && whole > 0 ? whole * width : block.line_rows;
      block.num_runs = lines.runs(line, pixel, pixel + block.line_rows, 0, block.depth, runs);
      for (std::int64_t col = 0; col < problem.cols; col += blocking.cols) {
        set_columns(block, blocking, problem, 0, col);
        if (problem.rescale != nullptr) {
          rescale = problem.rescale->at(col);
          block.rescale = &rescale;
        }
        if (problem.bytes != nullptr)
          block.bytes = problem.bytes + row * problem.bytes_stride + col;
        else
          block.c = problem.c + row * problem.c_stride + col;
        kernels.multiply(block);
      }
      row += block.rows;
    }
  }
}

}  // namespace tosaic::kernels
