#include "tosaic/kernels/excess.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

namespace tosaic::kernels {
namespace {

// How much the positive weights of a pair are above kMostOfPair; below it if negative. Likewise the negative ones.
constexpr std::int32_t above(std::int32_t a, std::int32_t b) {
  return std::max(a, 0) + std::max(b, 0) - kMostOfPair;
}
constexpr std::int32_t below(std::int32_t a, std::int32_t b) { return above(-a, -b); }

// What is taken off the two elements of a pair.
struct Term {
  std::uint16_t pair;
  std::int8_t first, second;
};

// Takes the excess off a pair. It is no more than the greater weight, since two weights are at most 2 * kMostOfPair.
Term cap(std::int8_t* elements, std::uint16_t pair) {
  const std::int32_t a = elements[0], b = elements[1];
  const std::int32_t excess = std::max(above(a, b), 0) - std::max(below(a, b), 0);
  if (excess == 0) return {pair, 0, 0};
  const bool is_first = excess > 0 ? a >= b : a <= b;
  std::int8_t& greater = elements[is_first ? 0 : 1];
  greater = static_cast<std::int8_t>(greater - excess);
  const auto taken = static_cast<std::int8_t>(excess);
  return is_first ? Term{pair, taken, 0} : Term{pair, 0, taken};
}

using ColumnTerms = std::vector<std::vector<Term>>;  // of the columns of a panel

// Caps the `quads` quads of each column of a panel of so many columns.
void cap_panel(std::int8_t* panel, std::int64_t quads, std::int64_t width, ColumnTerms& terms) {
  for (std::vector<Term>& column : terms) column.clear();
  for (std::int64_t q = 0; q < quads; ++q)
    for (std::int64_t j = 0; j < width; ++j, panel += 4)
      for (std::int64_t half = 0; half < 2; ++half) {
        const Term term = cap(panel + 2 * half, static_cast<std::uint16_t>(2 * q + half));
        if (term.first != 0 || term.second != 0) terms[static_cast<std::size_t>(j)].push_back(term);
      }
}

// The excess of all panels, as Excess points to it.
struct Lists {
  std::vector<std::uint32_t> rounds{0}, begin{0};
  std::vector<ExcessStep> steps;

  // Adds the terms of eight columns: each round takes as many of each column as it may.
  void add(std::span<const std::vector<Term>> columns) {
    std::array<std::size_t, Excess::kCols> next{};
    for (bool is_done = false; !is_done;) {
      const std::size_t first = steps.size();
      is_done = true;
      for (std::size_t j = 0; j < columns.size(); ++j) {
        std::int32_t positive = 0, negative = 0;  // the sums of the factors of the round
        for (std::size_t step = first; next[j] < columns[j].size(); ++step, ++next[j]) {
          const Term& term = columns[j][next[j]];
          const std::int32_t factor = term.first + term.second;  // one of them is 0
          (factor > 0 ? positive : negative) += factor;
          if (positive > kMostOfPair || negative < -kMostOfPair) break;
          if (step == steps.size()) steps.emplace_back();
          put(term, steps[step], j);
        }
        is_done = is_done && next[j] == columns[j].size();
      }
      if (steps.size() > first) begin.push_back(static_cast<std::uint32_t>(steps.size()));
    }
    rounds.push_back(static_cast<std::uint32_t>(begin.size() - 1));
  }

 private:
  static void put(const Term& term, ExcessStep& step, std::size_t column) {
    step.at[column] = static_cast<std::uint32_t>(term.pair * ExcessStep::kPairBytes);
    for (const std::size_t i : {0, 2}) {
      step.factors[column][i] = term.first;
      step.factors[column][i + 1] = term.second;
    }
  }
};

// Where the excess begins: behind the panels of all matrices.
std::size_t excess_at(const Bands<CappedQuads>& bands, std::int64_t matrices) {
  return static_cast<std::size_t>(ceil_div(matrices * bands.elements(), 64) * 64);
}
// The entries of a matrix in Excess::rounds.
std::int64_t entries_of(const Bands<CappedQuads>& bands) {
  return ceil_div(bands.depth, bands.band) * bands.padded_cols / Excess::kCols;
}

// Appends an array to memory of bytes.
template <class T>
std::int8_t* append(std::int8_t* to, const std::vector<T>& array) {
  const std::size_t bytes = array.size() * sizeof(T);
  if (bytes > 0) std::memcpy(to, array.data(), bytes);
  return to + bytes;
}

}  // namespace

double share_with_excess(const std::int8_t* weights, std::int64_t count) {
  std::int64_t found = 0;
  for (std::int64_t i = 0; i + 1 < count; i += 2) {
    const std::int32_t a = weights[i], b = weights[i + 1];
    found += std::max(above(a, b), below(a, b)) > 0 ? 1 : 0;
  }
  return count < 2 ? 0 : static_cast<double>(found) / static_cast<double>(count / 2);
}

LargeArray<std::int8_t> with_excess(const GemmKernels<CappedQuads>& kernels, const Bands<CappedQuads>& bands,
                                    std::int64_t matrices, LargeArray<std::int8_t> packed) {
  Lists lists;
  ColumnTerms terms(static_cast<std::size_t>(kernels.panel));
  for (std::int64_t m = 0; m < matrices; ++m)
    for (std::int64_t from = 0; from < bands.depth; from += bands.band)
      for (std::int64_t col = 0; col < bands.padded_cols; col += kernels.panel) {
        const std::int64_t width = bands.cols - col <= kernels.lanes ? kernels.lanes : kernels.panel;
        cap_panel(packed.data() + m * bands.elements() + bands.offset(from, col),
                  whole_steps<CappedQuads>(bands.depth_at(from)) / Arithmetic<CappedQuads>::kStep, width,
                  terms);
        for (std::size_t j = 0; j < terms.size(); j += Excess::kCols)
          lists.add(std::span(terms).subspan(j, Excess::kCols));
      }
  const std::size_t at = excess_at(bands, matrices);
  LargeArray<std::int8_t> all(at + (lists.rounds.size() + lists.begin.size()) * sizeof(std::uint32_t) +
                              lists.steps.size() * sizeof(ExcessStep));
  std::copy_n(packed.data(), matrices * bands.elements(), all.data());
  append(append(append(all.data() + at, lists.rounds), lists.begin), lists.steps);
  return all;
}

Excess excess_of(const LargeArray<std::int8_t>& packed, const Bands<CappedQuads>& bands,
                 std::int64_t matrices, std::int64_t matrix) {
  const auto* rounds = reinterpret_cast<const std::uint32_t*>(packed.data() + excess_at(bands, matrices));
  const std::int64_t entries = matrices * entries_of(bands);
  const std::uint32_t* begin = rounds + entries + 1;
  if (rounds[entries] == 0) return {};
  return {rounds + matrix * entries_of(bands), begin,
          reinterpret_cast<const ExcessStep*>(begin + rounds[entries] + 1)};
}

}  // namespace tosaic::kernels
