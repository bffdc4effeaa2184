#include "tosaic/layout/solver/solver.h"

#include <catch2/catch.hpp>
#include <random>

#include "tosaic/base/error.h"
#include "tosaic/base/max_flow.h"

namespace tosaic::layout {
namespace {

using State = std::vector<std::uint32_t>;

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::uint32_t below(std::uint32_t end) { return static_cast<std::uint32_t>(engine_() % end); }
  bool chance(std::uint32_t percent) { return below(100) < percent; }

 private:
  std::mt19937_64 engine_;
};

Access access(Random& random, const Problem& problem, VariableId variable, std::uint32_t orders) {
  Access out{variable, {}};
  for (std::uint32_t s = 0; s < problem.states[variable]; ++s)
    out.order.push_back(static_cast<std::uint8_t>(random.below(orders)));
  return out;
}

struct Mix {
  std::uint32_t variables, tensors, states, readers, orders;
};

// A problem without any structure: a variable may read a tensor twice or read its own tensor, some orders are
// made by no producer, and weights may be 0.
Problem random_problem(Random& random, const Mix& mix) {
  Problem out;
  for (std::uint32_t v = 0; v < mix.variables; ++v) out.states.push_back(1 + random.below(mix.states));
  for (std::uint32_t t = 0; t < mix.tensors; ++t) {
    Tensor tensor{access(random, out, random.below(mix.variables), mix.orders), {}, random.below(9)};
    for (std::uint32_t r = random.below(mix.readers + 1); r > 0; --r)
      tensor.read.push_back(access(random, out, random.below(mix.variables), mix.orders));
    out.tensors.push_back(std::move(tensor));
  }
  return out;
}

// The minimum of the cost over all assignments.
Cost least_cost(const Problem& problem) {
  State state(problem.states.size(), 0);
  Cost best = cost_of(problem, state);
  for (std::size_t v = 0; v < state.size();) {
    if (++state[v] < problem.states[v]) {
      best = std::min(best, cost_of(problem, state));
      v = 0;
    } else {
      state[v++] = 0;
    }
  }
  return best;
}

void check_proven(const Problem& problem, const Solution& solution) {
  REQUIRE(solution.cost == cost_of(problem, solution.state));
  REQUIRE(solution.certificate.bound == solution.cost);
  REQUIRE(proven_bound(problem, solution.certificate) == solution.cost);
}

void check_against_all(const Mix& mix, std::uint64_t problems) {
  for (std::uint64_t seed = 0; seed < problems; ++seed) {
    INFO("seed " << seed << ", " << mix.variables << " variables of at most " << mix.states << " states");
    Random random(seed);
    const Problem problem = random_problem(random, mix);
    const Solution solution = solve(problem);
    check_proven(problem, solution);
    REQUIRE(solution.cost == least_cost(problem));
  }
}

TEST_CASE("two states: the cost is the minimum over all assignments, and proven", "[layout]") {
  check_against_all({4, 3, 2, 3, 2}, 1000);
  check_against_all({8, 8, 2, 3, 2}, 500);
  check_against_all({9, 12, 2, 6, 3}, 300);
  check_against_all({9, 20, 2, 4, 4}, 300);
}

TEST_CASE("many states: the cost is the minimum over all assignments, and proven", "[layout]") {
  check_against_all({4, 4, 4, 3, 3}, 1000);
  check_against_all({6, 8, 3, 5, 3}, 300);
  check_against_all({6, 9, 4, 6, 4}, 200);
  check_against_all({3, 6, 8, 4, 6}, 300);
}

// A problem that is always a minimum cut. All variables have two states. State s means order s or, for half
// of the variables ("crossed"), order 1 - s. Some accesses have one order in both states. Others have order 2
// (3 if crossed) in state 0.
Problem cut_problem(Random& random, std::uint32_t variables, std::uint32_t tensors, std::uint32_t readers) {
  Problem out{State(variables, 2), {}};
  std::vector<bool> crossed;
  for (std::uint32_t v = 0; v < variables; ++v) crossed.push_back(random.chance(50));
  const auto use = [&](VariableId v) {
    const std::uint8_t first = crossed[v] ? 1 : 0, second = crossed[v] ? 0 : 1;
    if (random.chance(10)) return Access{v, {first, first}};
    if (random.chance(10)) return Access{v, {static_cast<std::uint8_t>(2 + first), second}};
    return Access{v, {first, second}};
  };
  for (std::uint32_t t = 0; t < tensors; ++t) {
    Tensor tensor{use(random.below(variables)), {}, 1 + random.below(20)};
    for (std::uint32_t r = 1 + random.below(readers); r > 0; --r)
      tensor.read.push_back(use(random.below(variables)));
    out.tensors.push_back(std::move(tensor));
  }
  return out;
}

TEST_CASE("problems of two orders, crossed or not, are minimum cuts however dense they are", "[layout]") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const Problem problem = cut_problem(random, 10, 14, 5);
    const Solution solution = solve(problem);
    check_proven(problem, solution);
    REQUIRE(solution.cost == least_cost(problem));
  }
  Random random(1);
  const Problem dense = cut_problem(random, 2000, 8000, 6);
  const Solution solution = solve(dense, {.widest = 16});
  check_proven(dense, solution);
  for (const Certificate::Step& step : solution.certificate.steps)
    REQUIRE(step.rule != Certificate::Rule::kOpen);  // solved as a cut: no term had to be opened
}

