// foreign_operator: lowers foreign operators that compute with integers (attribute `integers` of opaque
// nodes).
//
//   %y: i8 {qparams} = opaque(%x: i8 {qparams}) {arguments="{..}"}   at stage quantized: q(op(dq(x)))
//     ->
//   %y: i8 {qparams} = opaque(%x: i8 {qparams})
//                      {arguments="{.., "qparams": {"operands": [..], "results": [..]}}"}
//
// All float operands and results must have qparams. The arguments then contain the qparams as JSON, so that
// the kernel, and the reader of the tosa.custom, know which numbers the integers represent. If an operand or
// result has no qparams, the operator stays between dequantize and quantize.
#pragma once

#include "tosaic/passes/lower_to_integer/value_map.h"

namespace tosaic::passes {

// True for a foreign operator that has a kernel over integers, if none of its operands and results is a float
// and all that are quantized have a signed form (signed_form()).
[[nodiscard]] bool computes_with_integers(const Graph& source, const Node& node);
void lower_foreign(ValueMap& values, const Node& node, IntegerBuilder& build);

}  // namespace tosaic::passes
