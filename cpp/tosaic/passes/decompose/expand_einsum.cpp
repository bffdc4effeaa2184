// expand_einsum: combines the operands of an einsum one after the other, by slices, sums, products and
// matmuls.
//
//   a letter twice in a term       becomes the diagonal: both axes become one, sliced with step n + 1
//   a letter of one term only      is summed over its axis, if the result lacks the letter as well
//   two terms                      become one by a matmul (or a product). A letter of both terms is a batch
//                                  axis if it is still needed, and is contracted if it is not.
//   the result                     is a permute of the last term
//
// If a letter has extent 1 in one operand and a larger extent in another one, its axis of extent 1 is
// dropped, and the term broadcasts along the letter.

#include <algorithm>
#include <set>

#include "tosaic/ir/einsum.h"
#include "tosaic/passes/decompose/expansions.h"

namespace tosaic::passes {
namespace {

using Labels = std::vector<int>;

bool contains(const Labels& labels, int label) {
  return std::find(labels.begin(), labels.end(), label) != labels.end();
}

struct Term {
  ValueId value;
  Labels labels;  // one for each axis
};

class Contraction {
 public:
  Contraction(Emitter& e, const Einsum& einsum) : e_(e), einsum_(einsum) {}

  ValueId run() {
    std::vector<Term> terms;
    for (std::size_t i = 0; i < einsum_.operands.size(); ++i)
      terms.push_back(distinct(stretched_dropped({e_.operand(i), einsum_.operands[i]})));
    Term all = terms.front();
    for (std::size_t i = 1; i <= terms.size(); ++i) {
      std::set<int> needed(einsum_.result.begin(), einsum_.result.end());
      for (std::size_t k = i; k < terms.size(); ++k)
        needed.insert(terms[k].labels.begin(), terms[k].labels.end());
      all = summed(all, needed);
      if (i == terms.size()) break;
      std::set<int> later(einsum_.result.begin(), einsum_.result.end());
      for (std::size_t k = i + 1; k < terms.size(); ++k)
        later.insert(terms[k].labels.begin(), terms[k].labels.end());
      std::set<int> of_next = later;
      of_next.insert(all.labels.begin(), all.labels.end());
      all = product(all, summed(terms[i], of_next), later);
    }
    return arranged(all, einsum_.result).value;
  }

 private:
  [[nodiscard]] std::int64_t extent(int label) const { return einsum_.extents.at(label); }

  [[nodiscard]] std::int64_t extent(const Labels& labels) const {
    std::int64_t count = 1;
    for (const int label : labels) count *= extent(label);
    return count;
  }

  [[nodiscard]] Shape shape_of(const Labels& labels) const {
    Shape shape;
    for (const int label : labels) shape.push_back(extent(label));
    return shape;
  }

  // The term without its axes of extent 1 on which another operand has a larger extent.
  Term stretched_dropped(const Term& term) {
    Term out;
    const Shape from = e_.type(term.value).shape;
    Shape shape;
    for (std::size_t i = 0; i < from.size(); ++i) {
      if (from[i] != extent(term.labels[i])) continue;
      out.labels.push_back(term.labels[i]);
      shape.push_back(from[i]);
    }
    out.value = e_.reshape(term.value, shape);
    return out;
  }

  // The term with every letter once: a repeated letter becomes its diagonal.
  Term distinct(Term term) {
    for (std::size_t b = 0; b < term.labels.size(); ++b) {
      const auto at = std::find(term.labels.begin(), term.labels.begin() + static_cast<std::ptrdiff_t>(b),
                                term.labels[b]);
      const auto a = static_cast<std::size_t>(at - term.labels.begin());
      if (a == b) continue;
      term = diagonal(term, a, b);
      b = 0;
    }
    return term;
  }

  Term diagonal(const Term& term, std::size_t a, std::size_t b) {
    Dims perm;
    Labels labels;
    for (std::size_t i = 0; i < term.labels.size(); ++i) {
      if (i == a || i == b) continue;
      perm.push_back(static_cast<std::int64_t>(i));
      labels.push_back(term.labels[i]);
    }
    perm.push_back(static_cast<std::int64_t>(a));
    perm.push_back(static_cast<std::int64_t>(b));
    const std::int64_t n = extent(term.labels[a]);
    Shape flat = shape_of(labels);
    flat.push_back(n * n);
    const ValueId x = e_.reshape(e_.permute(term.value, perm), flat);
    const auto axis = static_cast<std::int64_t>(labels.size());
    const std::int64_t end = n == 0 ? 0 : n * n;
    labels.push_back(term.labels[a]);
    return {e_.emit(Op::kSlice, SliceAttrs{axis, 0, end, n + 1}, {x}), labels};
  }

