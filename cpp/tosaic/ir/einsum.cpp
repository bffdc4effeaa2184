#include "tosaic/ir/einsum.h"

#include <algorithm>

#include "tosaic/base/error.h"
#include "tosaic/base/error_text.h"

namespace tosaic {
namespace {

constexpr int kEllipsis = 256;  // the label of ellipsis axis i, counted from the last one, is kEllipsis + i

[[noreturn]] void fail(const std::string& equation, const std::string& what) {
  throw InvalidGraph({.where = "einsum", .what = what, .got = quoted(equation)});
}

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// A comma-separated term of the equation: its letters, and the number of letters in front of the ellipsis
// (npos if there is no ellipsis).
struct Term {
  std::vector<int> letters;
  std::size_t ellipsis = std::string::npos;
};

Term read_term(const std::string& equation, const std::string& text) {
  Term term;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (is_letter(text[i])) {
      term.letters.push_back(text[i]);
    } else if (text.compare(i, 3, "...") == 0 && term.ellipsis == std::string::npos) {
      term.ellipsis = term.letters.size();
      i += 2;
    } else {
      fail(equation, "a term of the equation is neither letters nor one ellipsis");
    }
  }
  return term;
}

std::vector<int> labels_of(const Term& term, std::size_t covered) {
  std::vector<int> labels = term.letters;
  if (term.ellipsis == std::string::npos) return labels;
  std::vector<int> axes;
  for (std::size_t i = covered; i-- > 0;) axes.push_back(kEllipsis + static_cast<int>(i));
  labels.insert(labels.begin() + static_cast<std::ptrdiff_t>(term.ellipsis), axes.begin(), axes.end());
  return labels;
}

void note_extent(const std::string& equation, Einsum& einsum, int label, std::int64_t extent) {
  const auto [it, fresh] = einsum.extents.emplace(label, extent);
  if (fresh || it->second == extent || extent == 1) return;
  if (it->second != 1) fail(equation, "extents of one label differ");
  it->second = extent;
}

}  // namespace

Shape Einsum::result_shape() const {
  Shape shape;
  for (const int label : result) shape.push_back(extents.at(label));
  return shape;
}

Einsum parse_einsum(const std::string& equation, std::span<const Shape> shapes) {
  const std::size_t arrow = equation.find("->");
  if (arrow == std::string::npos) fail(equation, "the equation has no '->'");
  Einsum einsum;
  std::size_t covered = 0;  // axes of the longest ellipsis
  std::size_t start = 0;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const std::size_t comma = std::min(equation.find(',', start), arrow);
    if (start > arrow || (comma == arrow) != (i + 1 == shapes.size()))
      fail(equation, "the equation has another number of terms than there are operands");
    const Term term = read_term(equation, equation.substr(start, comma - start));
    start = comma + 1;
    const std::size_t rank = shapes[i].size();
    const bool whole = term.ellipsis == std::string::npos;
    if (whole ? term.letters.size() != rank : term.letters.size() > rank)
      fail(equation,
           "term " + std::to_string(i) + " does not fit an operand of rank " + std::to_string(rank));
    covered = std::max(covered, rank - term.letters.size());
    einsum.operands.push_back(labels_of(term, rank - term.letters.size()));
    for (std::size_t axis = 0; axis < rank; ++axis)
      note_extent(equation, einsum, einsum.operands.back()[axis], shapes[i][axis]);
  }
  einsum.result = labels_of(read_term(equation, equation.substr(arrow + 2)), covered);
  for (const int label : einsum.result)
    if (!einsum.extents.contains(label) || std::count(einsum.result.begin(), einsum.result.end(), label) != 1)
      fail(equation, "a label of the result stands nowhere else, or twice");
  return einsum;
}

}  // namespace tosaic
