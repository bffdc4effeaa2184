// certificate: a proof, which can be checked without any search, that no assignment of states costs less
// than a bound.
//
// The cost is a sum of terms, one for each tensor and order that is read. A term is the tensor's weight if
// the state of some reader is in a set and the state of the producer is in another set, and 0 otherwise. A
// proof replaces parts of that sum by parts that are nowhere greater, until every part depends on at most
// one variable. The bound is then the sum of the minima of the parts.
//
// Parts over one variable are added up per variable (the unary costs), parts over no variable in a constant.
// A part over two or more variables is a factor. Factors are numbered: first `terms`, then the factors that
// the steps make, in the order of the steps. The rules:
//
//   open      A term with producer set Q, reader sets R1..Rk and weight w is the minimum, over a new variable
//             z in {0, 1}, of  w[p in Q][z = 1] + w[x1 in R1][z = 0] + .. + w[xk in Rk][z = 0].
//             z = 1 means "somebody reads". The step makes these factors in this order. If Q has all states,
//             the first one is a unary cost of z and has no number.
//   minimise  A sum of factors, plus the unary costs of x, is at least its minimum over x, which is a factor
//             over the other variables. The rule holds for any set of factors. The minimum over all
//             assignments stays the same if these are all factors of x.
//   split     A factor is replaced by a sum of unary costs that is nowhere greater. For a table, the
//             certificate lists these costs, and every entry is compared. For a term, it lists flows
//             f1..fk >= 0 with sum F <= w:
//                 w [p in Q] [some xi in Ri]  >=  f1 [x1 in R1] + .. + fk [xk in Rk] - F [p not in Q]
//             This is a flow through the one transpose that the readers share.
#pragma once

#include "tosaic/layout/problem.h"

namespace tosaic::layout {

struct Certificate {
  // The transpose of a tensor to an order, if its cost depends on two variables or more. A variable that
  // reads the tensor several times counts as one reader, with the union of its sets. A producer that also
  // reads the tensor pays alone in the states in which it reads the order without making it: these states
  // are then removed from its set. A cost over one variable that is paid in all of its states is part of the
  // constant.
  struct Term {
    std::uint32_t tensor = 0;
    std::uint8_t order = 0;
    bool operator==(const Term&) const = default;
  };
  enum class Rule : std::uint8_t { kOpen, kMinimise, kSplit };
  struct Step {
    Rule rule = Rule::kMinimise;
    std::uint32_t subject = 0;  // open, split: a factor; minimise: a variable
    std::uint32_t inputs = 0;   // minimise: the number of factors
    bool operator==(const Step&) const = default;
  };

  std::vector<Term> terms;
  std::vector<Step> steps;
  std::vector<std::uint32_t> inputs;  // factors of the minimise steps, in the order of the steps
  std::vector<Cost> values;  // of the split steps: a flow per reader, or a cost per variable and state; both
                             // in ascending order of variables
  Cost bound = 0;            // the lower bound that the certificate claims
  bool operator==(const Certificate&) const = default;
};

// Computes a lower bound of the cost of every assignment from the problem and the steps. It is at least
// `certificate.bound`. Throws InternalError if the steps are malformed, a step does not hold, a table is too
// large to be checked (2^26 entries), or the steps prove less than the claim.
[[nodiscard]] Cost proven_bound(const Problem& problem, const Certificate& certificate);

}  // namespace tosaic::layout
