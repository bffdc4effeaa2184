// narrow_constant: large float constants that are computed from narrower ones, such as dequantized weights.
//
//   cast(%w: i8[8,64])  ->  sub zero points [8,1]  ->  mul scales [8,1]  ->  permute      f32[64,8]
//
// Folding such nodes makes a constant of f32 that is four times as large as %w. Its storage is deferred
// (ir/recipe.h) and remembers the narrow constant and the steps, so that a pass can write them into the
// program instead of the floats. Movements of the floats move the narrow constant and the operands of the
// steps.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::exec {

// One elementwise operator: kCast to `dtype`, or kAdd, kSub or kMul with `number` as second operand.
struct NarrowStep {
  Op op = Op::kCast;
  DType dtype = DType::kF32;
  ConstantRef number;  // each axis has extent 1 or the extent of the narrow constant; null for a cast
  OriginRef origin;
};

// The elements of a constant: the elements of `narrow` after all steps. Their row-major orders are the same.
// `narrow` has as few axes as the operands of the steps allow, and none of extent 1.
struct NarrowForm {
  ConstantRef narrow;
  std::vector<NarrowStep> steps;
  std::string root;  // the name of the constant that `narrow` was moved from
  DType root_dtype;  // its dtype

  [[nodiscard]] std::size_t bytes() const;  // of `narrow` and of the operands of the steps
};

// The form of a constant that was folded from a narrower one; null for other constants.
[[nodiscard]] const NarrowForm* narrow_form(const Constant& constant);

// The result of a node over constants, if it is large, and still computed from a narrower constant. Returns
// nothing for other nodes; views share the storage of their operand and need no call.
[[nodiscard]] std::optional<Storage> computed_from_narrow(const Graph& graph, const Node& node,
                                                          std::span<const ConstantRef> operands);

// The elements of a constant in a wider dtype, if they are still computed from a narrower constant: as
// computed_from_narrow(), for a cast.
[[nodiscard]] std::optional<Storage> widened(const ConstantRef& constant, DType dtype);

// The extents of `narrow` as parts of the axes of `shape`: part[i] has the axes, possibly none, whose product
// is shape[i]. Returns nothing if some axis of the form lies in two axes of `shape` and cannot be cut there.
struct NarrowParts {
  std::vector<std::vector<std::int64_t>> parts;
  NarrowForm form;  // with one axis for each part
};
[[nodiscard]] std::optional<NarrowParts> in_parts(const NarrowForm& form, const Shape& shape);

}  // namespace tosaic::exec
