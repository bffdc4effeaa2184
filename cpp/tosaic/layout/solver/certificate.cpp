#include "tosaic/layout/solver/solver.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>

#include "tosaic/base/error.h"

namespace tosaic::layout {
namespace {

constexpr std::size_t kMostEntries = std::size_t{1} << 26;

[[noreturn]] void fail(const std::string& what) {
  throw InternalError({.where = "layout/certificate", .what = what});
}

Cost plus(Cost a, Cost b) {
  constexpr std::numeric_limits<Cost> kLimits;
  if (b > 0 ? a > kLimits.max() - b : a < kLimits.min() - b) fail("a sum overflows");
  return a + b;
}

// One transpose. The check reads it from the problem itself, not from the solver, whose code for that is in
// terms.h.
struct Transpose {
  Certificate::Term name;
  Cost weight = 0;
  VariableId producer = 0;
  std::vector<char> missing;                      // by state of the producer: 1 if it does not make the order
  std::map<VariableId, std::vector<char>> reads;  // by reader (not the producer) and state: 1 if it reads it
  [[nodiscard]] bool any_producer() const {
    return std::find(missing.begin(), missing.end(), 0) == missing.end();  // the producer never makes it
  }
};

struct Factor {
  std::vector<VariableId> scope;  // ascending, the last varies fastest
  std::vector<Cost> table;
  const Transpose* transpose = nullptr;  // instead of a table
  bool used = false;
};

class Checker {
 public:
  Checker(const Problem& problem, const Certificate& certificate)
      : certificate_(certificate), costs_(problem.states.size()), gone_(problem.states.size(), 0) {
    for (std::size_t v = 0; v < problem.states.size(); ++v) costs_[v].assign(problem.states[v], 0);
    for (std::uint32_t t = 0; t < problem.tensors.size(); ++t) read_tensor(problem, t);
    for (const Certificate::Term& name : certificate.terms) add_term(name);
  }

  Cost bound() {
    for (const Certificate::Step& step : certificate_.steps) {
      if (step.rule == Certificate::Rule::kMinimise)
        minimise(step);
      else
        step.rule == Certificate::Rule::kOpen ? open(use(step.subject)) : split(use(step.subject));
    }
    if (next_input_ != certificate_.inputs.size() || next_value_ != certificate_.values.size())
      fail("numbers that no step uses");
    Cost bound = constant_;
    for (std::size_t v = 0; v < costs_.size(); ++v)
      if (!gone_[v]) bound = plus(bound, *std::min_element(costs_[v].begin(), costs_[v].end()));
    for (const Factor& factor : factors_)  // unused: a term is at least 0, a table at least its least entry
      if (!factor.used && factor.transpose == nullptr)
        bound = plus(bound, *std::min_element(factor.table.begin(), factor.table.end()));
    if (bound < certificate_.bound)
      fail("claims " + std::to_string(certificate_.bound) + ", proves " + std::to_string(bound));
    return bound;
  }

 private:
  // Adds the transposes of a tensor, one per order that is read.
  void read_tensor(const Problem& problem, std::uint32_t t) {
    const Tensor& tensor = problem.tensors[t];
    std::map<std::uint8_t, std::map<VariableId, std::vector<char>>> read;  // by order, variable, state
    for (const Access& access : tensor.read) {
      for (std::size_t s = 0; s < access.order.size(); ++s) {
        std::vector<char>& states = read[access.order[s]][access.variable];
        states.resize(access.order.size(), 0);
        states[s] = 1;
      }
    }
    for (auto& [order, reads] : read) {
      Transpose out{{t, order}, tensor.weight, tensor.made.variable, {}, std::move(reads)};
      for (const std::uint8_t made : tensor.made.order) out.missing.push_back(made != order);
      add_transpose(std::move(out));
    }
  }
  static bool full(const std::vector<char>& set) { return std::count(set.begin(), set.end(), 0) == 0; }