// A flow graph. cut() returns the capacity of the cut with the nodes whose bits are set in `source` on the
// side of the source.
struct FlowCase {
  struct Arc {
    std::uint32_t from, to;
    Cost capacity;
  };
  std::vector<Cost> fed;
  std::vector<Arc> arcs;
  [[nodiscard]] Cost cut(std::uint32_t source) const {
    Cost sum = 0;
    for (std::uint32_t i = 0; i < fed.size(); ++i)
      if ((fed[i] > 0) != ((source >> i & 1u) != 0)) sum += std::abs(fed[i]);
    for (const Arc& arc : arcs)
      if ((source >> arc.from & 1u) != 0 && (source >> arc.to & 1u) == 0) sum += arc.capacity;
    return sum;
  }
};

TEST_CASE("the maximum flow equals the minimum cut, respects the capacities and is conserved", "[layout]") {
  MaxFlow flow;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const std::uint32_t nodes = 1 + random.below(8);
    FlowCase c;
    flow.reset(nodes);
    for (std::uint32_t i = 0; i < nodes; ++i) {
      c.fed.push_back(static_cast<Cost>(random.below(21)) - 10);
      flow.feed(i, c.fed.back());
    }
    for (std::uint32_t a = random.below(20); a > 0; --a) {
      c.arcs.push_back({random.below(nodes), random.below(nodes), random.below(9)});
      flow.add_arc(c.arcs.back().from, c.arcs.back().to, c.arcs.back().capacity);
    }
    const Cost sent = flow.solve();
    std::vector<Cost> left = c.fed;
    for (std::uint32_t a = 0; a < c.arcs.size(); ++a) {
      REQUIRE((flow.flow(a) >= 0 && flow.flow(a) <= c.arcs[a].capacity));
      left[c.arcs[a].from] -= flow.flow(a);
      left[c.arcs[a].to] += flow.flow(a);
    }
    Cost least = c.cut(0), arrived = 0;
    std::uint32_t side = 0;
    for (std::uint32_t source = 1; source < 1u << nodes; ++source) least = std::min(least, c.cut(source));
    for (std::uint32_t i = 0; i < nodes; ++i) {
      REQUIRE((c.fed[i] > 0 ? left[i] >= 0 : left[i] <= 0));
      if (c.fed[i] < 0) arrived += left[i] - c.fed[i];
      side |= static_cast<std::uint32_t>(flow.source_side()[i]) << i;
    }
    REQUIRE(sent == least);
    REQUIRE(arrived == sent);
    REQUIRE(c.cut(side) == least);
  }
}

