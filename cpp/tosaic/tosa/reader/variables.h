// variables: reads the operators that declare, read and write variables.
//
//   v = VARIABLE()   v: variable_name="h", data=...    ->   tosa.variable(%v) {name="h"}
//   a = VARIABLE_READ(v)                               ->   %a = tosa.variable_read() {name="h"}
//   v = VARIABLE_WRITE(b)                              ->   tosa.variable_write(%b) {name="h"}
//
// A variable is a tensor in each block that accesses it. Blocks identify it by its variable name, or by the
// name of the tensor if the file has no variable name.
#pragma once

#include "tosaic/tosa/reader/state.h"

namespace tosaic::tosa {

void add_variable_operator(const Place& place, BlockState& state, Op op);

}  // namespace tosaic::tosa
