// expand_grid: expresses grid_sample and affine_grid by arithmetic and lookups of pixels.
//
//   image (N, C, H, W)  ->  table (N * H * W, C)          a volume: (N, C, D, H, W)  ->  (N * D * H * W, C)
//   per tap: position -> padded position -> row of the table -> index_select -> times its weight
//
// Positions are computed as torch's CPU kernels do, in the same order of operations. So NaN and infinite
// positions have torch's results. In an image, the result is NaN if a weight multiplies the pixel (bilinear,
// bicubic), and otherwise the nearest edge pixel or zero. In a volume, the result is zero, or with another
// padding than zeros an edge voxel, which is the last one for NaN.

#include <array>
#include <optional>
#include <vector>

#include "tosaic/passes/decompose/expansions.h"

namespace tosaic::passes {
namespace {

// One spatial axis of the image or volume.
struct Side {
  std::int64_t extent = 1;
  bool align_corners = false;
  GridPadding padding = GridPadding::kZeros;
  bool of_volume = false;
};

class Sampler {
 public:
  explicit Sampler(Emitter& e)
      : e_(e),
        attrs_(e.attrs<GridSampleAttrs>()),
        image_(e.type(e.operand(0)).shape),
        grid_(e.type(e.operand(1)).shape),
        dtype_(e.type(e.operand(0)).dtype) {
    for (std::size_t axis = image_.size(); axis-- > 2;)
      sides_.push_back({image_[axis], attrs_.align_corners, attrs_.padding, is_volume()});
  }

  ValueId run() {
    Dims last{0}, first{0, static_cast<std::int64_t>(image_.size()) - 1};  // channels last, and first again
    for (std::size_t axis = 2; axis < image_.size(); ++axis) {
      last.push_back(static_cast<std::int64_t>(axis));
      first.push_back(static_cast<std::int64_t>(axis) - 1);
    }
    last.push_back(1);
    table_ = e_.reshape(e_.permute(e_.operand(0), last), {image_[0] * pixels(), image_[1]});
    std::vector<ValueId> positions;
    for (std::size_t i = 0; i < sides_.size(); ++i) {
      const ValueId x = unnormalized(coordinate(i), sides_[i]);
      positions.push_back(attrs_.mode == ResizeMode::kBicubic ? x : padded(x, sides_[i]));
    }
    const ValueId y = attrs_.mode == ResizeMode::kBicubic   ? bicubic(positions[0], positions[1])
                      : attrs_.mode == ResizeMode::kNearest ? nearest(positions)
                                                            : bilinear(positions);
    return e_.permute(y, first);
  }

 private:
  [[nodiscard]] bool is_volume() const { return image_.size() == 5; }
  [[nodiscard]] std::int64_t pixels() const {  // of one image
    std::int64_t count = 1;
    for (std::size_t axis = 2; axis < image_.size(); ++axis) count *= image_[axis];
    return count;
  }

  ValueId number(double value) { return e_.number(value, dtype_); }
  ValueId floor(ValueId x) { return e_.unary(Op::kFloor, x); }
  ValueId times(ValueId x, double factor) { return e_.mul(x, number(factor)); }
  ValueId plus(ValueId x, double addend) { return addend == 0 ? x : e_.add(x, number(addend)); }
  ValueId minus_from(double a, ValueId x) { return e_.sub(number(a), x); }

  // Coordinate `which` of the grid (0: x, 1: y, 2: z), as (N, H', W', 1) or (N, D', H', W', 1).
  ValueId coordinate(std::size_t which) {
    const auto at = static_cast<std::int64_t>(which);
    return e_.slice(e_.operand(1), static_cast<std::int64_t>(grid_.size()) - 1, at, at + 1);
  }

  // Maps coordinates in [-1, 1] to positions in pixels.
  ValueId unnormalized(ValueId x, const Side& side) {
    const auto extent = static_cast<double>(side.extent);
    const ValueId shifted = plus(x, 1.0);
    if (side.of_volume)
      return side.align_corners ? times(times(shifted, 0.5), extent - 1)
                                : times(plus(times(shifted, extent), -1.0), 0.5);
    return side.align_corners ? times(shifted, (extent - 1) / 2) : plus(times(shifted, extent / 2), -0.5);
  }

  // Clips positions to [0, extent - 1]; NaN becomes 0, or in a volume extent - 1.
  ValueId clipped(ValueId x, const Side& side) {
    const double last = static_cast<double>(side.extent - 1);
    const ValueId number_or_end =
        side.of_volume ? e_.where(e_.emit(Op::kLt, NoAttrs{}, {x, number(last)}), x, number(last))
                       : e_.where(e_.emit(Op::kGe, NoAttrs{}, {x, number(0.0)}), x, number(0.0));
    return e_.emit(Op::kClamp, ClampAttrs{0.0, last}, {number_or_end});
  }

