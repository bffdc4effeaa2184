#include "tosaic/cost/operations.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <ranges>

#include "tosaic/ir/attributes.h"
#include "tosaic/ir/sum_factor.h"

namespace tosaic::cost {
namespace {

using Rescale = TosaRescaleAttrs;

constexpr std::array kElementwise{Op::kTosaAdd,
                                  Op::kTosaSub,
                                  Op::kTosaMul,
                                  Op::kTosaMaximum,
                                  Op::kTosaMinimum,
                                  Op::kTosaArithmeticRightShift,
                                  Op::kTosaLogicalLeftShift,
                                  Op::kTosaLogicalRightShift,
                                  Op::kTosaIntdiv,
                                  Op::kTosaAbs,
                                  Op::kTosaClz,
                                  Op::kTosaNegate,
                                  Op::kTosaBitwiseAnd,
                                  Op::kTosaBitwiseOr,
                                  Op::kTosaBitwiseXor,
                                  Op::kTosaBitwiseNot,
                                  Op::kTosaLogicalAnd,
                                  Op::kTosaLogicalOr,
                                  Op::kTosaLogicalXor,
                                  Op::kTosaLogicalNot,
                                  Op::kTosaEqual,
                                  Op::kTosaGreater,
                                  Op::kTosaGreaterEqual,
                                  Op::kTosaSelect};
constexpr std::array kScalesAnyResult{Op::kTosaConv2d,          Op::kTosaConv3d,    Op::kTosaDepthwiseConv2d,
                                      Op::kTosaTransposeConv2d, Op::kTosaMatmul,    Op::kTosaReduceSum,
                                      Op::kTosaMaxPool2d,       Op::kTosaReduceMax, Op::kTosaReduceMin};
// They scale by one factor for all channels.
constexpr std::array kOneFactor{Op::kTosaReduceSum, Op::kTosaAvgPool2d};
constexpr std::array kNoFactor{Op::kTosaArithmeticRightShift, Op::kTosaLogicalLeftShift,
                               Op::kTosaLogicalRightShift, Op::kTosaIntdiv};
// Their other operands are constants: weights, a bias, numbers to look up.
constexpr std::array kReadsOneMap{Op::kTosaConv2d, Op::kTosaConv3d, Op::kTosaDepthwiseConv2d,
                                  Op::kTosaTransposeConv2d, Op::kTosaTable};

template <class Ops>
bool among(const Ops& ops, Op op) {
  return std::ranges::find(ops, op) != ops.end();
}

std::int64_t bits_of(DType dtype) {
  switch (dtype) {
    case DType::kI16:
    case DType::kU16:
      return 16;
    case DType::kI32:
      return 32;
    case DType::kI48:
      return 48;
    default:
      return 8;
  }
}

bool is_power_of_two(std::int64_t value) { return value > 0 && (value & (value - 1)) == 0; }

// True if this is the factor of all channels.
bool is_by(const Rescale& attrs, std::int64_t factor) {
  for (std::size_t i = 0; i < attrs.multiplier.size(); ++i)
    if (attrs.multiplier[i] != factor << attrs.shift[i]) return false;
  return true;
}

bool is_by_one(const Rescale& attrs) { return is_by(attrs, 1); }

bool is_by_shift(const Rescale& attrs) { return std::ranges::all_of(attrs.multiplier, is_power_of_two); }

// True if no value of the operand's dtype leaves that of the result.
bool never_saturates(const Rescale& attrs, DType from) {
  const std::optional<ValueRange> in = integer_limits(from), out = integer_limits(attrs.dtype);
  if (!in || !out) return false;
  double factor = 0;
  for (std::size_t i = 0; i < attrs.multiplier.size(); ++i)
    factor = std::max(factor, static_cast<double>(attrs.multiplier[i]) /
                                  static_cast<double>(std::int64_t{1} << attrs.shift[i]));
  const auto far = static_cast<double>((attrs.input_zp < 0 ? in->high : in->low) - attrs.input_zp);
  return far * factor >= static_cast<double>(out->low) && far * factor <= static_cast<double>(out->high);
}

}  // namespace

bool is_elementwise(Op op) { return among(kElementwise, op); }
bool is_function(Op op) { return op == Op::kTosaClamp || op == Op::kTosaTable; }

namespace {

const Rescale& rescale_of(const Graph& graph, const Operation& operation) {
  return Graph::attrs<Rescale>(graph.node(operation.node));
}

DType dtype_read(const Graph& graph, const Operation& operation, std::size_t i = 0) {
  return graph.type(operation.reads[i]).dtype;
}

// True if a reader can scale one of its operands itself. `by_one`: the factor is 1.
bool scales_operand(const Machine& machine, Op reader, bool by_one, DType from) {
  const bool narrow = bits_of(from) <= 16;
  if (is_elementwise(reader)) {
    if (reader == Op::kTosaMul) return by_one;
    if (!machine.chains) return by_one;
    return narrow || by_one;
  }
  return by_one && (reader == Op::kTosaReduceSum || reader == Op::kTosaRescale);
}

// True if every machine scales both operands of a sum and adds them in one operation.
bool scales_both(Op reader, const Rescale& a, const Rescale& b, DType from) {
  if (reader != Op::kTosaAdd && reader != Op::kTosaSub) return false;
  const std::optional<int> bits = sum_factor_bits(from);
  return bits && is_by(a, std::int64_t{1} << *bits) != is_by(b, std::int64_t{1} << *bits);
}

bool scales_result(const Machine& machine, const Graph& graph, const Operation& writer, const Rescale& by) {
  const bool narrow = bits_of(dtype_read(graph, writer)) <= 16;
  if (is_elementwise(writer.op)) {
    if (by.per_channel) return false;
    if (among(kNoFactor, writer.op)) return is_by_one(by);
    if (!machine.widens) return (narrow && bits_of(by.dtype) <= 16) || is_by_shift(by);
    return writer.op != Op::kTosaMul || narrow || is_by_shift(by);
  }
  if (by.per_channel && among(kOneFactor, writer.op)) return false;
  return among(kScalesAnyResult, writer.op) || (writer.op == Op::kTosaAvgPool2d && is_by_one(by));
}

std::size_t maps_read(const Node& node) { return among(kReadsOneMap, node.op) ? 1U : node.operand_count; }

}  // namespace

Operations::Operations(const Graph& graph, const Machine& machine)
    : graph_(&graph),
      machine_(&machine),
      writers_(graph.values().size(), -1),
      readers_(graph.values().size()) {
  for (const Node& node : graph.nodes())
    if (node.result_count > 0) add(node);
  for (int round = 0; round < 2; ++round)
    for (std::size_t i = 0; i < all_.size(); ++i)
      if (all_[i].op == Op::kTosaRescale && !all_[i].is_merged) merge_rescale(i);
}

void Operations::add(const Node& node) {
  const ValueId result = graph_->result(node);
  Operation out{.node = graph_->id(node), .op = node.op, .result = result, .computed = result};
  const auto operands = graph_->operands(node);
  for (std::size_t i = 0; i < std::min(maps_read(node), operands.size()); ++i)
    if (operands[i].valid()) out.reads.push_back(operands[i]);
  for (const ValueId value : out.reads) readers_[value.index()].push_back(all_.size());
  for (std::uint32_t i = 0; i < node.result_count; ++i)
    writers_[graph_->result(node, i).index()] = static_cast<std::int32_t>(all_.size());
  all_.push_back(std::move(out));
}

const Operation* Operations::writer(ValueId value) const {
  const std::int32_t at = writers_[value.index()];
  return at < 0 ? nullptr : &all_[static_cast<std::size_t>(at)];
}

bool Operations::is_internal(ValueId value) const {
  return readers_[value.index()].size() == 1 && !graph_->is_output(value);
}

void Operations::merge_rescale(std::size_t at) {
  Operation& rescale = all_[at];
  const Rescale& attrs = rescale_of(*graph_, rescale);
  if (attrs.input_unsigned || attrs.output_unsigned) return;
  if (!try_reader(rescale)) (void)try_writer(rescale);
}

bool Operations::try_reader(Operation& rescale) {
  const auto is_plain = [&](const Operation& each) {
    const Rescale& attrs = rescale_of(*graph_, each);
    const DType from = dtype_read(*graph_, each);
    return is_internal(each.result) && attrs.output_zp == 0 && !attrs.per_channel && !attrs.input_unsigned &&
           !attrs.output_unsigned && (attrs.input_zp == 0 || bits_of(from) == 8) &&
           never_saturates(attrs, from);
  };
  if (readers_[rescale.result.index()].size() != 1) return false;
  Operation& reader = all_[readers_[rescale.result.index()].front()];
  if (reader.scales_reads || reader.reads.size() > 2 || !is_plain(rescale)) return false;
  const Rescale& attrs = rescale_of(*graph_, rescale);
  const DType from = dtype_read(*graph_, rescale);
  const bool scales = scales_operand(*machine_, reader.op, is_by_one(attrs), from);
  if (reader.reads.size() == 1) {
    if (scales) move_into_reader(rescale, reader);
    return scales;
  }
  const ValueId other = reader.reads[reader.reads[0] == rescale.result ? 1 : 0];
  if (scales && graph_->type(other).dtype == from) {
    move_into_reader(rescale, reader);
    return true;
  }
  const std::int32_t second = writers_[other.index()];
  if (second < 0 || other == rescale.result) return false;
  Operation& partner = all_[static_cast<std::size_t>(second)];
  if (partner.op != Op::kTosaRescale || partner.is_merged || !is_plain(partner) ||
      dtype_read(*graph_, partner) != from)
    return false;
  const Rescale& by = rescale_of(*graph_, partner);
  const bool both = scales && scales_operand(*machine_, reader.op, is_by_one(by), from);
  if (!both && !scales_both(reader.op, attrs, by, from)) return false;
  move_into_reader(rescale, reader);
  move_into_reader(partner, reader);
  return true;
}

void Operations::move_into_reader(Operation& rescale, Operation& reader) {
  const std::size_t at = static_cast<std::size_t>(&rescale - all_.data());
  const std::size_t to = static_cast<std::size_t>(&reader - all_.data());
  const ValueId from = rescale.reads.front();
  std::ranges::replace(reader.reads, rescale.result, from);
  std::ranges::replace(readers_[from.index()], at, to);
  readers_[rescale.result.index()].clear();
  writers_[rescale.result.index()] = -1;
  reader.scales_reads |= !is_by_one(rescale_of(*graph_, rescale));
  reader.merged.push_back(rescale.node);
  rescale.is_merged = true;
}

// Merges also through RESHAPE, which moves no bytes.
bool Operations::try_writer(Operation& rescale) {
  const Rescale& attrs = rescale_of(*graph_, rescale);
  if (attrs.input_zp != 0) return false;
  std::vector<std::size_t> between;
  std::int32_t at = -1;
  for (ValueId from = rescale.reads.front();; from = all_[between.back()].reads.front()) {
    at = writers_[from.index()];
    if (at < 0 || !is_internal(from)) return false;
    if (all_[static_cast<std::size_t>(at)].op != Op::kTosaReshape) break;
    between.push_back(static_cast<std::size_t>(at));
  }
  Operation& writer = all_[static_cast<std::size_t>(at)];
  if (writer.scales_result || writer.reads.empty() || !scales_result(*machine_, *graph_, writer, attrs))
    return false;
  const auto absorb = [&](Operation& each) {
    writers_[each.reads.front().index()] = -1;
    readers_[each.reads.front().index()].clear();
    writer.merged.push_back(each.node);
    each.is_merged = true;
  };
  for (const std::size_t each : between | std::views::reverse) absorb(all_[each]);
  absorb(rescale);
  writers_[rescale.result.index()] = at;
  writer.result = rescale.result;
  writer.scales_result = !is_by_one(attrs);
  return true;
}

}  // namespace tosaic::cost