// A chain of layers. Some also read a tensor of 2 to 4 layers before (residuals), of 9 layers before
// (concatenations), or of the mirrored layer of their block of 256 (the skips of a U-net). A third of the
// layers have more than one state.
Problem network(std::uint32_t size, std::uint64_t seed) {
  Random random(seed);
  Problem out;
  for (std::uint32_t v = 0; v < size; ++v) out.states.push_back(random.chance(33) ? 2 + random.below(2) : 1);
  for (std::uint32_t v = 0; v < size; ++v) {
    Tensor tensor{access(random, out, v, 3), {}, 1 + random.below(1000)};
    if (v + 1 < size) tensor.read.push_back(access(random, out, v + 1, 3));
    if (random.chance(30) && v + 4 < size)
      tensor.read.push_back(access(random, out, v + 2 + random.below(3), 3));
    if (random.chance(5) && v + 9 < size) tensor.read.push_back(access(random, out, v + 9, 3));
    const std::uint32_t block = v / 256 * 256, mirror = block + 255 - v % 256;
    if (v % 256 % 32 == 3 && v < mirror && mirror < size)
      tensor.read.push_back(access(random, out, mirror, 3));
    out.tensors.push_back(std::move(tensor));
  }
  return out;
}

TEST_CASE("networks of any size are solved with proof", "[layout]") {
  for (const std::uint32_t size : {50u, 5'000u, 100'000u}) {
    const Problem problem = network(size, size);
    check_proven(problem, solve(problem));
  }
}

// x0 -> x1 -> ... The first variable has order 0 only, the last one order 1 only, and all others may have
// either. All weights are equal, so each place for the one transpose costs the same.
TEST_CASE("a long chain needs only one transpose", "[layout]") {
  const std::uint32_t size = 100'000;
  Problem problem{State(size, 2), {}};
  problem.states.front() = problem.states.back() = 1;
  const auto use = [&](VariableId v) {
    if (v == 0) return Access{v, {0}};
    if (v + 1 == size) return Access{v, {1}};
    return Access{v, {0, 1}};
  };
  for (VariableId v = 0; v + 1 < size; ++v) problem.tensors.push_back({use(v), {use(v + 1)}, 7});
  const Solution solution = solve(problem);
  check_proven(problem, solution);
  CHECK(solution.cost == 7);
}

TEST_CASE("many branches that meet again need only small tables", "[layout]") {
  const std::uint32_t branches = 2000;
  Random random(5);
  Problem problem{State(branches + 2, 3), {}};
  Tensor fork{{0, {0, 1, 2}}, {}, 5};
  for (VariableId v = 1; v <= branches; ++v) {
    fork.read.push_back(access(random, problem, v, 3));
    problem.tensors.push_back({access(random, problem, v, 3), {access(random, problem, branches + 1, 3)}, 3});
  }
  problem.tensors.push_back(fork);
  check_proven(problem, solve(problem, {.widest = 256}));
}

TEST_CASE("readers of the same order share a transpose", "[layout]") {
  const Problem problem{{1, 1, 1, 1}, {{{0, {0}}, {{1, {1}}, {2, {1}}, {3, {2}}}, 10}}};
  CHECK(solve(problem).cost == 20);
}

TEST_CASE("of states with equal cost, the lower number is chosen", "[layout]") {
  const Problem free{{2, 3}, {{{0, {0, 1}}, {{1, {0, 1, 1}}}, 4}}};
  CHECK(solve(free).state == State{0, 0});
  const Problem none{{4, 1}, {}};
  CHECK(solve(none).state == State{0, 0});
  CHECK(solve({}).cost == 0);
}

TEST_CASE("a problem that is too wide has an assignment, a bound and a gap", "[layout]") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const Problem problem = random_problem(random, {60, 120, 4, 5, 4});
    const Solution solution = solve(problem, {.widest = 64});
    REQUIRE(solution.cost == cost_of(problem, solution.state));
    REQUIRE(solution.gap() >= 0);
    REQUIRE(proven_bound(problem, solution.certificate) == solution.certificate.bound);
  }
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const Problem problem = random_problem(random, {7, 14, 4, 4, 4});
    const Solution solution = solve(problem, {.widest = 4});
    const Cost least = least_cost(problem);
    REQUIRE(solution.cost >= least);
    REQUIRE(proven_bound(problem, solution.certificate) <= least);
  }
}

TEST_CASE("the same problem gives the same solution", "[layout]") {
  for (const std::size_t widest : {std::size_t{16}, std::size_t{1} << 14}) {
    const Problem problem = network(3000, 3);
    const Solution a = solve(problem, {.widest = widest}), b = solve(problem, {.widest = widest});
    CHECK(a.state == b.state);
    CHECK(a.certificate == b.certificate);
  }
}

