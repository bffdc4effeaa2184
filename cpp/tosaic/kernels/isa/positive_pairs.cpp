// Matrix products of PositivePairs: how B is packed into panels, and the table. Only avx2 has them: the
// processors for which they take less time, and which have AVX-512, have instructions for quads, too.
#include "tosaic/kernels/isa/vector.h"

#if defined(__AVX2__) && TOSAIC_VECTOR_BYTES == 32
#include "tosaic/kernels/isa/pairs.h"
#include "tosaic/kernels/isa/positive_pairs.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

using Word = std::uint16_t;

[[gnu::noinline]] void multiply_block(const GemmBlock<PositivePairs>& block) {
  multiply<PositivePairs>(block);
}

// Floats have denormal numbers and raise no exceptions here, whatever the program has set.
void multiply_positive(const GemmBlock<PositivePairs>& block) {
  constexpr unsigned kDefault = 0x1f80;
  const unsigned before = _mm_getcsr();
  _mm_setcsr(kDefault);
  multiply_block(block);
  _mm_setcsr(before);
}

void pack_by_row(const Word* b, Index stride, Index depth, Index cols, Word* panels) {
  pack_pairs_by_row(reinterpret_cast<const std::int16_t*>(b), stride, depth, cols,
                    reinterpret_cast<std::int16_t*>(panels));
}

void pack_by_column(const Word* b, Index stride, Index depth, Index cols, Word* panels) {
  pack_pairs_by_column(reinterpret_cast<const std::int16_t*>(b), stride, depth, cols,
                       reinterpret_cast<std::int16_t*>(panels));
}

void row_sums(const Word* rows, Index stride, Index count, Index depth, std::uint32_t* sums) {
  constexpr Index lanes = kLanes<Word>;
  const auto sum_of_bytes = [](Vector<Word> x) {  // the high bytes are 0
    return (Vector<std::uint64_t>)_mm256_sad_epu8((IntegerRegister)x, IntegerRegister{});
  };
  for (Index i = 0; i < count; ++i, rows += stride) {
    Vector<std::uint64_t> sum{}, other{};
    Index k = 0;
    for (; k + 2 * lanes <= depth; k += 2 * lanes) {
      sum += sum_of_bytes(load(rows + k));
      other += sum_of_bytes(load(rows + k + lanes));
    }
    for (; k < depth; k += lanes)
      sum += sum_of_bytes(depth - k >= lanes ? load(rows + k) : load_first(rows + k, depth - k));
    sum += other;
    sums[i] = static_cast<std::uint32_t>(sum[0] + sum[1] + sum[2] + sum[3]);
  }
}

}  // namespace

extern const GemmKernels<PositivePairs> kGemmPositivePairs;
const GemmKernels<PositivePairs> kGemmPositivePairs = {.max_rows = kRows,
                                                       .panel = 2 * kLanes<std::uint32_t>,
                                                       .lanes = kLanes<std::uint32_t>,
                                                       .multiply_add = multiply_add_time<PositivePairs>(),
                                                       .multiply = multiply_positive,
                                                       .gather = gather<PositivePairs>,
                                                       .gather_rows = gather_rows<PositivePairs>,
                                                       .pack = pack_by_row,
                                                       .pack_transposed = pack_by_column,
                                                       .row_sums = row_sums};

}  // namespace tosaic::kernels::TOSAIC_ISA
#endif