  // Adds costs that one variable alone decides to the unary costs, and stores the remaining cost as a term
  // (see Certificate::Term).
  void add_transpose(Transpose&& transpose) {
    for (const auto& [v, states] : transpose.reads)
      if (full(states)) return charge(transpose.producer, transpose.missing, transpose.weight);
    if (const auto self = transpose.reads.find(transpose.producer); self != transpose.reads.end()) {
      for (std::size_t s = 0; s < transpose.missing.size(); ++s) {
        if (!transpose.missing[s] || !self->second[s]) continue;
        transpose.missing[s] = 0;
        costs_[transpose.producer][s] = plus(costs_[transpose.producer][s], transpose.weight);
      }
      transpose.reads.erase(self);
    }
    const bool never = std::count(transpose.missing.begin(), transpose.missing.end(), 1) == 0;
    if (never || transpose.reads.empty()) return;
    if (transpose.reads.size() == 1 && transpose.any_producer())
      return charge(transpose.reads.begin()->first, transpose.reads.begin()->second, transpose.weight);
    transposes_.push_back(std::move(transpose));
  }
  void charge(VariableId v, const std::vector<char>& states, Cost weight) {
    if (full(states)) return void(constant_ = plus(constant_, weight));
    for (std::size_t s = 0; s < states.size(); ++s)
      if (states[s]) costs_[v][s] = plus(costs_[v][s], weight);
  }

  void add_term(const Certificate::Term& name) {
    const auto key = [](const Certificate::Term& term) { return std::pair(term.tensor, term.order); };
    if (!factors_.empty() && key(factors_.back().transpose->name) >= key(name)) fail("terms out of order");
    const auto at = std::lower_bound(transposes_.begin(), transposes_.end(), name,
                                     [&](const Transpose& a, const auto& b) { return key(a.name) < key(b); });
    if (at == transposes_.end() || at->name != name) fail("a term that the problem does not have");
    Factor factor;
    for (const auto& [v, states] : at->reads) factor.scope.push_back(v);
    if (!at->any_producer()) factor.scope.push_back(at->producer);
    std::sort(factor.scope.begin(), factor.scope.end());
    factor.transpose = &*at;
    factors_.push_back(std::move(factor));
  }

  // Returns a factor and marks it as used: a factor may be replaced only once.
  Factor use(std::uint32_t id) {
    if (id >= factors_.size() || factors_[id].used) fail("factor " + std::to_string(id) + " is not there");
    factors_[id].used = true;
    return std::move(factors_[id]);
  }
  void add(std::vector<VariableId> scope, std::vector<Cost> table) {
    if (scope.empty())
      constant_ = plus(constant_, table[0]);
    else if (scope.size() == 1)
      add_costs(scope[0], table);
    else
      factors_.push_back({std::move(scope), std::move(table), nullptr, false});
  }
  void add_costs(VariableId v, const std::vector<Cost>& costs) {
    if (gone_[v]) fail("variable " + std::to_string(v) + " is gone");
    for (std::size_t s = 0; s < costs.size(); ++s) costs_[v][s] = plus(costs_[v][s], costs[s]);
  }

  void open(const Factor& factor) {
    if (factor.transpose == nullptr) fail("only a term can be opened");
    const Transpose& transpose = *factor.transpose;
    const auto z = static_cast<VariableId>(costs_.size());
    costs_.push_back({0, 0});
    gone_.push_back(0);
    const auto pair = [&](VariableId v, const std::vector<char>& states, std::size_t side) {
      std::vector<Cost> table(2 * states.size(), 0);
      for (std::size_t s = 0; s < states.size(); ++s)
        if (states[s]) table[2 * s + side] = transpose.weight;
      add({v, z}, std::move(table));
    };
    if (transpose.any_producer())
      add({z}, {0, transpose.weight});
    else
      pair(transpose.producer, transpose.missing, 1);
    for (const auto& [v, states] : transpose.reads) pair(v, states, 0);
  }