  Term summed(const Term& term, const std::set<int>& needed) {
    Dims axes;
    Labels kept;
    for (std::size_t i = 0; i < term.labels.size(); ++i) {
      if (needed.contains(term.labels[i]))
        kept.push_back(term.labels[i]);
      else
        axes.push_back(static_cast<std::int64_t>(i));
    }
    if (axes.empty()) return term;
    const ValueId sum = e_.reduce(Op::kSum, term.value, axes, false);
    return {e_.cast(sum, e_.type(term.value).dtype), kept};
  }

  Term arranged(const Term& term, const Labels& order) {
    Dims perm;
    for (const int label : order)
      perm.push_back(std::find(term.labels.begin(), term.labels.end(), label) - term.labels.begin());
    return {e_.permute(term.value, perm), order};
  }

  Term product(const Term& a, const Term& b, const std::set<int>& needed) {
    Labels batch, contracted, rows, columns;
    for (const int label : a.labels)
      (contains(b.labels, label) ? needed.contains(label) ? batch : contracted : rows).push_back(label);
    for (const int label : b.labels)
      if (!contains(a.labels, label)) columns.push_back(label);
    Labels labels = batch;
    labels.insert(labels.end(), rows.begin(), rows.end());
    labels.insert(labels.end(), columns.begin(), columns.end());
    if (contracted.empty()) return {outer_product(a, b, batch, rows, columns), labels};
    const ValueId x = matrix(a, {batch, rows, contracted}), y = matrix(b, {batch, contracted, columns});
    return {e_.reshape(e_.binary(Op::kMatmul, x, y), shape_of(labels)), labels};
  }

  // Merges each group of axes into one axis. The new axes are in the order of the groups. If the first group,
  // the batch, is empty, it has no axis.
  ValueId matrix(const Term& term, const std::vector<Labels>& groups) {
    Labels order;
    Shape shape;
    for (const Labels& group : groups) {
      order.insert(order.end(), group.begin(), group.end());
      if (&group != groups.data() || !group.empty()) shape.push_back(extent(group));
    }
    return e_.reshape(arranged(term, order).value, shape);
  }

  // The product of two terms without a contracted letter: (batch, rows, 1) * (batch, 1, columns).
  ValueId outer_product(const Term& a, const Term& b, const Labels& batch, const Labels& rows,
                        const Labels& columns) {
    Labels left = batch, right = batch;
    left.insert(left.end(), rows.begin(), rows.end());
    right.insert(right.end(), columns.begin(), columns.end());
    Shape wide = shape_of(left), tall = shape_of(batch);
    for (std::size_t i = 0; i < columns.size(); ++i) wide.push_back(1);
    for (std::size_t i = 0; i < rows.size(); ++i) tall.push_back(1);
    for (const int label : columns) tall.push_back(extent(label));
    return e_.mul(e_.reshape(arranged(a, left).value, wide), e_.reshape(arranged(b, right).value, tall));
  }

  Emitter& e_;
  const Einsum& einsum_;
};

}  // namespace

ValueId expand_einsum(Emitter& e) {
  std::vector<Shape> shapes;
  for (const ValueId operand : e.operands()) shapes.push_back(e.type(operand).shape);
  const Einsum einsum = parse_einsum(e.attrs<EinsumAttrs>().equation, shapes);
  return Contraction(e, einsum).run();
}

// A matrix product of (.., r, k) and (.., k, c) without MATMUL: (.., r, k, 1) * (.., 1, k, c), summed over k.
ValueId expand_integer_matmul(Emitter& e) {
  Shape a = e.type(e.operand(0)).shape, b = e.type(e.operand(1)).shape;
  if (a.size() == 1) a.insert(0, 1);
  if (b.size() == 1) b.push_back(1);
  a.push_back(1);
  b.insert(b.size() - 2, 1);
  const ValueId products = e.mul(e.reshape(e.operand(0), a), e.reshape(e.operand(1), b));
  const auto axis = static_cast<std::int64_t>(e.type(products).rank()) - 2;
  const ValueId sum = e.reduce(Op::kSum, products, {axis}, false);
  return e.reshape(e.cast(sum, e.result_type().dtype), e.result_type().shape);
}

}  // namespace tosaic::passes
