#include "tosaic/kernels/isa/peak.h"
#include "tosaic/kernels/isa/peak_loops.h"
#if defined(__AMX_INT8__)
#include "tosaic/kernels/isa/amx.h"
#endif

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

#if defined(__ARM_FEATURE_MATMUL_INT8)
using Bytes = Vector<std::int8_t>;
constexpr PeakLoop kBytes = {multiply_add_rounds<Vector<std::uint32_t>, Bytes, Bytes, add_matrix_product>,
                             kSums * 2 * kLanes<std::int8_t>};
#elif defined(__AMX_INT8__)
void tile_rounds(std::int64_t rounds) {
  TileShapes shapes;
  for (int i = 0; i < 6; ++i) {
    shapes.row_bytes[i] = kTileBytes;
    shapes.rows[i] = kTileRows;
  }
  configure_tiles(shapes);  // clears all tiles
  for (std::int64_t round = 0; round < rounds; ++round) {
    multiply_tiles<0, 4, 5>();
    multiply_tiles<1, 4, 5>();
    multiply_tiles<2, 4, 5>();
    multiply_tiles<3, 4, 5>();
  }
  release_tiles();
}
constexpr PeakLoop kBytes = {tile_rounds, 4 * kTileRows * kTileBytes * kTileCols};
#else
constexpr PeakLoop kBytes = kMultiplyAdds<Quads>;
#endif

}  // namespace

const PeakKernels kPeakKernels = {.f32 = kMultiplyAdds<float>,
                                  .f64 = kMultiplyAdds<double>,
                                  .i16 = kMultiplyAdds<Pairs>,
                                  .i8 = kBytes,
                                  .add = add_arrays};

}  // namespace tosaic::kernels::TOSAIC_ISA
