#include "tosaic/kernels/gemm/excess.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace tosaic::kernels {
namespace {

// above(): the sum of the positive elements of a pair, minus kMostOfPair. below(): the sum of the magnitudes
// of the negative elements, minus kMostOfPair.
constexpr std::int32_t above(std::int32_t a, std::int32_t b) {
  return std::max(a, 0) + std::max(b, 0) - kMostOfPair;
}
constexpr std::int32_t below(std::int32_t a, std::int32_t b) { return above(-a, -b); }

// Subtracts the excess of a pair from the element of greater magnitude. This element is at least the excess,
// since the magnitude of the other element is at most kMostOfPair.
void cap(std::int8_t* pair) {
  const std::int32_t a{pair[0]}, b{pair[1]};
  const std::int32_t excess = std::max(above(a, b), 0) - std::max(below(a, b), 0);
  std::int8_t& greater = pair[(excess > 0 ? a >= b : a <= b) ? 0 : 1];
  greater = static_cast<std::int8_t>(greater - excess);
}

using ColumnTerms = std::vector<std::vector<ExcessTerm>>;  // by column of a panel

// Caps the `quads` quads of each column of a panel of `width` columns.
void cap_panel(std::int8_t* panel, std::int64_t quads, std::int64_t width, ColumnTerms& terms) {
  for (std::vector<ExcessTerm>& column : terms) column.clear();
  for (std::int64_t q = 0; q < quads; ++q)
    for (std::int64_t j = 0; j < width; ++j)
      for (std::int64_t half = 0; half < 2; ++half, panel += 2) {
        const std::int32_t a{panel[0]}, b{panel[1]};
        cap(panel);
        const auto first = static_cast<std::int8_t>(a - panel[0]),
                   second = static_cast<std::int8_t>(b - panel[1]);
        if (first != 0 || second != 0)
          terms[static_cast<std::size_t>(j)].push_back(
              {static_cast<std::uint32_t>((2 * q + half) * ExcessTerm::kPairBytes),
               static_cast<std::uint32_t>(j * ExcessTerm::kPairBytes),
               {first, second, first, second}});
      }
}

// The excess of all panels: the arrays to which an Excess points.
struct Lists {
  std::vector<std::uint32_t> rounds{0}, begin{0};
  std::vector<std::int16_t> starts;
  std::vector<ExcessTerm> terms;

  // Adds the terms of a panel: each round takes as many terms of each column as kMostOfRound allows. It takes
  // terms from the columns in turn, so that a sum is not read just after it was written.
  void add(const ColumnTerms& columns) {
    std::vector<std::size_t> next(columns.size());
    while (add_round(columns, next)) {
    }
    rounds.push_back(static_cast<std::uint32_t>(begin.size() - 1));
  }

 private:
  // For a column and a round: the sum of the positive factors, and the sum of the magnitudes of the negative
  // ones.
  struct Factors {
    std::int32_t positive = 0, negative = 0;
    // The number to which the products of a round are added. Elements of A are 0 to 255, so the products sum
    // to -255 * negative to 255 * positive. This number moves the middle of that range to 0: then all sums
    // fit i16.
    [[nodiscard]] std::int16_t start() const {
      return static_cast<std::int16_t>((negative - positive) * 255 / 2);
    }
  };
  static constexpr std::int32_t kMostOfRound = 256;  // 255 * 256 < 2^16

  bool add_round(const ColumnTerms& columns, std::vector<std::size_t>& next) {
    const std::size_t first = terms.size();
    std::vector<Factors> factors(columns.size());
    for (bool is_full = false; !is_full;) {
      is_full = true;
      for (std::size_t j = 0; j < columns.size(); ++j)
        if (next[j] < columns[j].size() && take(columns[j][next[j]], factors[j])) {
          ++next[j];
          is_full = false;
        }
    }
    if (terms.size() == first) return false;
    begin.push_back(static_cast<std::uint32_t>(terms.size()));
    for (const Factors& of_column : factors) starts.push_back(of_column.start());
    return true;
  }