  std::vector<Cost> next_values(std::size_t count) {
    if (count > certificate_.values.size() - next_value_) fail("a split without its numbers");
    const auto begin = certificate_.values.begin() + static_cast<std::ptrdiff_t>(next_value_);
    next_value_ += count;
    return {begin, begin + static_cast<std::ptrdiff_t>(count)};
  }
  void split(const Factor& factor) { factor.transpose ? split(*factor.transpose) : split_table(factor); }
  void split(const Transpose& transpose) {
    const std::vector<Cost> flow = next_values(transpose.reads.size());
    Cost sum = 0;
    std::size_t i = 0;
    for (const auto& [v, states] : transpose.reads) {
      if (flow[i] < 0) fail("a negative flow");
      sum = plus(sum, flow[i]);
      charge_alive(v, states, flow[i++]);
    }
    if (sum > transpose.weight) fail("a flow above the weight");
    if (transpose.any_producer()) return;
    std::vector<char> made = transpose.missing;
    for (char& state : made) state = !state;
    charge_alive(transpose.producer, made, -sum);
  }
  void charge_alive(VariableId v, const std::vector<char>& states, Cost cost) {
    if (gone_[v]) fail("variable " + std::to_string(v) + " is gone");
    charge(v, states, cost);
  }
  void split_table(const Factor& factor) {
    std::vector<std::vector<Cost>> parts;
    for (const VariableId v : factor.scope) {
      parts.push_back(next_values(costs_[v].size()));
      add_costs(v, parts.back());
    }
    for (std::size_t entry = 0; entry < factor.table.size(); ++entry) {
      Cost sum = 0;
      std::size_t rest = entry;
      for (std::size_t i = parts.size(); i-- > 0; rest /= parts[i].size())
        sum = plus(sum, parts[i][rest % parts[i].size()]);
      if (sum > factor.table[entry]) fail("a split above its table");
    }
  }

  // Enumerates all assignments to the scope, and looks up each factor for each of them.
  void minimise(const Certificate::Step& step) {
    const VariableId x = step.subject;
    if (x >= costs_.size()) fail("no variable " + std::to_string(x));
    if (step.inputs > certificate_.inputs.size() - next_input_) fail("a step without its factors");
    std::vector<Factor> factors;
    std::vector<VariableId> scope;
    for (std::uint32_t i = 0; i < step.inputs; ++i) {
      factors.push_back(use(certificate_.inputs[next_input_++]));
      for (const VariableId v : factors.back().scope)
        if (v != x) scope.push_back(v);
    }
    std::sort(scope.begin(), scope.end());
    scope.erase(std::unique(scope.begin(), scope.end()), scope.end());
    std::size_t entries = 1;
    for (const VariableId v : scope) {
      entries *= costs_[v].size();
      if (entries > kMostEntries / kMostStates) fail("a table of too many entries");
    }
    std::vector<Cost> table(entries), sums;
    state_.resize(costs_.size());
    for (std::size_t entry = 0; entry < entries; ++entry) {
      std::size_t rest = entry;
      for (std::size_t i = scope.size(); i-- > 0; rest /= costs_[scope[i]].size())
        state_[scope[i]] = rest % costs_[scope[i]].size();
      sums = gone_[x] ? std::vector<Cost>(costs_[x].size(), 0) : costs_[x];
      for (state_[x] = 0; state_[x] < sums.size(); ++state_[x])
        for (const Factor& factor : factors) sums[state_[x]] = plus(sums[state_[x]], value(factor));
      table[entry] = *std::min_element(sums.begin(), sums.end());
    }
    gone_[x] = 1;
    add(std::move(scope), std::move(table));
  }
  // The value of a factor for the states in state_.
  [[nodiscard]] Cost value(const Factor& factor) const {
    if (const Transpose* transpose = factor.transpose) {
      if (!transpose->any_producer() && !transpose->missing[state_[transpose->producer]]) return 0;
      for (const auto& [v, states] : transpose->reads)
        if (states[state_[v]]) return transpose->weight;
      return 0;
    }
    std::size_t entry = 0;
    for (const VariableId v : factor.scope) entry = entry * costs_[v].size() + state_[v];
    return factor.table[entry];
  }

  const Certificate& certificate_;
  std::vector<std::vector<Cost>> costs_;  // unary costs, by variable and state
  std::vector<char> gone_;                // by variable: 1 once it was minimised
  std::vector<Transpose> transposes_;
  std::vector<Factor> factors_;
  Cost constant_ = 0;
  std::size_t next_input_ = 0, next_value_ = 0;
  std::vector<std::size_t> state_;  // scratch: by variable
};

}  // namespace

Cost proven_bound(const Problem& problem, const Certificate& certificate) {
  verify(problem);
  return Checker(problem, certificate).bound();
}

}  // namespace tosaic::layout
