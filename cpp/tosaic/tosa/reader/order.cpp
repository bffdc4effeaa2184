#include "tosaic/tosa/reader/order.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "tosaic/ir/control_flow.h"
#include "tosaic/tosa/reader/definitions.h"

namespace tosaic::tosa {
namespace {

// For each operator, the operators that must become nodes before it.
struct Dependencies {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> uses;  // producer, consumer
  std::vector<std::uint32_t> missing;                         // by operator: operands that no node makes yet

  void add(std::uint32_t producer, std::uint32_t consumer) {
    uses.emplace_back(producer, consumer);
    ++missing[consumer];
  }
};

bool reads_or_writes_variables(const BlockState& state, std::uint32_t index) {
  if (info(*op_of(*state.place(index).op)).has(kEffect)) return true;
  const auto it = state.regions.find(index);
  if (it == state.regions.end()) return false;
  return std::any_of(it->second.begin(), it->second.end(), [](const auto& region) {
    const auto nodes = region->nodes();
    return std::any_of(nodes.begin(), nodes.end(), [](const Node& node) { return touches_variables(node); });
  });
}

void add_operands(BlockState& state, std::uint32_t consumer, Dependencies& dependencies) {
  const Place place = state.place(consumer);
  const Names* operands = place.op->inputs();
  state.file.budget.spend_names(place, length(operands));
  for (std::size_t k = 0; k < length(operands); ++k) {
    const std::string_view name = name_at(operands, k);
    const TensorEntry& entry = state.tensors.find(place, name);
    if (entry.is_variable != (place.op->op() == schema::Op::VARIABLE_READ))
      fail<InvalidGraph>(place, "the operand " + quoted_readable(name) + " is of the wrong kind",
                         entry.is_variable ? "a tensor" : "a variable",
                         entry.is_variable ? "a variable" : "a tensor");
    if (entry.is_input || entry.is_variable) continue;
    if (entry.producer == TensorEntry::kNone)
      fail<InvalidGraph>(place, "nothing defines the operand " + quoted_readable(name));
    if (!is_constant(*state.place(entry.producer).op)) dependencies.add(entry.producer, consumer);
  }
}

[[noreturn]] void throw_cycle(const BlockState& state, const std::vector<std::uint32_t>& missing) {
  for (std::uint32_t i = 0; i < missing.size(); ++i)
    if (missing[i] != 0) fail<InvalidGraph>(state.place(i), "the operator depends on its own result");
  throw InternalError({.where = "tosa", .what = "operators left over without a cycle"});
}

}  // namespace

std::vector<std::uint32_t> execution_order(BlockState& state) {
  Dependencies dependencies{{}, std::vector<std::uint32_t>(state.operator_count(), 0)};
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> ready;
  std::uint32_t expected = 0, last_effect = TensorEntry::kNone;
  for (std::uint32_t i = 0; i < state.operator_count(); ++i) {
    if (is_constant(*state.place(i).op)) continue;
    ++expected;
    add_operands(state, i, dependencies);
    if (reads_or_writes_variables(state, i)) {
      if (last_effect != TensorEntry::kNone) dependencies.add(last_effect, i);
      last_effect = i;
    }
    if (dependencies.missing[i] == 0) ready.push(i);
  }
  std::vector<std::uint32_t> order;
  std::sort(dependencies.uses.begin(), dependencies.uses.end());
  while (!ready.empty()) {
    const std::uint32_t done = ready.top();
    ready.pop();
    order.push_back(done);
    for (auto use = std::lower_bound(dependencies.uses.begin(), dependencies.uses.end(), std::pair(done, 0u));
         use != dependencies.uses.end() && use->first == done; ++use)
      if (--dependencies.missing[use->second] == 0) ready.push(use->second);
  }
  if (order.size() != expected) throw_cycle(state, dependencies.missing);
  return order;
}

}  // namespace tosaic::tosa
