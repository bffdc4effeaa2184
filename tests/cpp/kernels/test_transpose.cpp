#include <catch2/catch.hpp>
#include <cstdint>
#include <numeric>
#include <vector>

#include "tosaic/kernels/block.h"
#include "tosaic/kernels/transpose_block.h"

namespace tosaic::kernels {
namespace {

// Transposes columns [first, first + cols) of a matrix of `width` columns. The memory of the source ends with
// the last element of these columns, so that the sanitizer sees what is read after it.
template <class T>
bool is_transposed(Isa isa, std::int64_t rows, std::int64_t width, std::int64_t first, std::int64_t cols) {
  std::vector<T> source(static_cast<std::size_t>((rows - 1) * width + first + cols));
  std::iota(source.begin(), source.end(), T{1});
  const std::int64_t to_stride = rows + 3;
  std::vector<T> target(static_cast<std::size_t>(cols * to_stride), T{0});
  TOSAIC_SELECT_ISA(isa, kTransposeKernels)
      .find(sizeof(T))(source.data() + first, width, rows, cols, target.data(), to_stride);
  for (std::int64_t j = 0; j < cols; ++j)
    for (std::int64_t i = 0; i < to_stride; ++i) {
      const T expected = i < rows ? source[static_cast<std::size_t>(i * width + first + j)] : T{0};
      if (target[static_cast<std::size_t>(j * to_stride + i)] != expected) return false;
    }
  return true;
}

template <class T>
void check_all() {
  for (const Isa isa : usable_isas())
    for (const std::int64_t rows : {1, 2, 7, 15, 16, 17, 31, 32, 48, 65, 130})
      for (const std::int64_t cols : {1, 2, 3, 5, 8, 9, 15, 16, 17, 25, 33, 49, 64, 70})
        for (const std::int64_t extra : {0, 1, 6, 40}) {
          CAPTURE(sizeof(T), static_cast<int>(isa), rows, cols, extra);
          CHECK(is_transposed<T>(isa, rows, cols + extra, extra / 2, cols));
        }
}

TEST_CASE("matrices of all shapes are transposed, and nothing behind them is read or written",
          "[transpose]") {
  check_all<std::uint8_t>();
  check_all<std::uint16_t>();
  check_all<std::uint32_t>();
  check_all<std::uint64_t>();
}

}  // namespace
}  // namespace tosaic::kernels
