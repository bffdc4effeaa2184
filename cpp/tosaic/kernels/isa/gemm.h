// Matrix products of blocks that fit the caches: the loops that each instruction set provides to contraction
// kernels.
//
//   C[rows x cols] (+)= A[rows x depth] * B[depth x cols]       vectors are along the columns
//
// The rows of a block of A are `a_stride` apart, and their elements are adjacent. The block is a part of the
// operand itself, or of gathered rows or image patches. B is packed in panels of `panel` columns, one after
// the other. A panel is an array [depth][width], where width is `panel`, or `lanes` for a last panel of at
// most `lanes` columns. Columns beyond the matrix are zero. Each element of C is summed in order of depth.
//
// Integers are multiplied in steps of two or four, because there are instructions for them. A panel is an
// array [depth / kStep][width][kStep]. A depth that is not a multiple of kStep is rounded up; the elements of
// B there are zero. There are these forms:
//
//   Pairs       i8 times i8, modulo 2^32. Gathering subtracts the zero point and widens the elements of A to
//               16 bits.
//   WidePairs   i16 times i8, without zero points. Sums of a block are exact in 32 bits, because its depth is
//               at most kMostWideDepth, or because its elements of B are small. They are added up in 64 bits.
//   Quads       i8 times i8, modulo 2^32. On x86, A is read as bytes without sign, B as bytes with sign, and
//               gathering adds q = 128 to the elements of A. On Arm, both have a sign, and q = 0. With a + q
//               = u, and zero points a_zp and b_zp,
//
//                 sum (a - a_zp)(b - b_zp) = sum u b - (q + a_zp) sum b - b_zp (sum u - depth (q + a_zp))
//
//               The second term depends on the column only and the third one on the row only. They are added
//               as biases of columns and rows. Padding of a patch is the zero point. Sets without
//               instructions for quads multiply them as two pairs: that takes more time than Pairs, but B has
//               half as many bytes.
//
//   CappedQuads i8 times i8, modulo 2^32, as Quads, for sets with an instruction that saturates sums of two
//               products. The elements of B are capped so that no sum saturates, and the amounts subtracted
//               are multiplied separately: gemm/excess.h, isa/capped_quads.h.
//
// Arm has no instruction that multiplies pairs and adds the products. In its panels, a vector of four pairs
// has the first elements of all pairs before the second ones: isa/pairs.h.
#pragma once

#include <cstdint>
#include <type_traits>

#include "tosaic/kernels/isa/rescale.h"
#include "tosaic/kernels/kernel.h"

