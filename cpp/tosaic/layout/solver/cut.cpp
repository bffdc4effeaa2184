#include "tosaic/layout/solver/cut.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

#include "tosaic/base/max_flow.h"

namespace tosaic::layout {
namespace {

// Union-find over variables. It records which variables must be flipped alike and which differently. A set
// whose requirements contradict each other is broken.
class Flips {
 public:
  explicit Flips(std::size_t size) : parent_(size), flip_(size, 0), broken_(size, 0) {
    std::iota(parent_.begin(), parent_.end(), 0u);
  }
  VariableId root(VariableId v) {
    path_.clear();
    for (; parent_[v] != v; v = parent_[v]) path_.push_back(v);
    for (std::size_t i = path_.size(); i-- > 1;) {
      flip_[path_[i - 1]] ^= flip_[path_[i]];
      parent_[path_[i - 1]] = v;
    }
    return v;
  }
  // The flip of v relative to that of its root. Call root(v) before.
  [[nodiscard]] std::uint32_t flip(VariableId v) const { return flip_[v]; }
  [[nodiscard]] bool broken(VariableId root) const { return broken_[root] != 0; }
  void mark_broken(VariableId v) { broken_[root(v)] = 1; }
  void unite(VariableId a, VariableId b, std::uint32_t differ) {
    const VariableId x = root(a), y = root(b);
    const std::uint32_t between = differ ^ flip_[a] ^ flip_[b];
    if (x == y) {
      if (between != 0) broken_[x] = 1;
      return;
    }
    const VariableId low = std::min(x, y), high = std::max(x, y);
    parent_[high] = low;
    flip_[high] = between;
    if (broken_[high]) broken_[low] = 1;
  }

 private:
  std::vector<VariableId> parent_;
  std::vector<std::uint32_t> flip_;  // the flip relative to the parent; 0 for a root
  std::vector<char> broken_;
  std::vector<VariableId> path_;
};

// The state in `set`, which contains exactly one.
std::uint32_t only(StateMask set) { return static_cast<std::uint32_t>(std::countr_zero(set)); }

// `table` has the costs of two variables with two states each. Returns how much more the equal states (0, 0)
// and (1, 1) cost together than the different states (0, 1) and (1, 0).
Cost interaction(const Cost* table) { return table[0] + table[3] - table[1] - table[2]; }

class Cutter {
 public:
  Cutter(Factors& factors, std::vector<std::uint32_t>& state)
      : factors_(factors), state_(state), flips_(factors.variables()), node_(factors.variables(), 0) {}

  void run() {
    for (std::uint32_t f = 0; f < factors_.size(); ++f)
      if (factors_.alive(f)) connect(f);
    std::vector<std::pair<VariableId, std::uint32_t>> by_root;
    for (std::uint32_t f = 0; f < factors_.size(); ++f) {
      if (!factors_.alive(f)) continue;
      const VariableId root = flips_.root(factors_.scope(f)[0]);
      if (!flips_.broken(root)) by_root.emplace_back(root, f);
    }
    std::sort(by_root.begin(), by_root.end());
    for (std::size_t i = 0; i < by_root.size();) {
      component_.clear();
      const VariableId root = by_root[i].first;
      for (; i < by_root.size() && by_root[i].first == root; ++i) component_.push_back(by_root[i].second);
      solve();
    }
  }

 private:
  void connect(std::uint32_t f) {
    const std::span<const VariableId> scope = factors_.scope(f);
    const bool two =
        std::all_of(scope.begin(), scope.end(), [this](auto v) { return factors_.states(v) == 2; });
    if (two && f < factors_.terms()) return connect_term(factors_.term(f));
    if (two && scope.size() == 2) return connect_pair(f);
    for (const VariableId v : scope) flips_.unite(scope[0], v, 0);
    flips_.mark_broken(scope[0]);
  }
  void connect_term(const Term& term) {
    const std::span<const Reader> readers = factors_.readers(term);
    const VariableId a = readers[0].variable;
    const std::uint32_t set = only(readers[0].states);
    for (const Reader& r : readers.subspan(1)) flips_.unite(a, r.variable, set ^ only(r.states));
    if (term.producer != kNoVariable) flips_.unite(a, term.producer, set ^ only(term.missing) ^ 1u);
  }
  void connect_pair(std::uint32_t f) {
    const Cost* table = factors_.table(f);
    const Cost both = interaction(table);
    if (both != 0) return flips_.unite(factors_.scope(f)[0], factors_.scope(f)[1], both > 0 ? 1u : 0u);
    factors_.split_table(f, std::array<Cost, 4>{table[0], table[2], 0, table[1] - table[0]});
  }

  // The side of a state of v: 1 for the source, 0 for the sink. The same formula returns the state of v that
  // is on side `of`.
  [[nodiscard]] std::uint32_t side(VariableId v, std::uint32_t of) const {
    return of ^ flips_.flip(v) ^ turned_;
  }

