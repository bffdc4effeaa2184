#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "tosaic/cost/command.h"
#include "tosaic/cost/permutation.h"
#include "tosaic/ir/attributes.h"

namespace tosaic::cost {
namespace {

constexpr int kLongestChain = 4;  // elementwise operators in a command, with the first operator
constexpr int kMostOperands = 3;  // of a chain, from memory
constexpr std::int64_t kBrick = 16;

std::int64_t bits_of(DType dtype) {
  switch (dtype) {
    case DType::kI16:
    case DType::kU16:
    case DType::kF16:
    case DType::kBF16:
      return 16;
    case DType::kI32:
    case DType::kF32:
      return 32;
    case DType::kI48:
    case DType::kI64:
    case DType::kF64:
      return 64;
    default:
      return 8;
  }
}

// The last three axes, with all others in the height.
Extent extent_of(const Shape& shape) {
  Extent out;
  const std::size_t rank = shape.size();
  if (rank > 0) out.depth = shape[rank - 1];
  if (rank > 1) out.width = shape[rank - 2];
  for (std::size_t i = 0; i + 2 < rank; ++i) out.height *= shape[i];
  return out;
}

// The image of one batch.
Extent image_of(const Shape& shape) {
  return shape.size() == 4 ? Extent{shape[1], shape[2], shape[3]} : extent_of(shape);
}

std::int64_t batches_of(const Shape& shape) { return shape.size() == 4 ? shape[0] : 1; }

std::int64_t product(const Shape& shape, std::size_t first, std::size_t last) {
  return std::accumulate(shape.begin() + first, shape.begin() + last, std::int64_t{1}, std::multiplies<>());
}

Shape without_ones(const Shape& shape) {
  Shape out;
  for (const std::int64_t extent : shape)
    if (extent != 1) out.push_back(extent);
  return out;
}

// The smallest divisor that is at least `least`.
std::int64_t divisor_from(std::int64_t number, std::int64_t least) {
  for (std::int64_t i = least; i * i <= number; ++i)
    if (number % i == 0) return i;
  for (std::int64_t i = std::min(least, static_cast<std::int64_t>(std::sqrt(number)) + 1); i >= 1; --i)
    if (number % i == 0 && number / i >= least) return number / i;
  return number;
}

// Channels are stored by 16, so elements without channels get some: 198 x 1 becomes 11 x 1 x 18.
Extent with_channels(const Extent& extent) {
  if (extent.depth >= kBrick || extent.elements() < kBrick) return extent;
  const std::int64_t depth = divisor_from(extent.elements(), kBrick);
  return {1, extent.elements() / depth, depth};
}

class Builder {
 public:
  Builder(const Operations& operations, const Machine& machine)
      : graph_(operations.graph()),
        operations_(operations),
        machine_(machine),
        by_value_(graph_.values().size(), -1) {}

  std::vector<Command> build() {
    for (const Operation& each : operations_.all())
      if (!each.is_merged) translate(each);
    store_in_bricks();
    put_in_order();
    give_views_away();
    return std::move(out_);
  }

 private:
  using Handler = void (Builder::*)(const Operation&);
  struct State {
    int chain = 1;     // operators in the command
    int operands = 1;  // feature maps that it reads
    bool can_chain = true;
    bool is_permuted = false;
    bool is_split = false;  // into a command for each image, which no later operator can join
  };

  void translate(const Operation& operation) {
    static const std::unordered_map<Op, Handler> handlers{
        {Op::kTosaConv2d, &Builder::convolution},
        {Op::kTosaConv3d, &Builder::convolution},
        {Op::kTosaTransposeConv2d, &Builder::convolution},
        {Op::kTosaDepthwiseConv2d, &Builder::depthwise},
        {Op::kTosaMatmul, &Builder::matmul},
        {Op::kTosaAvgPool2d, &Builder::pool<TosaAvgPoolAttrs>},
        {Op::kTosaMaxPool2d, &Builder::pool<TosaMaxPoolAttrs>},
        {Op::kTosaReduceMax, &Builder::reduce_extreme},
        {Op::kTosaReduceMin, &Builder::reduce_extreme},
        {Op::kTosaReduceAny, &Builder::reduce_extreme},
        {Op::kTosaReduceAll, &Builder::reduce_extreme},
        {Op::kTosaArgmax, &Builder::reduce_extreme},
        {Op::kTosaReduceSum, &Builder::reduce_sum},
        {Op::kTosaReduceProduct, &Builder::reduce_sum},
        {Op::kTosaRescale, &Builder::rescale},
        {Op::kTosaCast, &Builder::elementwise},
        {Op::kTosaTable, &Builder::function},
        {Op::kTosaClamp, &Builder::function},
        {Op::kTosaTranspose, &Builder::transpose},
        {Op::kTosaReverse, &Builder::move},
        {Op::kTosaConcat, &Builder::concat},
        {Op::kTosaPad, &Builder::pad},
        {Op::kTosaTile, &Builder::tile},
        {Op::kTosaReshape, &Builder::reshape},
        {Op::kTosaSlice, &Builder::slice},
        {Op::kTosaIdentity, &Builder::view},
        {Op::kTosaGather, &Builder::transfer},
        {Op::kTosaScatter, &Builder::transfer},
        {Op::kTosaResize, &Builder::resize},
        {Op::kTosaCondIf, &Builder::control_flow},
        {Op::kTosaWhileLoop, &Builder::control_flow},
    };
    if (is_elementwise(operation.op)) return elementwise(operation);
    const auto found = handlers.find(operation.op);
    if (found != handlers.end()) (this->*found->second)(operation);
  }

