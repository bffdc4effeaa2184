// serialize: writes a Graph at stage tosa as the bytes of a .tosa file (TOSA 1.0.0, not a draft).
//
//   tosa.conv2d(%x, %w, %b) {input_zp=3, ...}
//     ->  CONST %w, CONST %b, CONST zp_i8_3, CONST zp_i8_0, CONV2D(x, w, b, zp_i8_3, zp_i8_0)
//
// Tensors have the names of the values. Attributes that are operands in the format become constants, one per
// distinct content. All constants come first, in the order of their first use; unused constants are not
// written. In the file, the outputs of a program are results of operators, each listed once. So an output
// that is an input, a constant, or the same value as an earlier output is copied by an IDENTITY. The same
// graph has the same bytes on every machine.
//
// The file represents the facts of a graph as follows:
//
//   names of values             the names of the tensors, which identify them in the file
//   origins                     the location text of each operator (location.h)
//   path of a state             the name of its variable, if the target has variables (state-to-variables)
//   kind, path, BoundaryFormat  not in the file: a reader gets user inputs and outputs with the names of
//     of an input or output     their tensors
//   qparams, canonical_order    not in the file
//
// A region of control flow is a region of the file with one block. It is written once even if it is used
// several times. A variable is a tensor in each block that names it: the result of VARIABLE and
// VARIABLE_WRITE, the operand of VARIABLE_READ. Its initial value is the data of that tensor.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/ir/places.h"
#include "tosaic/ir/since.h"

namespace tosaic {
class Team;
}

namespace tosaic::tosa {

struct SerializeOptions {
  bool locations = true;  // write the origin of each operator as its location text
  // If the constants take more bytes than this, they are written after the flatbuffer, which cannot exceed 2
  // GiB.
  std::size_t inline_limit = 2'000'000'000;
  // The operators and dtypes that are newer than TOSA 1.0. The file has the least version that has everything
  // in the graph.
  std::span<const SinceRow> newer = newer_than_1_0();
};

// A file as a list of pieces in order. Large constants are not copied into it: their pieces refer to the
// memory of the graph. So each constant is copied only once, by copy() to the memory where the file is
// needed, or by a caller that writes the pieces to a file. Deferred constants (ir/recipe.h) are not even
// copied if they are computed in their places in that memory.
class FileImage {
 public:
  using Owner = std::shared_ptr<const void>;

  // Appends `bytes`; `owner` owns them.
  void add(std::span<const std::byte> bytes, Owner owner);
  // Appends the elements of a constant. If they are deferred, they are computed when somebody reads the
  // pieces.
  void add(const ConstantRef& constant);
  [[nodiscard]] std::size_t size() const { return size_; }
  // The pieces in order. They are valid as long as the image exists.
  [[nodiscard]] std::vector<std::span<const std::byte>> pieces() const;
  // The places of the deferred constants in a file that is to be written to the `size()` bytes at `to`.
  [[nodiscard]] Places places(std::byte* to, const Owner& owner) const;
  // Writes the file to the `size()` bytes at `to`, without the deferred constants that are already in their
  // places. The threads of `team` share the work; null: this thread alone.
  void copy(std::byte* to, Team* team = nullptr) const;

 private:
  struct Piece {
    std::span<const std::byte> bytes;
    Owner owner;
    ConstantRef deferred;  // if not null, it has the bytes
    [[nodiscard]] std::size_t size() const { return deferred ? deferred->storage.size() : bytes.size(); }
  };
  std::vector<Piece> pieces_;
  std::size_t size_ = 0;
};

// Throws UnsupportedOp if TOSA cannot express a part of the graph (an operator of another stage, a dtype such
// as i64, an empty tensor). Throws InvalidGraph for an unbound constant, a dim order other than the identity,
// or an attribute out of range.
[[nodiscard]] FileImage lay_out(const Graph& graph, const SerializeOptions& options = {});

// The whole file.
[[nodiscard]] Storage serialize(const Graph& graph, const SerializeOptions& options = {});

}  // namespace tosaic::tosa
