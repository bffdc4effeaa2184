#include "tosaic/passes/legalize_tosa/f32_integers.h"

#include "tosaic/ir/constant_value.h"

namespace tosaic::passes {
namespace {

using analysis::integers_of_bits;

// How an operator uses integers that f32 may not represent exactly.
enum class IntegerUse : std::uint8_t {
  kNoRule,      // there is no rule that computes it in i32
  kPasses,      // each element of the result is an element of an operand, or a monotone function of it that
                // commutes with rounding to f32: the operands must be as exact as the result
  kCast,        // as kPasses, if the result is an integer of 32 bits or more
  kSelect,      // as kPasses, but operand 0 is a condition
  kGather,      // as kPasses, but operand 1 is an index
  kScatter,     // as kPasses, but operand 2 is an index
  kIndex,       // as kPasses, but there is no rule that computes it in i32
  kTruth,       // it needs only signs, or whether an integer is 0; rounding changes neither
  kComparison,  // it needs exact integers, unless both sides compare alike once they are rounded
  kArithmetic,  // it needs exact integers
  kBitwise,     // it reads every bit, so it computes in i32 whenever the result is an integer
};

IntegerUse use_of(Op op) {
  struct Row {
    Op op;
    IntegerUse use;
  };
  using enum IntegerUse;
  static constexpr Row kRows[] = {
      {Op::kCast, kCast},
      {Op::kWhere, kSelect},
      {Op::kEmbedding, kGather},
      {Op::kIndexSelect, kGather},
      {Op::kGather, kGather},
      {Op::kIndexPut, kScatter},
      {Op::kIndex, kIndex},
      {Op::kClamp, kPasses},
      {Op::kRelu, kPasses},
      {Op::kMaximum, kPasses},
      {Op::kMinimum, kPasses},
      {Op::kAmax, kPasses},
      {Op::kAmin, kPasses},
      {Op::kCeil, kPasses},
      {Op::kFloor, kPasses},
      {Op::kRound, kPasses},
      {Op::kTrunc, kPasses},
      {Op::kCat, kPasses},
      {Op::kPad, kPasses},
      {Op::kReshape, kPasses},
      {Op::kClone, kPasses},
      {Op::kPermute, kPasses},
      {Op::kExpand, kPasses},
      {Op::kRepeat, kPasses},
      {Op::kSlice, kPasses},
      {Op::kFlip, kPasses},
      {Op::kSign, kTruth},
      {Op::kLogicalNot, kTruth},
      {Op::kLogicalAnd, kTruth},
      {Op::kLogicalOr, kTruth},
      {Op::kLogicalXor, kTruth},
      {Op::kAny, kTruth},
      {Op::kAll, kTruth},
      {Op::kEq, kComparison},
      {Op::kNe, kComparison},
      {Op::kLt, kComparison},
      {Op::kLe, kComparison},
      {Op::kGt, kComparison},
      {Op::kGe, kComparison},
      {Op::kSum, kArithmetic},
      {Op::kArgmax, kArithmetic},
      {Op::kAdd, kArithmetic},
      {Op::kSub, kArithmetic},
      {Op::kMul, kArithmetic},
      {Op::kDiv, kArithmetic},
      {Op::kRemainder, kArithmetic},
      {Op::kFmod, kArithmetic},
      {Op::kPow, kArithmetic},
      {Op::kNeg, kArithmetic},
      {Op::kAbs, kArithmetic},
      {Op::kLeftShift, kArithmetic},
      {Op::kRightShift, kArithmetic},
      {Op::kBitwiseNot, kBitwise},
      {Op::kBitwiseAnd, kBitwise},
      {Op::kBitwiseOr, kBitwise},
      {Op::kBitwiseXor, kBitwise},
  };
  static const std::vector<IntegerUse> uses = [] {
    std::vector<IntegerUse> out(all_ops().size(), kNoRule);
    for (const Row& row : kRows) out[static_cast<std::size_t>(row.op)] = row.use;
    return out;
  }();
  return uses[static_cast<std::size_t>(op)];
}

bool has_wide_rule(Op op) {
  const IntegerUse use = use_of(op);
  return use != IntegerUse::kNoRule && use != IntegerUse::kIndex && use != IntegerUse::kTruth;
}

// How exactly a node needs an integer operand.
enum class Needed : std::uint8_t {
  kExact,     // the exact value of the operand
  kRounded,   // the value of the operand, rounded to f32
  kAsResult,  // as exactly as the readers of the result need it: rounding the operand rounds the result
};

// is_exact: f32 represents all integers of the range. is_rounded_to_alone: in addition, no other i32 rounds
// to one of them. For example, 2^24 + 1 rounds to 2^24, so 2^24 is excluded.
bool is_exact(const ValueRange& range) { return integers_of_bits(kF32IntegerBits).contains(range); }
bool is_rounded_to_alone(const ValueRange& range) {
  const ValueRange exact = integers_of_bits(kF32IntegerBits);
  return ValueRange{exact.low + 1, exact.high}.contains(range);
}

class Decision {
 public:
  Decision(const Graph& graph, const analysis::IntegerRanges& ranges, Legalizer::Part part)
      : graph_(graph), ranges_(ranges), in_region_(part == Legalizer::Part::kRegion) {}

