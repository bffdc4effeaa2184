// factors: the cost function while the solver takes it apart, and the certificate of each step.
//
// The sum of the constant, the unary costs and the factors that are alive is a function of the variables that
// are not minimised out yet. This function is the minimum of the cost over all other variables. After a step
// that is not exact, the function is a lower bound of that minimum. Every change is recorded in the
// certificate, which numbers factors and variables as this class does.
#pragma once

#include <span>

#include "tosaic/layout/solver/terms.h"

namespace tosaic::layout {

inline constexpr std::uint32_t kUndecided = 0xffffffffu;  // a state that is not chosen yet

class Factors {
 public:
  explicit Factors(const Problem& problem);

  // The variables of the problem, then one (z) for each opened term.
  [[nodiscard]] std::uint32_t variables() const { return static_cast<std::uint32_t>(states_.size()); }
  [[nodiscard]] std::uint32_t states(VariableId v) const { return states_[v]; }
  [[nodiscard]] bool gone(VariableId v) const { return gone_[v] != 0; }
  // The number of factors alive that depend on v.
  [[nodiscard]] std::uint32_t degree(VariableId v) const { return degree_[v]; }
  [[nodiscard]] std::span<Cost> unary(VariableId v) { return {&unary_[unary_begin_[v]], states_[v]}; }

  // Factors: numbers below terms() are terms, all others are tables. The last variable of a scope varies
  // fastest.
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(factors_.size()); }
  [[nodiscard]] std::uint32_t terms() const { return static_cast<std::uint32_t>(terms_.size()); }
  [[nodiscard]] const Term& term(std::uint32_t factor) const { return terms_[factor]; }
  [[nodiscard]] std::span<const Reader> readers(const Term& term) const {
    return {readers_.data() + term.first, readers_.data() + term.last};
  }
  [[nodiscard]] bool alive(std::uint32_t factor) const { return factors_[factor].alive; }
  [[nodiscard]] std::span<const VariableId> scope(std::uint32_t factor) const {
    return {scopes_.data() + factors_[factor].scope, factors_[factor].arity};
  }
  // The table of a term is computed at the first call. The pointer is valid until the next factor is added
  // or tabulated.
  [[nodiscard]] const Cost* table(std::uint32_t factor);
  // Calls visit(factor) for each factor alive that depends on v, newest first, until one returns false.
  template <class Visit>
  void for_each_of(VariableId v, Visit visit);

  // The rules of the certificate (solver.h): `opened` and `split_term` apply to terms, `split_table` to
  // tables, `minimised` to both. `opened` returns the new variable z. `minimised` replaces `inputs` by
  // `table`, the minimum over v, over `scope` in ascending order. `minimised` may be called several times in
  // a row for one variable.
  VariableId opened(std::uint32_t factor);
  void minimised(VariableId v, std::span<const std::uint32_t> inputs, std::span<const VariableId> scope,
                 std::span<const Cost> table);
  void split_table(std::uint32_t factor, std::span<const Cost> values);
  void split_term(std::uint32_t factor, std::span<const Cost> flow);

  // Sets all undecided variables to their best states. No factor may be alive.
  void decide(std::vector<std::uint32_t>& state);
  // Moves out the certificate, with the bound that it proves. Nothing may be called afterwards.
  [[nodiscard]] Certificate finish();

 private:
  struct Factor {
    std::size_t table = 0;
    std::uint32_t scope = 0;
    std::uint32_t arity = 0;
    bool has_table = false;
    bool alive = true;
  };
  struct Link {
    std::uint32_t factor = 0;
    std::uint32_t next = 0;
  };
  static constexpr std::uint32_t kEnd = 0xffffffffu;

  std::uint32_t add(std::span<const VariableId> scope);
  void add_pair(VariableId a, StateMask states, VariableId z, std::uint32_t side, Cost weight);
  void kill(std::uint32_t factor);
  void tabulate(std::uint32_t factor);
  [[nodiscard]] Cost value(std::uint32_t factor, const std::vector<std::uint32_t>& state);

  std::vector<Term> terms_;
  std::vector<Reader> readers_;
  std::vector<std::size_t> unary_begin_;
  std::vector<Cost> unary_;
  Cost constant_ = 0;
  std::vector<std::uint32_t> states_, degree_, head_;
  std::vector<char> gone_;
  std::vector<Factor> factors_;
  std::vector<VariableId> scopes_;
  std::vector<Cost> tables_;
  std::vector<Link> links_;
  Certificate certificate_;
};

// Also unlinks the factors of v that are no longer alive.
template <class Visit>
void Factors::for_each_of(VariableId v, Visit visit) {
  for (std::uint32_t* at = &head_[v]; *at != kEnd;) {
    Link& link = links_[*at];
    if (!factors_[link.factor].alive) {
      *at = link.next;
    } else {
      if (!visit(link.factor)) return;
      at = &link.next;
    }
  }
}

}  // namespace tosaic::layout
