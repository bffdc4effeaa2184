// terms: the cost of a Problem in the form on which the solver works.
//
// There is one transpose for each tensor and each order in which the tensor may be read, with the cost
//
//   weight * [ producer's state is in `missing` ] * [ some reader's state is in its set ]
//
// Parts that depend on one variable, or on none, are moved to `unary` and `constant`. The remaining terms
// depend on two or more distinct variables.
#pragma once

#include "tosaic/layout/solver/solver.h"

namespace tosaic::layout {

inline constexpr VariableId kNoVariable = 0xffffffffu;

struct Reader {
  VariableId variable = 0;
  StateMask states = 0;  // states in which the variable reads the order: at least one, but not all
};

struct Term {
  Cost weight = 0;
  VariableId producer = kNoVariable;  // kNoVariable if the tensor's producer never makes the order
  StateMask missing = 0;              // states in which the producer does not make the order
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