  F32Integers run() && {
    out_.wide_values.assign(graph_.values().size(), false);
    out_.wide_nodes.assign(graph_.nodes().size(), false);
    for (const Output& output : graph_.outputs()) need_exactly(output.value);
    for (std::size_t n = graph_.nodes().size(); n-- > 0;) {
      const Node& node = graph_.nodes()[n];
      for (std::size_t i = 0; i < node.operand_count; ++i) {
        const ValueId operand = graph_.operands(node)[i];
        if (operand.valid() && reads_exactly(node, i)) need_exactly(operand);
      }
    }
    for (std::size_t n = 0; n < graph_.nodes().size(); ++n)
      out_.wide_nodes[n] = computes_wide(graph_.nodes()[n]);
    for (const Node& node : graph_.nodes())
      if (is_refused(node)) out_.refused.push_back(&node);
    return std::move(out_);
  }

 private:
  [[nodiscard]] bool is_wide(ValueId id) const { return out_.wide_values[id.index()]; }

  [[nodiscard]] bool is_large(ValueId id) const {
    return !in_region_ && is_signed_integer(graph_.type(id).dtype) && !is_exact(ranges_.of(id));
  }

  void need_exactly(ValueId id) {
    if (is_large(id)) out_.wide_values[id.index()] = true;
  }

  [[nodiscard]] bool is_refused(const Node& node) const {
    if (!node.regions.empty() || node.op == Op::kOpaque) return false;
    bool wide = node.result_count != 0 && is_wide(graph_.result(node));
    for (std::size_t i = 0; i < node.operand_count; ++i) {
      const ValueId operand = graph_.operands(node)[i];
      wide = wide || (operand.valid() && is_wide(operand) && reads_exactly(node, i));
    }
    return wide && !has_wide_rule(node.op);
  }

  [[nodiscard]] bool reads_exactly(const Node& node, std::size_t i) const {
    const Needed needed = needed_of(node, i);
    if (needed != Needed::kAsResult) return needed == Needed::kExact;
    return is_wide(graph_.result(node));
  }

  // True if a comparison has the same result once both integers are rounded to f32.
  [[nodiscard]] bool compares_roundings(const Node& node) const {
    for (const ValueId operand : graph_.operands(node))
      if (is_float(graph_.type(operand).dtype)) return true;  // torch compares them as floats
    const ValueRange& a = ranges_.of(graph_.operands(node)[0]);
    const ValueRange& b = ranges_.of(graph_.operands(node)[1]);
    return is_rounded_to_alone(a) || is_rounded_to_alone(b) || (is_exact(a) && is_exact(b));
  }

