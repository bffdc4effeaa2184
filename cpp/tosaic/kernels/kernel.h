// Kernels: operators over dense row-major arrays. They know arrays, not graphs.
//
//   Request (op, attributes, types, constant operands) --prepare--> Kernel (packed weights, chosen loops)
//   Kernel.run(arrays) computes; it allocates nothing, keeps no state between calls and may run on several
//   threads.
//
// Every operator has a scalar reference: plain loops that follow the definition, sums in double. The fast
// path must stay within `tolerance(op, dtype)` of it for floats and equal it for integers; float sums have a
// fixed blocked order, so a kernel repeats its own results bit for bit.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tosaic/ir/op.h"
#include "tosaic/ir/storage.h"
#include "tosaic/ir/type.h"

namespace tosaic::kernels {

// Instruction sets that kernels/isa/ is compiled for, best last. kBaseline runs anywhere.
enum class Isa : std::uint8_t { kBaseline, kAvx2, kAvx512 };
[[nodiscard]] std::string_view to_string(Isa isa);
[[nodiscard]] Isa best_isa();                      // what this CPU can run
[[nodiscard]] std::span<const Isa> usable_isas();  // all that were compiled and that this CPU can run

class Packs;  // packs.h

struct Options {
  bool reference = false;  // the scalar reference instead of the fast path
  Isa isa = best_isa();
  Packs* packs = nullptr;  // used by prepare() alone; none: each kernel packs its own weights
};

// One operand or result at prepare time. `constant` is set where the bytes are known: kernels may pack them.
// An absent optional operand has `present == false`.
struct Operand {
  DType dtype = DType::kF32;
  Shape shape;
  const std::byte* constant = nullptr;
  bool present = true;
};

// An operator whose only operand is the result of the one before it.
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
};

// Pointers to dense row-major arrays, aligned to at least 64 bytes except operands that are user arrays
// (aligned to their element). operands[i] is null where absent. Results never overlap operands unless the
// kernel is `in_place`.
struct Arrays {
  std::span<const std::byte* const> operands;
  std::span<std::byte* const> results;
  std::byte* scratch = nullptr;  // 64-byte aligned, kernel.scratch_bytes
};

struct Kernel {
  std::function<void(const Arrays&)> run;
  std::size_t scratch_bytes = 0;
  // result 0 may share memory with operand i if in_place & (1 << i) (same bytes per element and shape).
  std::uint32_t in_place = 0;
  std::string name;  // for traces: "conv.gemm.avx512", "add.reference"
};

// Throws UnsupportedOp naming op and dtypes where no kernel exists. `reshape`, `clone`, tosa.reshape,
// tosa.identity are views: the executor aliases them, and prepare() gives a plain copy.
[[nodiscard]] Kernel prepare(const Request& request);

// One kernel for the operator and those that follow it: it gives the last one's result, equal to what they
// give one by one, or throws what one of them does. An empty `run` where there is none.
[[nodiscard]] Kernel prepare_fused(const Request& request);

// How far a fast path may be from the reference, and from torch eager on the same inputs:
// |a - b| <= ulp * spacing(|reference|) + relative * scale, where scale is, for contractions and reductions,
// the sum of the absolute values of the terms of that element, else |reference|.
struct Tolerance {
  double ulp = 0;
  double relative = 0;
};
[[nodiscard]] Tolerance tolerance(Op op, DType dtype);

// How far a program lowered to TOSA may be from the same reference, given what its operators add up to. TOSA
// has no operator for most functions, and bounds each that it has by a few ulp of its result: an expansion
// errs by that many roundings, as far as it does not amplify those of its operands. The reference allows as
// much for operands that are off by `operand_units` units in their last place.
struct LoweredTolerance {
  Tolerance result;
  double operand_units = 0;
};
[[nodiscard]] LoweredTolerance lowered_tolerance(const Tolerance& program);

// ---- families; each file of kernels/ defines one and prepare() asks them in turn ----
// Each returns a Kernel with an empty `run` when the request is not of its family.
[[nodiscard]] Kernel prepare_contraction(
    const Request& request);  // conv, linear, matmul, addmm, baddbmm, tosa.conv*, matmul
[[nodiscard]] Kernel prepare_pool(const Request& request);    // avg/max/adaptive pools, tosa pools
[[nodiscard]] Kernel prepare_resize(const Request& request);  // resize, tosa.resize
[[nodiscard]] Kernel prepare_elementwise(
    const Request& request);  // every kElementwise op, canonical and TOSA
[[nodiscard]] Kernel prepare_reduce(
    const Request& request);  // sum, mean, var, arg*, cumsum, diff, tosa.reduce_*
[[nodiscard]] Kernel prepare_normalize(
    const Request& request);                                    // batch/layer/rms/group norm, softmaxes, sdpa
[[nodiscard]] Kernel prepare_movement(const Request& request);  // kView, kMovement ops, arange, full
[[nodiscard]] Kernel prepare_requantize(const Request& request);  // tosa.table, tosa.rescale
[[nodiscard]] Kernel prepare_fourier(const Request& request);     // tosa.fft2d, tosa.rfft2d

}  // namespace tosaic::kernels
