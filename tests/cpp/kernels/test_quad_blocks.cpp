// Blocks of quads, whose operands and results end where memory ends: kernels read and write nothing after
// them. Sanitizers do not see what the tiles of AMX read.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <vector>

#include "tosaic/kernels/gemm/forms.h"
#include "tosaic/kernels/gemm/gemm.h"
#include "tosaic/kernels/options.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>

namespace tosaic::kernels {
namespace {

using Index = std::int64_t;

// An array that ends at the end of a page, which no readable page follows.
template <class T>
class AtPageEnd {
 public:
  explicit AtPageEnd(Index count) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
    size_ = (bytes + page - 1) / page * page + page;
    pages_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(pages_ != MAP_FAILED);
    auto* end = static_cast<char*>(pages_) + size_ - page;
    REQUIRE(mprotect(end, page, PROT_NONE) == 0);
    data_ = reinterpret_cast<T*>(end - bytes);
  }
  ~AtPageEnd() { munmap(pages_, size_); }
  AtPageEnd(const AtPageEnd&) = delete;
  AtPageEnd& operator=(const AtPageEnd&) = delete;
  T* data() const { return data_; }
  T& operator[](Index i) const { return data_[i]; }

 private:
  void* pages_ = nullptr;
  std::size_t size_ = 0;
  T* data_ = nullptr;
};

struct Extents {
  Index rows, cols, depth;
  bool rescales, accumulates, has_row_bias;
};

Index draw(std::mt19937& random, Index low, Index high) {
  return std::uniform_int_distribution<Index>(low, high)(random);
}

void check(const GemmKernels<Quads>& kernels, const Extents& e, std::mt19937& random) {
  // Arm reads two quads at once (isa/tiles.h).
  const Index most = kQuadOffset == 0 ? 8 : 4, row_bytes = ceil_div(e.depth, most) * most;
  const Index stride = row_bytes + draw(random, 0, 70);
  const AtPageEnd<std::int8_t> a((e.rows - 1) * stride + row_bytes);
  for (Index i = 0; i < (e.rows - 1) * stride + row_bytes; ++i) a[i] = static_cast<std::int8_t>(random());
  std::vector<std::int8_t> b(static_cast<std::size_t>(e.depth * e.cols));
  for (std::int8_t& value : b) value = static_cast<std::int8_t>(random());
  // The last panel may be narrow.
  const Index left = e.cols % kernels.panel,
              last = left == 0 || left > kernels.lanes ? kernels.panel : kernels.lanes;
  const Index width = (e.cols - 1) / kernels.panel * kernels.panel + last;
  const AtPageEnd<std::int8_t> panels(width * whole_steps<Quads>(e.depth));
  kernels.pack(b.data(), e.cols, e.depth, e.cols, panels.data());
  const AtPageEnd<std::uint32_t> bias(width), row_bias(e.rows), c((e.rows - 1) * (e.cols + 3) + e.cols);
  for (Index j = 0; j < width; ++j) bias[j] = static_cast<std::uint32_t>(random());
  for (Index i = 0; i < e.rows; ++i) row_bias[i] = static_cast<std::uint32_t>(random());
  for (Index i = 0; i < (e.rows - 1) * (e.cols + 3) + e.cols; ++i)
    c[i] = static_cast<std::uint32_t>(random());
  const std::vector<std::uint32_t> before(c.data(), c.data() + (e.rows - 1) * (e.cols + 3) + e.cols);
  const AtPageEnd<std::int32_t> multipliers(e.cols + kRescalePadding), shifts(e.cols + kRescalePadding);
  for (Index j = 0; j < e.cols + kRescalePadding; ++j) {
    multipliers[j] = static_cast<std::int32_t>(draw(random, 1 << 30, 0x7fffffff));
    shifts[j] = static_cast<std::int32_t>(draw(random, 54, 60));
  }
  const AtPageEnd<std::int8_t> bytes((e.rows - 1) * (e.cols + 5) + e.cols);
  const RescaleTables<std::int32_t> tables{.multiplier = multipliers.data(),
                                           .shift = shifts.data(),
                                           .high_halves = true,
                                           .output_zp = 3,
                                           .min = -100,
                                           .max = 120};
  GemmBlock<Quads> block;
  block.rows = e.rows;
  block.cols = e.cols;
  block.depth = e.depth;
  block.a = a.data();
  block.a_stride = stride;
  block.b = panels.data();
  block.c = c.data();
  block.c_stride = e.cols + 3;
  block.accumulate = e.accumulates;
  block.column_bias = bias.data();
  block.row_bias = e.has_row_bias ? row_bias.data() : nullptr;
  block.rescale = e.rescales ? &tables : nullptr;
  block.bytes = bytes.data();
  block.bytes_stride = e.cols + 5;
  kernels.multiply(block);
  Index wrong = 0;
  for (Index i = 0; i < e.rows; ++i)
    for (Index j = 0; j < e.cols; ++j) {
      std::uint32_t sum = bias[j] + (e.has_row_bias ? row_bias[i] : 0);
      if (e.accumulates) sum += before[static_cast<std::size_t>(i * (e.cols + 3) + j)];
      for (Index k = 0; k < e.depth; ++k) {
        const std::int8_t element = a[i * stride + k];
        const int left_factor = kQuadOffset == 0 ? element : static_cast<std::uint8_t>(element);
        sum += static_cast<std::uint32_t>(left_factor * b[static_cast<std::size_t>(k * e.cols + j)]);
      }
      if (!e.rescales) {
        wrong += sum != c[i * (e.cols + 3) + j];
        continue;
      }
      const std::int64_t product = std::int64_t{static_cast<std::int32_t>(sum)} * multipliers[j];
      const std::int64_t scaled = ((product + (std::int64_t{1} << (shifts[j] - 1))) >> shifts[j]) + 3;
      wrong += std::clamp<std::int64_t>(scaled, -100, 120) != bytes[i * (e.cols + 5) + j];
    }
  CHECK(wrong == 0);
}

TEST_CASE("blocks of quads end where their operands end", "[kernels]") {
  std::mt19937 random(23);
  for (const Isa isa : usable_isas()) {
    const GemmKernels<Quads>* kernels = form_loops<Quads>({.isa = isa}).gemm;
    if (kernels == nullptr) continue;
    for (int i = 0; i < 250; ++i) {
      const Extents e{.rows = draw(random, 1, i % 5 == 0 ? 200 : 50),
                      .cols = draw(random, 1, 100),
                      .depth = draw(random, 1, i % 3 == 0 ? 500 : 140),
                      .rescales = draw(random, 0, 2) > 0,
                      .accumulates = draw(random, 0, 3) == 0,
                      .has_row_bias = draw(random, 0, 2) == 0};
      INFO(to_string(isa) << " " << e.rows << "x" << e.cols << "x" << e.depth << " " << e.rescales
                          << e.accumulates << e.has_row_bias);
      check(*kernels, e, random);
    }
  }
}

}  // namespace
}  // namespace tosaic::kernels
#endif
