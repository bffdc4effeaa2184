// Graph at stage tosa -> the bytes of a .tosa file (TOSA 1.0.0, not a draft).
//
//   tosa.conv2d(%x, %w, %b) {input_zp=3, ...}
//     ->  CONST %w, CONST %b, CONST zp_i8_3, CONST zp_i8_0, CONV2D(x, w, b, zp_i8_3, zp_i8_0)
//
// Tensors have the names of the values. Attributes that the format wants as operands become constants, one
// per distinct content; all constants come first, in order of their first use, unused ones are left out. An
// output that is an input, a constant or listed before gets an IDENTITY, since outputs of a file are results
// with names of their own. The same graph gives the same bytes everywhere. Input kinds, paths and borders
// have no place in the format.
//
// A region of control flow is a region of the file with one block, written once however often it is used. A
// variable is a tensor of each block that names it: the result of VARIABLE and VARIABLE_WRITE, the operand of
// VARIABLE_READ; its initial value is the tensor's data.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "tosaic/ir/graph.h"

namespace tosaic::tosa {

struct SerializeOptions {
  bool locations = true;  // write the origin of each operator as its location text
  // A file whose constants take more bytes than this has them behind the flatbuffer, which cannot exceed 2
  // GiB.
  std::size_t inline_limit = 2'000'000'000;
};

// The whole file; the weights are copied once. Throws UnsupportedOp for what TOSA cannot say (operators of
// other stages, dtypes such as i64, empty tensors) and InvalidGraph for unbound constants, dim
// orders other than the identity and attributes out of range.
[[nodiscard]] Storage serialize(const Graph& graph, const SerializeOptions& options = {});

// The same bytes piece by piece, in order; constants behind the flatbuffer are not copied.
using Sink = std::function<void(std::span<const std::byte>)>;
void serialize_to(const Graph& graph, const Sink& sink, const SerializeOptions& options = {});

}  // namespace tosaic::tosa