  bool take(const ExcessTerm& term, Factors& factors) {
    const std::int32_t factor = term.factors[0] + term.factors[1];
    if (factors.positive + factors.negative + std::abs(factor) > kMostOfRound) return false;
    (factor > 0 ? factors.positive : factors.negative) += std::abs(factor);
    terms.push_back(term);
    return true;
  }
};

// Where the excess begins: after the panels of all matrices.
std::size_t excess_at(const Bands<CappedQuads>& bands, std::int64_t matrices) {
  return static_cast<std::size_t>(ceil_div(matrices * bands.elements(), 64) * 64);
}
// The number of entries that a matrix has in Excess::rounds.
std::int64_t entries_of(const Bands<CappedQuads>& bands) {
  return ceil_div(bands.depth, bands.band) * bands.padded_cols / bands.panel;
}

template <class T>
std::size_t bytes_of(const std::vector<T>& array) {
  return array.size() * sizeof(T);
}
// Copies an array to `to`. Returns the end of the copy.
template <class T>
std::int8_t* append(std::int8_t* to, const std::vector<T>& array) {
  if (!array.empty()) std::memcpy(to, array.data(), bytes_of(array));
  return to + bytes_of(array);
}

}  // namespace

double share_with_excess(const std::int8_t* weights, std::span<const std::int64_t> depths,
                         std::span<const std::int64_t> columns) {
  const std::size_t pairs = depths.size() / 2;
  if (pairs == 0 || columns.empty()) return 0;
  std::int64_t found = 0;
  const auto count = [&](std::int64_t first, std::int64_t second) {
    const std::int32_t a{weights[first]}, b{weights[second]};
    found += std::max(above(a, b), below(a, b)) > 0 ? 1 : 0;
  };
  // The outer loop runs along the axis that is not adjacent in memory.
  if (columns.size() > 1 && columns[1] - columns[0] == 1) {
    for (std::size_t k = 0; k < 2 * pairs; k += 2)
      for (const std::int64_t column : columns) count(depths[k] + column, depths[k + 1] + column);
  } else {
    for (const std::int64_t column : columns)
      for (std::size_t k = 0; k < 2 * pairs; k += 2) count(depths[k] + column, depths[k + 1] + column);
  }
  return static_cast<double>(found) / (static_cast<double>(pairs) * static_cast<double>(columns.size()));
}

LargeArray<std::int8_t> with_excess(const GemmKernels<CappedQuads>& kernels, const Bands<CappedQuads>& bands,
                                    std::int64_t matrices, LargeArray<std::int8_t> packed) {
  Lists lists;
  ColumnTerms terms(static_cast<std::size_t>(bands.panel));
  for (std::int64_t m = 0; m < matrices; ++m)
    for (std::int64_t from = 0; from < bands.depth; from += bands.band)
      for (std::int64_t col = 0; col < bands.padded_cols; col += bands.panel) {
        const std::int64_t width = bands.cols - col <= kernels.lanes ? kernels.lanes : bands.panel;
        cap_panel(packed.data() + m * bands.elements() + bands.offset(from, col),
                  whole_steps<CappedQuads>(bands.depth_at(from)) / Arithmetic<CappedQuads>::kStep, width,
                  terms);
        lists.add(terms);
      }
  const std::size_t at = excess_at(bands, matrices);
  LargeArray<std::int8_t> all(at + bytes_of(lists.rounds) + bytes_of(lists.begin) + bytes_of(lists.starts) +
                              bytes_of(lists.terms));
  std::copy_n(packed.data(), matrices * bands.elements(), all.data());
  std::int8_t* to = append(append(all.data() + at, lists.rounds), lists.begin);
  append(append(to, lists.starts), lists.terms);
  return all;
}

Excess excess_of(const LargeArray<std::int8_t>& packed, const Bands<CappedQuads>& bands,
                 std::int64_t matrices, std::int64_t matrix) {
  const auto* rounds = reinterpret_cast<const std::uint32_t*>(packed.data() + excess_at(bands, matrices));
  const std::int64_t entries = matrices * entries_of(bands);
  const std::uint32_t* begin = rounds + entries + 1;
  const std::uint32_t count = rounds[entries];
  if (count == 0) return {};
  const auto* starts = reinterpret_cast<const std::int16_t*>(begin + count + 1);
  return {rounds + matrix * entries_of(bands), begin, starts,
          reinterpret_cast<const ExcessTerm*>(starts + count * Excess::kCols)};
}

}  // namespace tosaic::kernels