  // ---- commands ----

  Command& add(const Operation& operation, Work work, std::string_view name) {
    Command& out = out_.emplace_back();
    State& state = states_.emplace_back();
    out.work = work;
    out.name = name;
    out.op = operation.op;
    out.node = operation.node;
    out.fused = operation.merged;
    if (!operation.reads.empty()) out.input = map_of(operation.reads.front());
    out.result = map_of(operation.result);
    out.result.extent = extent_of(made_shape(operation));
    state.operands = 0;
    for (const ValueId value : operation.reads) state.operands += is_scalar(value) ? 0 : 1;
    state.is_split = batches_of(made_shape(operation)) > 1;
    state.can_chain = work != Work::kTransfer && !state.is_split;
    by_value_[operation.result.index()] = static_cast<std::int32_t>(out_.size()) - 1;
    return out;
  }

  // The last command computes all images at once: it only knows elements.
  void join_images() {
    State& state = states_.back();
    state.can_chain = state.can_chain || state.is_split;
    state.is_split = false;
  }

  // A command that comes before the one of the operation, or is one of several.
  Command& add_part(const Operation& operation, Work work, std::string_view name) {
    Command& out = add(operation, work, name);
    by_value_[operation.result.index()] = -1;
    out.fused.clear();
    states_.back().can_chain = false;
    return out;
  }

  [[nodiscard]] Map map_of(ValueId value) const {
    const TensorType& type = graph_.type(value);
    return {.value = value, .extent = extent_of(type.shape), .bits = bits_of(type.dtype)};
  }

  [[nodiscard]] bool is_scalar(ValueId value) const {
    return graph_.value(value).kind == ValueKind::kConstant && num_elements(graph_.type(value).shape) == 1;
  }

  [[nodiscard]] const Shape& shape_of(ValueId value) const { return graph_.type(value).shape; }
  // The shape that the operation computes.
  [[nodiscard]] const Shape& made_shape(const Operation& operation) const {
    return shape_of(operation.computed);
  }
  [[nodiscard]] const Node& node_of(const Operation& operation) const { return graph_.node(operation.node); }

  // The command that makes a value which nothing else reads; -1 if there is none.
  [[nodiscard]] std::int32_t maker_of(ValueId value) const {
    return operations_.is_internal(value) ? by_value_[value.index()] : -1;
  }

  void join(std::int32_t at, const Operation& operation) {
    Command& into = out_[static_cast<std::size_t>(at)];
    into.fused.push_back(operation.node);
    into.fused.insert(into.fused.end(), operation.merged.begin(), operation.merged.end());
    into.result.value = operation.result;
    into.result.bits = bits_of(graph_.type(operation.result).dtype);
    by_value_[operation.result.index()] = at;
  }

  // ---- sums ----

  void convolution(const Operation& operation) {
    Command& out = add(operation, Work::kConvolution, "conv2d");
    const Node& node = node_of(operation);
    const TensorType& weight = graph_.type(graph_.operands(node)[1]);
    set_image(out, operation);
    set_weights(out, weight);
    const std::size_t rank = weight.shape.size();
    set_kernel(out, weight.shape[rank - 3], weight.shape[rank - 2]);
    if (const auto* attrs = get_if<TosaConvAttrs>(&*node.attrs)) {
      set_steps(out, attrs->stride, attrs->dilation);
      if (rank == 5) out.kernel_height *= weight.shape[1];
    } else {  // each element of the input is spread over the result
      out.input.extent.height = out.result.extent.height;
      out.input.extent.width = out.result.extent.width;
    }
    out.macs = out.repeats * out.result.extent.elements() * out.kernel_height * out.kernel_width *
               out.input.extent.depth;
    split_strides(out);
  }

