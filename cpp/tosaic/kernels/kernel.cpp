// Instruction sets, and prepare(), which passes a request on to the family of its operator.
#include "tosaic/kernels/kernel.h"

#include <array>

#if defined(TOSAIC_HAVE_AVX512)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(TOSAIC_HAVE_DOTPROD) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(TOSAIC_HAVE_DOTPROD) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include "tosaic/base/error.h"
#include "tosaic/base/error_text.h"
#include "tosaic/kernels/block.h"
#include "tosaic/kernels/families.h"

namespace tosaic::kernels {
namespace {

#if defined(TOSAIC_HAVE_DOTPROD)
#if defined(__APPLE__)
bool has_feature(const char* name) {
  int has = 0;
  std::size_t size = sizeof has;
  return sysctlbyname(name, &has, &size, nullptr, 0) == 0 && has != 0;
}
bool has_dot_products() { return has_feature("hw.optional.arm.FEAT_DotProd"); }
bool has_matrix_products() { return has_feature("hw.optional.arm.FEAT_I8MM"); }
#elif defined(__linux__)
bool has_dot_products() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
bool has_matrix_products() { return (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0; }
#else
bool has_dot_products() { return false; }
bool has_matrix_products() { return false; }
#endif
#endif

#if defined(TOSAIC_HAVE_AVX512)
// True if the processor has tiles of AMX and their products of bytes, and the operating system saves the
// tiles.
bool has_tiles() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kTiles = (1U << 24) | (1U << 25), kStates = (1U << 17) | (1U << 18);
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & kTiles) != kTiles) return false;
  unsigned saved = 0, high = 0;
  asm volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  return (saved & kStates) == kStates;
}

// Asks the operating system for the use of tiles. Linux grants it to the process: to all of its threads, and
// to the processes that it forks. Stacks of signal handlers have to hold the tiles from then on.
bool may_use_tiles() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

#if defined(TOSAIC_HAVE_AVX512)
bool has_avx_vnni() {
  // Not all compilers have a name for AVX-VNNI in __builtin_cpu_supports().
  static const bool has = [] {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & (1U << 4)) != 0;
  }();
  return has;
}
#endif

bool cpu_runs([[maybe_unused]] Isa isa) {
#ifdef TOSAIC_HAVE_AVX512
  // __builtin_cpu_supports also checks that the operating system saves the wide registers, in libgcc and in
  // compiler-rt.
  switch (isa) {
    case Isa::kBaseline:
      return true;
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
    case Isa::kAvxVnni:
      return cpu_runs(Isa::kAvx2) && has_avx_vnni();
    case Isa::kAvx512:
      return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
             __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
             __builtin_cpu_supports("fma") != 0;
    case Isa::kAvx512Vnni:
      return cpu_runs(Isa::kAvx512) && __builtin_cpu_supports("avx512vnni") != 0;
    case Isa::kAmx:
      return cpu_runs(Isa::kAvx512Vnni) && has_tiles() && may_use_tiles();
    case Isa::kDotProd:
    case Isa::kI8mm:
      return false;
  }
  return false;
#elif defined(TOSAIC_HAVE_DOTPROD)
  return isa == Isa::kBaseline || (isa == Isa::kDotProd && has_dot_products()) ||
         (isa == Isa::kI8mm && has_dot_products() && has_matrix_products());
#else
  return isa == Isa::kBaseline;
#endif
}

struct Usable {
  std::array<Isa, kAllIsas.size()> isas{};
  std::size_t count = 0;
};

const Usable& usable() {
  static const Usable found = [] {
    Usable result;
    for (const Isa isa : kAllIsas)
      if (cpu_runs(isa)) result.isas.at(result.count++) = isa;
    return result;
  }();
  return found;
}

std::string dtypes_of(std::span<const Operand> operands) {
  std::string text;
  for (const Operand& operand : operands) {
    if (!text.empty()) text += ", ";
    text += operand.present ? to_string(operand.dtype) : "none";
  }
  return text;
}

}  // namespace

std::string_view to_string(Isa isa) {
  switch (isa) {
    case Isa::kBaseline:
      return "baseline";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvxVnni:
      return "avxvnni";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Vnni:
      return "avx512vnni";
    case Isa::kAmx:
      return "amx";
    case Isa::kDotProd:
      return "dotprod";
    case Isa::kI8mm:
      return "i8mm";
  }
  return "";
}

Isa best_isa() { return usable_isas().back(); }

std::span<const Isa> usable_isas() { return std::span(usable().isas).first(usable().count); }

Isa parse_isa(std::string_view name) {
  for (const Isa isa : usable_isas())
    if (to_string(isa) == name) return isa;
  throw InvalidGraph(
      {.where = "prepare", .what = "this machine cannot run the instruction set", .got = quoted(name)});
}

Kernel prepare_fused(const Request& request) {
  const bool fuses = !request.options.reference && !request.followers.empty();
  return fuses && family_of(request.op) == prepare_contraction ? prepare_contraction(request) : Kernel{};
}

std::uint64_t multiply_adds(const Request& request) {
  const Prepare family = family_of(request.op);
  if (family == prepare_contraction) return contraction_multiply_adds(request);
  return family == prepare_attention ? attention_multiply_adds(request) : 0;
}

Kernel prepare(const Request& request) {
  const Prepare family = family_of(request.op);
  if (family == nullptr)
    throw UnsupportedOp({.where = "kernels",
                         .what = "no kernel for '" + std::string(info(request.op).name) + "' on (" +
                                 dtypes_of(request.operands) + ") -> (" + dtypes_of(request.results) + ")",
                         .hint = info(request.op).runs_as_expansion()
                                     ? "It runs as its expansion: in C++, pipeline::make_session expands it"
                                     : ""});
  Kernel kernel = family(request);
  if (kernel.name.empty()) kernel.name = kernel_name(request);
  return kernel;
}

}  // namespace tosaic::kernels