// Changes one number of a certificate, or adds one.
void tamper(Random& random, Certificate& certificate) {
  const auto pick = [&](auto& list) -> auto& {
    return list[random.below(static_cast<std::uint32_t>(list.size()))];
  };
  const Cost step = random.chance(50) ? 1 + random.below(50) : -1 - static_cast<Cost>(random.below(50));
  switch (random.below(6)) {
    case 0:
      return void(certificate.bound += 1 + random.below(5));
    case 1:
      return void(certificate.terms.empty() ? certificate.bound++ : pick(certificate.terms).order ^= 1);
    case 2:
      return void(certificate.steps.empty() ? certificate.bound++ : pick(certificate.steps).subject ^= 1);
    case 3:
      return void(certificate.inputs.empty() ? certificate.bound++ : pick(certificate.inputs) ^= 1);
    case 4:
      return void(certificate.values.empty() ? certificate.bound++ : pick(certificate.values) += step);
    default:
      return void(certificate.inputs.push_back(0));
  }
}

TEST_CASE("a certificate that was tampered with proves no bound above the optimum", "[layout]") {
  std::size_t refused = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const Problem problem =
        seed % 2 == 0 ? cut_problem(random, 7, 12, 4) : random_problem(random, {6, 9, 3, 4, 3});
    Certificate certificate = solve(problem).certificate;
    const Cost least = certificate.bound;
    tamper(random, certificate);
    Cost proven = 0;
    try {
      proven = proven_bound(problem, certificate);
    } catch (const InternalError&) {
      ++refused;
    }
    REQUIRE(proven <= least);
  }
  CHECK(refused > 1000);
}

TEST_CASE("a certificate is refused with the reason", "[layout]") {
  Random random(2);
  const Problem problem = cut_problem(random, 40, 90, 4);
  const Certificate good = solve(problem, {.widest = 16}).certificate;
  REQUIRE_FALSE(good.values.empty());
  const auto refused = [&](const char* why, auto change) {
    Certificate bad = good;
    change(bad);
    CHECK_THROWS_WITH(proven_bound(problem, bad), Catch::Contains(why));
    CHECK_THROWS_AS(proven_bound(problem, bad), InternalError);
  };
  refused("claims", [](Certificate& c) { ++c.bound; });
  refused("a split without its numbers", [](Certificate& c) { c.values.pop_back(); });
  refused("numbers that no step uses", [](Certificate& c) { c.values.push_back(0); });
  refused("terms out of order", [](Certificate& c) { std::swap(c.terms[0], c.terms[1]); });
  refused("does not have", [](Certificate& c) { c.terms.push_back({9999, 0}); });
  refused("is not there", [](Certificate& c) { c.steps.push_back(c.steps.back()); });
  refused("no variable",
          [](Certificate& c) { c.steps.insert(c.steps.begin(), {Certificate::Rule::kMinimise, 9999, 0}); });
  refused("a table of too many entries", [](Certificate& c) {
    c.inputs.clear();
    for (std::uint32_t f = 0; f < c.terms.size(); ++f) c.inputs.push_back(f);
    c.steps = {{Certificate::Rule::kMinimise, 0, static_cast<std::uint32_t>(c.terms.size())}};
  });
  const auto negative = [](Certificate& c) { c.values.assign(c.values.size(), -1); };
  CHECK_THROWS_AS(
      [&] {
        Certificate bad = good;
        negative(bad);
        (void)proven_bound(problem, bad);
      }(),
      InternalError);
}

TEST_CASE("malformed problems are refused", "[layout]") {
  CHECK_THROWS_WITH(solve({{0}, {}}), Catch::Contains("a variable of 0 states"));
  CHECK_THROWS_WITH(solve({{2}, {{{1, {0, 0}}, {}, 1}}}), Catch::Contains("names no variable"));
  CHECK_THROWS_WITH(solve({{2}, {{{0, {0}}, {}, 1}}}), Catch::Contains("lacks an order"));
  CHECK_THROWS_WITH(solve({{1}, {{{0, {0}}, {}, -1}}}), Catch::Contains("negative weight"));
  CHECK_THROWS_WITH(solve({{1}, {{{0, {0}}, {}, Cost{1} << 62}}}), Catch::Contains("too large"));
}

}  // namespace
}  // namespace tosaic::layout
