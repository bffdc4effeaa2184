// Problem: the choice of orders as numbers. A variable is what a node, or a border, decides: which of its
// states it computes in. A tensor is made in an order that its producer's state tells, and read by each of
// its users in one that the user's state tells. For each order that is read and is not the one it was made
// in, the tensor is transposed once, whoever reads it:
//
//   cost(states) = sum over tensors of weight * |{ order read by a user } \ { order made }|
//
// Orders are numbered per tensor, from 0; orders that lie in memory alike have one number. A variable may
// appear in one tensor several times, as producer and as reader.
#pragma once

#include <cstdint>
#include <vector>

namespace tosaic::layout {

using VariableId = std::uint32_t;
using Cost = std::int64_t;
using StateMask = std::uint32_t;  // a set of states of one variable

inline constexpr std::uint32_t kMostStates = 32;

// Of a tensor by one variable: the order for each of its states.
struct Access {
  VariableId variable = 0;
  std::vector<std::uint8_t> order;
};

struct Tensor {
  Access made;
  std::vector<Access> read;
  Cost weight = 0;  // of one transpose, not negative
};

struct Problem {
  std::vector<std::uint32_t> states;  // by variable: how many it has, at least one, at most kMostStates
  std::vector<Tensor> tensors;
};

// What an assignment of states costs. Throws InternalError for one that does not fit the problem.
[[nodiscard]] Cost cost_of(const Problem& problem, const std::vector<std::uint32_t>& state);

// Throws InternalError for a malformed problem: states out of range, an access to no variable or without an
// order for each state, a negative weight, or weights so large that sums over all accesses could overflow.
void verify(const Problem& problem);

}  // namespace tosaic::layout
