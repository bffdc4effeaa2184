#include "tosaic/cost/cycles.h"

#include <algorithm>
#include <cmath>

namespace tosaic::cost {
namespace {

constexpr double kOccupied = 0.8;   // the part of the possible transfers that is under way
constexpr std::int64_t kWord = 16;  // bytes
constexpr std::int64_t kScaleBytes = 10;
constexpr std::int64_t kNarrowest = 4;  // cycles for a microblock, at least

std::int64_t parts(std::int64_t extent, std::int64_t part) { return (extent + part - 1) / part; }

Extent smaller(const Extent& a, const Extent& b) {
  return {std::min(a.height, b.height), std::min(a.width, b.width), std::min(a.depth, b.depth)};
}

// ---- computing ----

// The multipliers, for one block of the result.
class Multipliers {
 public:
  Multipliers(const Command& command, const Block& block, const Machine& machine)
      : command_(command), machine_(machine), kernel_first_(block.is_kernel_first), micro_(block.micro) {
    result_ = smaller(block.result, command.result.extent);
    depth_ = std::min(block.input.depth, command.input.extent.depth);
    const bool sums = command.work == Work::kConvolution || command.work == Work::kProduct;
    if (micro_.height == 2 && sums && command.result.extent.height == 1 &&
        command.result.extent.width % 2 == 0 && command.kernel_height == 1)
      micro_ = {1, 4, micro_.depth};  // a row takes both rows of the microblock
    places_ = parts(result_.height, micro_.height) * parts(result_.width, micro_.width);
    layers_ = parts(result_.depth, micro_.depth);
  }

  [[nodiscard]] const Extent& result() const { return result_; }

  // The number of blocks; the last ones along an axis count for as many microblocks as they have.
  [[nodiscard]] double blocks() const {
    const auto along = [](std::int64_t all, std::int64_t block, std::int64_t micro) {
      return std::max(static_cast<double>(parts(all, micro)) / static_cast<double>(parts(block, micro)), 1.0);
    };
    const Extent& all = command_.result.extent;
    return along(all.height, result_.height, micro_.height) * along(all.width, result_.width, micro_.width) *
           along(all.depth, result_.depth, micro_.depth);
  }

  [[nodiscard]] double cycles() const {
    std::int64_t out = 0;
    for (std::int64_t x = 0; x < command_.kernel_width; x += kKernelPart)
      for (std::int64_t y = 0; y < command_.kernel_height; y += kKernelPart)
        out += of_kernel(std::min(command_.kernel_width - x, kKernelPart) *
                         std::min(command_.kernel_height - y, kKernelPart));
    const Work work = command_.work;
    if (work == Work::kConvolution || work == Work::kProduct || work == Work::kReduceSum)
      out *= parts(command_.input.extent.depth, depth_);
    return static_cast<double>(out) / (machine_.steps_by_depth ? 1.0 : static_cast<double>(machine_.cores));
  }

 private:
  // A part of the kernel.
  [[nodiscard]] std::int64_t of_kernel(std::int64_t elements) const {
    const std::int64_t bits = std::min<std::int64_t>(command_.input.bits, 32);
    const std::int64_t weights = weight_cycles(micro_, machine_);
    switch (command_.work) {
      case Work::kPool:
      case Work::kReduceExtreme:
        return std::max(kNarrowest, elements) * places_ * layers_ * bits / 2 + stall(1);
      case Work::kDepthwise: {
        const std::int64_t steps = parts(elements, 4);
        return std::max(weights, 4 * places_ * bits / 8) * steps * layers_ + stall(steps);
      }
      default:
        break;
    }
    if (!kernel_first_) {
      const std::int64_t step =
          machine_.steps_by_depth ? std::max<std::int64_t>(depth_ / 8, 1) * bits / 8 : 4;
      return std::max(weights, step * places_) * elements * layers_ + stall(elements);
    }
    const std::int64_t per_step = bits == 16 ? 2 : depth_ <= 2 && machine_.steps_by_depth ? 8 : 4;
    const std::int64_t steps = parts(elements, per_step);
    return (std::max(weights, 4 * places_) * steps * layers_ + stall(steps)) * parts(depth_, 8);
  }

  // Sums of a single microblock wait for each other.
  [[nodiscard]] std::int64_t stall(std::int64_t steps) const {
    constexpr std::int64_t kDelay = 2;
    if (places_ != 1) return 0;
    if (layers_ == 1) return kDelay * steps;
    return steps > 1 ? kDelay * (steps - 1) * layers_ : 0;
  }