  void depthwise(const Operation& operation) {
    Command& out = add(operation, Work::kDepthwise, "depthwise_conv2d");
    const Node& node = node_of(operation);
    const TensorType& weight = graph_.type(graph_.operands(node)[1]);
    set_image(out, operation);
    set_weights(out, weight);
    set_kernel(out, weight.shape[0], weight.shape[1]);
    const auto& attrs = Graph::attrs<TosaConvAttrs>(node);
    set_steps(out, attrs.stride, attrs.dilation);
    out.macs = out.repeats * out.result.extent.elements() * out.kernel_height * out.kernel_width;
    split_strides(out);
  }

  void set_image(Command& out, const Operation& operation) {
    const Shape &in = shape_of(operation.reads.front()), &made = made_shape(operation);
    out.input.extent = image_of(in);
    out.result.extent = image_of(made);
    out.repeats = batches_of(made);
  }

  static void set_weights(Command& out, const TensorType& weight) {
    out.weights = num_elements(weight.shape);
    out.weight_bits = weight.dtype == DType::kI4 ? 4 : bits_of(weight.dtype);
    out.scales = out.result.extent.depth;
  }

  static void set_kernel(Command& out, std::int64_t height, std::int64_t width) {
    out.kernel_height = height;
    out.kernel_width = width;
  }

  // A stride beyond three is a command for each place.
  static void split_strides(Command& out) {
    constexpr std::int64_t kLongestStride = 3;
    if (std::max(out.stride_height, out.stride_width) <= kLongestStride) return;
    out.repeats *= out.result.extent.area();
    out.input.extent.height = std::min(out.kernel_height, out.input.extent.height);
    out.input.extent.width = std::min(out.kernel_width, out.input.extent.width);
    out.result.extent = {1, 1, out.result.extent.depth};
    out.stride_height = out.stride_width = 1;
  }

  static void set_steps(Command& out, const Dims& stride, const Dims& dilation) {
    const std::size_t rank = stride.size();
    out.stride_height = stride[rank - 2];
    out.stride_width = stride[rank - 1];
    out.dilation_height = dilation[rank - 2];
    out.dilation_width = dilation[rank - 1];
  }

  // The second operand is transposed for all batches at once, by the TRANSPOSE that makes it if there is one;
  // then each batch is a command.
  void matmul(const Operation& operation) {
    const Shape &a = shape_of(operation.reads[0]), &b = shape_of(operation.reads[1]);
    if (!turns_already(operation.reads[1])) turn(operation, b);
    Command& out = add(operation, Work::kProduct, "matmul");
    out.repeats = a[0];
    out.input.extent = {1, a[1], a[2]};
    out.second = Map{.extent = {1, b[2], b[1]}, .bits = out.input.bits, .in_bricks = true};
    out.result.extent = {1, a[1], b[2]};
    out.macs = a[0] * a[1] * a[2] * b[2];
  }

  void turn(const Operation& operation, const Shape& b) {
    Command& turned = add_part(operation, Work::kPool, "transpose");
    turned.op = Op::kTosaTranspose;
    turned.input = map_of(operation.reads[1]);
    turned.input.extent = {b[0], b[1], b[2]};
    turned.result = {.extent = {b[0], b[2], b[1]}, .bits = turned.input.bits, .in_bricks = true};
    turned.is_permuted = true;
    turned.macs = turned.result.extent.elements();
  }

  [[nodiscard]] bool turns_already(ValueId value) const {
    for (const Operation* writer = operations_.writer(value);
         writer != nullptr && writer->op == Op::kTosaReshape && operations_.is_internal(value) &&
         without_ones(shape_of(value)) == without_ones(shape_of(writer->reads.front()));
         writer = operations_.writer(value))
      value = writer->reads.front();
    const std::int32_t at = maker_of(value);
    return at >= 0 && out_[static_cast<std::size_t>(at)].op == Op::kTosaTranspose;
  }

  template <class Attributes>
  void pool(const Operation& operation) {
    const bool is_average = operation.op == Op::kTosaAvgPool2d;
    Command& out = add(operation, Work::kPool, is_average ? "avg_pool2d" : "max_pool2d");
    const auto& attrs = Graph::attrs<Attributes>(node_of(operation));
    set_image(out, operation);
    set_kernel(out, attrs.kernel[0], attrs.kernel[1]);
    set_steps(out, attrs.stride, {1, 1});
    out.macs = out.repeats * out.result.extent.elements() * out.kernel_height * out.kernel_width;
    split_strides(out);
  }

