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

// An order for each state of a variable.
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

// Of a tensor by one variable.
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
  std::vector<std::uint32_t> states;  // by variable: how many it has, at least one, at most kMostStates
  std::vector<Tensor> tensors;
};

// How often the cost of a tensor may count in sums over states, at most.
[[nodiscard]] double uses_of(const Tensor& tensor);

// What an assignment of states costs. Throws InternalError for one that does not fit the problem.
[[nodiscard]] Cost cost_of(const Problem& problem, const std::vector<std::uint32_t>& state);

// Throws InternalError for a malformed problem: states out of range, an access to no variable or without an
// order for each state, a negative weight, or weights so large that sums over all accesses could overflow.
void verify(const Problem& problem);

}  // namespace tosaic::layout