  // Mirrors positions at the edges of the image until they are inside.
  ValueId reflected(ValueId x, const Side& side) {
    if (side.align_corners && side.extent == 1) return times(x, 0.0);
    const double low = side.align_corners ? 0.0 : -0.5;
    const auto span = static_cast<double>(side.align_corners ? side.extent - 1 : side.extent);
    const ValueId away = e_.unary(Op::kAbs, plus(x, -low));
    const ValueId turns = e_.unary(Op::kTrunc, e_.binary(Op::kDiv, away, number(2 * span)));
    const ValueId extra = e_.sub(away, times(turns, 2 * span));
    return plus(e_.binary(Op::kMinimum, extra, minus_from(2 * span, extra)), low);
  }

  ValueId padded(ValueId x, const Side& side) {
    if (side.padding == GridPadding::kZeros) return x;
    return clipped(side.padding == GridPadding::kReflection ? reflected(x, side) : x, side);
  }

  // True where an integral position is inside the image.
  ValueId is_inside(ValueId x, const Side& side) {
    const ValueId low = e_.emit(Op::kGe, NoAttrs{}, {x, number(0.0)});
    const ValueId high = e_.emit(Op::kLe, NoAttrs{}, {x, number(static_cast<double>(side.extent - 1))});
    return e_.binary(Op::kLogicalAnd, low, high);
  }

  // The pixels at integral positions (x, y) or (x, y, z), times their weight if there is one. A position
  // outside of the image has the pixel zero. Outside of a volume, the product is zero even if the weight is
  // NaN.
  ValueId pixels_at(const std::vector<ValueId>& positions, std::optional<ValueId> weight = std::nullopt) {
    ValueId inside, at;
    for (std::size_t i = positions.size(); i-- > 0;) {
      const ValueId within = is_inside(positions[i], sides_[i]);
      const ValueId index = e_.cast(clipped(positions[i], sides_[i]), DType::kI64);
      inside = inside.valid() ? e_.binary(Op::kLogicalAnd, within, inside) : within;
      at = at.valid() ? e_.add(e_.mul(at, static_cast<double>(sides_[i].extent)), index) : index;
    }
    if (image_[0] > 1) at = e_.add(at, first_pixels());
    const std::int64_t count = num_elements(e_.type(at).shape);
    const ValueId rows = e_.emit(Op::kIndexSelect, AxisAttrs{0}, {table_, e_.reshape(at, {count})});
    Shape shape = grid_;
    shape[shape.size() - 1] = image_[1];
    ValueId read = e_.reshape(rows, shape);
    if (weight && is_volume()) read = e_.mul(read, *weight);
    read = e_.where(inside, read, number(0.0));
    return weight && !is_volume() ? e_.mul(read, *weight) : read;
  }

  // For each image of the batch, the row of the table at which its pixels begin.
  ValueId first_pixels() {
    std::vector<double> first;
    for (std::int64_t n = 0; n < image_[0]; ++n) first.push_back(static_cast<double>(n * pixels()));
    Shape shape{image_[0]};
    while (shape.size() < grid_.size()) shape.push_back(1);
    return e_.constant(DType::kI64, shape, first);
  }

  ValueId nearest(std::vector<ValueId> positions) {
    for (ValueId& x : positions) x = e_.unary(Op::kRound, x);
    return pixels_at(positions);
  }

  ValueId bilinear(const std::vector<ValueId>& positions) {
    // By axis, the position of the first and the second tap, and their weights.
    std::vector<std::array<ValueId, 2>> taps, weights;
    for (const ValueId x : positions) {
      const ValueId first = floor(x), fraction = e_.sub(x, first);
      taps.push_back({first, plus(first, 1.0)});
      weights.push_back({minus_from(1.0, fraction), fraction});
    }
    ValueId sum;
    for (std::size_t tap = 0; tap < std::size_t{1} << positions.size(); ++tap) {
      std::vector<ValueId> at;
      ValueId weight;
      for (std::size_t i = 0; i < positions.size(); ++i) {
        const std::size_t which = tap >> i & 1U;
        at.push_back(taps[i][which]);
        weight = weight.valid() ? e_.mul(weight, weights[i][which]) : weights[i][which];
      }
      const ValueId term = pixels_at(at, weight);
      sum = sum.valid() ? e_.add(sum, term) : term;
    }
    return sum;
  }