  // Axes before the reduced one are the height, axes after it the channels.
  [[nodiscard]] std::array<std::int64_t, 3> around(const Operation& operation, std::int64_t axis) const {
    const Shape& shape = shape_of(operation.reads.front());
    const auto at = static_cast<std::size_t>(axis);
    return {product(shape, 0, at), shape[at], product(shape, at + 1, shape.size())};
  }

  [[nodiscard]] std::int64_t axis_of(const Operation& operation) const {
    const Attrs& attrs = *node_of(operation).attrs;
    if (const auto* axis = get_if<TosaAxisNanAttrs>(&attrs)) return axis->axis;
    return get<AxisAttrs>(attrs).axis;
  }

  void reduce_extreme(const Operation& operation) {
    const auto [outer, extent, inner] = around(operation, axis_of(operation));
    const bool is_place = operation.op == Op::kTosaArgmax;
    Command& out = add(operation, Work::kReduceExtreme, is_place ? "argmax" : "reduce_max");
    const std::int64_t last = shape_of(operation.reads.front()).back();
    if (outer == 1 && inner > last) {  // over rows
      out.input.extent = {extent, inner / last, last};
      out.result.extent = {1, inner / last, last};
      out.kernel_height = extent;
    } else {
      out.input.extent = {outer, extent, inner};
      out.result.extent = {outer, 1, inner};
      out.kernel_width = extent;
    }
    out.macs = outer * extent * inner;
  }

  // The device sums over channels, so other axes are first moved to the end.
  void reduce_sum(const Operation& operation) {
    const std::int64_t axis = axis_of(operation);
    const auto [outer, extent, inner] = around(operation, axis);
    const Shape& shape = shape_of(operation.reads.front());
    if (inner != 1) {
      Command& turned = add_part(operation, Work::kPool, "transpose");
      turned.op = Op::kTosaTranspose;
      turned.input.extent = {outer, extent, inner};
      turned.result = {.extent = {outer, inner, extent}, .bits = turned.input.bits, .in_bricks = true};
      turned.is_permuted = true;
      turned.macs = turned.result.extent.elements();
    }
    Command& out = add(operation, Work::kReduceSum, "reduce_sum");
    const std::int64_t width = inner != 1 || axis == 0 ? inner : shape[static_cast<std::size_t>(axis) - 1];
    out.input.extent = {outer * inner / width, width, extent};
    out.result.extent = {outer * inner / width, width, 1};
    out.macs = outer * extent * inner;
    if (has_zero_point(operation)) subtract(operation);
  }

  // A merged RESCALE subtracts the zero point of each element.
  [[nodiscard]] bool has_zero_point(const Operation& operation) const {
    return std::ranges::any_of(operation.merged, [&](NodeId id) {
      const Node& node = graph_.node(id);
      return graph_.operands(node)[0] == operation.reads.front() &&
             Graph::attrs<TosaRescaleAttrs>(node).input_zp != 0;
    });
  }

  // Subtracts from a sum what the zero points contribute to it.
  void subtract(const Operation& operation) {
    Command& sum = out_.back();
    sum.result.bits = 32;
    const Extent extent = with_channels(sum.result.extent);
    Command& out = add(operation, Work::kElementwise, "sub");
    out.fused.clear();
    out.op = Op::kTosaSub;
    out.input = Map{.extent = extent, .bits = 32};
    out.result.extent = extent;
    out.is_binary = true;
    states_.back().operands = 1;
  }

  // ---- elementwise ----

  void elementwise(const Operation& operation) {
    if (machine_.chains && try_chain(operation)) return;
    Command& out = add(operation, Work::kElementwise, to_name(operation.op));
    bool is_flat = true;  // the operands are as large as the result, or a number
    for (const ValueId value : operation.reads) {
      const bool is_same = shape_of(value) == made_shape(operation);
      is_flat = is_flat && (is_same || num_elements(shape_of(value)) == 1);
    }
    std::vector<Map> maps;
    for (const ValueId value : operation.reads)
      if (!is_scalar(value)) maps.push_back(map_of(value));
    if (!maps.empty()) out.input = maps[0];
    if (maps.size() > 1) out.second = maps[1];
    out.is_binary = operation.reads.size() > 1;
    out.chained = further_cycles(operation);
    if (!is_flat) return;
    join_images();
    out.result.extent = with_channels(out.result.extent);
    if (out.input.extent.elements() != 1) out.input.extent = out.result.extent;
    if (out.second && out.second->extent.elements() != 1) out.second->extent = out.result.extent;
  }

