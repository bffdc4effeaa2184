#include "tosaic/kernels/strided_copy.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "tosaic/kernels/block.h"

namespace tosaic::kernels {
namespace {

using std::int64_t;

constexpr std::size_t kMaxAxes = 2 * kMaxRank;  // repeat splits each axis into two

// With fewer outer steps, threads would not share evenly: then the inner loop is cut into pieces, too.
constexpr int64_t kManySteps = 64;
constexpr int64_t kPiece = 64;  // elements
constexpr int64_t kLongColumn = 64;

template <class T>
void copy_loop(const std::byte* source, int64_t source_stride, std::byte* target, int64_t target_stride,
               int64_t count) {
  const auto* from = reinterpret_cast<const T*>(source);
  auto* to = reinterpret_cast<T*>(target);
  if (target_stride == 1 && source_stride == -1) {
    std::reverse_copy(from - count + 1, from + 1, to);
    return;
  }
  for (int64_t i = 0; i < count; ++i) to[i * target_stride] = from[i * source_stride];
}

template <class T>
void fill_loop(const std::byte* source, std::byte* target, int64_t count) {
  std::fill_n(reinterpret_cast<T*>(target), count, *reinterpret_cast<const T*>(source));
}

template <class Body>
void with_element(int64_t bytes, Body body) {
  switch (bytes) {
    case 1:
      return body(std::uint8_t{});
    case 2:
      return body(std::uint16_t{});
    case 4:
      return body(std::uint32_t{});
    default:
      return body(std::uint64_t{});
  }
}

}  // namespace

StridedCopy::StridedCopy(std::size_t element_bytes, std::vector<int64_t> extents,
                         std::vector<int64_t> source_strides, std::vector<int64_t> target_strides,
                         const Options& options)
    : bytes_(static_cast<int64_t>(element_bytes)) {
  for (std::size_t i = 0; i < extents.size(); ++i) {
    empty_ = empty_ || extents[i] == 0;
    if (extents[i] != 1) axes_.push_back({extents[i], source_strides[i], target_strides[i]});
  }
  if (empty_) return;
  merge_axes();
  choose_inner(options);
  for (const Axis& axis : axes_) outer_count_ *= axis.extent;
  const int64_t extent = shared_axis().extent;
  piece_ = extent;
  if (outer_count_ >= kManySteps) return;
  piece_ = std::min(extent, inner_ == Inner::kTranspose ? kLeastTransposed : kPiece);
  pieces_ = (extent + piece_ - 1) / piece_;
}

void StridedCopy::merge_axes() {
  std::vector<Axis> merged;
  for (const Axis& axis : axes_) {
    if (!merged.empty() && merged.back().source == axis.source * axis.extent &&
        merged.back().target == axis.target * axis.extent) {
      merged.back() = {merged.back().extent * axis.extent, axis.source, axis.target};
    } else {
      merged.push_back(axis);
    }
  }
  axes_ = std::move(merged);
}

void StridedCopy::choose_inner(const Options& options) {
  row_ = {1, 1, 1};
  if (axes_.empty()) return;
  row_ = axes_.back();
  axes_.pop_back();
  if (row_.target != 1 || row_.source == 1 || row_.source == 0) {
    inner_ = row_.target != 1 ? Inner::kLoop : row_.source == 0 ? Inner::kFill : Inner::kCopy;
    return;
  }
  const auto unit =
      std::find_if(axes_.begin(), axes_.end(), [](const Axis& axis) { return axis.source == 1; });
  inner_ = unit == axes_.end() || options.reference || row_.source < 0 || unit->target < 0
               ? Inner::kLoop
               : Inner::kTranspose;
  if (inner_ != Inner::kTranspose) return;
  column_ = *unit;
  axes_.erase(unit);
  transpose_ = TOSAIC_SELECT_ISA(options.isa, kTransposeKernels).find(static_cast<std::size_t>(bytes_));
}

const StridedCopy::Axis& StridedCopy::shared_axis() const {
  return column_.extent >= std::min(row_.extent, kLongColumn) ? column_ : row_;
}

void StridedCopy::run_inner(const std::byte* source, std::byte* target, int64_t begin, int64_t end) const {
  const Axis& shared = shared_axis();
  source += begin * shared.source * bytes_;
  target += begin * shared.target * bytes_;
  const int64_t count = end - begin;
  switch (inner_) {
    case Inner::kCopy:
      std::memcpy(target, source, static_cast<std::size_t>(count * bytes_));
      return;
    case Inner::kFill:
      with_element(bytes_, [&](auto element) { fill_loop<decltype(element)>(source, target, count); });
      return;
    case Inner::kTranspose:
      if (&shared == &row_)
        transpose_(source, row_.source, count, column_.extent, target, column_.target);
      else
        transpose_(source, row_.source, row_.extent, count, target, column_.target);
      return;
    case Inner::kLoop:
      with_element(bytes_, [&](auto element) {
        copy_loop<decltype(element)>(source, row_.source, target, row_.target, count);
      });
      return;
  }
}

void StridedCopy::run_units(const std::byte* source, std::byte* target, int64_t begin, int64_t end) const {
  std::array<int64_t, kMaxAxes> at{};
  int64_t rest = begin / pieces_;
  for (std::size_t i = axes_.size(); i-- > 0;) {
    at.at(i) = rest % axes_[i].extent;
    rest /= axes_[i].extent;
    source += at.at(i) * axes_[i].source * bytes_;
    target += at.at(i) * axes_[i].target * bytes_;
  }
  const int64_t extent = shared_axis().extent;
  for (int64_t first = begin / pieces_ * pieces_; first < end; first += pieces_) {
    run_inner(source, target, std::max<int64_t>(begin - first, 0) * piece_,
              std::min(std::min(end - first, pieces_) * piece_, extent));
    for (std::size_t i = axes_.size(); i-- > 0;) {
      const Axis& axis = axes_[i];
      source += axis.source * bytes_;
      target += axis.target * bytes_;
      if (++at.at(i) < axis.extent) break;
      source -= axis.extent * axis.source * bytes_;
      target -= axis.extent * axis.target * bytes_;
      at.at(i) = 0;
    }
  }
}

void StridedCopy::run(const std::byte* source, std::byte* target, Team* team) const {
  if (empty_) return;
  const std::byte* from = source + source_offset * bytes_;
  std::byte* to = target + target_offset * bytes_;
  const auto elements = static_cast<double>(row_.extent * column_.extent);
  const double inner_cost = inner_ == Inner::kTranspose
                                ? elements * cost::kTransposed
                                : elements * static_cast<double>(bytes_) * cost::kCopy / 4;
  parallel_for(team,
               {.count = outer_count_ * pieces_, .unit_cost = inner_cost / static_cast<double>(pieces_)},
               [&](int64_t begin, int64_t end, Worker) { run_units(from, to, begin, end); });
}

}  // namespace tosaic::kernels
