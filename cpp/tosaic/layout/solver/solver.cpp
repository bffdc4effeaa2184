#include "tosaic/layout/solver/solver.h"

#include <algorithm>

#include "tosaic/layout/solver/cut.h"
#include "tosaic/layout/solver/eliminate.h"
#include "tosaic/layout/solver/improve.h"

namespace tosaic::layout {
namespace {

// Terms are opened before variables are minimised out, if they have at least kManyVariables variables, or
// more than two variables and a table of more than kManyEntries entries.
constexpr std::size_t kManyVariables = 4;
constexpr std::size_t kManyEntries = 256;

struct Attempt {
  std::vector<std::uint32_t> state;
  Certificate certificate;
  std::vector<VariableId> split;  // minimised in several tables: the bound may be too low
};

std::vector<VariableId> variables_left(const Factors& factors) {
  std::vector<VariableId> left;
  for (VariableId v = 0; v < factors.variables(); ++v)
    if (!factors.gone(v) && factors.degree(v) > 0) left.push_back(v);
  return left;
}

void open_large_terms(Factors& factors) {
  for (std::uint32_t f = 0; f < factors.terms(); ++f) {
    if (!factors.alive(f)) continue;
    std::size_t entries = 1;
    for (const VariableId v : factors.scope(f))
      entries = std::min(entries * factors.states(v), kManyEntries + 1);
    if (factors.scope(f).size() >= kManyVariables || (entries > kManyEntries && factors.scope(f).size() > 2))
      (void)factors.opened(f);
  }
}

Attempt attempt(const Problem& problem, std::size_t widest) {
  Factors factors(problem);
  Attempt out;
  (void)eliminate(factors, variables_left(factors), {.neighbours = 2, .entries = widest});
  std::vector<std::uint32_t> state(factors.variables(), kUndecided);
  cut(factors, state);
  open_large_terms(factors);
  out.split = eliminate(factors, variables_left(factors), {.entries = widest, .split = true});
  std::erase_if(out.split, [&](VariableId v) { return v >= problem.states.size(); });
  factors.decide(state);
  state.resize(problem.states.size());
  out.state = std::move(state);
  out.certificate = factors.finish();
  return out;
}

// Chooses about half of the variables at random, a different half in each round. The same arguments have the
// same result.
bool held_by_lot(VariableId v, std::uint32_t round) {
  std::uint64_t bits = (std::uint64_t{round} << 32 | v) * 0x9e3779b97f4a7c15u;
  bits = (bits ^ bits >> 29) * 0xbf58476d1ce4e5b9u;
  return (bits >> 63) != 0;
}

// Improves `best`. Each round holds some variables at their best states, solves for all others at once, and
// then moves single variables, including those that were held. The first round holds the variables that were
// split. Later rounds hold variables chosen by lot.
void search(const Problem& problem, const SolveOptions& options, const std::vector<VariableId>& split,
            Solution& best) {
  std::vector<char> held(problem.states.size(), 0);
  for (const VariableId v : split) held[v] = 1;
  std::vector<std::uint32_t> state = best.state;
  for (std::uint32_t round = 0;; ++round) {
    improve(problem, state);
    if (const Cost cost = cost_of(problem, state); cost < best.cost) {
      best.cost = cost;
      best.state = state;
    }
    if (round == options.rounds || best.gap() == 0) return;
    if (round > 0)
      for (VariableId v = 0; v < held.size(); ++v) held[v] = held_by_lot(v, round);
    state = attempt(pinned_at(problem, held, best.state), options.widest).state;
    for (VariableId v = 0; v < held.size(); ++v)
      if (held[v]) state[v] = best.state[v];
  }
}

}  // namespace

Solution solve(const Problem& problem, const SolveOptions& options) {
  verify(problem);
  Attempt found = attempt(problem, options.widest);
  Solution out{std::move(found.state), 0, std::move(found.certificate)};
  out.cost = cost_of(problem, out.state);
  if (out.gap() > 0) search(problem, options, found.split, out);
  return out;
}

}  // namespace tosaic::layout
