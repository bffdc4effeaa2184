// The instructions of AMX for tiles of bytes. Only files of kernels/isa/ include this header.
#pragma once

#include <cstdint>

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

constexpr std::int64_t kTileRows = 16, kTileBytes = 64, kTileCols = 16;

// The instructions are written in assembly: in some compilers, the intrinsics for tiles do not state which
// memory they access.
struct alignas(64) TileShapes {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

[[gnu::always_inline]] inline void configure_tiles(const TileShapes& shapes) {
  asm volatile("ldtilecfg %0" : : "m"(shapes));
}
[[gnu::always_inline]] inline void release_tiles() { asm volatile("tilerelease" : : : "memory"); }
template <int kTile>
[[gnu::always_inline]] inline void clear_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
// The rows are `stride` bytes apart.
template <int kTile>
[[gnu::always_inline]] inline void load_tile(const void* from, std::int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
[[gnu::always_inline]] inline void store_tile_at(void* to, std::int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
}
// Adds the product of A (unsigned bytes) and B (signed bytes) to the sums.
template <int kSum, int kA, int kB>
[[gnu::always_inline]] inline void multiply_tiles() {
  asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
}

}  // namespace
}  // namespace tosaic::kernels::TOSAIC_ISA
