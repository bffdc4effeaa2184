// forms: the rows of forms.def.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tosaic/kernels/isa/depthwise.h"
#include "tosaic/kernels/isa/depthwise_steps.h"
#include "tosaic/kernels/isa/gemm.h"
#include "tosaic/kernels/options.h"

namespace tosaic::kernels {

// A row is removed from forms.def if it saves less than this percentage of the time of every network.
inline constexpr int kLeastSaved = 5;

struct FormRow {
  std::string_view name;  // "dense.Quads.amx"
  std::string_view kind, form, rule;
  Isa set = Isa::kBaseline;
  int saves = 0;
  std::string_view measured;
};

// The rows that were compiled. Bit i of Options::left_out is row i.
[[nodiscard]] std::span<const FormRow> form_rows();
// The bits of the rows of these names. Throws InvalidGraph for any other name.
[[nodiscard]] std::uint64_t rows_named(std::span<const std::string> names);
// True if contractions may be computed by a row with these options, whatever its rule says.
[[nodiscard]] bool may_use(const Options& options, std::size_t row);

// The loops that a row has.
template <class T>
struct Loops {
  const GemmKernels<T>* gemm = nullptr;
  const DepthwiseKernels<T>* depthwise = nullptr;
  const DepthwiseStepKernels<T>* steps = nullptr;
};

// For each kind of loops, the loops of the first row of the form that may be used; rules are ignored.
template <class T>
[[nodiscard]] Loops<T> form_loops(const Options& options);
// The loops of products, for a form that every processor has.
template <class T>
[[nodiscard]] const GemmKernels<T>& gemm_kernels(Isa isa) {
  return *form_loops<T>({.isa = isa}).gemm;
}

}  // namespace tosaic::kernels