  const Command& command_;
  const Machine& machine_;
  bool kernel_first_;
  Extent micro_, result_;
  std::int64_t depth_ = 1, places_ = 1, layers_ = 1;
};

// The output unit, for an element.
double output_of(const Command& command, const Machine& machine) {
  double out = output_cycles(machine, command.work, command.op, command.input.bits, command.result.bits,
                             command.is_binary);
  const bool is_wide = command.input.bits >= 32 && command.work == Work::kElementwise;
  if (machine.chains && command.chained > 0 && (is_wide || command.reads_wide)) out = machine.outputs.wide;
  if (command.has_table) out = std::max(out, machine.outputs.table);
  if (command.has_clamp) out = std::max(out, machine.outputs.clamp);
  return out + command.chained;
}

// ---- memory ----

double bandwidth(const Memory& memory, Channel channel, const Machine& machine) {
  if (machine.words_in_flight.empty()) return memory.bytes_per_cycle;
  double transfers = 0, latency = 1;
  if (channel == Channel::kWrite) {
    transfers = static_cast<double>(memory.writes) * kOccupied;
    latency = static_cast<double>(memory.write_latency);
  } else {
    const auto words = static_cast<double>(machine.words_in_flight[static_cast<std::size_t>(channel)]);
    const std::int64_t burst_words = memory.burst / kWord;
    transfers =
        std::min(words / static_cast<double>(burst_words), static_cast<double>(memory.reads) * kOccupied);
    latency = static_cast<double>(memory.read_latency);
  }
  const double limit = static_cast<double>(memory.burst) * transfers / std::max(latency, 1.0) * kOccupied;
  return std::min(memory.bytes_per_cycle, limit);
}

// The bytes that are adjacent in memory when a block of a map is read or written.
std::int64_t run_bytes(const Map& map, const Extent& block, bool is_read, std::int64_t cores) {
  if (block.elements() == 1) return map.bits / 8;
  const std::int64_t row = map.extent.depth * map.bits / 8;
  if (map.in_bricks) return 16 * map.bits * block.width / 8 * (is_read ? 1 : cores);
  if (row == block.depth && (is_read || block.depth <= 16)) return map.bits * block.width * block.depth / 8;
  if (is_read) return map.bits * block.depth / 8;
  return std::min({std::int64_t{64}, 2 * map.bits * cores, block.depth * map.bits / 8});
}

// What a memory transfers for some bytes, since it transfers whole bursts.
double transferred(double bytes, const Map& map, const Extent& block, bool is_read, const Memory& memory,
                   std::int64_t cores) {
  const std::int64_t run = std::clamp<std::int64_t>(run_bytes(map, block, is_read, cores), 1, memory.burst);
  return bytes * static_cast<double>(memory.burst) / static_cast<double>(run);
}

double bytes_of(const Extent& extent, std::int64_t bits) {
  return static_cast<double>(extent.elements() * bits) / 8;
}

class Traffic {
 public:
  Traffic(const Command& command, const Block& block, const Chip& chip)
      : command_(command), block_(block), chip_(chip), machine_(chip.machine) {
    if (command.work != Work::kTransfer) return;
    const bool in_rows = command.op == Op::kTosaTranspose;  // others go element by element
    block_.input = in_rows ? Extent{1, 1, 32} : Extent{};
    block_.result = in_rows ? Extent{1, 1, 16} : Extent{};
  }

  // To read the first block of the input and to write the last one of the result.
  [[nodiscard]] double ends() const {
    double in = of_block(command_.input, block_.input, true);
    if (command_.second) in = std::max(in, of_block(*command_.second, block_.input, true));
    return in + of_block(command_.result, block_.result, false);
  }

  void count(Cycles& out) {
    const Extent result = smaller(block_.result, command_.result.extent);
    const Extent& all = command_.result.extent;
    const std::int64_t across = columns_of(command_, block_);
    const std::int64_t layers = keeps_channels() ? 1 : parts(all.depth, result.depth);
    read(command_.input, read_elements(across * layers), Channel::kMap);
    if (command_.second && command_.second->extent.elements() > 1)
      read(*command_.second,
           command_.second->stored_elements() * (command_.work == Work::kProduct ? across : 1),
           Channel::kStream);
    const double written = transferred(
        static_cast<double>(command_.result.stored_elements() * command_.result.bits) / 8, command_.result,
        block_.result, false, chip_.of_results(command_.result.is_near), machine_.cores);
    add(command_.result.is_near, Channel::kWrite, written);
    if (command_.weights > 0) weights(across);
    out.near = time(chip_.system.near, near_);
    out.far = time(chip_.system.far, far_);
  }

 private:
  using Bytes = std::array<double, static_cast<std::size_t>(Channel::kWrite) + 1>;

  [[nodiscard]] bool keeps_channels() const {
    return command_.work != Work::kConvolution && command_.work != Work::kProduct &&
           command_.work != Work::kReduceSum;
  }

  [[nodiscard]] double of_block(const Map& map, const Extent& block, bool is_read) const {
    const Memory& memory = chip_.of_results(map.is_near);
    const double bytes = bytes_of(smaller(map.extent, block), map.bits);
    const double cycles =
        transferred(bytes, map, block, is_read, memory, machine_.cores) / memory.bytes_per_cycle;
    return cycles + static_cast<double>(is_read ? memory.read_latency : memory.write_latency);
  }

