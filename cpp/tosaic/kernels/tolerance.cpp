// The tolerance of each operator, by the kind of rounding error that it has.
#include "tosaic/kernels/kernel.h"

namespace tosaic::kernels {
namespace {

enum class Error : std::uint8_t {
  kExact,       // elements are chosen, moved or compared, or one correctly rounded operation
  kRounded,     // a few correctly rounded operations, which torch may fuse or reorder. sqrt is in this class,
                // since torch's vectorised square root is off by an ulp
  kFunction,    // a transcendental function
  kSum,         // a sum of elements or of products, or a weighted mean
  kNormalized,  // sums, a function of them, and a product
  kOpaque       // no kernel here; the operators in the regions of control flow have their own tolerances
};

Error error_of(Op op) {
  switch (op) {
#define TOSAIC_OP(Name, text, AttrsT, operands, results, traits, int16, inference, error, ...) \
  case Op::Name:                                                                               \
    return Error::error;
#include "tosaic/ir/ops.def"
  }
  return Error::kExact;
}

// Floats narrower than f32 are summed in f32, here and in torch. The remaining error is the rounding of the
// stored result (half an ulp) and of the narrow intermediate results that some composites of torch have.
bool sums_in_f32(DType dtype) { return dtype != DType::kF32 && dtype != DType::kF64; }

}  // namespace

double epsilon(DType dtype) {
  switch (dtype) {
    case DType::kF8E4M3:
      return 0x1p-3;
    case DType::kF8E5M2:
      return 0x1p-2;
    case DType::kF16:
      return 0x1p-10;
    case DType::kBF16:
      return 0x1p-7;
    case DType::kF32:
      return 0x1p-23;
    case DType::kF64:
      return 0x1p-52;
    case DType::kBool:
    case DType::kI4:
    case DType::kI8:
    case DType::kU8:
    case DType::kI16:
    case DType::kU16:
    case DType::kI32:
    case DType::kI48:
    case DType::kI64:
      return 0;
  }
  return 0;
}

// Sums: let eps be the distance from 1 to the next number, and u = eps / 2. The error of n terms that are
// added one after the other is at most (n - 1) * u times the sum of their absolute values. Our kernels add at
// most one block of depth (128 terms in f32, see gemm_blocking()) in this way, and then one term per block.
// Rounding errors have either sign, so the error grows as sqrt(n / 3) * u, even if all terms have the same
// sign and the partial sums grow linearly. For n = 512 this is 6.5 eps. torch's orders of summation are no
// worse. 16 eps allows for two such errors (ours and torch's) and their spread.
//
// Functions: our results are rounded from double and err by at most 1 ulp; torch's vectorised functions err
// by up to 4 ulp.
//
// Normalizations: the errors of the sums and of the function affect the same element. Subtracting the mean or
// the maximum adds one rounding error at the scale of the operand.
Tolerance tolerance(Op op, DType dtype) {
  const double eps = epsilon(dtype);
  if (eps == 0) return {};
  switch (error_of(op)) {
    case Error::kExact:
    case Error::kOpaque:
      return {};
    case Error::kRounded:
      return {.ulp = 2, .relative = 0};
    case Error::kFunction:
      return {.ulp = 4, .relative = 0};
    case Error::kSum:
      return sums_in_f32(dtype) ? Tolerance{.ulp = 1, .relative = eps / 2}
                                : Tolerance{.ulp = 1, .relative = 16 * eps};
    case Error::kNormalized:
      return sums_in_f32(dtype) ? Tolerance{.ulp = 4, .relative = 2 * eps}
                                : Tolerance{.ulp = 4, .relative = 32 * eps};
  }
  return {};
}

LoweredTolerance lowered_tolerance(const Tolerance& program) {
  return {{program.ulp + 8.0, 16.0 * program.relative}, 8.0};
}

}  // namespace tosaic::kernels