  // What operators cost that the device does not have: a comparison is followed by AND, and SELECT is a
  // comparison, a subtraction, two ANDs and an OR.
  [[nodiscard]] double further_cycles(const Operation& operation) const {
    const Machine::Outputs& outputs = machine_.outputs;
    if (operation.op == Op::kTosaSelect)
      return outputs.narrow +
             3 * (bits_of(graph_.type(operation.result).dtype) >= 32 ? outputs.wide : outputs.narrow);
    return operation.op == Op::kTosaEqual || operation.op == Op::kTosaGreater ||
                   operation.op == Op::kTosaGreaterEqual
               ? outputs.narrow
               : 0;
  }

  static std::string_view to_name(Op op) { return info(op).name.substr(std::string_view("tosa.").size()); }

  // Appends the operator to the command that makes its first operand, or else to the one that makes the
  // second.
  bool try_chain(const Operation& operation) {
    std::int32_t at = -1;
    for (const ValueId value : operation.reads)
      if (at < 0 && shape_of(value) == made_shape(operation) && !is_from_constant(value))
        at = maker_of(value);
    if (at < 0) return false;
    Command& into = out_[static_cast<std::size_t>(at)];
    State& state = states_[static_cast<std::size_t>(at)];
    int operands = state.operands - 1;
    for (const ValueId value : operation.reads) operands += is_scalar(value) ? 0 : 1;
    if (!state.can_chain || state.is_permuted || state.chain >= kLongestChain || operands > kMostOperands)
      return false;
    if (into.work == Work::kPool && into.input.bits >= 32) return false;
    const std::int64_t from = bits_of(graph_.type(operation.reads.front()).dtype);
    for (const ValueId value : operation.reads) {
      if (is_scalar(value) || value == into.result.value) continue;
      into.reads_wide |= from >= 32;
      into.also_read.push_back(value);
    }
    join(at, operation);
    into.chained += from >= 32 ? machine_.outputs.wide : machine_.outputs.narrow;
    into.chained += further_cycles(operation);
    ++state.chain;
    state.operands = operands;
    return true;
  }

  // Such a command can run at any time, so it does not run just before its reader.
  [[nodiscard]] bool is_from_constant(ValueId value) const {
    const Operation* writer = operations_.writer(value);
    return writer != nullptr && std::ranges::all_of(writer->reads, [&](ValueId each) {
             return graph_.value(each).kind == ValueKind::kConstant;
           });
  }

  // CLAMP and TABLE are part of the command before, TABLE also through RESHAPE.
  void function(const Operation& operation) {
    ValueId value = operation.reads.front();
    std::vector<NodeId> between;
    for (const Operation* writer = operations_.writer(value);
         operation.op == Op::kTosaTable && writer != nullptr && writer->op == Op::kTosaReshape &&
         operations_.is_internal(value);
         writer = operations_.writer(value)) {
      between.push_back(writer->node);
      value = writer->reads.front();
    }
    const bool is_table = operation.op == Op::kTosaTable;
    const std::int32_t at = maker_of(value);
    if (at >= 0) {
      Command& into = out_[static_cast<std::size_t>(at)];
      const bool is_split = states_[static_cast<std::size_t>(at)].is_split;
      if (into.work != Work::kTransfer && !into.has_table && !into.has_clamp && !into.is_permuted &&
          !is_split) {
        join(at, operation);
        into.fused.insert(into.fused.end(), between.begin(), between.end());
        (is_table ? into.has_table : into.has_clamp) = true;
        return;
      }
    }
    Command& out = add(operation, Work::kPool, is_table ? "lut" : "clamp");
    (is_table ? out.has_table : out.has_clamp) = true;
    out.macs = out.result.extent.elements();
  }

  // ---- movement ----

  // Two of these may follow each other, or have several readers, that each need a RESCALE of their own.
  void rescale(const Operation& operation) {
    const std::int64_t from = bits_of(graph_.type(operation.reads.front()).dtype);
    const std::int64_t to = bits_of(graph_.type(operation.result).dtype);
    if (!machine_.widens && std::max(from, to) >= 32) {  // ADD if it has to be widened, then MUL
      elementwise(operation);
      out_.back().name = "mul";
      out_.back().op = from < 32 ? Op::kTosaAdd : Op::kTosaMul;
      out_.back().is_binary = true;
      if (from < 32) out_.back().chained = machine_.outputs.binary_wide;
      return;
    }
    Command& out = add(operation, Work::kPool, to_name(operation.op));
    join_images();
    out.input.extent = out.result.extent = with_channels(out.result.extent);
    out.repeats = std::max<std::int64_t>(1, std::ssize(operations_.readers(operation.result)));
    out.macs = out.repeats * out.result.extent.elements();
  }

