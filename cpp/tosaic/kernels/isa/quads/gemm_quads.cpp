// Matrix products of quads of bytes: how B is packed into panels [depth / 4][width][4], and the table.
#include "tosaic/kernels/isa/gather.h"
#include "tosaic/kernels/isa/gemm.h"
#include "tosaic/kernels/isa/quads.h"
#include "tosaic/kernels/isa/tiles.h"
#if defined(__AMX_INT8__)
#include "tosaic/kernels/isa/amx_tiles.h"
#endif
// Only avx2 has CappedQuads. Other instruction sets with VPMADDUBSW have instructions for quads, or vectors
// of 64 bytes.
#if TOSAIC_VECTOR_BYTES == 32 && !defined(TOSAIC_ADD_QUADS)
#define TOSAIC_CAPS_QUADS 1
#include "tosaic/kernels/isa/capped_quads.h"
#endif

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

using Byte = std::int8_t;
constexpr Index kQuad = Arithmetic<Quads>::kStep;

// The first `count` elements, but at most 16; the other elements of the vector are zero.
[[gnu::always_inline]] inline Bytes16 some_bytes(const Byte* at, Index count) {
  return load_first<Byte, 16>(at, count < 0 ? 0 : count < 16 ? count : 16);
}

void pack_by_row(const Byte* b, Index stride, Index depth, Index cols, Byte* panels) {
  pack_panels<Quads>(depth, cols, panels, [=](Index j, Index valid, Index width, Byte* to) {
    for (Index k = 0; k < depth; k += kQuad, to += kQuad * width)
      for (Index i = 0; i < width; i += 16) {
        Bytes16 row[kQuad] = {};
        for (Index q = 0; q < kQuad && k + q < depth; ++q)
          row[q] = some_bytes(b + (k + q) * stride + j + i, valid - i);
        Bytes16 quads[4];
        interleave(row, quads);
#pragma GCC unroll 4
        for (Index v = 0; v < 4; ++v)
          if (i + 4 * v < width) store<Byte, 16>(to + kQuad * i + 16 * v, quads[v]);
      }
  });
}

void pack_by_column(const Byte* b, Index stride, Index depth, Index cols, Byte* panels) {
  const Index whole = depth - depth % kQuad;
  pack_panels<Quads>(depth, cols, panels, [=](Index j, Index valid, Index width, Byte* to) {
    zero(to, whole_steps<Quads>(depth) * width);
    for (Index i = 0; i < valid; ++i) {
      const Byte* column = b + (j + i) * stride;
      for (Index k = 0; k < whole; k += kQuad)
        __builtin_memcpy(to + k * width + kQuad * i, column + k, kQuad);
      for (Index k = whole; k < depth; ++k) to[whole * width + kQuad * i + (k - whole)] = column[k];
    }
  });
}

void row_sums(const Byte* rows, Index stride, Index count, Index depth, std::uint32_t* sums) {
  constexpr Index lanes = kLanes<Byte>;
  const Vector<Byte> ones = broadcast(Byte{1});
  for (Index i = 0; i < count; ++i, rows += stride) {
    Vector<std::uint32_t> sum{};
    Index k = 0;
    for (; k + lanes <= depth; k += lanes) add_product(sum, ones, (Vector<std::int32_t>)load(rows + k));
    if (k < depth) add_product(sum, ones, (Vector<std::int32_t>)load_bytes(rows + k, depth - k));
    std::uint32_t total = 0;
#pragma GCC unroll 16
    for (Index lane = 0; lane < kLanes<std::uint32_t>; ++lane) total += sum[lane];
    sums[i] = total;
  }
}

#if defined(__AMX_INT8__)
// The second-level cache has 2 MiB.
constexpr Index kMostRows = kTileRows, kBlockBytes = 512 * 1024;
constexpr double kMultiplyAdd = 0.001;
constexpr bool kReadsLines = true;
constexpr auto multiply_block = multiply_by_tiles;
#else
constexpr Index kMostRows = kRows, kBlockBytes = GemmKernels<Quads>{}.a_bytes;
constexpr double kMultiplyAdd = multiply_add_time<Quads>();
constexpr bool kReadsLines = false;
constexpr auto multiply_block = multiply<Quads>;
#endif

}  // namespace

extern const GemmKernels<Quads> kGemmQuads;
const GemmKernels<Quads> kGemmQuads = {.max_rows = kMostRows,
                                       .panel = 2 * kLanes<std::uint32_t>,
                                       .lanes = kLanes<std::uint32_t>,
                                       .multiply_add = kMultiplyAdd,
                                       .multiply = multiply_block,
                                       .gather = gather<Quads>,
                                       .gather_rows = gather_rows<Quads>,
                                       .pack = pack_by_row,
                                       .pack_transposed = pack_by_column,
                                       .row_sums = row_sums,
                                       .reads_lines = kReadsLines,
                                       .a_bytes = kBlockBytes};

#if defined(TOSAIC_CAPS_QUADS)
extern const GemmKernels<CappedQuads> kGemmCappedQuads;
const GemmKernels<CappedQuads> kGemmCappedQuads = {.max_rows = kCappedRows,
                                                   .panel = kPanelCols,
                                                   .lanes = kLanes<std::uint32_t>,
                                                   .multiply_add = 0.0105,
                                                   .multiply = multiply_capped,
                                                   .gather = gather<CappedQuads>,
                                                   .gather_rows = gather_rows<CappedQuads>,
                                                   .pack = pack_by_row,
                                                   .pack_transposed = pack_by_column,
                                                   .row_sums = row_sums,
                                                   .a_bytes = kBlockBytes};
#endif

}  // namespace tosaic::kernels::TOSAIC_ISA
