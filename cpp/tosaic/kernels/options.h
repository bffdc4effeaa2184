// options: the options by which prepare() chooses an implementation.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace tosaic::kernels {

// The instruction sets for which kernels/isa/ is compiled, the best one of a processor family last. kBaseline
// runs on every CPU: it has the vectors of SSE2 on x86 and of NEON on 64-bit Arm. kAvxVnni is kAvx2 and
// kAvx512Vnni is kAvx512, with instructions for products of bytes. kAmx adds products of matrices of bytes
// (AMX-TILE, AMX-INT8) to kAvx512Vnni. On Arm, kDotProd adds products of bytes (FEAT_DotProd) to kBaseline,
// and kI8mm adds products of small matrices of bytes (FEAT_I8MM) to kDotProd.
enum class Isa : std::uint8_t { kBaseline, kAvx2, kAvxVnni, kAvx512, kAvx512Vnni, kAmx, kDotProd, kI8mm };
inline constexpr std::array kAllIsas = {Isa::kBaseline,   Isa::kAvx2, Isa::kAvxVnni, Isa::kAvx512,
                                        Isa::kAvx512Vnni, Isa::kAmx,  Isa::kDotProd, Isa::kI8mm};
[[nodiscard]] std::string_view to_string(Isa isa);
[[nodiscard]] Isa best_isa();                      // the best of usable_isas()
[[nodiscard]] std::span<const Isa> usable_isas();  // the compiled instruction sets that this CPU can run
// The usable instruction set of this name. Throws InvalidGraph for any other name.
[[nodiscard]] Isa parse_isa(std::string_view name);

class Packs;  // packs.h

// The threads of a run. A run uses at most `count` threads; kernels reserve scratch memory for this number.
// With `share_all`, threads share each loop, even if it costs less than calling a thread; for tests.
struct Threads {
  std::uint32_t count = 1;
  bool share_all = false;
};

struct Options {
  bool reference = false;  // the scalar reference instead of the fast path
  Isa isa = best_isa();
  Threads threads = {};
  std::uint64_t left_out = 0;  // bit i: row i of gemm/forms.def is not used; for tests and benchmarks
  Packs* packs = nullptr;      // used at prepare time only; if null, each kernel packs its own weights
};

}  // namespace tosaic::kernels
