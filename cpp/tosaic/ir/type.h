// TensorType: the type of a value, which is its dtype, logical shape, dim order, and optional quantization
// parameters.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tosaic/ir/dims.h"
#include "tosaic/ir/dtype.h"
#include "tosaic/ir/scale_grid.h"

namespace tosaic {

// A permutation of the logical axes, outermost first, as torch.Tensor.dim_order() returns it. The empty order
// is the identity.
class DimOrder {
 public:
  DimOrder() = default;
  // Throws InvalidGraph unless `order` is a permutation. The identity is stored as the empty order.
  explicit DimOrder(const Dims& order);
  [[nodiscard]] bool is_identity() const { return rank_ == 0; }
  // The permutation as a list. The identity has `rank` entries; any other order has its own rank, which
  // callers must compare with that of the shape.
  [[nodiscard]] Dims axes(std::size_t rank) const;
  // The axis at position `place`; place 0 is outermost.
  [[nodiscard]] std::size_t axis(std::size_t place) const {
    return rank_ == 0 ? place : axes_ >> (kBits * place) & kMask;
  }
  // (0, 2, 3, 1) for rank 4, (0, 2, 1) for rank 3, (0, 2, 3, 4, 1) for rank 5; identity below rank 3.
  static DimOrder channels_last(std::size_t rank);
  bool operator==(const DimOrder&) const = default;

 private:
  static constexpr unsigned kBits = 4, kMask = 15;  // bits of one axis in axes_
  static_assert(kMaxRank <= 8);
  std::uint32_t axes_ = 0;  // the outermost axis is in the lowest bits
  std::uint32_t rank_ = 0;  // 0 for the identity
};

// Quantization parameters: an integer q in [qmin, qmax] represents the number (q - zero_point[c]) * scale[c],
// where c is the index on `axis`, or 0 if the parameters are per tensor. With `groups`, each group of
// positions of another axis has parameters of its own for each index on `axis` (see scale_grid.h). Equality
// compares all fields exactly, the range included.
struct QParams {
  DType storage = DType::kI8;
  std::int64_t qmin = -128;
  std::int64_t qmax = 127;
  std::optional<std::int64_t> axis;  // none = per tensor
  std::vector<double> scales;
  std::vector<std::int64_t> zero_points;
  std::optional<Groups> groups = {};  // only with `axis`
  bool operator==(const QParams&) const = default;
};
using QParamsRef = std::shared_ptr<const QParams>;

struct TensorType {
  DType dtype = DType::kF32;
  Shape shape;
  DimOrder order;
  QParamsRef qparams;

  [[nodiscard]] std::size_t rank() const { return shape.size(); }
  [[nodiscard]] std::size_t bytes() const {
    return static_cast<std::size_t>(num_elements(shape)) * byte_size(dtype);
  }
  bool operator==(const TensorType& other) const;
};

// "q(i8 -128..127 scale 0.5 zp 3)", "q(i4 -8..7 axis 0 group 32 on 1 scale 0.5,0.25 zp 0,0)"
[[nodiscard]] std::string to_string(const QParams& qparams);
// "f32[1,3,8,8]", with " order(0,2,3,1)" and " q(...)" where present.
[[nodiscard]] std::string to_string(const TensorType& type);

}  // namespace tosaic
