// write_back: tells the system to begin to write a part of a file to the disk.
//
// The disk then works while the rest of the file is copied, and the fsync at the end has little to wait for.
#pragma once

#if defined(__linux__)
#include <fcntl.h>
#endif

#include <cstdint>

namespace tosaic {

// Advice to the system: does not wait, and if it fails, the program is only slower.
inline void start_write_back([[maybe_unused]] int file, [[maybe_unused]] std::int64_t begin,
                             [[maybe_unused]] std::int64_t size) {
#if defined(__linux__) && defined(SYNC_FILE_RANGE_WRITE)
  static_cast<void>(sync_file_range(file, begin, size, SYNC_FILE_RANGE_WRITE));
#endif
}

}  // namespace tosaic
