// solver: chooses a state for each variable so that the cost is least, and proves it. It knows no graphs.
//
// A problem has variables and tensors. Each variable is in one of a few states. In a layout plan, a variable
// is a node or a graph input or output, and its states are its layout options. The state of a tensor's
// producer determines the order in which the tensor is made. The state of each reader determines the order in
// which that reader reads the tensor. The tensor is transposed once for each order that is read and in which
// it is not made, however many readers want that order:
//
//   cost(states) = sum over tensors of weight * (number of distinct orders that are read and not made)
//
// Orders are numbered per tensor, from 0. Orders that are the same in memory have one number. A variable may
// appear in one tensor several times, as producer and as reader.
//
// `solve` works in these steps:
//
//   1. Costs that depend on one variable or on none are set aside. The other costs form connected components
//      (terms.h).
//   2. Variables with at most two neighbours are minimised out (eliminate.h). This solves chains, and
//      branches that meet again, for any number of states.
//   3. Components whose variables have two states are solved by a minimum cut, if they are cuts (cut.h).
//   4. In all other components, each large term is opened by a variable "somebody reads" (see Certificate),
//      and variables are minimised out as long as no table has more than `widest` entries.
//   5. If all tables would be larger, a variable is minimised in several tables. Then the bound may be below
//      the optimum. The tables suggest the states, which a search improves (improve.h).
//
// Steps 1 to 4 are exact: cost == certificate.bound.
//
// The other headers of this folder are for its own files.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "tosaic/base/small_vector.h"

namespace tosaic::layout {

// ---- the problem ----

using VariableId = std::uint32_t;
using Cost = std::int64_t;
using StateMask = std::uint32_t;  // a set of states of one variable

inline constexpr std::uint32_t kMostStates = 32;

// One order of a tensor for each state of a variable.
class StateOrders {
 public:
  StateOrders() = default;
  StateOrders(std::initializer_list<std::uint8_t> orders) {
    for (const std::uint8_t order : orders) push_back(order);
  }
  // Throws InternalError beyond kMostStates.
  void push_back(std::uint8_t order);
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::uint8_t operator[](std::size_t state) const { return orders_[state]; }
  [[nodiscard]] const std::uint8_t* begin() const { return orders_.data(); }
  [[nodiscard]] const std::uint8_t* end() const { return orders_.data() + size_; }

 private:
  std::uint8_t size_ = 0;
  std::array<std::uint8_t, kMostStates> orders_{};
};

// How one variable makes or reads a tensor: in which order, for each of the variable's states.
struct Access {
  VariableId variable = 0;
  StateOrders order;
};

struct Tensor {
  Access made;
  SmallVector<Access, 2> read;
  Cost weight = 0;  // the cost of one transpose, not negative
};

struct Problem {
  std::vector<std::uint32_t> states;  // by variable: the number of its states, 1..kMostStates
  std::vector<Tensor> tensors;
};

// An upper bound of how often the weight of a tensor may count in the solver's sums: each state of each
// reader may want an order of its own, and each may be counted alone.
[[nodiscard]] double uses_of(const Tensor& tensor);

// The cost of an assignment of states. Throws InternalError for an assignment that does not fit the problem.
[[nodiscard]] Cost cost_of(const Problem& problem, const std::vector<std::uint32_t>& state);

// Throws InternalError for a malformed problem: a number of states out of range, an access by an unknown
// variable, an access without an order for each state, a negative weight, or weights so large that their
// sum, each counted uses_of times, could overflow.
void verify(const Problem& problem);

// ---- the certificate ----

// A proof, which can be checked without any search, that no assignment of states costs less than a bound.
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

// ---- the solution ----

struct Solution {
  std::vector<std::uint32_t> state;  // the chosen state of each variable
  Cost cost = 0;
  Certificate certificate;
  // No assignment costs less by more than this. If it is 0, the cost is proven to be minimal.
  [[nodiscard]] Cost gap() const { return cost - certificate.bound; }
};

struct SolveOptions {
  std::size_t widest = std::size_t{1} << 14;  // largest table, in entries; at least that of two variables
  std::uint32_t rounds = 16;                  // rounds of the search, if there is a search
};

// The same problem has the same solution. Between states of equal cost, lower numbers are preferred if the
// choice is between two states of one variable, or between two minimum cuts. In other cases there is no such
// rule. Throws InternalError for a malformed problem.
[[nodiscard]] Solution solve(const Problem& problem, const SolveOptions& options = {});

}  // namespace tosaic::layout
