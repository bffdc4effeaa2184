// header: the extended header of a file with segments, between the first 8 bytes and the rest of the program.
//
//   "eh00"  u32 its length  u64 bytes of the program  u64 place of the segments  u64 bytes of the segments
//
// All numbers are little-endian. Bytes of the program count from the beginning of the file, with this header.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tosaic::pte {

inline constexpr std::size_t kHeaderPlace = 8;      // bytes before the header
inline constexpr char kHeaderMagic[] = "eh00";      // without its zero
inline constexpr std::uint32_t kLeastHeader = 24;   // a header without the bytes of the segments
inline constexpr std::uint32_t kHeaderLength = 32;  // the header that write() writes
inline constexpr std::size_t kSegmentAlignment = 128;

}  // namespace tosaic::pte
