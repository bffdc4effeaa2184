#include "tosaic/layout/solver/improve.h"

#include <bitset>

namespace tosaic::layout {
namespace {

class Search {
 public:
  Search(const Problem& problem, std::vector<std::uint32_t>& state)
      : problem_(problem), state_(state), tensors_of_(problem.states.size()) {
    for (std::uint32_t t = 0; t < problem.tensors.size(); ++t) {
      note(problem.tensors[t].made.variable, t);
      for (const Access& access : problem.tensors[t].read) note(access.variable, t);
    }
  }

  void run() {
    std::vector<VariableId> waiting;
    std::vector<char> waits(state_.size(), 1);
    for (VariableId v = 0; v < state_.size(); ++v) waiting.push_back(v);
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      const VariableId v = waiting[i];
      waits[v] = 0;
      if (!best_of(v)) continue;
      for (const std::uint32_t t : tensors_of_[v]) {
        wake(problem_.tensors[t].made.variable, waiting, waits);
        for (const Access& access : problem_.tensors[t].read) wake(access.variable, waiting, waits);
      }
    }
  }

 private:
  void note(VariableId v, std::uint32_t tensor) {
    if (tensors_of_[v].empty() || tensors_of_[v].back() != tensor) tensors_of_[v].push_back(tensor);
  }
  void wake(VariableId v, std::vector<VariableId>& waiting, std::vector<char>& waits) const {
    if (waits[v] || problem_.states[v] == 1) return;
    waits[v] = 1;
    waiting.push_back(v);
  }

  bool best_of(VariableId v) {
    const std::uint32_t before = state_[v];
    std::uint32_t best_state = before;
    Cost best = cost_around(v);
    for (std::uint32_t s = 0; s < problem_.states[v]; ++s) {
      if (s == before) continue;
      state_[v] = s;
      if (const Cost cost = cost_around(v); cost < best) {
        best = cost;
        best_state = s;
      }
    }
    state_[v] = best_state;
    return best_state != before;
  }
  [[nodiscard]] Cost cost_around(VariableId v) const {
    Cost cost = 0;
    for (const std::uint32_t t : tensors_of_[v]) cost += cost_of_tensor(problem_.tensors[t]);
    return cost;
  }
  [[nodiscard]] Cost cost_of_tensor(const Tensor& tensor) const {
    std::bitset<256> read;
    for (const Access& access : tensor.read) read.set(access.order[state_[access.variable]]);
    read.reset(tensor.made.order[state_[tensor.made.variable]]);
    return tensor.weight * static_cast<Cost>(read.count());
  }

  const Problem& problem_;
  std::vector<std::uint32_t>& state_;
  std::vector<std::vector<std::uint32_t>> tensors_of_;
};

}  // namespace

void improve(const Problem& problem, std::vector<std::uint32_t>& state) { Search(problem, state).run(); }

Problem pinned_at(const Problem& problem, const std::vector<char>& pinned,
                  const std::vector<std::uint32_t>& state) {
  Problem out = problem;
  const auto pin = [&](Access& access) {
    if (pinned[access.variable]) access.order = {access.order[state[access.variable]]};
  };
  for (Tensor& tensor : out.tensors) {
    pin(tensor.made);
    for (Access& access : tensor.read) pin(access);
  }
  for (VariableId v = 0; v < pinned.size(); ++v)
    if (pinned[v]) out.states[v] = 1;
  return out;
}

}  // namespace tosaic::layout