namespace tosaic::kernels {

// How a contraction multiplies: floats, or one of the forms above. gemm/forms.def chooses.
using F32 = float;
using F64 = double;
struct Pairs {};
struct WidePairs {};
struct Quads {};
struct CappedQuads {};
#define TOSAIC_EACH_ARITHMETIC(X) X(F32) X(F64) X(Pairs) X(WidePairs) X(Quads) X(CappedQuads)

// The types of the elements of the left operand, of the factors that are multiplied, of the sums of a block
// and of the sums over all blocks; and the number of elements of depth in a step.
template <class T>
struct Arithmetic {
  using Source = T;
  using Factor = T;
  using Partial = T;
  using Sum = T;
  static constexpr std::int64_t kStep = 1;
};
template <class SourceT, class FactorT, class SumT, std::int64_t step>
struct IntegerArithmetic {
  using Source = SourceT;
  using Factor = FactorT;
  using Partial = std::uint32_t;
  using Sum = SumT;
  static constexpr std::int64_t kStep = step;
};
template <>
struct Arithmetic<Pairs> : IntegerArithmetic<std::int8_t, std::int16_t, std::uint32_t, 2> {};
template <>
struct Arithmetic<WidePairs> : IntegerArithmetic<std::int16_t, std::int16_t, std::int64_t, 2> {};
template <>
struct Arithmetic<Quads> : IntegerArithmetic<std::int8_t, std::int8_t, std::uint32_t, 4> {};
template <>
struct Arithmetic<CappedQuads> : Arithmetic<Quads> {};
template <class T>
using Source = typename Arithmetic<T>::Source;
template <class T>
using Factor = typename Arithmetic<T>::Factor;
template <class T>
using Partial = typename Arithmetic<T>::Partial;
template <class T>
using Sum = typename Arithmetic<T>::Sum;
template <class T>
inline constexpr auto kFactorBytes = static_cast<std::int64_t>(sizeof(Factor<T>));

// 2^15 * 2^7 * 496 < 2^31
inline constexpr std::int64_t kMostWideDepth = 496;

// True if the left operand can be multiplied without being gathered.
template <class T>
inline constexpr bool kReadsInPlace = Arithmetic<T>::kStep == 1;
// True if the sums can be rescaled to i8 when a tile is finished.
template <class T>
inline constexpr bool kRescales = std::is_same_v<Sum<T>, std::uint32_t>;
// True if the factors are bytes. Then the zero points are not subtracted from them, but from the sums.
template <class T>
inline constexpr bool kHasQuads = std::is_same_v<T, Quads> || std::is_same_v<T, CappedQuads>;
template <class T>
inline constexpr bool kIsCapped = std::is_same_v<T, CappedQuads>;
// True if a block may prefetch operands of the next block.
template <class T>
inline constexpr bool kFetches = !kIsCapped<T>;
// What gathering adds to the elements of A, if kHasQuads<T>.
#if defined(__aarch64__)
inline constexpr std::int32_t kQuadOffset = 0;
#else
inline constexpr std::int32_t kQuadOffset = 128;
#endif

// The factor of an element of A that represents 0 is the zero point of A plus this number.
template <class T>
inline constexpr std::int32_t kZeroPointOffset = kHasQuads<T> ? kQuadOffset : 0;

// The depth rounded up to whole steps.
template <class T>
[[nodiscard]] constexpr std::int64_t whole_steps(std::int64_t depth) {
  return (depth + Arithmetic<T>::kStep - 1) / Arithmetic<T>::kStep * Arithmetic<T>::kStep;
}

// A part of the depth of A: `depth` elements of row i begin at a + i * a_stride. Element j of the part is
// multiplied by row at + j of the block of B.
//
// The first row of A of the block lacks the first `not_first` elements, and the last row lacks the last
// `not_last` elements. The kernel does not read them. Only for floats.
template <class T>
struct Run {
  const Factor<T>* a = nullptr;
  std::int64_t depth = 0, at = 0, not_first = 0, not_last = 0;
};

// Two elements of a column of B, in rows 2 * i and 2 * i + 1 of a band, are a pair. Capping reduces one of
// them. A term has the amounts: the first two `factors` were subtracted from the two elements, and one of
// them is 0. The other two factors repeat them. The kernel copies the pairs of kRows rows of A next to each
// other, and multiplies a term by the pairs of all these rows at once.
struct ExcessTerm {
  static constexpr std::int64_t kRows = 32;
  static constexpr std::int64_t kPairBytes = 2 * kRows;
  std::uint32_t pair;    // kPairBytes * i
  std::uint32_t column;  // kPairBytes times the column in the panel
  std::int8_t factors[4];
};
// All terms of a packed B, panel by panel. Their sums have 16 bits, so the terms of a panel may need several
// rounds.
struct Excess {
  static constexpr std::int64_t kCols = 16;  // columns of a panel
  // Panel i has the rounds from rounds[i] to rounds[i + 1], and round r the terms from begin[r] to begin[r +
  // 1].
  const std::uint32_t *rounds = nullptr, *begin = nullptr;
  // In round r, the sums of column j begin with starts[kCols * r + j]. Then no sum leaves the range of 16
  // bits.
  const std::int16_t* starts = nullptr;
  const ExcessTerm* terms = nullptr;
};

// The number of pairs stored for one row of A in a block of this depth, in whole vectors of eight pairs.
[[nodiscard]] constexpr std::int64_t excess_pairs(std::int64_t depth) { return (depth + 15) / 16 * 8; }
// The number of rows of A that are stored for a block of `rows` rows.
[[nodiscard]] constexpr std::int64_t excess_rows(std::int64_t rows) {
  return (rows + ExcessTerm::kRows - 1) / ExcessTerm::kRows * ExcessTerm::kRows;
}
// The size of GemmBlock::spare in bytes. The kernel copies the pairs of A there, and sums the excess of a
// panel there.
[[nodiscard]] constexpr std::int64_t spare_bytes(std::int64_t rows, std::int64_t depth) {
  constexpr auto sum_bytes = static_cast<std::int64_t>(sizeof(std::uint32_t));
  return excess_rows(rows) * (2 * excess_pairs(depth) + Excess::kCols * sum_bytes);
}

template <class T>
struct GemmBlock {
  std::int64_t rows = 0, cols = 0, depth = 0;
  const Factor<T>* a = nullptr;
  std::int64_t a_stride = 0;
  // If not null, the rows of A consist of these runs, and `a` is not read. Elsewhere in the block's depth, A
  // is 0 and nothing is multiplied. Only for floats, and for quads if GemmKernels::reads_lines. All runs of
  // quads have the same depth, a multiple of 4, and their depths sum to the block's depth.
  const Run<T>* runs = nullptr;
  std::int64_t num_runs = 0;
  bool runs_are_whole = true;  // Run::not_first and Run::not_last are 0
  // Only for runs of quads: how many adjacent rows are a line. The first rows of adjacent lines are
  // line_stride apart.
  std::int64_t line_rows = 0, line_stride = 0;
  const Factor<T>* b = nullptr;  // the first panel
  // Only for CappedQuads: the amounts that capping subtracted from B; null if there are none.
  Excess excess = {};
  // Only for CappedQuads: memory of spare_bytes(), which multiply() writes.
  std::byte* spare = nullptr;
  bool same_rows = false;  // `a` and `spare` are as in the previous call of multiply()
  // Bytes that the next blocks read: they are moved into the second-level cache while this block is
  // multiplied. Only if kFetches<T>.
  const char* fetched = nullptr;
  std::int64_t fetched_bytes = 0;
  Sum<T>* c = nullptr;
  std::int64_t c_stride = 0;
  bool accumulate = false;  // adds to C; if false, overwrites it
  // Added when not null: one per column. For integers, vectors of the last panel are read as a whole.
  const Sum<T>* column_bias = nullptr;
  const Sum<T>* row_bias = nullptr;  // added when not null: one per row; only for quads
  bool clamp = false;                // clamps C to [low, high] at the end; only for the last block of depth
  Sum<T> low = 0, high = 0;
  // If not null, the finished sums are rescaled. Entry 0 of the tables belongs to column 0 of the block.
  //   `bytes` not null: to i8. The results go to `bytes`; C is only read, if `accumulate` is true.
  //   `bytes` null: to i32. The results go to C.
  const RescaleTables<std::int32_t>* rescale = nullptr;
  std::int8_t* bytes = nullptr;
  std::int64_t bytes_stride = 0;
  // If not null, the sums are rescaled to `words` instead of C, and column_bias is not added. Only for
  // WidePairs.
  const WordTables* rescale_words = nullptr;
  std::int16_t* words = nullptr;
  std::int64_t words_stride = 0;
};

// Image patches as rows of A, channels last. A row is an output position (batch, d, h, w), and the depth is
// (tap d, tap h, tap w, channel). Along each axis, tap t of output index o reads the input coordinate o *
// step + offset[t]. A coordinate outside the image reads the zero point. (What gathering does to elements:
// see above.)
template <class T>
struct Patches {
  const Source<T>* input = nullptr;  // points to the first channel of the group
  Factor<T> zero_point = 0;
  std::int64_t batch_stride = 0;
  std::int64_t stride[3] = {};  // elements between neighbours along d, h, w
  std::int64_t in[3] = {}, out[3] = {}, step[3] = {}, taps[3] = {};
  const std::int64_t* offset[3] = {};
  std::int64_t channels = 0;
  bool row_is_contiguous = false;  // all taps of a row along w are adjacent in memory
};

template <class T>
struct GemmKernels {
  std::int64_t max_rows = 0;  // rows of the largest register tile
  std::int64_t panel = 0, lanes = 0;
  double multiply_add = 0;  // roughly, in nanoseconds; it only decides how a product is cut into parts
  void (*multiply)(const GemmBlock<T>& block) = nullptr;
  // Writes rows [row, row + rows) and depth [from, to) of the patches to dst, with rows dst_stride apart.
  // Each row is followed by zeros up to a whole step.
  void (*gather)(const Patches<T>& patches, std::int64_t row, std::int64_t rows, std::int64_t from,
                 std::int64_t to, Factor<T>* dst, std::int64_t dst_stride) = nullptr;
  // Does the same as `gather` for the rows of a matrix, which are `stride` apart, and subtracts a zero point.
  void (*gather_rows)(const Source<T>* from, std::int64_t stride, Factor<T> zero_point, std::int64_t rows,
                      std::int64_t depth, Factor<T>* dst, std::int64_t dst_stride) = nullptr;
  // Packs B[depth x cols], whose element (k, j) is at b[k * stride + j], into panels.
  void (*pack)(const Factor<T>* b, std::int64_t stride, std::int64_t depth, std::int64_t cols,
               Factor<T>* panels) = nullptr;
  // Packs the transposed matrix: element (k, j) of B is at b[j * stride + k].
  void (*pack_transposed)(const Factor<T>* b, std::int64_t stride, std::int64_t depth, std::int64_t cols,
                          Factor<T>* panels) = nullptr;
  // The sum of each gathered row; null unless kHasQuads.
  void (*row_sums)(const Factor<T>* rows, std::int64_t stride, std::int64_t count, std::int64_t depth,
                   Sum<T>* sums) = nullptr;
  bool reads_lines = false;           // multiply() computes runs of quads
  std::int64_t a_bytes = 256 * 1024;  // most bytes of A in a block: a part of the second-level cache
};

}  // namespace tosaic::kernels
