#include "tosaic/kernels/gemm/forms.h"

#include <algorithm>
#include <array>

#include "tosaic/base/error.h"
#include "tosaic/kernels/gemm/form_loops.h"

namespace tosaic::kernels {
namespace {

Isa isa_named(std::string_view name) {
  return *std::find_if(kAllIsas.begin(), kAllIsas.end(), [&](Isa isa) { return to_string(isa) == name; });
}

const std::array<FormRow, num_form_rows>& rows() {
  static const std::array<FormRow, num_form_rows> all = {{
#define TOSAIC_FORM(kind, form, set, rule, saves, measured) \
  {#kind "." #form "." #set, #kind, #form, #rule, isa_named(#set), saves, measured},
#include "tosaic/kernels/gemm/forms.def"
  }};
  return all;
}

// True if a processor that runs the first set runs the second one, too.
bool includes(Isa isa, Isa set) {
  const bool is_x86 = isa <= Isa::kAmx;
  switch (set) {
    case Isa::kBaseline:
      return true;
    case Isa::kAvx2:
      return is_x86 && isa >= Isa::kAvx2;
    case Isa::kAvx512:
      return is_x86 && isa >= Isa::kAvx512;
    case Isa::kAvx512Vnni:
      return is_x86 && isa >= Isa::kAvx512Vnni;
    case Isa::kDotProd:
      return isa >= Isa::kDotProd;
    case Isa::kAvxVnni:
    case Isa::kAmx:
    case Isa::kI8mm:
      return isa == set;
  }
  return false;
}

template <class Row, class T>
void add(const Loops<Row>& loops, Loops<T>& to) {
  if constexpr (std::is_same_v<Row, T>) {
    if (to.gemm == nullptr) to.gemm = loops.gemm;
    if (to.depthwise == nullptr) to.depthwise = loops.depthwise;
    if (to.steps == nullptr) to.steps = loops.steps;
  }
}

}  // namespace

std::span<const FormRow> form_rows() { return rows(); }

std::uint64_t rows_named(std::span<const std::string> names) {
  std::uint64_t bits = 0;
  for (const std::string& name : names) {
    const auto row =
        std::find_if(rows().begin(), rows().end(), [&](const FormRow& r) { return r.name == name; });
    if (row == rows().end()) throw InvalidGraph({.where = "kernels", .what = "no form '" + name + "'"});
    bits |= std::uint64_t{1} << (row - rows().begin());
  }
  return bits;
}

bool may_use(const Options& options, std::size_t row) {
  return (options.left_out >> row & 1) == 0 && includes(options.isa, rows()[row].set);
}

template <class T>
Loops<T> form_loops(const Options& options) {
  Loops<T> found;
#define TOSAIC_FORM(kind, form, set, rule, saves, measured) \
  if (may_use(options, row_##kind##_##form##_##set)) add(TOSAIC_LOOPS_##kind(form, set), found);
#include "tosaic/kernels/gemm/forms.def"
  return found;
}

#define TOSAIC_INSTANTIATE(T) template Loops<T> form_loops(const Options&);
TOSAIC_EACH_ARITHMETIC(TOSAIC_INSTANTIATE)

}  // namespace tosaic::kernels