  void copy(const Operation& operation, std::string_view name) {
    Command& out = add(operation, Work::kPool, name);
    out.macs = out.result.extent.elements();
  }

  void move(const Operation& operation) { copy(operation, to_name(operation.op)); }

  void transpose(const Operation& operation) {
    const Dims& permutation = Graph::attrs<PermuteAttrs>(node_of(operation)).perm;
    const std::vector<Pass> passes = passes_of(shape_of(operation.reads.front()), permutation);
    if (passes.empty()) return view(operation);
    if (!machine_.transposes_by_pool) return swap_axes(operation, passes);
    if (passes.size() == 1 && try_permute(operation, passes.front())) return;
    for (const Pass& pass : passes) {
      const bool is_last = &pass == &passes.back();
      Command& out =
          is_last ? add(operation, Work::kPool, "transpose") : add_part(operation, Work::kPool, "transpose");
      out.input.extent = pass.from;
      out.result.extent = pass.to;
      out.is_permuted = true;
      out.channels_from = pass.channels_from;
      out.macs = pass.to.elements();
      if (&pass != &passes.front()) out.input.value = {};
      if (!is_last) out.result.value = {};
      states_.back().is_permuted = true;
    }
  }

  // A device that cannot permute while it computes copies elements, and swaps two axes in a pass.
  void swap_axes(const Operation& operation, const std::vector<Pass>& passes) {
    Command& out = add(operation, Work::kTransfer, "transpose");
    out.input.extent = passes.front().from;
    out.result.extent = passes.back().to;
    out.repeats = 0;
    for (const Pass& pass : passes) out.repeats += pass.moves_all ? 2 : 1;
    states_.back().can_chain = false;
  }

  // The command before writes its result in the other order.
  bool try_permute(const Operation& operation, const Pass& pass) {
    const std::int32_t at = maker_of(operation.reads.front());
    if (at < 0 || !machine_.transposes_by_pool) return false;
    Command& into = out_[static_cast<std::size_t>(at)];
    State& state = states_[static_cast<std::size_t>(at)];
    const bool computes = into.work != Work::kElementwise && into.work != Work::kTransfer;
    if (!computes || state.is_permuted || state.is_split || state.chain > 1 || into.repeats > 1 ||
        into.result.extent != pass.from)
      return false;
    join(at, operation);
    into.is_permuted = true;
    state.is_permuted = true;
    return true;
  }

  // An operand is copied, unless the command that makes it can write it into the result.
  void concat(const Operation& operation) {
    bool is_copied = false;
    for (const ValueId value : operation.reads) {
      const std::int32_t at = maker_of(value);
      if (at >= 0 && states_[static_cast<std::size_t>(at)].can_chain) continue;
      Command& out = add_part(operation, Work::kPool, "memory_copy");
      out.input = map_of(value);
      out.result.extent = out.input.extent;
      out.macs = out.input.extent.elements();
      is_copied = true;
    }
    if (is_copied)
      by_value_[operation.result.index()] = static_cast<std::int32_t>(out_.size()) - 1;
    else
      view(operation);
  }

  // The input is copied; then the borders are written.
  void pad(const Operation& operation) {
    Command& out = add(operation, Work::kPool, "memory_copy");
    out.result.extent = out.input.extent;
    out.macs = out.input.extent.elements();
    states_.back().can_chain = false;
    const auto& attrs = Graph::attrs<TosaPadAttrs>(node_of(operation));
    for (std::size_t i = 0; i < attrs.before.size(); ++i)
      for (const std::int64_t width : {attrs.before[i], attrs.after[i]}) {
        if (width == 0) continue;
        Shape border = shape_of(operation.result);
        border[i] = width;
        Command& part = add_part(operation, Work::kPool, "memory_copy");
        part.input.value = {};
        part.input.extent = part.result.extent = extent_of(border);
        part.macs = part.result.extent.elements();
      }
  }

