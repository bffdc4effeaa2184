// deserialize: reads the bytes of a .tosa file as a Graph at stage tosa.
//
//   CONST w, CONST b, CONST zp, CONV2D(x, w, b, zp, zp)
//     ->  tosa.conv2d(%x, %w, %b) {input_zp=..., weight_zp=...}
//
// Values have the names of the tensors. Constant operands that the graph has as attributes
// (constant_operands.h) become attributes; if the program computes such an operand, the file is refused. A
// file with an operator that ops.def lacks is refused, too. The operators of a file may be in any order
// without a cycle. The graph has them in topological order, which is the order of the file if that is
// topological; the operators that touch variables always have the order of the file. Constants that nothing
// uses are dropped. serialize(deserialize(bytes)) equals `bytes` if serialize() wrote them.
//
// The program is the first block of the region "main" or, if there is no such region, of the file. A
// control-flow operator names its regions by the name of a region or of a block. The operands and results of
// such an operator are compared with the tensors that its regions declare before anything inside the regions
// is read. A file with a block that nothing uses is refused.
//
// The file is not trusted: it is verified as a flatbuffer first, every type is inferred and compared with the
// declared one, and memory use is limited to a small multiple of the file's size.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::tosa {

// Something that the file expresses differently than serialize() would, and how it was read.
struct Note {
  std::string rule;  // "repeated-zero-point"
  std::string message, name;
};

struct Read {
  Graph graph;
  std::vector<Note> notes;
};

// The graph and the notes. Names of tensors, regions, variables and custom operators and location texts have
// to be UTF-8. Some writers store one weight zero point per channel; these are read as one zero point if all
// are equal.
[[nodiscard]] Read read(const Storage& file);

// Reads files of TOSA 1.0, and files of 1.1 that use only what 1.0 has. Constants share the memory of the
// file if their elements have the same layout in memory. Throws InvalidGraph (malformed, truncated,
// inconsistent) or UnsupportedOp, with the operator and the tensor.
[[nodiscard]] Graph deserialize(const Storage& file);

// Does the same as the other deserialize(), for memory that need not outlive the call.
[[nodiscard]] Graph deserialize(std::span<const std::byte> file);

}  // namespace tosaic::tosa