  // f32 is enough for an index into a table of at most 2^24 rows: if the rounded index is within the table,
  // the rounding was exact.
  [[nodiscard]] Needed needed_of_index(const Node& node) const {
    for (const std::int64_t extent : graph_.type(graph_.operands(node)[0]).shape)
      if (extent > std::int64_t{1} << kF32IntegerBits) return Needed::kExact;
    return Needed::kRounded;
  }

  [[nodiscard]] Needed needed_of(const Node& node, std::size_t i) const {
    if (node.result_count == 0 || !node.regions.empty()) return Needed::kExact;
    const DType result = graph_.type(graph_.result(node)).dtype;
    switch (use_of(node.op)) {
      case IntegerUse::kPasses:
      case IntegerUse::kIndex:
        return Needed::kAsResult;
      case IntegerUse::kCast:
        if (!is_integer(result)) return Needed::kRounded;
        return byte_size(result) < 4 ? Needed::kExact : Needed::kAsResult;
      case IntegerUse::kSelect:
        return i == 0 ? Needed::kRounded : Needed::kAsResult;
      case IntegerUse::kGather:
        return i == 1 ? needed_of_index(node) : Needed::kAsResult;
      case IntegerUse::kScatter:
        return i == 2 ? needed_of_index(node) : Needed::kAsResult;
      case IntegerUse::kTruth:
        return Needed::kRounded;
      case IntegerUse::kComparison:
        return compares_roundings(node) ? Needed::kRounded : Needed::kExact;
      case IntegerUse::kNoRule:
      case IntegerUse::kArithmetic:
      case IntegerUse::kBitwise:
        break;
    }
    return is_float(result) ? Needed::kRounded : Needed::kExact;
  }

  // True if the node computes in i32.
  [[nodiscard]] bool computes_wide(const Node& node) const {
    if (node.result_count != 1 || !node.regions.empty()) return false;
    const ValueId result = graph_.result(node);
    const std::span<const ValueId> operands = graph_.operands(node);
    const IntegerUse use = use_of(node.op);
    if (use == IntegerUse::kComparison)
      return !in_region_ && is_signed_integer(graph_.type(operands[0]).dtype) && !compares_roundings(node);
    if (!is_integer(graph_.type(result).dtype)) return false;
    if (use == IntegerUse::kBitwise) return true;
    const bool shifts = node.op == Op::kLeftShift || node.op == Op::kRightShift;
    if (shifts && !splat_of(graph_, operands[1])) return true;
    if (use == IntegerUse::kCast) return is_large(operands[0]) ? reads_exactly(node, 0) : is_large(result);
    if (use != IntegerUse::kArithmetic) return has_wide_rule(node.op) && is_wide(result);
    bool large = is_large(result);
    for (const ValueId operand : operands) large = large || is_large(operand);
    return large || !is_within_f32(node);
  }

  // True if f32 represents the result exactly before it wraps: it has at most 24 bits, or at most 23 bits if
  // it may wrap, since wrap_integers adds a number to it. In a region, this is already proven for i32 and
  // i64.
  [[nodiscard]] bool is_within_f32(const Node& node) const {
    const ValueRange& computed = ranges_.computed(node);
    const DType dtype = graph_.type(graph_.result(node)).dtype;
    if (in_region_ && byte_size(dtype) >= 4) return true;
    const bool wraps = byte_size(dtype) < 4 && !analysis::range_of_dtype(dtype).contains(computed);
    return integers_of_bits(wraps ? kF32IntegerBits - 1 : kF32IntegerBits).contains(computed);
  }

  const Graph& graph_;
  const analysis::IntegerRanges& ranges_;
  bool in_region_;
  F32Integers out_;
};

}  // namespace

bool is_signed_integer(DType dtype) {
  return dtype == DType::kI8 || dtype == DType::kI16 || dtype == DType::kI32 || dtype == DType::kI64;
}

F32Integers f32_integers(const Graph& graph, const analysis::IntegerRanges& ranges, Legalizer::Part part) {
  return Decision(graph, ranges, part).run();
}

}  // namespace tosaic::passes