  // A copy for each image of the result.
  void tile(const Operation& operation) {
    const Shape &from = shape_of(operation.reads.front()), &to = shape_of(operation.result);
    if (from == to) return view(operation);
    Command& out = add(operation, Work::kPool, "memory_copy");
    out.result.extent = out.input.extent = {1, out.input.extent.width, out.input.extent.depth};
    out.repeats = std::max<std::int64_t>(1, num_elements(to) / out.result.extent.elements());
    out.macs = num_elements(to);
    states_.back().can_chain = false;
  }

  // The bytes stay where they are, unless a value is read in its own shape, too.
  void reshape(const Operation& operation) {
    const ValueId value = operation.reads.front();
    const auto& readers = operations_.readers(value);
    const bool is_shared = std::ranges::any_of(
        readers, [&](std::size_t i) { return operations_.all()[i].op != Op::kTosaReshape; });
    if (!is_shared || graph_.value(value).kind == ValueKind::kConstant) return view(operation);
    copy(operation, "memory_copy");
    out_.back().result.extent = out_.back().input.extent;
    State& state = states_.back();
    state.is_split = batches_of(shape_of(value)) > 1;
    state.can_chain = !state.is_split;
  }

  // The reader reads a part of the value.
  void slice(const Operation& operation) {
    if (!graph_.is_output(operation.result)) return view(operation);
    copy(operation, "memory_copy");
    out_.back().input.extent = out_.back().result.extent;
  }

  void view(const Operation& operation) { views_.push_back(&operation); }

  // Reads each index; a GATHER also reads the row that it names.
  void transfer(const Operation& operation) {
    Command& out = add(operation, Work::kTransfer, to_name(operation.op));
    const std::int64_t reads = operation.op == Op::kTosaGather ? 2 : 1;
    out.input.extent = {1, 1, reads * num_elements(shape_of(operation.reads[1]))};
  }

  void resize(const Operation& operation) {
    Command& out = add(operation, Work::kTransfer, "resize");
    set_image(out, operation);
  }

  void control_flow(const Operation& operation) {
    for (const auto& region : node_of(operation).regions)
      for (Command& each : commands_of(*region, machine_)) {
        each.node = operation.node;
        each.fused.clear();
        for (Map* map : {&each.input, &each.result}) map->value = {};
        if (each.second) each.second->value = {};
        each.also_read.clear();
        out_.push_back(std::move(each));
        states_.emplace_back().can_chain = false;
      }
  }

  // ---- the whole graph ----

  // A value is stored in bricks if all commands see it with the same extents and it stays in the graph.
  void store_in_bricks() {
    std::vector<std::optional<Extent>> seen(graph_.values().size());
    std::vector<bool> is_linear(graph_.values().size(), false);
    const auto look = [&](const Map& map) {
      if (!map.value.valid()) return;
      auto& known = seen[map.value.index()];
      if (known && *known != map.extent) is_linear[map.value.index()] = true;
      known = map.extent;
    };
    for (const Command& each : out_) {
      if (each.work == Work::kTransfer)
        for (const Map* map : {&each.input, &each.result})
          if (map->value.valid()) is_linear[map->value.index()] = true;
      look(each.input);
      look(each.result);
      if (each.second) look(*each.second);
    }
    for (const Operation* each : views_) {
      is_linear[each->reads.front().index()] = true;
      is_linear[each->result.index()] = true;
    }
    const auto store = [&](Map& map) {
      if (!map.value.valid()) return;
      const std::size_t i = map.value.index();
      const bool stays = graph_.value(map.value).kind == ValueKind::kResult && !graph_.is_output(map.value);
      map.in_bricks = stays && !is_linear[i];
    };
    for (Command& each : out_) {
      store(each.input);
      store(each.result);
      if (each.second) store(*each.second);
    }
  }

  // The order in which Vela lets them run: what an operator reads is made just before it, its last operand
  // first.
  void put_in_order() {
    const std::vector<std::uint32_t> time = times_of_nodes();
    std::vector<std::pair<std::uint32_t, std::size_t>> order;
    for (std::size_t i = 0; i < out_.size(); ++i) {
      std::uint32_t last = time[out_[i].node.index()];
      for (const NodeId id : out_[i].fused) last = std::max(last, time[id.index()]);
      order.emplace_back(last, i);
    }
    std::ranges::sort(order);
    std::vector<Command> sorted;
    for (const auto& [last, i] : order) sorted.push_back(std::move(out_[i]));
    out_ = std::move(sorted);
  }