  // The weights of four taps by Keys' cubic kernel with a = -0.75. t is the distance of the position from the
  // second tap. In the formulas below, d is the distance of the position from the tap.
  std::array<ValueId, 4> cubic_weights(ValueId t) {
    const double a = -0.75;
    const auto outer = [&](ValueId d) {  // ((a d - 5 a) d + 8 a) d - 4 a
      return plus(e_.mul(plus(e_.mul(plus(times(d, a), -5 * a), d), 8 * a), d), -4 * a);
    };
    const auto inner = [&](ValueId d) {  // ((a + 2) d - (a + 3)) d d + 1
      return plus(e_.mul(e_.mul(plus(times(d, a + 2), -(a + 3)), d), d), 1.0);
    };
    return {outer(plus(t, 1.0)), inner(t), inner(minus_from(1.0, t)), outer(minus_from(2.0, t))};
  }

  ValueId bicubic(ValueId x, ValueId y) {
    const ValueId west = floor(x), north = floor(y);
    const std::array<ValueId, 4> across = cubic_weights(e_.sub(x, west)),
                                 down = cubic_weights(e_.sub(y, north));
    std::array<ValueId, 4> columns;
    for (std::size_t k = 0; k < 4; ++k)
      columns[k] = padded(plus(west, static_cast<double>(k) - 1.0), sides_[0]);
    ValueId sum;
    for (std::size_t i = 0; i < 4; ++i) {
      const ValueId row = padded(plus(north, static_cast<double>(i) - 1.0), sides_[1]);
      ValueId line;
      for (std::size_t k = 0; k < 4; ++k) {
        const ValueId term = pixels_at({columns[k], row}, across[k]);
        line = line.valid() ? e_.add(line, term) : term;
      }
      const ValueId term = e_.mul(line, down[i]);
      sum = sum.valid() ? e_.add(sum, term) : term;
    }
    return sum;
  }

  Emitter& e_;
  const GridSampleAttrs& attrs_;
  Shape image_, grid_;
  DType dtype_;
  std::vector<Side> sides_;  // x, y and in a volume z
  ValueId table_;
};

// torch's coordinates of the pixels of an axis. With align_corners, the first and the last pixel are at -1
// and 1. Without it, the outer edges of these pixels are there. torch computes in the type Real.
template <class Real>
std::vector<double> base_positions(std::int64_t extent, bool align_corners) {
  std::vector<double> positions(static_cast<std::size_t>(extent), 0.0);
  if (extent <= 1) return positions;
  const Real last = static_cast<Real>(extent - 1);
  const Real step = Real{2} / last;
  for (std::int64_t i = 0; i < extent; ++i) {  // torch's linspace counts from the nearer end
    const bool first_half = i < extent / 2;
    Real at = first_half ? step * static_cast<Real>(i) - 1 : 1 - step * static_cast<Real>(extent - 1 - i);
    if (!align_corners) at = at * last / static_cast<Real>(extent);
    positions[static_cast<std::size_t>(i)] = static_cast<double>(at);
  }
  return positions;
}

}  // namespace

ValueId expand_grid_sample(Emitter& e) { return Sampler(e).run(); }

// A constant matrix of pixel coordinates (x, y, 1), or (x, y, z, 1) in 3-d, times theta transposed.
ValueId expand_affine_grid(Emitter& e) {
  const auto& attrs = e.attrs<AffineGridAttrs>();
  const std::size_t spatial = attrs.size.size() - 2;
  const auto positions_of =
      e.source_type(0).dtype == DType::kF64 ? base_positions<double> : base_positions<float>;
  std::vector<std::vector<double>> positions;
  std::int64_t pixels = 1;
  for (std::size_t i = 0; i < spatial; ++i) {
    positions.push_back(positions_of(attrs.size[2 + i], attrs.align_corners));
    pixels *= attrs.size[2 + i];
  }
  std::vector<double> base;
  for (std::int64_t pixel = 0; pixel < pixels; ++pixel) {
    std::int64_t rest = pixel;
    for (std::size_t i = spatial; i-- > 0;) {  // x, the last axis, comes first
      base.push_back(positions[i][static_cast<std::size_t>(rest % attrs.size[2 + i])]);
      rest /= attrs.size[2 + i];
    }
    base.push_back(1.0);
  }
  const ValueId theta = e.operand(0);
  const auto columns = static_cast<std::int64_t>(spatial) + 1;
  const ValueId matrix = e.constant(e.type(theta).dtype, {pixels, columns}, base);
  const ValueId grid = e.binary(Op::kMatmul, matrix, e.permute(theta, {0, 2, 1}));
  return e.reshape(grid, e.result_type().shape);
}

}  // namespace tosaic::passes
