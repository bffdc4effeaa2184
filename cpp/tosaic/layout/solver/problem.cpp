#include "tosaic/layout/solver/solver.h"

#include <bitset>
#include <limits>
#include <string>

#include "tosaic/base/error.h"

namespace tosaic::layout {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw InternalError({.where = "layout/problem", .what = what});
}

void verify(const Problem& problem, const Access& access, std::size_t tensor) {
  const std::string where = "tensor " + std::to_string(tensor);
  if (access.variable >= problem.states.size()) fail(where + " names no variable");
  if (access.order.size() != problem.states[access.variable]) fail(where + " lacks an order for each state");
}

}  // namespace

void StateOrders::push_back(std::uint8_t order) {
  if (size_ == kMostStates) fail("a variable of more states than " + std::to_string(kMostStates));
  orders_[size_] = order;
  ++size_;
}

double uses_of(const Tensor& tensor) {
  double uses = 2;
  for (const Access& access : tensor.read) uses += 2 * static_cast<double>(access.order.size());
  return uses;
}

Cost cost_of(const Problem& problem, const std::vector<std::uint32_t>& state) {
  if (state.size() != problem.states.size()) fail("an assignment of another number of variables");
  for (std::size_t v = 0; v < state.size(); ++v)
    if (state[v] >= problem.states[v]) fail("variable " + std::to_string(v) + " has no such state");
  Cost cost = 0;
  for (const Tensor& tensor : problem.tensors) {
    std::bitset<256> present;  // orders in which the tensor exists: made, or transposed to
    present.set(tensor.made.order[state[tensor.made.variable]]);
    for (const Access& access : tensor.read) {
      const std::uint8_t order = access.order[state[access.variable]];
      if (present[order]) continue;
      present.set(order);
      cost += tensor.weight;
    }
  }
  return cost;
}

void verify(const Problem& problem) {
  for (const std::uint32_t states : problem.states)
    if (states == 0 || states > kMostStates) fail("a variable of " + std::to_string(states) + " states");
  Cost room = std::numeric_limits<Cost>::max() / 4;
  for (std::size_t t = 0; t < problem.tensors.size(); ++t) {
    const Tensor& tensor = problem.tensors[t];
    verify(problem, tensor.made, t);
    Cost uses = 2;  // uses_of(tensor), as an integer
    for (const Access& access : tensor.read) {
      verify(problem, access, t);
      uses += 2 * static_cast<Cost>(access.order.size());
    }
    if (tensor.weight < 0) fail("tensor " + std::to_string(t) + " has a negative weight");
    if (tensor.weight > room / uses) fail("the weights are too large to add up");
    room -= tensor.weight * uses;
  }
}

}  // namespace tosaic::layout
