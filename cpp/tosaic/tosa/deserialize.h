// The bytes of a .tosa file -> Graph at stage tosa.
//
//   CONST w, CONST b, CONST zp, CONV2D(x, w, b, zp, zp)  ->  tosa.conv2d(%x, %w, %b) {input_zp=...,
//   weight_zp=...}
//
// Values keep the names of the tensors. Operands that the specification wants constant become attributes
// again; an operator that computes one is refused, as are operators that ops.def lacks. Operators may stand
// in any order that has no cycle; the graph keeps the file's order where that is topological, and always that
// of operators on variables. Constants that nothing uses are dropped. serialize(deserialize(bytes)) equals
// `bytes` if serialize() wrote them.
//
// The program is the first block of the region "main", or of the file. Regions of control flow are found by
// the region's name or the block's; what an operator gives and takes is compared with their declared tensors
// before anything inside is read. A block that nothing uses is refused.
//
// The file is not trusted: it is checked before anything is read from it, every type is inferred and compared
// with the declared one, and no more memory is taken than a small multiple of the file's size.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::tosa {

// Something that a file says in another way than ours, and how it was read.
struct Note {
  std::string rule;  // "repeated-zero-point"
  std::string message, name;
};

struct Read {
  Graph graph;
  std::vector<Note> notes;
};

// Names are UTF-8: values, regions, variables, custom operators, locations. One weight zero point a channel,
// which some writers give, is read as one if all are equal.
[[nodiscard]] Read read(const Storage& file);

// Reads TOSA 1.0, and files marked 1.1 as far as they use only what 1.0 has. Constants share the file's
// memory where the layout allows. Throws InvalidGraph (malformed, truncated, inconsistent) or UnsupportedOp,
// naming operator and tensor.
[[nodiscard]] Graph deserialize(const Storage& file);

// The same from memory that need not outlive the call.
[[nodiscard]] Graph deserialize(std::span<const std::byte> file);

}  // namespace tosaic::tosa
