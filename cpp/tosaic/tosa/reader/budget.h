// budget: limits the time and memory that reading a file may take.
//
// Lists of a flatbuffer may overlap, so a small file could name the same operands or constants any number of
// times. In a file without overlaps, neither the number of names that operators list nor the number of bytes
// of constants exceeds the size of the file.
#pragma once

#include <cstddef>

#include "tosaic/tosa/reader/place.h"

namespace tosaic::tosa {

class Budget {
 public:
  explicit Budget(std::size_t file_size) : limit_(file_size) {}

  // These functions count names, or bytes of constants, that are about to be read. They throw once the total
  // exceeds the limit.
  void spend_names(const Place& place, std::size_t count) {
    names_ += count;
    if (names_ > limit_) fail<InvalidGraph>(place, "the lists of operands overlap");
  }
  void spend_bytes(const Place& place, std::size_t count) {
    bytes_ += count;
    if (bytes_ > limit_) fail<InvalidGraph>(place, "the data of constants overlaps");
  }

 private:
  std::size_t limit_, names_ = 0, bytes_ = 0;
};

}  // namespace tosaic::tosa
