// each_set: declares the tables of loops that kernels/isa/ defines, once for each instruction set.
//
//   TOSAIC_IN_EACH_SET(extern const PoolKernels<float> kPoolF32;)
//
// The namespace of a set has its name. TOSAIC_SELECT_ISA (kernels/block.h) chooses among the three sets.
#pragma once

#define TOSAIC_IN_SET(set, declaration) \
  namespace set {                       \
  declaration                           \
  }
#define TOSAIC_IN_EACH_SET(declaration) \
  TOSAIC_IN_SET(baseline, declaration)  \
  TOSAIC_IN_SET(avx2, declaration)      \
  TOSAIC_IN_SET(avx512, declaration)
