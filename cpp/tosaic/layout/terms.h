// terms: the cost of a Problem in a form that the solver works on. For each tensor and each order that is
// read, one transpose:
//
//   weight * [ producer's state is in `missing` ] * [ some reader's state is in its set ]
//
// What of it depends on one variable, or on none, is moved to `unary` and `constant`. The terms that remain
// depend on two variables or more, which are distinct.
#pragma once

#include "tosaic/layout/certificate.h"

namespace tosaic::layout {

inline constexpr VariableId kNoVariable = 0xffffffffu;

struct Reader {
  VariableId variable = 0;
  StateMask states = 0;  // neither none nor all
};

struct Term {
  Cost weight = 0;
  VariableId producer = kNoVariable;  // none if it never makes the order
  StateMask missing = 0;              // states in which the producer does not make it
  std::uint32_t first = 0, last = 0;  // readers [first, last), ascending
  [[nodiscard]] std::uint32_t arity() const { return last - first + (producer == kNoVariable ? 0 : 1); }
};

struct Terms {
  std::vector<Term> terms;
  std::vector<Certificate::Term> names;  // by term
  std::vector<Reader> readers;
  std::vector<std::size_t> unary_begin;  // by variable
  std::vector<Cost> unary;               // by variable and state
  Cost constant = 0;
};

[[nodiscard]] Terms terms_of(const Problem& problem);

}  // namespace tosaic::layout
