// form_loops: the loops of kernels/isa/ that the rows of forms.def name, for files that choose a row.
//
//   #define TOSAIC_FORM(kind, form, set, rule, saves, measured) ... row_##kind##_##form##_##set ...
//   #include "tosaic/kernels/gemm/forms.def"
#pragma once

#include "tosaic/kernels/gemm/forms.h"

namespace tosaic::kernels {

#define TOSAIC_DECLARE_steps(form, set) extern const DepthwiseStepKernels<form> kSteps##form;
#define TOSAIC_DECLARE_dense(form, set) extern const GemmKernels<form> kGemm##form;
#define TOSAIC_DECLARE_any(form, set)         \
  extern const GemmKernels<form> kGemm##form; \
  extern const DepthwiseKernels<form> kDepthwise##form;
#define TOSAIC_DECLARE_lines(form, set)
#define TOSAIC_FORM(kind, form, set, rule, saves, measured) \
  namespace set {                                           \
  TOSAIC_DECLARE_##kind(form, set)                          \
  }
#include "tosaic/kernels/gemm/forms.def"

// The loops of a row.
#define TOSAIC_LOOPS_steps(form, set) \
  Loops<form> { .steps = &set::kSteps##form }
#define TOSAIC_LOOPS_dense(form, set) \
  Loops<form> { .gemm = &set::kGemm##form }
#define TOSAIC_LOOPS_any(form, set) \
  Loops<form> { &set::kGemm##form, &set::kDepthwise##form }
#define TOSAIC_LOOPS_lines(form, set) \
  Loops<form> {}

// The numbers of the rows.
enum FormNumber : std::uint8_t {
#define TOSAIC_FORM(kind, form, set, rule, saves, measured) row_##kind##_##form##_##set,
#include "tosaic/kernels/gemm/forms.def"
  num_form_rows
};

}  // namespace tosaic::kernels
