// write: writes a File as the bytes of a .pte file.
//
//   program (flatbuffer with the extended header)   padding   segment 0   padding   segment 1   ...
//
// If no segment has a byte, there is no extended header. Segments are aligned to 128 bytes, as ExecuTorch
// aligns them, and payloads inside the program to 16. Segment::offset is not read. Except for it,
// read(write(file)) equals `file`. The same File is always written as the same bytes.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tosaic/ir/storage.h"
#include "tosaic/pte/file.h"

namespace tosaic::pte {

// A file that is laid out: the program, and where the segments go, whose bytes are not copied yet.
class Image {
 public:
  [[nodiscard]] std::size_t size() const { return size_; }
  // Writes the file to `to`, which has size() bytes.
  void copy(std::byte* to) const;

 private:
  friend Image lay_out(const File& file);

  struct Part {
    std::size_t at = 0;
    Storage bytes;
  };
  std::vector<Part> parts_;  // by place
  std::size_t size_ = 0;
};

// Throws UnsupportedOp if the program, without its segments, has 2 GiB or more. Indices are not checked here;
// read() checks them in what was written.
[[nodiscard]] Image lay_out(const File& file);

// The bytes of the file, in new memory.
[[nodiscard]] Storage write(const File& file);

// The program of a file whose segments are elsewhere in memory, and where in the file they begin. Between the
// program and the segments there are zeros, and nothing follows the last segment.
struct Head {
  Storage program;
  std::vector<std::size_t> places;
};

// The head of a file whose segments have these sizes; the segments of `file` are not read. Throws as
// lay_out().
[[nodiscard]] Head head_of(const File& file, std::span<const std::size_t> sizes);

}  // namespace tosaic::pte
