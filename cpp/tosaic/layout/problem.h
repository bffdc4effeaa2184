// problem: the choice of dim orders, stated as numbers.
//
// A variable is a decision of one node, or of one graph input or output: the state in which it computes (for
// a node: its layout option, ways.h). The state of a tensor's producer determines the order in which the
// tensor is made. The state of each reader determines the order in which that reader reads the tensor. For
// each order that is read and is not the one in which the tensor is made, the tensor is transposed once,
// however many readers want that order:
//
//   cost(states) = sum over tensors of weight * |{ order read by a user } \ { order made }|
//
// Orders are numbered per tensor, from 0. Orders that are the same in memory have one number. A variable may
// appear in one tensor several times, as producer and as reader.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "tosaic/base/small_vector.h"

namespace tosaic::layout {

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
  Cost weight = 0;  // of one transpose, not negative
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

}  // namespace tosaic::layout
