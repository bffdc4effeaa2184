#include "tosaic/cost/estimate.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "tosaic/base/error.h"
#include "tosaic/base/error_text.h"
#include "tosaic/cost/block.h"
#include "tosaic/cost/command.h"
#include "tosaic/cost/cycles.h"

namespace tosaic::cost {
namespace {

std::int64_t bytes_of(const Map& map) { return map.stored_elements() * map.bits / 8; }

// When the bytes of a value are in use: from the command that writes it to the last one that reads it.
struct Life {
  ValueId value;
  std::size_t first = 0, last = 0;
  std::int64_t bytes = 0;
  bool leaves = false;  // it is an input or output of the graph
  int readers = 0;
  bool is_striped = true;  // it is made and read row by row
};

// Operators that read and write rows of images, so that several of them can work on one stripe after another.
bool works_by_row(const Command& command) {
  constexpr std::int64_t kLeastRows = 8;
  const bool is_window = command.work == Work::kConvolution || command.work == Work::kDepthwise ||
                         (command.work == Work::kPool && !command.is_permuted);
  return is_window && command.repeats == 1 && command.result.extent.height >= kLeastRows;
}

// By value: the one whose bytes it has, since views of a value are not stored.
std::vector<ValueId> stored_as(const Graph& graph, const std::vector<Command>& commands) {
  std::vector<ValueId> out;
  for (std::uint32_t i = 0; i < graph.values().size(); ++i) out.emplace_back(i);
  std::vector<bool> is_written(out.size(), false);
  for (const Command& each : commands)
    if (each.result.value.valid()) is_written[each.result.value.index()] = true;
  for (const Node& node : graph.nodes()) {
    const bool is_view =
        node.op == Op::kTosaReshape || node.op == Op::kTosaSlice || node.op == Op::kTosaIdentity;
    if (!is_view || is_written[graph.result(node).index()]) continue;
    out[graph.result(node).index()] = out[graph.operands(node)[0].index()];
  }
  return out;
}

std::vector<Life> lives_of(const Graph& graph, const std::vector<Command>& commands,
                           const std::vector<ValueId>& stored) {
  std::vector<Life> lives(graph.values().size());
  const auto use = [&](Map map, std::size_t at, bool is_read) {
    if (!map.value.valid()) return;
    map.value = stored[map.value.index()];
    if (graph.value(map.value).kind == ValueKind::kConstant) return;
    Life& life = lives[map.value.index()];
    const bool is_input = graph.value(map.value).kind == ValueKind::kInput;
    if (life.bytes == 0) life.first = is_input ? 0 : at;
    life.value = map.value;
    life.leaves = is_input || graph.is_output(map.value);
    life.last = graph.is_output(map.value) ? commands.size() - 1 : std::max(life.last, at);
    life.bytes = std::max(life.bytes, bytes_of(map));
    life.readers += is_read ? 1 : 0;
    life.is_striped &= works_by_row(commands[at]);
  };
  for (std::size_t i = 0; i < commands.size(); ++i) {
    use(commands[i].input, i, true);
    if (commands[i].second) use(*commands[i].second, i, true);
    for (const ValueId value : commands[i].also_read) {
      Map map;
      map.value = value;
      use(map, i, true);
    }
    use(commands[i].result, i, false);
  }
  std::erase_if(lives, [](const Life& life) { return life.bytes == 0; });
  return lives;
}

// The bytes that are in use while each command runs.
std::vector<std::int64_t> in_use(const std::vector<Life>& lives, std::size_t commands) {
  std::vector<std::int64_t> change(commands + 1, 0);
  for (const Life& life : lives) {
    change[life.first] += life.bytes;
    change[life.last + 1] -= life.bytes;
  }
  std::int64_t sum = 0;
  for (std::int64_t& each : change) each = sum += each;
  return change;
}

// If results are in the far memory, those are kept in the cache that fit, the smallest first. A larger one
// that only one operator reads passes through it by rows. `used` are the bytes of the cache that weights
// need, by command.
std::vector<bool> near_values(const Graph& graph, std::vector<Life> lives, std::vector<std::int64_t> used,
                              const MemoryMode& mode) {
  std::vector<bool> out(graph.values().size(), mode.results_near);
  if (mode.results_near) return out;
  std::ranges::stable_sort(lives, {}, &Life::bytes);
  for (const Life& life : lives) {
    if (life.leaves) continue;
    const auto first = used.begin() + static_cast<std::ptrdiff_t>(life.first);
    const auto last = used.begin() + static_cast<std::ptrdiff_t>(life.last) + 1;
    const bool fits = *std::max_element(first, last) + life.bytes <= mode.cache_bytes;
    if (fits) std::for_each(first, last, [&](std::int64_t& each) { each += life.bytes; });
    out[life.value.index()] = fits || (life.is_striped && life.readers == 1);
  }
  return out;
}

// Weights that are read several times are in the cache meanwhile; large ones in two halves that take turns.
std::vector<std::int64_t> weights_in_cache(const std::vector<Command>& commands,
                                           const std::vector<Block>& blocks, const MemoryMode& mode) {
  constexpr std::int64_t kPercent = 60;  // of the weights, at a time; fitted
  std::vector<std::int64_t> out(commands.size(), 0);
  for (std::size_t i = 0; i < commands.size(); ++i)
    if (const Command& each = commands[i]; each.weights > 0 && columns_of(each, blocks[i]) > 1)
      out[i] = std::min(each.weights * each.weight_bits / 8 * kPercent / 100, mode.cache_bytes);
  return out;
}

void place(std::vector<Command>& commands, const Graph& graph, const std::vector<ValueId>& stored,
           const std::vector<bool>& near, const MemoryMode& mode) {
  const auto set = [&](Map& map) {
    if (!map.value.valid()) return;
    const ValueId value = stored[map.value.index()];
    const bool is_constant = graph.value(value).kind == ValueKind::kConstant;
    map.is_near = is_constant ? mode.constants_near : near[value.index()];
  };
  for (Command& each : commands) {
    set(each.input);
    if (each.second) set(*each.second);
    set(each.result);
  }
}

std::int64_t constants_of(const Graph& graph) {
  std::int64_t out = 0;
  for (const Value& value : graph.values())
    if (value.kind == ValueKind::kConstant) out += static_cast<std::int64_t>(value.type.bytes());
  return out;
}

template <class Rows>
const auto& row_named(const char* what, const Rows& rows, std::string_view name) {
  const auto found = std::ranges::find_if(rows, [&](const auto& each) { return each.name == name; });
  if (found != rows.end()) return *found;
  std::vector<std::string> known;
  for (const auto& each : rows) known.emplace_back(each.name);
  throw InvalidGraph({.where = "device_cost",
                      .what = "unknown value of '" + std::string(what) + "'",
                      .expected = "one of " + joined(known),
                      .got = quoted(name)});
}

}  // namespace

Estimate estimate(const Graph& graph, const Machine& machine, const MemorySystem& system,
                  const MemoryMode& mode) {
  const Chip chip{machine, system, mode};
  std::vector<Command> commands = commands_of(graph, machine);
  std::vector<Block> blocks;
  for (const Command& each : commands) blocks.push_back(block_of(each, machine));
  const std::vector<ValueId> stored = stored_as(graph, commands);
  const std::vector<Life> lives = lives_of(graph, commands, stored);
  place(commands, graph, stored, near_values(graph, lives, weights_in_cache(commands, blocks, mode), mode),
        mode);
  const std::vector<std::int64_t> bytes = in_use(lives, commands.size());
  Estimate out;
  out.constant_bytes = constants_of(graph);
  out.rows.reserve(commands.size());
  for (std::size_t i = 0; i < commands.size(); ++i) {
    Command& each = commands[i];
    const Cycles cycles = cycles_of(each, blocks[i], chip);
    Row& row = out.rows.emplace_back();
    row.node = each.node;
    row.fused = std::move(each.fused);
    row.name = each.name;
    row.computing = std::llround(cycles.computing);
    row.near = std::llround(cycles.near);
    row.far = std::llround(cycles.far);
    row.cycles = std::max<std::int64_t>(1, std::llround(cycles.all()));
    row.bytes = bytes[i];
    row.macs = each.macs;
    out.cycles += row.cycles;
    out.computing += row.computing;
    out.macs += row.macs;
    out.result_bytes = std::max(out.result_bytes, row.bytes);
  }
  return out;
}

Estimate estimate(const Graph& graph, const Machine& machine) {
  const Named chip = named(machine.name, {}, {});
  return estimate(graph, chip.machine, chip.system, chip.mode);
}

Named named(std::string_view machine, std::string_view system, std::string_view mode) {
  const Machine& found = row_named("device", machines(), machine);
  const Setting& usual = usual_setting(found.family);
  return {found, row_named("system_config", memory_systems(), system.empty() ? usual.system : system),
          row_named("memory_mode", memory_modes(), mode.empty() ? usual.mode : mode)};
}

}  // namespace tosaic::cost
