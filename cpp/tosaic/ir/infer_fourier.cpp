// Result types of Fourier transforms over the last two axes. A complex value is a pair of values (real,
// imaginary).
#include "tosaic/ir/infer_rules.h"

namespace tosaic::rules {
namespace {

// Requires f32 or f64, and that the last two axes exist and are not empty.
void require_transformable(const Call& call) {
  const DType dtype = call.operand(0).dtype;
  if (dtype != DType::kF32 && dtype != DType::kF64)
    call.fail("wrong dtype of " + call.operand_text(0), "f32 or f64", std::string(to_string(dtype)));
  call.require_rank_between(0, 2, kMaxRank);
  const std::size_t rank = call.operand(0).rank();
  call.require_nonempty_axis(0, rank - 2);
  call.require_nonempty_axis(0, rank - 1);
}

Types pair(DType dtype, const Shape& shape) {
  Types types = single_result(dtype, shape);
  types.push_back(types.front());
  return types;
}

}  // namespace

Types infer_fft2(const Call& call) {
  require_transformable(call);
  call.require_same_dtype(1, 0);
  call.require_shape(1, call.operand(0).shape);
  return pair(call.operand(0).dtype, call.operand(0).shape);
}

// The last axis has extent n / 2 + 1: the spectrum of real values is symmetric, so the rest is redundant.
Types infer_rfft2(const Call& call) {
  require_transformable(call);
  Shape shape = call.operand(0).shape;
  shape[shape.size() - 1] = shape.back() / 2 + 1;
  return pair(call.operand(0).dtype, shape);
}

}  // namespace tosaic::rules
