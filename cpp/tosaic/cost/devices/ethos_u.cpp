#include <algorithm>
#include <array>

#include "tosaic/cost/machine.h"

namespace tosaic::cost {
namespace {

constexpr double k16Bytes = 16;  // a port transfers them in a cycle

// ---- machines ----

using Outputs = Machine::Outputs;

// Ethos-U85: results of 32 bits take twice the time.
Outputs u85_outputs(double narrow) {
  return {.narrow = narrow, .wide = 2 * narrow, .mul_to_wide = narrow, .table = narrow, .clamp = narrow};
}

// Ethos-U55 and U65, in the order of Vela's table: i32 with one operand and with two, MUL to i32, MUL, ADD
// and SUB, maximum pools, all others; then TABLE and CLAMP.
Outputs u55_outputs(const std::array<double, 7>& rows, double table, double clamp) {
  return {.narrow = rows[6],
          .wide = rows[0],
          .binary_wide = rows[1],
          .mul_to_wide = rows[2],
          .mul = rows[3],
          .add = rows[4],
          .max_pool = rows[5],
          .table = table,
          .clamp = clamp};
}

Machine u85(std::string_view name, std::int64_t macs, std::int64_t cores, std::vector<Extent> microblocks,
            std::vector<Extent> deep, std::vector<Extent> channels, std::int64_t inputs, std::int64_t sums,
            double narrow, std::vector<std::int64_t> words) {
  return {.name = name,
          .family = "ethos-u85",
          .macs = macs,
          .cores = cores,
          .microblocks = std::move(microblocks),
          .deep_microblocks = std::move(deep),
          .channel_microblocks = std::move(channels),
          .input_bytes = inputs,
          .sum_bytes = sums,
          .outputs = u85_outputs(narrow),
          .words_in_flight = std::move(words)};
}

Machine u55(std::string_view name, std::string_view family, std::int64_t macs, std::int64_t cores,
            const Extent& microblock, std::int64_t buffer, const Outputs& outputs) {
  return {.name = name,
          .family = family,
          .macs = macs,
          .cores = cores,
          .microblocks = {microblock},
          .channel_microblocks = {microblock},
          .input_bytes = buffer,
          .input_depth = 32,
          .steps_by_depth = false,
          .chains = false,
          .multiplies_maps = false,
          .transposes_by_pool = false,
          .widens = false,
          .outputs = outputs};
}

constexpr std::int64_t kKiB = 1024;

std::vector<Machine> make_machines() {
  const Outputs u55_128 = u55_outputs({0.75, 1.25, 0.75, 0.75, 1.5, 0.25, 0.5}, 1.0, 0.5);
  const Outputs u55_256 = u55_outputs({0.625, 1.125, 0.5, 0.375, 0.75, 0.125, 0.25}, 1.0, 0.25);
  return {
      u85("ethos-u85-128", 128, 1, {{1, 2, 8}}, {{1, 1, 16}}, {{1, 1, 16}}, 8 * kKiB, 8 * kKiB, 0.5,
          {64, 64, 128, 128, 104, 16}),
      u85("ethos-u85-256", 256, 1, {{1, 4, 8}, {2, 2, 8}}, {{1, 2, 16}}, {{1, 2, 16}}, 16 * kKiB, 16 * kKiB,
          0.25, {104, 104, 128, 128, 128, 16}),
      u85("ethos-u85-512", 512, 2, {{2, 2, 16}, {1, 4, 16}}, {}, {{2, 2, 16}, {1, 4, 16}}, 16 * kKiB,
          32 * kKiB, 0.125, {128, 128, 256, 256, 128, 16}),
      u85("ethos-u85-1024", 1024, 4, {{2, 2, 32}, {1, 4, 32}, {2, 4, 16}}, {}, {{2, 4, 16}}, 16 * kKiB,
          64 * kKiB, 0.0625, {256, 256, 416, 208, 256, 16}),
      u85("ethos-u85-2048", 2048, 4, {{2, 2, 64}, {1, 4, 64}, {4, 4, 16}}, {}, {{4, 4, 16}}, 32 * kKiB,
          128 * kKiB, 0.03125, {256, 256, 512, 256, 256, 16}),
      u55("ethos-u55-32", "ethos-u55", 32, 1, {1, 1, 4}, 16 * kKiB,
          u55_outputs({2.0, 3.0, 3.0, 3.0, 6.0, 1.0, 2.0}, 1.0, 1.0)),
      u55("ethos-u55-64", "ethos-u55", 64, 1, {1, 1, 8}, 16 * kKiB,
          u55_outputs({1.0, 1.5, 1.5, 1.5, 3.0, 0.5, 1.0}, 1.0, 1.0)),
      u55("ethos-u55-128", "ethos-u55", 128, 1, {1, 2, 8}, 24 * kKiB, u55_128),
      u55("ethos-u55-256", "ethos-u55", 256, 1, {2, 2, 8}, 48 * kKiB, u55_256),
      u55("ethos-u65-256", "ethos-u65", 256, 1, {2, 2, 8}, 48 * kKiB, u55_256),
      u55("ethos-u65-512", "ethos-u65", 512, 2, {2, 2, 8}, 48 * kKiB,
          u55_outputs({0.3125, 0.5625, 0.25, 0.1875, 0.375, 0.0625, 0.125}, 0.5, 0.125)),
  };
}

// ---- memories ----

constexpr Memory sram(double bytes_per_cycle, std::int64_t burst, std::int64_t latency,
                      std::int64_t transfers) {
  return {Place::kSram, bytes_per_cycle, burst, latency, latency, transfers, transfers};
}

// A flash is read only. `scale` is its clock as a part of that of the NPU.
constexpr Memory flash(double port_bytes, double scale, std::int64_t latency) {
  return {Place::kOffChipFlash, port_bytes * scale, 128, latency, 0, 2, 0};
}

constexpr Memory dram(double scale, std::int64_t ports, std::int64_t reads, std::int64_t writes) {
  return {Place::kDram,  k16Bytes * scale * static_cast<double>(ports), 128, 500, 250, reads * ports,
          writes * ports};
}

// [System_Config.*] of Arm/vela.ini. A port of Ethos-U55 transfers 8 bytes in a cycle.
constexpr std::array kSystems{
    MemorySystem{"Ethos_U85_SYS_DRAM_Mid", "ethos-u85", 1e9, sram(32, 64, 32, 16), dram(0.75, 1, 64, 32)},
    MemorySystem{"Ethos_U85_SYS_DRAM_Low", "ethos-u85", 500e6, sram(32, 64, 16, 16),
                 dram(0.46875, 1, 24, 12)},
    MemorySystem{"Ethos_U85_SYS_DRAM_High", "ethos-u85", 1e9, sram(64, 64, 32, 32), dram(0.75, 2, 64, 32)},
    MemorySystem{"Ethos_U85_SYS_Flash_Low", "ethos-u85", 200e6, sram(32, 64, 8, 16),
                 flash(k16Bytes, 0.0625, 32)},
    MemorySystem{"Ethos_U85_SYS_Flash_High", "ethos-u85", 500e6, sram(32, 64, 32, 16),
                 flash(k16Bytes, 0.0625, 64)},
    MemorySystem{"Ethos_U55_High_End_Embedded", "ethos-u55", 500e6, sram(8, 32, 32, 4), flash(8, 0.125, 64)},
    MemorySystem{"Ethos_U55_Deep_Embedded", "ethos-u55", 200e6, sram(8, 32, 32, 8), flash(8, 0.0625, 64)},
    MemorySystem{"Ethos_U65_High_End", "ethos-u65", 1e9, sram(16, 32, 32, 16), dram(0.234375, 1, 24, 12)},
    MemorySystem{"Ethos_U65_Client_Server", "ethos-u65", 1e9, sram(16, 32, 32, 16), dram(0.75, 1, 24, 12)},
    MemorySystem{"Ethos_U65_Mid_End", "ethos-u65", 500e6, sram(16, 32, 32, 8), dram(0.46875, 1, 12, 6)},
    MemorySystem{"Ethos_U65_Embedded", "ethos-u65", 500e6, sram(16, 32, 32, 8), flash(k16Bytes, 0.0625, 64)},
};

// [Memory_Mode.*] of Arm/vela.ini.
constexpr std::array kModes{
    MemoryMode{"Sram_Only", true, true, 0},
    MemoryMode{"Shared_Sram", false, true, 0},
    MemoryMode{"Dedicated_Sram", false, false, 384 * kKiB},
    MemoryMode{"Dedicated_Sram_256KB", false, false, 256 * kKiB},
    MemoryMode{"Dedicated_Sram_384KB", false, false, 384 * kKiB},
    MemoryMode{"Dedicated_Sram_512KB", false, false, 512 * kKiB},
};

constexpr std::array kSettings{
    Setting{"ethos-u85", "Ethos_U85_SYS_DRAM_Mid", "Sram_Only"},
    Setting{"ethos-u55", "Ethos_U55_High_End_Embedded", "Shared_Sram"},
    Setting{"ethos-u65", "Ethos_U65_High_End", "Dedicated_Sram_384KB"},
};

}  // namespace

std::span<const Machine> machines() {
  static const std::vector<Machine> all = make_machines();
  return all;
}

const Machine* machine_named(std::string_view name) {
  const auto all = machines();
  const auto found = std::ranges::find(all, name, &Machine::name);
  return found == all.end() ? nullptr : &*found;
}

std::span<const MemorySystem> memory_systems() { return kSystems; }
std::span<const MemoryMode> memory_modes() { return kModes; }

const Setting& usual_setting(std::string_view family) {
  const auto found = std::ranges::find(kSettings, family, &Setting::family);
  return found == kSettings.end() ? kSettings.front() : *found;
}

}  // namespace tosaic::cost
