// behaviour: how the planner treats each operator: the column `quantization` of ir/ops.def.
#pragma once

#include <cstdint>

#include "tosaic/ir/op.h"

namespace tosaic::quant {

// In ascending importance: a call that became several nodes has the most important behaviour among them.
enum class Behaviour : std::uint8_t {
  kSource,      // no operand: arange, full
  kMovement,    // elements are moved: the result has the integers of the operand
  kSelection,   // elements are chosen by order, or bounded: like movement. Also ends a cluster: conv -> relu
  kJoin,        // elements of several operands: operands that nothing else reads share one scale
  kLookup,      // rows of a table, by an index
  kPredicate,   // the result is an index or a truth value: operands are read as they are
  kSignChange,  // exact on integers
  kArithmetic,  // elementwise sums, products and selections of several operands
  kFunction,    // an elementwise function of one operand
  kReduction,   // sums, means, resampling: results of their own range
  kUnit,        // values in 0..1 whatever the operands are: softmax, sigmoid
  kSymmetricUnit,  // values in -1..1: tanh
  kComposite,      // computed as a whole: norms, recurrent layers
  kNormalize,      // batch norm: part of the convolution before it
  kGrid,           // samples an image at positions in -1..1
  kAttention,      // contractions and a softmax, as a whole
  kWeighted,       // contraction; a constant operand is a weight
  kFloatOnly,      // no integer form: control flow, opaque calls, Fourier transforms
};

[[nodiscard]] Behaviour behaviour_of(Op op);

}  // namespace tosaic::quant
