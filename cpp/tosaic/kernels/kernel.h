// Kernels: operators on dense row-major arrays. Kernels know arrays, not graphs.
//
//   Request (op, attributes, types, constant operands) --prepare()--> Kernel (packed weights, chosen loops)
//   Kernel.run(arrays) computes the results. The caller owns all arrays and the scratch memory. A kernel has
//   no state between calls and may run on several threads at once.
//
// Every kernel has a scalar reference: plain loops that follow the definition of the operator, with sums in
// double. The results of the fast path are within tolerance(op, dtype) of the reference for floats and equal
// to it for integers. Float sums are added in a fixed order of blocks, so a kernel computes the same bits in
// each run, for any number of threads (parallel.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "tosaic/base/team.h"
#include "tosaic/ir/op.h"
#include "tosaic/ir/storage.h"
#include "tosaic/ir/type.h"
#include "tosaic/kernels/options.h"

namespace tosaic::kernels {

// What is known about an operand or result when a kernel is prepared. `constant` points to the elements if
// they are known, and a kernel may pack them. An absent optional operand has `present == false`.
struct Operand {
  DType dtype = DType::kF32;
  Shape shape;
  const std::byte* constant = nullptr;
  bool present = true;
};

// The next operator of a chain that prepare_fused() fuses. Its only operand is the result of the operator
// before it.
struct Follower {
  Op op = Op::kOpaque;
  const Attrs* attrs = nullptr;
};

struct Request {
  Op op = Op::kOpaque;
  const Attrs* attrs = nullptr;
  std::span<const Operand> operands;
  std::span<const Operand> results;  // dtype and shape
  Options options;
  std::span<const Follower> followers = {};  // prepare_fused() only
  bool by_rows = false;                      // asks for Kernel::rows
};

// Pointers to dense row-major arrays. They are aligned to 64 bytes, except operands that are user arrays,
// which are aligned to their elements. operands[i] is null if the operand is absent. Results do not overlap
// operands, except as Kernel::in_place allows.
struct Arrays {
  std::span<const std::byte* const> operands;
  std::span<std::byte* const> results;
  std::byte* scratch = nullptr;  // 64-byte aligned, kernel.scratch_bytes
  Team* team = nullptr;          // of at most Options::threads threads; null: the calling thread alone
};

// A product of matrices in two steps: many left operands may be multiplied by one right operand.
struct RowProduct {
  // Packs the right operand into the scratch memory of the kernel.
  std::function<void(const std::byte* right, std::byte* scratch)> pack;
  // Multiplies `rows` rows, at most as many as the request has, by the operand that was packed last.
  std::function<void(const std::byte* left, std::int64_t rows, std::byte* result, std::byte* scratch)>
      multiply;
};

struct Kernel {
  std::function<void(const Arrays&)> run;
  std::size_t scratch_bytes = 0;
  // Result 0 may share memory with operand i if in_place & (1 << i) and both have the same size in bytes.
  std::uint32_t in_place = 0;
  std::string name;  // "conv.gemm.avx512", "add.reference"
  // The dtype of the factors that the kernel multiplies, if multiply_adds() of the request is not 0. It may
  // be wider than the operands: the fast path of f16 multiplies f32.
  std::optional<DType> factors = {};
  std::optional<std::size_t> form_row = {};  // of a contraction's fast path: the row of gemm/forms.def
  // Set by the fast path if Request::by_rows is true, for a product of two matrices whose right one is not
  // constant.
  std::optional<RowProduct> rows = {};
};

// Throws UnsupportedOp, which names the op and the dtypes, if there is no kernel. Throws InvalidGraph if the
// kernel rejects the attributes or shapes (e.g. a shift out of range). `reshape`, `clone`, tosa.reshape and
// tosa.identity are views, which the executor aliases without a kernel; their kernel is a plain copy.
[[nodiscard]] Kernel prepare(const Request& request);

// One kernel for the operator and all its `followers`. It writes the result of the last follower, equal to
// the result of running the operators one by one, and throws what one of them would throw. `request.results`
// describes the result of the operator itself. `run` is empty if there is no such kernel.
[[nodiscard]] Kernel prepare_fused(const Request& request);

// The number of products that a contraction or attention adds up. It follows from the shapes, so products of
// padding and of masked positions count. 0 for all other operators.
[[nodiscard]] std::uint64_t multiply_adds(const Request& request);

// The allowed difference between a fast path and the reference, and between a kernel and torch eager on the
// same inputs:
//
//   |a - b| <= ulp * spacing(|reference|) + relative * scale
//
// spacing(x) is the distance from x to the next number of the dtype. For contractions and reductions, scale
// is the sum of the absolute values of the terms of the element; for other operators it is |reference|.
struct Tolerance {
  double ulp = 0;
  double relative = 0;
};
[[nodiscard]] Tolerance tolerance(Op op, DType dtype);

// The distance between 1 and the next number of the dtype; 0 for integers.
[[nodiscard]] double epsilon(DType dtype);

// The allowed difference between a program lowered to TOSA and the same reference. `program` is the sum of
// the tolerances of the operators of the program. TOSA has no operator for most functions: lowering expands
// such a function into several TOSA operators. The specification bounds the error of each by a few ulp of its
// result. `result` is enough for an expansion that does not amplify errors of its first operators. For one
// that does, add the change of the reference when the operands change by `operand_units` units in their last
// place.
struct LoweredTolerance {
  Tolerance result;
  double operand_units = 0;
};
[[nodiscard]] LoweredTolerance lowered_tolerance(const Tolerance& program);

}  // namespace tosaic::kernels
