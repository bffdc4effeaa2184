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
#include <memory>
#include <span>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::tosa {

struct SerializeOptions {
  bool locations = true;  // write the origin of each operator as its location text
  // A file whose constants take more bytes than this has them behind the flatbuffer, which cannot exceed 2
  // GiB.
  std::size_t inline_limit = 2'000'000'000;
};

// A file that is laid out, as pieces in their order: its size is known, but constants of some size still lie
// where the graph has them, so that each is copied once, to the place where the file is wanted.
class FileImage {
 public:
  using Owner = std::shared_ptr<const void>;

  void add(std::span<const std::byte> bytes, Owner owner);
  [[nodiscard]] std::size_t size() const { return size_; }
  // Into `size()` bytes at `to`.
  void copy(std::byte* to) const;

 private:
  std::vector<std::span<const std::byte>> pieces_;
  std::vector<Owner> owners_;
  std::size_t size_ = 0;
};

// Throws UnsupportedOp for what TOSA cannot say (operators of other stages, dtypes such as i64, empty
// tensors) and InvalidGraph for unbound constants, dim orders other than the identity and attributes out of
// range.
[[nodiscard]] FileImage lay_out(const Graph& graph, const SerializeOptions& options = {});

// The whole file.
[[nodiscard]] Storage serialize(const Graph& graph, const SerializeOptions& options = {});

}  // namespace tosaic::tosa