  // By node: its place in a walk from the outputs, after the nodes that it reads.
  [[nodiscard]] std::vector<std::uint32_t> times_of_nodes() const {
    std::vector<NodeId> stack;
    for (std::size_t i = 0; i < graph_.nodes().size(); ++i)  // nodes that lead to no output come last
      stack.push_back(NodeId(static_cast<std::uint32_t>(i)));
    std::ranges::reverse(stack);
    for (std::size_t i = graph_.outputs().size(); i > 0; --i)
      if (const Node* writer = graph_.producer(graph_.outputs()[i - 1].value); writer != nullptr)
        stack.push_back(graph_.id(*writer));
    constexpr std::uint32_t kNew = 0xffffffff, kOpen = 0xfffffffe;
    std::vector<std::uint32_t> out(graph_.nodes().size(), kNew);
    std::uint32_t now = 0;
    while (!stack.empty()) {
      const NodeId id = stack.back();
      std::uint32_t& time = out[id.index()];
      if (time == kNew) {
        time = kOpen;
        for (const NodeId writer : writers_of(id))
          if (out[writer.index()] == kNew) stack.push_back(writer);
        continue;
      }
      if (time == kOpen) time = now++;
      stack.pop_back();
    }
    return out;
  }

  // Each node without a command counts as part of the next command that reads it, else of the one before.
  void give_views_away() {
    std::vector<std::int32_t> command(graph_.nodes().size(), -1);
    for (std::size_t i = 0; i < out_.size(); ++i) {
      command[out_[i].node.index()] = static_cast<std::int32_t>(i);
      for (const NodeId id : out_[i].fused) command[id.index()] = static_cast<std::int32_t>(i);
    }
    std::vector<NodeId> missing;
    for (std::size_t i = 0; i < command.size(); ++i)
      if (command[i] < 0) missing.push_back(NodeId(static_cast<std::uint32_t>(i)));
    for (auto at = missing.rbegin(); at != missing.rend(); ++at) give(*at, readers_of(*at), command);
    for (const NodeId id : missing) give(id, writers_of(id), command);
    for (Command& each : out_) std::ranges::sort(each.fused);
  }

  void give(NodeId id, const std::vector<NodeId>& neighbours, std::vector<std::int32_t>& command) {
    if (command[id.index()] >= 0) return;
    for (const NodeId other : neighbours) {
      const std::int32_t at = command[other.index()];
      if (at < 0) continue;
      command[id.index()] = at;
      out_[static_cast<std::size_t>(at)].fused.push_back(id);
      return;
    }
  }

  [[nodiscard]] std::vector<NodeId> readers_of(NodeId id) const {
    std::vector<NodeId> out;
    const Node& node = graph_.node(id);
    for (std::uint32_t i = 0; i < node.result_count; ++i) {
      const auto users = graph_.users(graph_.result(node, i));
      out.insert(out.end(), users.begin(), users.end());
    }
    return out;
  }

  [[nodiscard]] std::vector<NodeId> writers_of(NodeId id) const {
    std::vector<NodeId> out;
    for (const ValueId value : graph_.operands(graph_.node(id)))
      if (const Node* writer = value.valid() ? graph_.producer(value) : nullptr; writer != nullptr)
        out.push_back(graph_.id(*writer));
    return out;
  }

  const Graph& graph_;
  const Operations& operations_;
  const Machine& machine_;
  std::vector<Command> out_;
  std::vector<State> states_;           // by command
  std::vector<std::int32_t> by_value_;  // the command that makes a value; -1 for none
  std::vector<const Operation*> views_;
};

}  // namespace

std::vector<Command> commands_of(const Graph& graph, const Machine& machine) {
  const Operations operations(graph, machine);
  return Builder(operations, machine).build();
}

double output_cycles(const Machine& machine, Work work, Op op, std::int64_t input_bits,
                     std::int64_t result_bits, bool is_binary) {
  const Machine::Outputs& outputs = machine.outputs;
  const auto or_narrow = [&](double cycles) { return cycles > 0 ? cycles : outputs.narrow; };
  const bool is_elementwise = work == Work::kElementwise;
  if (is_elementwise && input_bits >= 32) {
    if (machine.chains) return is_binary ? outputs.wide : outputs.narrow;
    return is_binary ? outputs.binary_wide : outputs.wide;
  }
  if (op == Op::kTosaMul) return or_narrow(result_bits == 32 ? outputs.mul_to_wide : outputs.mul);
  if (op == Op::kTosaAdd || op == Op::kTosaSub) return or_narrow(outputs.add);
  if (op == Op::kTosaMaxPool2d) return or_narrow(outputs.max_pool);
  return outputs.narrow;
}

}  // namespace tosaic::cost
