// certificate: why no assignment of states costs less, as data that can be checked without any search.
//
// The cost is a sum of terms, one for each tensor and order that is read: weight if some reader's state is in
// a set, and the producer's state is in another one. A proof replaces parts of that sum by parts that are
// nowhere greater, until every part depends on one variable at most; the bound is then the sum of the minima.
// Parts over one variable are added up per variable, parts over none in a constant; a part over more is a
// factor. Factors are numbered: `terms` first, then each as a step makes it. The rules:
//
//   open      a term with producer set Q and reader sets R1..Rk, weight w, is the least over a new variable
//             z in {0, 1} of  w[p in Q][z = 1] + w[x1 in R1][z = 0] + .. + w[xk in Rk][z = 0].
//             Makes these factors in that order; the first is a cost of z alone where no producer matters.
//   minimise  a sum of factors, and what x costs alone, is at least its minimum over x, a factor over the
//             variables left. Any factors will do for a bound; if they are all that x is in, nothing is lost.
//   split     a factor is at least a sum of costs of its variables alone. Of a table, these are given and
//             compared everywhere. Of a term, flows f1..fk >= 0 of sum F <= w are given:
//                 w [p in Q] [some xi in Ri]  >=  f1 [x1 in R1] + .. + fk [xk in Rk] - F [p not in Q]
//             which is a flow through the one transpose that the readers share.
#pragma once

#include "tosaic/layout/problem.h"

namespace tosaic::layout {

struct Certificate {
  // The transpose of a tensor to an order, where that depends on two variables or more. A variable that reads
  // several times counts once, with the union of its sets; a producer that reads what it does not make pays
  // alone in those states, which are then in no set. What is paid in all states of a variable is constant.
  struct Term {
    std::uint32_t tensor = 0;
    std::uint8_t order = 0;
    bool operator==(const Term&) const = default;
  };
  enum class Rule : std::uint8_t { kOpen, kMinimise, kSplit };
  struct Step {
    Rule rule = Rule::kMinimise;
    std::uint32_t subject = 0;  // open, split: the factor; minimise: the variable
    std::uint32_t inputs = 0;   // minimise: how many factors
    bool operator==(const Step&) const = default;
  };

  std::vector<Term> terms;
  std::vector<Step> steps;
  std::vector<std::uint32_t> inputs;  // of the minimise steps, one after the other
  std::vector<Cost> values;  // of the split steps: a flow per reader, or a cost per variable and state; both
                             // in ascending order of variables
  Cost bound = 0;            // what is claimed
  bool operator==(const Certificate&) const = default;
};

// A bound that holds for every assignment, computed from the problem and the steps: at least
// `certificate.bound`. Throws InternalError if the steps are not well-formed, a step does not hold, a table
// is larger than anyone would want to check (2^26 entries), or the steps prove less than the claim.
[[nodiscard]] Cost proven_bound(const Problem& problem, const Certificate& certificate);

}  // namespace tosaic::layout
