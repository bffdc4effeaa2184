// machine: what the cost model knows of an NPU, as data. Nothing else in this layer knows a device by its
// name.
//
//   Machine        the multipliers, buffers and output unit of one size of a device
//   MemorySystem   the clock of a chip, and how fast its memories are
//   MemoryMode     which memory holds constants, and which one results
//
// The numbers are those with which Vela 5.2 estimates: its tables of architectures and of performance (Apache
// 2.0), and its configuration file Arm/vela.ini.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace tosaic::cost {

// The extents of a feature map, or of a part of it.
struct Extent {
  std::int64_t height = 1, width = 1, depth = 1;
  [[nodiscard]] std::int64_t area() const { return height * width; }
  [[nodiscard]] std::int64_t elements() const { return height * width * depth; }
  bool operator==(const Extent&) const = default;
};

enum class Place : std::uint8_t { kSram, kDram, kOnChipFlash, kOffChipFlash };

// A memory as the NPU sees it. Times are in cycles of the NPU.
struct Memory {
  Place place = Place::kSram;
  double bytes_per_cycle = 0;                        // of all ports together
  std::int64_t burst = 0;                            // the most bytes of a transfer
  std::int64_t read_latency = 0, write_latency = 0;  // cycles
  std::int64_t reads = 0, writes = 0;                // transfers at a time, of all ports together
};

struct MemorySystem {
  std::string_view name;    // "Ethos_U85_SYS_DRAM_Mid"
  std::string_view family;  // the devices that it is for: "ethos-u85"
  double clock_hz = 0;
  Memory near, far;  // SRAM, and the memory behind the second port
};

struct MemoryMode {
  std::string_view name;  // "Sram_Only"
  bool constants_near = true, results_near = true;
  std::int64_t cache_bytes = 0;  // if results are far: the SRAM that may hold results
};

// The units that access a memory. Each has a buffer, which limits what it reads in a cycle.
enum class Channel : std::uint8_t { kCopy, kStream, kWeights, kFastWeights, kMap, kScales, kWrite };

struct Machine {
  // Cycles of the output unit for one element of a result.
  struct Outputs {
    double narrow = 0, wide = 0;  // wide: elementwise from 32 bits, or from 8 to 32
    // Of machines that differ by operator; 0: as above.
    double binary_wide = 0, mul_to_wide = 0, mul = 0, add = 0, max_pool = 0;
    double table = 0, clamp = 0;  // the least that a result with a TABLE or CLAMP takes
  };

  std::string_view name, family;  // "ethos-u85-256", "ethos-u85"
  std::int64_t macs = 0;          // multiply-accumulates in a cycle
  std::int64_t cores = 1;
  // Parts of a result that are computed at once; the one is used that wastes least. The lists are for matrix
  // products and convolutions; for these with kernel 1 x 1 and many channels, in addition; and for operators
  // that keep channels apart (pools, depthwise convolutions), and elementwise ones.
  std::vector<Extent> microblocks, deep_microblocks = {}, channel_microblocks;
  std::int64_t input_bytes = 0, sum_bytes = 0;  // buffers; sum_bytes 0: sums are in the buffer of the inputs
  std::int64_t input_depth = 64;                // channels of a block of the input, for bytes
  bool steps_by_depth = true;                   // a step takes the channels of the block / 8 cycles, not 4
  // An elementwise operator is part of the command before it, with its own output cycles. If not, only CLAMP,
  // TABLE and TRANSPOSE are, and a RESCALE that is not fused is an elementwise operator.
  bool chains = true;
  bool multiplies_maps = true;     // if not, MATMUL is elementwise products and their sums, column by column
  bool transposes_by_pool = true;  // if not, by transfers of memory
  bool widens = true;              // RESCALE can follow and precede operators of 32 bits
  Outputs outputs;
  std::vector<std::int64_t> words_in_flight = {};  // by Channel, without kWrite: of 16 bytes; empty: no limit
};

// The machines of tosaic's devices. They live as long as the process.
[[nodiscard]] std::span<const Machine> machines();
// Null if the cost model does not have the device.
[[nodiscard]] const Machine* machine_named(std::string_view name);

[[nodiscard]] std::span<const MemorySystem> memory_systems();
[[nodiscard]] std::span<const MemoryMode> memory_modes();

// The system and mode for which payloads are compiled if the caller names none.
struct Setting {
  std::string_view family, system, mode;
};
[[nodiscard]] const Setting& usual_setting(std::string_view family);

}  // namespace tosaic::cost
