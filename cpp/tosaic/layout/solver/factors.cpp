#include "tosaic/layout/solver/factors.h"

#include <algorithm>
#include <array>

namespace tosaic::layout {

Factors::Factors(const Problem& problem) : states_(problem.states) {
  Terms terms = terms_of(problem);
  terms_ = std::move(terms.terms);
  readers_ = std::move(terms.readers);
  unary_begin_ = std::move(terms.unary_begin);
  unary_ = std::move(terms.unary);
  constant_ = terms.constant;
  certificate_.terms = std::move(terms.names);
  degree_.assign(states_.size(), 0);
  head_.assign(states_.size(), kEnd);
  gone_.assign(states_.size(), 0);
  factors_.reserve(2 * terms_.size());
  links_.reserve(2 * (readers_.size() + terms_.size()));
  scopes_.reserve(2 * (readers_.size() + terms_.size()));
  std::vector<VariableId> scope;
  for (const Term& term : terms_) {
    scope.clear();
    for (const Reader& reader : readers(term)) scope.push_back(reader.variable);
    if (term.producer != kNoVariable)
      scope.insert(std::lower_bound(scope.begin(), scope.end(), term.producer), term.producer);
    add(scope);
  }
}

std::uint32_t Factors::add(std::span<const VariableId> scope) {
  const auto factor = static_cast<std::uint32_t>(factors_.size());
  factors_.push_back(
      {0, static_cast<std::uint32_t>(scopes_.size()), static_cast<std::uint32_t>(scope.size()), false, true});
  scopes_.insert(scopes_.end(), scope.begin(), scope.end());
  for (const VariableId v : scope) {
    links_.push_back({factor, head_[v]});
    head_[v] = static_cast<std::uint32_t>(links_.size() - 1);
    ++degree_[v];
  }
  return factor;
}

void Factors::kill(std::uint32_t factor) {
  factors_[factor].alive = false;
  for (const VariableId v : scope(factor)) --degree_[v];
}

const Cost* Factors::table(std::uint32_t factor) {
  if (!factors_[factor].has_table) tabulate(factor);
  return &tables_[factors_[factor].table];
}

void Factors::tabulate(std::uint32_t factor) {
  const Term& term = terms_[factor];
  const std::span<const VariableId> scope = this->scope(factor);
  std::size_t entries = 1;
  for (const VariableId v : scope) entries *= states_[v];
  factors_[factor].table = tables_.size();
  factors_[factor].has_table = true;
  tables_.resize(tables_.size() + entries, 0);
  const std::span<Cost> out(&tables_[factors_[factor].table], entries);
  for (std::size_t entry = 0; entry < entries; ++entry) {
    bool missing = true, read = false;
    std::size_t rest = entry;
    std::uint32_t reader = term.last;
    for (std::size_t i = scope.size(); i-- > 0; rest /= states_[scope[i]]) {
      const StateMask state = StateMask{1} << rest % states_[scope[i]];
      if (scope[i] == term.producer)
        missing = (state & term.missing) != 0;
      else
        read |= (state & readers_[--reader].states) != 0;
    }
    if (missing && read) out[entry] = term.weight;
  }
}

VariableId Factors::opened(std::uint32_t factor) {
  const Term term = terms_[factor];
  const VariableId z = variables();
  states_.push_back(2);
  degree_.push_back(0);
  head_.push_back(kEnd);
  gone_.push_back(0);
  unary_begin_.push_back(unary_.size());
  unary_.insert(unary_.end(), {0, 0});
  certificate_.steps.push_back({Certificate::Rule::kOpen, factor, 0});
  kill(factor);
  if (term.producer == kNoVariable)
    unary(z)[1] += term.weight;
  else
    add_pair(term.producer, term.missing, z, 1, term.weight);
  for (std::uint32_t i = term.first; i < term.last; ++i)
    add_pair(readers_[i].variable, readers_[i].states, z, 0, term.weight);
  return z;
}

// Adds the factor that costs `weight` if the state of a is in `states` and z has state `side`, and else 0. z
// must be the newest variable.
void Factors::add_pair(VariableId a, StateMask states, VariableId z, std::uint32_t side, Cost weight) {
  Factor& factor = factors_[add(std::array{a, z})];
  factor.table = tables_.size();
  factor.has_table = true;
  tables_.resize(tables_.size() + 2 * std::size_t{states_[a]}, 0);
  for (std::uint32_t s = 0; s < states_[a]; ++s)
    if (states >> s & 1u) tables_[factor.table + 2 * std::size_t{s} + side] = weight;
}

void Factors::minimised(VariableId v, std::span<const std::uint32_t> inputs,
                        std::span<const VariableId> scope, std::span<const Cost> table) {
  certificate_.steps.push_back({Certificate::Rule::kMinimise, v, static_cast<std::uint32_t>(inputs.size())});
  certificate_.inputs.insert(certificate_.inputs.end(), inputs.begin(), inputs.end());
  for (const std::uint32_t input : inputs) kill(input);
  gone_[v] = 1;
  if (scope.empty()) {
    constant_ += table[0];
  } else if (scope.size() == 1) {
    const std::span<Cost> costs = unary(scope[0]);
    for (std::size_t s = 0; s < costs.size(); ++s) costs[s] += table[s];
  } else {
    Factor& factor = factors_[add(scope)];
    factor.table = tables_.size();
    factor.has_table = true;
    tables_.insert(tables_.end(), table.begin(), table.end());
  }
}

void Factors::split_table(std::uint32_t factor, std::span<const Cost> values) {
  certificate_.steps.push_back({Certificate::Rule::kSplit, factor, 0});
  certificate_.values.insert(certificate_.values.end(), values.begin(), values.end());
  std::size_t next = 0;
  for (const VariableId v : scope(factor))
    for (Cost& cost : unary(v)) cost += values[next++];
  kill(factor);
}

void Factors::split_term(std::uint32_t factor, std::span<const Cost> flow) {
  certificate_.steps.push_back({Certificate::Rule::kSplit, factor, 0});
  certificate_.values.insert(certificate_.values.end(), flow.begin(), flow.end());
  const Term& term = terms_[factor];
  Cost sum = 0;
  for (std::size_t i = 0; i < flow.size(); ++i) {
    const Reader& reader = readers_[term.first + i];
    for (std::uint32_t s = 0; s < states_[reader.variable]; ++s)
      if (reader.states >> s & 1u) unary(reader.variable)[s] += flow[i];
    sum += flow[i];
  }
  if (term.producer != kNoVariable)
    for (std::uint32_t s = 0; s < states_[term.producer]; ++s)
      if (!(term.missing >> s & 1u)) unary(term.producer)[s] -= sum;
  kill(factor);
}

Cost Factors::value(std::uint32_t factor, const std::vector<std::uint32_t>& state) {
  std::size_t entry = 0;
  for (const VariableId v : scope(factor)) entry = entry * states_[v] + state[v];
  return table(factor)[entry];
}

// First decides the variables that have only unary costs. Then decides the others, backwards through the
// minimise steps, since the best state of a variable depends on those that were minimised after it. The steps
// of one variable are consecutive, and are decided together.
void Factors::decide(std::vector<std::uint32_t>& state) {
  state.resize(variables(), kUndecided);
  for (VariableId v = 0; v < variables(); ++v) {
    if (gone_[v] || state[v] != kUndecided) continue;
    const std::span<const Cost> costs = unary(v);
    state[v] = static_cast<std::uint32_t>(std::min_element(costs.begin(), costs.end()) - costs.begin());
  }
  const std::vector<Certificate::Step>& steps = certificate_.steps;
  std::size_t end = certificate_.inputs.size();
  for (std::size_t i = steps.size(); i-- > 0;) {
    if (steps[i].rule != Certificate::Rule::kMinimise) continue;
    const VariableId v = steps[i].subject;
    std::size_t begin = end - steps[i].inputs;
    for (; i > 0 && steps[i - 1].rule == Certificate::Rule::kMinimise && steps[i - 1].subject == v; --i)
      begin -= steps[i - 1].inputs;
    Cost best = 0;
    std::uint32_t best_state = 0;
    for (state[v] = 0; state[v] < states_[v]; ++state[v]) {
      Cost cost = unary(v)[state[v]];
      for (std::size_t k = begin; k < end; ++k) cost += value(certificate_.inputs[k], state);
      if (state[v] == 0 || cost < best) {
        best = cost;
        best_state = state[v];
      }
    }
    state[v] = best_state;
    end = begin;
  }
}

Certificate Factors::finish() {
  certificate_.bound = constant_;
  for (VariableId v = 0; v < variables(); ++v) {
    if (gone_[v]) continue;
    const std::span<const Cost> costs = unary(v);
    certificate_.bound += *std::min_element(costs.begin(), costs.end());
  }
  return std::move(certificate_);
}

}  // namespace tosaic::layout
