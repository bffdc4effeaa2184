#include "tosaic/cost/block.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tosaic::cost {
namespace {

constexpr std::int64_t kDepthStep = 16, kKernelFirstDepth = 16;
constexpr Extent kLargest{128, 128, 1024};
constexpr std::int64_t kReserved = 4096;  // bytes of a shared buffer, for results and tables
constexpr std::int64_t kSumBytes = 4, kWideSumBytes = 8;

std::int64_t up(std::int64_t value, std::int64_t to) { return (value + to - 1) / to * to; }
std::int64_t down(std::int64_t value, std::int64_t to) { return std::max(value / to * to, to); }
double ratio(std::int64_t a, std::int64_t b) { return static_cast<double>(a) / static_cast<double>(b); }

Extent rounded(const Extent& extent, const Extent& to) {
  return {up(extent.height, to.height), up(extent.width, to.width), up(extent.depth, to.depth)};
}

// Vela's rule: which order of a convolution uses more of the multipliers.
bool takes_kernel_first(const Command& command, const Machine& machine) {
  if (command.work != Work::kConvolution) return false;
  constexpr std::int64_t kStep = 5, kLeast = 2;
  const std::int64_t kernel = command.kernel_height * command.kernel_width,
                     depth = command.input.extent.depth;
  const std::int64_t used = kernel / kStep * kStep + std::max(kernel % kStep, kLeast);
  const double kernel_first = ratio(depth, up(depth, kDepthStep)) * ratio(kernel, used);
  const double depth_first = ratio(depth, up(depth, machine.input_depth));
  return machine.steps_by_depth ? kernel_first >= depth_first : kernel_first > depth_first;
}

bool keeps_channels(const Command& command) {
  return command.work == Work::kDepthwise || command.work == Work::kPool ||
         command.work == Work::kReduceExtreme || command.work == Work::kElementwise;
}

// The microblock that wastes least of the result.
Extent micro_of(const Command& command, const Machine& machine) {
  const bool is_plain = command.work == Work::kPool && command.kernel_height * command.kernel_width == 1;
  const bool by_channel =
      keeps_channels(command) && (command.input.bits == 8 || (is_plain && command.input.bits >= 32));
  std::vector<Extent> choices = by_channel ? machine.channel_microblocks : machine.microblocks;
  if (command.work == Work::kConvolution && command.input.bits == 16 &&
      command.kernel_height * command.kernel_width == 1)
    choices.insert(choices.end(), machine.deep_microblocks.begin(), machine.deep_microblocks.end());
  const auto waste = [&](const Extent& each) { return rounded(command.result.extent, each).elements(); };
  return *std::ranges::min_element(choices, {}, waste);
}

// Elements are computed in the order of the operand, and stored in that of the result.
Extent order_of(const Command& command) {
  return command.is_permuted && command.work == Work::kPool ? command.input.extent : command.result.extent;
}

class Search {
 public:
  Search(const Command& command, const Machine& machine)
      : command_(command), machine_(machine), all_(order_of(command)) {
    block_.micro = micro_of(command, machine);
    block_.is_kernel_first = takes_kernel_first(command, machine);
    step_ = {block_.micro.height, block_.micro.width, std::max(block_.micro.depth, depth_step())};
    if (command.result.in_bricks && command.is_permuted) {  // whole bricks are written
      if (command.channels_from == Axis::kWidth) step_.width = kDepthStep;
      if (command.channels_from == Axis::kHeight) step_.height = kDepthStep;
    }
    whole_ = rounded(all_, step_);
    limit_ = {std::min(whole_.height, kLargest.height), std::min(whole_.width, kLargest.width),
              std::min(whole_.depth, kLargest.depth)};
    is_summed_ = !keeps_channels(command) && command.work != Work::kReduceSum;
    const bool is_wide = command.input.bits == 16 && is_summed_;
    sum_bytes_ = is_wide ? kWideSumBytes : kSumBytes;
  }

  Block find() {
    if (is_summed_)
      find_cheapest();
    else if (command_.work == Work::kElementwise)
      find_row();
    else
      find_largest();
    block_.input = input_for(block_.result);
    return block_;
  }

