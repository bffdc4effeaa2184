// excess: caps packed weights, so that sums of two products do not saturate (CappedQuads, isa/gemm.h), and
// stores what capping subtracts.
//
// VPMADDUBSW multiplies two bytes without sign by two bytes with sign, and saturates the sum of the products
// at 16 bits. For any two bytes without sign, the sum is exact if the positive weights of the pair sum to at
// most 128 and the negative ones to at least -128, since 255 * 128 < 2^15. Otherwise the weight of greater
// magnitude is capped. The number that is subtracted, the excess, is multiplied separately. In networks, 1 to
// 10 % of the pairs have an excess.
//
// The weights of each matrix are packed in panels as quads. After all of them is the excess: the rounds of
// each panel, where each round begins, the starts of its sums, and the terms.
#pragma once

#include <cstdint>
#include <span>

#include "tosaic/base/large_pages.h"
#include "tosaic/kernels/gemm/bands.h"

namespace tosaic::kernels {

inline constexpr std::int32_t kMostOfPair = 128;

// The fraction of the pairs that have an excess. The element of depth k and column j is at depths[k] +
// columns[j].
[[nodiscard]] double share_with_excess(const std::int8_t* weights, std::span<const std::int64_t> depths,
                                       std::span<const std::int64_t> columns);

// Caps the elements of packed matrices, and appends the excess.
[[nodiscard]] LargeArray<std::int8_t> with_excess(const GemmKernels<CappedQuads>& kernels,
                                                  const Bands<CappedQuads>& bands, std::int64_t matrices,
                                                  LargeArray<std::int8_t> packed);
// The excess of matrix number `matrix`; null if no matrix has any.
[[nodiscard]] Excess excess_of(const LargeArray<std::int8_t>& packed, const Bands<CappedQuads>& bands,
                               std::int64_t matrices, std::int64_t matrix);

// The same functions for all other forms, which have no excess.
template <class T>
[[nodiscard]] LargeArray<Factor<T>> with_excess(const GemmKernels<T>& /*kernels*/, const Bands<T>& /*bands*/,
                                                std::int64_t /*matrices*/, LargeArray<Factor<T>> packed) {
  return packed;
}
template <class T>
[[nodiscard]] Excess excess_of(const LargeArray<Factor<T>>& /*packed*/, const Bands<T>& /*bands*/,
                               std::int64_t /*matrices*/, std::int64_t /*matrix*/) {
  return {};
}

}  // namespace tosaic::kernels