  // Blocks of a convolution overlap, and each layer of the result reads its input again.
  [[nodiscard]] std::int64_t read_elements(std::int64_t blocks) const {
    if (command_.work == Work::kElementwise || command_.work == Work::kTransfer)
      return command_.input.stored_elements();
    const Extent input = smaller(block_.input, command_.input.extent);
    const std::int64_t kernels =
        parts(command_.kernel_height, kKernelPart) * parts(command_.kernel_width, kKernelPart);
    const std::int64_t depth =
        command_.input.in_bricks ? parts(command_.input.extent.depth, 16) * 16 : command_.input.extent.depth;
    return input.area() * depth * kernels * blocks;
  }

  void read(const Map& map, std::int64_t elements, Channel channel) {
    const Memory& memory = chip_.of_results(map.is_near);
    const double bytes = static_cast<double>(elements * map.bits) / 8;
    add(map.is_near,
        channel == Channel::kMap && command_.work == Work::kElementwise ? Channel::kStream : channel,
        transferred(bytes, map, block_.input, true, memory, machine_.cores));
  }

  // Weights and scales are read for each column of blocks. Weights that are read several times are first
  // copied to SRAM.
  void weights(std::int64_t across) {
    const bool is_near = chip_.mode.constants_near;
    const double bytes = static_cast<double>(command_.weights * command_.weight_bits) / 8;
    const auto times = static_cast<double>(across);
    add(is_near, Channel::kScales, static_cast<double>(command_.scales * kScaleBytes) * times);
    if (is_near || across == 1) return add(is_near, Channel::kWeights, bytes * times);
    add(false, Channel::kCopy, bytes);
    add(true, Channel::kWrite, bytes);
    add(true, Channel::kFastWeights, bytes * times);
  }

  void add(bool is_near, Channel channel, double bytes) {
    (is_near ? near_ : far_)[static_cast<std::size_t>(channel)] += bytes;
  }

  [[nodiscard]] double time(const Memory& memory, const Bytes& bytes) const {
    double all = 0, longest = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      all += bytes[i];
      if (bytes[i] > 0)
        longest = std::max(longest, bytes[i] / bandwidth(memory, static_cast<Channel>(i), machine_));
    }
    return std::max(all / memory.bytes_per_cycle, longest);
  }

  const Command& command_;
  Block block_;
  const Chip& chip_;
  const Machine& machine_;
  Bytes near_{}, far_{};
};

// Blocks are computed one after the other; the output unit works on a block while the multipliers have begun
// the next one.
double pipelined(const Command& command, const Block& block, const Chip& chip) {
  const Multipliers multipliers(command, block, chip.machine);
  const Extent& result = multipliers.result();
  const double blocks = multipliers.blocks();
  const double sums = multipliers.cycles();
  double output = output_of(command, chip.machine) * static_cast<double>(result.elements());
  const double least = (sums + output) / 4;  // to set up a block
  const std::int64_t scale_cycles = kScaleBytes * result.depth * chip.of_constants().read_latency / 256;
  if (command.scales > 0) output = std::max(output, static_cast<double>(scale_cycles));
  const double longer = std::max({sums, output, least}), shorter = std::max(std::min(sums, output), least);
  return longer * blocks + shorter;
}

// A MATMUL without multipliers for two maps: a product for each multiplication, then sums for each column.
double emulated(const Command& command, const Machine& machine) {
  constexpr double kColumn = 150;  // fitted
  const Machine::Outputs& outputs = machine.outputs;
  const double sums = outputs.max_pool * static_cast<double>(command.input.extent.elements()) + kColumn;
  const std::int64_t macs = command.macs / command.repeats;
  return outputs.mul_to_wide * static_cast<double>(macs) +
         sums * static_cast<double>(command.result.extent.depth) / static_cast<double>(command.repeats);
}

}  // namespace

Cycles cycles_of(const Command& command, const Block& block, const Chip& chip) {
  Cycles out;
  Traffic traffic(command, block, chip);
  if (command.work == Work::kElementwise)
    out.computing = output_of(command, chip.machine) * static_cast<double>(command.result.stored_elements());
  else if (command.work == Work::kTransfer && command.op == Op::kTosaTranspose)
    out.computing = chip.machine.outputs.max_pool * static_cast<double>(command.result.extent.elements());
  else if (command.work == Work::kProduct && !chip.machine.multiplies_maps)
    out.computing = emulated(command, chip.machine);
  else if (command.work != Work::kTransfer)
    out.computing = pipelined(command, block, chip) + traffic.ends();
  traffic.count(out);
  const auto repeats = static_cast<double>(command.repeats);
  return {out.computing * repeats, out.near * repeats, out.far * repeats};
}

}  // namespace tosaic::cost