 private:
  [[nodiscard]] std::int64_t depth_step() const { return machine_.steps_by_depth ? kDepthStep : 8; }

  [[nodiscard]] std::int64_t input_depth(std::int64_t depth) const {
    if (keeps_channels(command_)) return depth;
    if (block_.is_kernel_first) return kKernelFirstDepth;
    return command_.input.bits == 32 ? machine_.input_depth / 2 : machine_.input_depth;
  }

  // The part of the input from which a part of the result is computed.
  [[nodiscard]] Extent input_for(const Extent& result) const {
    const auto along = [](std::int64_t extent, std::int64_t stride, std::int64_t kernel, std::int64_t step) {
      return up((extent - 1) * stride + std::min(kernel, kKernelPart), step);
    };
    const Command& c = command_;
    const std::int64_t kernel_height = (c.kernel_height - 1) * c.dilation_height + 1;
    const std::int64_t kernel_width = (c.kernel_width - 1) * c.dilation_width + 1;
    return {along(result.height, c.stride_height, kernel_height, block_.micro.height),
            along(result.width, c.stride_width, kernel_width, block_.micro.width), input_depth(result.depth)};
  }

  [[nodiscard]] bool fits(const Extent& result, std::int64_t buffers) const {
    const Extent input = input_for(result);
    const std::int64_t depth = std::min(input.depth, up(command_.input.extent.depth, depth_step()));
    const std::int64_t inputs = input.area() * depth * std::min<std::int64_t>(command_.input.bits, 32) / 8;
    const std::int64_t sums = result.area() * up(result.depth, depth_step()) * sum_bytes_;
    if (machine_.sum_bytes == 0) return 2 * (inputs + sums) <= machine_.input_bytes - kReserved;
    return buffers * inputs <= machine_.input_bytes && buffers * sums <= machine_.sum_bytes;
  }

  // Vela's cost of a block: the elements of the input and the weights that are read for an element of the
  // result.
  [[nodiscard]] double cost_of(const Extent& result) const {
    if (command_.work == Work::kProduct) return 1.0 / static_cast<double>(result.elements());
    const Extent input = input_for(result);
    const Extent& all = all_;
    const auto parts = [](std::int64_t extent, std::int64_t part) { return (extent + part - 1) / part; };
    const std::int64_t depth = command_.input.extent.depth;
    const double columns = ratio(all.height, result.height) * ratio(all.width, result.width);
    const double inputs =
        static_cast<double>(input.area() * depth * parts(all.depth, result.depth)) * columns;
    const double weights =
        static_cast<double>(command_.kernel_height * command_.kernel_width * depth *
                            parts(all.height, result.height) * parts(all.width, result.width) * all.depth);
    const double cost = (inputs + weights) / static_cast<double>(all.elements());
    return command_.input.extent.elements() < 2 * input.elements() ? cost / 2 : cost;
  }

  void find_cheapest() {
    for (int buffers = 2; buffers >= 1; --buffers) {
      double best = std::numeric_limits<double>::infinity();
      for (std::int64_t depth = step_.depth; depth <= limit_.depth; depth += step_.depth)
        for (std::int64_t height = step_.height; height <= limit_.height; height += step_.height) {
          if (!fits({height, step_.width, depth}, buffers)) break;
          for (std::int64_t width = step_.width; width <= limit_.width; width += step_.width) {
            const Extent result{height, width, depth};
            if (!fits(result, buffers)) break;
            if (const double cost = cost_of(result); cost < best) {
              best = cost;
              block_.result = result;
            }
          }
        }
      if (best < std::numeric_limits<double>::infinity()) return;
    }
    block_.result = step_;
  }

  // Elementwise operators only fill the buffer of the output: a row of the result, with as many channels as
  // fit.
  void find_row() {
    constexpr std::int64_t kOutputBytes = 6;  // for each multiplier
    const std::int64_t bytes =
        std::min<std::int64_t>(std::max(command_.result.bits, command_.input.bits), 32) / 8;
    const std::int64_t units = std::max<std::int64_t>(1, kOutputBytes * machine_.macs / bytes / step_.depth);
    const std::int64_t widest = std::min(units, limit_.width), pieces = (whole_.width + widest - 1) / widest;
    const std::int64_t width = up((whole_.width + pieces - 1) / pieces, step_.width);
    const std::int64_t depth = std::max<std::int64_t>(1, units / width) * step_.depth;
    block_.result = {step_.height, width, std::min(depth, limit_.depth)};
  }