  void solve() {
    collect_variables();
    flow_.reset(static_cast<std::uint32_t>(variables_.size()));
    for (std::uint32_t i = 0; i < variables_.size(); ++i) {
      const std::span<const Cost> costs = factors_.unary(variables_[i]);
      flow_.feed(i, costs[side(variables_[i], 0)] - costs[side(variables_[i], 1)]);
    }
    first_arc_.clear();
    for (const std::uint32_t f : component_)
      first_arc_.push_back(f < factors_.terms() ? add_term(factors_.term(f)) : add_pair(f));
    flow_.solve();
    const std::vector<char> source = flow_.source_side();
    for (std::uint32_t i = 0; i < variables_.size(); ++i)
      state_[variables_[i]] = side(variables_[i], source[i] ? 1 : 0);
    for (std::size_t i = 0; i < component_.size(); ++i) {
      const std::uint32_t f = component_[i];
      f < factors_.terms() ? split_term(f, first_arc_[i]) : split_pair(f, first_arc_[i]);
    }
  }

  // Numbers the variables of the component. Flips the whole component, if necessary, so that for most
  // variables state 1 is on the side of the source. MaxFlow makes that side as small as possible, so that
  // most variables prefer state 0 between equal costs.
  void collect_variables() {
    variables_.clear();
    for (const std::uint32_t f : component_)
      for (const VariableId v : factors_.scope(f)) variables_.push_back(v);
    std::sort(variables_.begin(), variables_.end());
    variables_.erase(std::unique(variables_.begin(), variables_.end()), variables_.end());
    std::size_t flipped = 0;
    for (std::uint32_t i = 0; i < variables_.size(); ++i) {
      node_[variables_[i]] = i;
      flips_.root(variables_[i]);
      flipped += flips_.flip(variables_[i]);
    }
    turned_ = 2 * flipped > variables_.size() ? 1 : 0;
  }

  // Adds the arcs of a term to the flow graph. If the term has one reader, its only arc is between the reader
  // and the producer. If it has several readers, an extra node z is added, with an arc between z and the
  // producer (or a feed of z, if the term has no producer), and then one arc between each reader and z.
  // Returns the index of the first reader's arc; the arcs of the other readers follow in order.
  std::uint32_t add_term(const Term& term) {
    const std::span<const Reader> readers = factors_.readers(term);
    const bool forward = side(readers[0].variable, only(readers[0].states)) == 1;
    const auto arc = [&](std::uint32_t a, std::uint32_t b) {
      return forward ? flow_.add_arc(a, b, term.weight) : flow_.add_arc(b, a, term.weight);
    };
    if (readers.size() == 1) return arc(node_[readers[0].variable], node_[term.producer]);
    const std::uint32_t z = flow_.add_node();
    if (term.producer == kNoVariable)
      flow_.feed(z, forward ? -term.weight : term.weight);
    else
      arc(z, node_[term.producer]);
    const std::uint32_t first = arc(node_[readers[0].variable], z);
    for (const Reader& reader : readers.subspan(1)) arc(node_[reader.variable], z);
    return first;
  }
  void split_term(std::uint32_t f, std::uint32_t first) {
    const Term& term = factors_.term(f);
    values_.clear();
    for (std::uint32_t i = 0; i < term.last - term.first; ++i) values_.push_back(flow_.flow(first + i));
    factors_.split_term(f, values_);
  }

  // Let a, b in {0, 1} be the sides of the two variables. The table is base + step_a * a + step_b * b + c * a
  // * b, with c < 0. Since c * a * b = c * a - c * a * (1 - b), the table is a sum of unary costs and of an
  // arc a -> b of capacity -c.
  std::uint32_t add_pair(std::uint32_t f) {
    const Sides s = by_side(f);
    flow_.feed(s.a, s.flat - s.step_a);
    flow_.feed(s.b, -s.step_b);
    return flow_.add_arc(s.a, s.b, s.flat);
  }
  void split_pair(std::uint32_t f, std::uint32_t arc) {
    const Sides s = by_side(f);
    const Cost flow = flow_.flow(arc);
    const std::span<const VariableId> scope = factors_.scope(f);
    std::array<Cost, 4> values{s.base, s.base, 0, 0};
    values[side(scope[0], 1)] += s.step_a - s.flat + flow;
    values[2 + side(scope[1], 1)] += s.step_b - flow;
    factors_.split_table(f, values);
  }
  struct Sides {
    std::uint32_t a, b;               // flow nodes
    Cost base, step_a, step_b, flat;  // as in add_pair; flat is -c
  };
  Sides by_side(std::uint32_t f) {
    const std::span<const VariableId> scope = factors_.scope(f);
    const Cost* table = factors_.table(f);
    const std::uint32_t a0 = side(scope[0], 0) * 2,
                        b0 = side(scope[1], 0);  // the states on the side of the sink; a0 is an offset
    const Cost base = table[a0 + b0];
    return {node_[scope[0]],
            node_[scope[1]],
            base,
            table[(a0 ^ 2u) + b0] - base,
            table[a0 + (b0 ^ 1u)] - base,
            -interaction(table) * (a0 / 2 == b0 ? 1 : -1)};
  }

  Factors& factors_;
  std::vector<std::uint32_t>& state_;
  Flips flips_;
  std::vector<std::uint32_t> node_;                   // by variable: its flow node
  std::uint32_t turned_ = 0;                          // 1: the whole component is flipped
  std::vector<std::uint32_t> component_, first_arc_;  // factors, and their arcs
  std::vector<VariableId> variables_;
  std::vector<Cost> values_;
  MaxFlow flow_;
};

}  // namespace

void cut(Factors& factors, std::vector<std::uint32_t>& state) { Cutter(factors, state).run(); }

}  // namespace tosaic::layout
