// layout_needs: which dim orders the operators of a target take, as data.
//
// A canonical operator means the same in every dim order: layout/options.h knows how the order of a result
// follows from the orders of the operands. A target implements an operator in some orders only, and can
// transpose some dtypes only. LayoutNeeds lists these orders and dtypes. `tosa_layout_needs` is TOSA's table.
// Another claimant of nodes, such as a device, passes its own table (PassOptions::layout_needs).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tosaic/ir/op.h"
#include "tosaic/ir/type.h"

namespace tosaic::target {

// The dim orders in which a target's operator reads its operands and writes its results.
enum class LayoutNeed : std::uint8_t {
  // Row-major only.
  kRowMajor,
  // Channels last, for operand 0 and for a result of 4 axes or more. The weights of a convolution are in the
  // orders of LayoutNeeds, all other operands are row-major. If the result has fewer axes, everything is
  // row-major.
  kChannelsLast,
  // Any order, the same for all operands and the result. For a permute, a reshape or a reduction
  // (ReduceAttrs): any order of the operand, and the order of the result that follows from it.
  kAny,
  // As kAny, but if the attributes name an axis, that axis is innermost.
  kAxisInnermost,
  // Any order of operand 0 and the result in which the last axis is innermost. All other operands are
  // row-major.
  kChannelsInnermost,
  // Any order in which the last two axes are innermost. If operand 1 is one matrix, only the last axis of
  // operand 0 must be innermost.
  kMatricesInnermost,
};

struct OpLayout {
  LayoutNeed need = LayoutNeed::kRowMajor;
  // True for an operator over windows that the target also computes as a reduction, in any order, if the
  // windows are side by side (layout/windows.h).
  bool reduces_windows = false;
};

struct LayoutNeeds {
  std::vector<OpLayout> ops;  // by Op; for a foreign operator, its description has the need
  // The orders of the weights of rank 4 of a depthwise convolution, (C*M, 1, H, W), and of a transposed one,
  // (I, O, H, W). All other weights are channels last.
  DimOrder depthwise_weight, transposed_weight;
  // The most axes of an elementwise operator.
  std::size_t most_elementwise_axes = 0;
  static constexpr std::size_t kDTypes = static_cast<std::size_t>(DType::kF64) + 1;
  std::array<bool, kDTypes> can_transpose_dtype{};    // by DType
  std::array<std::uint8_t, kDTypes> element_bytes{};  // by DType: the bytes of an element that is transposed

  [[nodiscard]] const OpLayout& of(Op op) const { return ops[static_cast<std::size_t>(op)]; }
  // True if values of the dtype can be transposed. If not, all readers of such a value read it in the order
  // in which it is made.
  [[nodiscard]] bool can_transpose(DType dtype) const {
    return can_transpose_dtype[static_cast<std::size_t>(dtype)];
  }
  // The bytes that a transpose of the value moves.
  [[nodiscard]] std::int64_t bytes_of(const TensorType& type) const {
    return num_elements(type.shape) * element_bytes[static_cast<std::size_t>(type.dtype)];
  }
};

// The needs of TOSA 1.0, of every profile.
[[nodiscard]] const LayoutNeeds& tosa_layout_needs();

}  // namespace tosaic::target