  // Operators that keep channels apart: for each depth, the largest area in the proportions of the result;
  // then the depth that covers the result best.
  void find_largest() {
    const bool by_depth = command_.kernel_height * command_.kernel_width == 1;
    const double whole = static_cast<double>(by_depth ? whole_.width * whole_.depth : whole_.area());
    double best = std::numeric_limits<double>::infinity();
    block_.result = step_;
    for (std::int64_t depth = step_.depth; depth <= limit_.depth; depth += step_.depth) {
      const Extent result = area_for(depth);
      if (!fits(result, 1)) break;
      const double covered = static_cast<double>(result.width * (by_depth ? result.depth : result.height));
      const double metric =
          (1 + std::abs(1 - whole / covered)) * (1 + std::abs(1 - ratio(limit_.depth, depth)) / 10);
      if (metric >= best) continue;
      best = metric;
      block_.result = result;
      if (result == whole_) return;
    }
    leave_room();
  }

  [[nodiscard]] Extent area_for(std::int64_t depth) const {
    const std::int64_t sums = machine_.sum_bytes == 0 ? (machine_.input_bytes - kReserved) / (2 * sum_bytes_)
                                                      : machine_.sum_bytes / sum_bytes_;
    const double area = ratio(sums, depth), aspect = ratio(whole_.height, whole_.width);
    double width = std::sqrt(area / aspect), height = width * aspect;
    if (height < 1) width = std::exchange(height, 1.0) * width;
    if (width < 1) height = std::exchange(width, 1.0) * height;
    const auto whole_steps = [](double extent, std::int64_t step, std::int64_t most) {
      return std::min(down(std::max(static_cast<std::int64_t>(extent), step), step), most);
    };
    Extent out{whole_steps(height, step_.height, limit_.height),
               whole_steps(width, step_.width, limit_.width), depth};
    while (!fits(out, 1) && (out.height > step_.height || out.width > step_.width)) shrink(out);
    return out;
  }

  void shrink(Extent& out) const {
    const bool by_height = out.height > step_.height && (out.height >= out.width || out.width <= step_.width);
    (by_height ? out.height : out.width) -= by_height ? step_.height : step_.width;
  }

  // Room for the next row of the input, which is read meanwhile.
  void leave_room() {
    Extent& out = block_.result;
    const std::int64_t room =
        (machine_.sum_bytes == 0 ? machine_.input_bytes - kReserved : machine_.input_bytes) * 8 /
        std::min<std::int64_t>(command_.input.bits, 32);
    while (input_for(out).elements() + input_for({step_.height, out.width, out.depth}).elements() > room) {
      if (out.height != whole_.height && out.height > step_.height)
        out.height -= step_.height;
      else if (out.depth > out.width && out.depth > step_.depth)
        out.depth -= step_.depth;
      else if (out.width > step_.width)
        out.width -= step_.width;
      else if (out.height > step_.height)
        out.height -= step_.height;
      else
        break;
    }
  }

  const Command& command_;
  const Machine& machine_;
  Extent all_;  // the result
  Block block_;
  Extent step_, whole_, limit_;
  bool is_summed_ = false;  // over channels
  std::int64_t sum_bytes_ = kSumBytes;
};

}  // namespace

std::int64_t weight_cycles(const Extent& micro, const Machine& machine) {
  return 4 * micro.depth / (machine.steps_by_depth ? machine.cores : 1);
}

Block block_of(const Command& command, const Machine& machine) { return Search(command, machine).find(); }

std::int64_t columns_of(const Command& command, const Block& block) {
  const auto parts = [](std::int64_t all, std::int64_t part) {
    const std::int64_t used = std::min(all, part);
    return (all + used - 1) / used;
  };
  const Extent& all = command.result.extent;
  return parts(all.height, block.result.height) * parts(all.width, block.result.width);
}

}  // namespace tosaic::cost
