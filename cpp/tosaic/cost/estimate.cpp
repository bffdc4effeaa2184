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
  std::size_t first = 0, last = 0;
  std::int64_t bytes = 0;
};

std::vector<Life> lives_of(const Graph& graph, const std::vector<Command>& commands) {
  std::vector<Life> lives(graph.values().size());
  std::vector<bool> seen(graph.values().size(), false);
  const auto use = [&](const Map& map, std::size_t at) {
    if (!map.value.valid() || graph.value(map.value).kind == ValueKind::kConstant) return;
    const std::size_t i = map.value.index();
    Life& life = lives[i];
    if (!seen[i]) life.first = graph.value(map.value).kind == ValueKind::kInput ? 0 : at;
    seen[i] = true;
    life.last = graph.is_output(map.value) ? commands.size() - 1 : std::max(life.last, at);
    life.bytes = std::max(life.bytes, bytes_of(map));
  };
  for (std::size_t i = 0; i < commands.size(); ++i) {
    use(commands[i].input, i);
    if (commands[i].second) use(*commands[i].second, i);
    use(commands[i].result, i);
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

// Results that do not fit the cache are in the other memory. A value that is larger than half of it does not stay
// there until it is read.
void place(std::vector<Command>& commands, const Graph& graph, const MemoryMode& mode) {
  const auto set = [&](Map& map) {
    const bool is_constant = map.value.valid() && graph.value(map.value).kind == ValueKind::kConstant;
    if (is_constant)
      map.is_near = mode.constants_near;
    else
      map.is_near = mode.results_near || bytes_of(map) <= mode.cache_bytes / 2;
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
                      .got = quoted(std::string(name))});
}

}  // namespace

Estimate estimate(const Graph& graph, const Machine& machine, const MemorySystem& system,
                  const MemoryMode& mode) {
  const Chip chip{machine, system, mode};
  std::vector<Command> commands = commands_of(graph, machine);
  place(commands, graph, mode);
  const std::vector<std::int64_t> bytes = in_use(lives_of(graph, commands), commands.size());
  Estimate out;
  out.constant_bytes = constants_of(graph);
  out.rows.reserve(commands.size());
  for (std::size_t i = 0; i < commands.size(); ++i) {
    Command& each = commands[i];
    const Cycles cycles = cycles_of(each, block_of(each, machine), chip);
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
