// IntegerLowering: the state of lower-to-integer, shared by its families of rules.
//
// Walks a graph whose values carry qparams and builds one whose operators compute with the integers
// themselves. A number is carried as a Real: integers, and what one of them is worth.
//
//   %x: i8 q(s, z)   Real{%x, scale s, zero point z}     what quantizers give
//   %sums: i32       Real{%sums, scale s_x * s_w[c]}      what contractions, additions and sums give
//
// A rule takes Reals and gives a Real, whose range is known; store() rounds it once, to the parameters of the
// result. Functions of one or two quantized tensors need no rule: they are tabulated from the float kernels
// and are exact. Operators without a rule are expanded, and the parts lowered with no rounding between them;
// what then has no rule either stays an operator over floats between dequantize and quantize nodes.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/ir/quantized.h"
#include "tosaic/passes/pass.h"
#include "tosaic/quant/requantize.h"

namespace tosaic::passes {

// real = (value - zero_point) * scale; of sums over channels with one scale each, `axis` says where these
// lie.
struct Real {
  ValueId id;
  std::vector<double> scales;
  std::int64_t zero_point = 0;
  ValueRange range;  // of the values, zero point included
  std::optional<std::int64_t> axis = {};
  std::optional<Shape> shape = {};  // that it is brought to once it has 32 bits: TOSA moves none of 48
  std::optional<std::int64_t> minus_infinity = {};  // values up to this stand for it, as masks have it;
                                                    // the zero point is 0 then
  double error = 0;  // how far elementwise arithmetic may have it from the true number; of sums not counted
  std::optional<ValueId> undefined = {};  // truth values that broadcast to it: where it is NaN

  [[nodiscard]] double scale() const { return scales.front(); }
  // Of the values less the zero point.
  [[nodiscard]] ValueRange centred() const { return {range.low - zero_point, range.high - zero_point}; }
  [[nodiscard]] std::int64_t magnitude() const;  // the largest |value - zero_point|
};

// A float that is a function of one number of 8 or 16 bits, or of two of 8, for each of their integers. As
// long as only functions of the same numbers read it, its infinities, NaN and orders of magnitude cost
// nothing: the last of them, which is quantized or a truth value, is the table.
struct FunctionTable {
  std::vector<Real> variables;
  ConstantRef values;  // floats; of two variables at 256 * first + second
};

// Thrown by rules: this node cannot be computed with integers.
class NoIntegerForm : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The floats that numbers take the place of. Numbers have more bits than f16 and bf16, whose own rounding
// only tables reproduce.
[[nodiscard]] inline bool stands_for_number(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}
// The same elements.
[[nodiscard]] ConstantRef converted(const ConstantRef& constant, DType dtype);

// A number that is still to be rounded, or the value that takes the result's place: integers of its
// parameters, truth values.
using Lowered = std::variant<Real, ValueId>;

class IntegerLowering {
 public:
  IntegerLowering(const Graph& source, const IntegerRules& rules);

  [[nodiscard]] Graph run();
  // Operators over quantized values that were left to floats, with the reason.
  [[nodiscard]] const std::vector<ErrorParts>& left() const { return left_; }

  // ---- for the rules: the node being lowered ----
  [[nodiscard]] const Graph& source() const { return *source_; }
  [[nodiscard]] const Node& node() const { return *node_; }
  template <class A>
  [[nodiscard]] const A& attrs() const {
    return Graph::attrs<A>(*node_);
  }
  [[nodiscard]] std::size_t operand_count() const { return node_->operand_count; }
  [[nodiscard]] ValueId operand(std::size_t i) const { return source_->operands(*node_)[i]; }
  [[nodiscard]] bool has(std::size_t i) const { return i < operand_count() && operand(i).valid(); }
  [[nodiscard]] const TensorType& operand_type(std::size_t i) const { return source_->type(operand(i)); }
  [[nodiscard]] const TensorType& result_type() const { return source_->type(source_->result(*node_)); }
  [[nodiscard]] bool is_constant(std::size_t i) const {
    return source_->value(operand(i)).kind == ValueKind::kConstant;
  }
  // The same, or made of constants by a rule.
  [[nodiscard]] bool is_known(std::size_t i) const;
  // The float that operand i is where it is computed with.
  [[nodiscard]] DType number_dtype(std::size_t i) const {
    const DType dtype = operand_type(i).dtype;
    return stands_for_number(dtype) ? dtype : DType::kF32;
  }
  // Operand i as integers: a labelled value, or what a rule gave for a value within an expansion.
  [[nodiscard]] bool is_real(std::size_t i) const;
  [[nodiscard]] Real real(std::size_t i);
  [[nodiscard]] Real real_with_one_scale(std::size_t i);  // sums by channel are brought to one scale
  [[nodiscard]] Real real_of(ValueId id);
  // Operand i as it stands in the new graph: positions, truth values, floats.
  [[nodiscard]] ValueId plain(std::size_t i) { return mapped(operand(i)); }
  // Operand i as a function of few numbers of few bits: one that no rule could lower, or what its node is one
  // of; else null.
  [[nodiscard]] const FunctionTable* table(std::size_t i);
  // The numbers of a known operand, row-major.
  [[nodiscard]] std::vector<double> numbers(std::size_t i) const;
  // The parameters of the result, one scale and zero point; 8-bit unsigned ones are carried as signed.
  [[nodiscard]] const QParams* target() const { return target_ ? &*target_ : nullptr; }
  // The same, or those that the only reader of the result quantizes it to.
  [[nodiscard]] std::optional<QParams> goal() const;

  [[nodiscard]] const IntegerRules& rules() const { return rules_; }
  // The parameters of any integers of its dtype that are worth as much as those of `x`.
  [[nodiscard]] QParams parameters(const Real& x) const;

  // ---- emitting on behalf of the node ----
  [[nodiscard]] const Graph& out() const { return out_; }
  // A copy: those in the graph move where a value is added.
  [[nodiscard]] TensorType type(ValueId id) const { return out_.type(id); }
  ValueId emit(Op op, Attrs attributes, const std::vector<ValueId>& operands);
  // Of shapes that broadcast: all are brought to one rank.
  ValueId elementwise(Op op, Attrs attributes, std::vector<ValueId> operands);
  ValueId binary(Op op, ValueId a, ValueId b);
  ValueId reshape(ValueId x, const Shape& shape);
  ValueId expand(ValueId x, const Shape& shape);
  ValueId cast(ValueId x, DType dtype);
  ValueId constant(DType dtype, const Shape& shape, const std::vector<std::int64_t>& values);
  ValueId number(std::int64_t value, std::size_t rank, DType dtype = DType::kI32);
  // Truth values; nothing is false everywhere.
  std::optional<ValueId> either(const std::optional<ValueId>& a, const std::optional<ValueId>& b);
  std::optional<ValueId> both(const std::optional<ValueId>& a, const std::optional<ValueId>& b);
  // clamp to [low, high] where `x`, known to lie in `range`, may be beyond.
  ValueId bounded(ValueId x, ValueRange range, ValueRange to);
  // By multiplier and shift to another dtype, scale and zero point. Values that the multiplier is not defined
  // for are bounded first where they saturate anyway. The result's range is exact.
  Real rescaled(const Real& x, DType dtype, double scale, std::int64_t zero_point = 0);
  // In one scale and at most 32 bits: numbers by channel with 29 bits for the coarsest.
  [[nodiscard]] Real rescaled_to_one(const Real& x);
  // Sums of 48 bits, by a power of two.
  [[nodiscard]] Real within_32_bits(const Real& x);
  // i32 less the zero point, same scale.
  Real widened(const Real& x);
  // i32 whose magnitude is at most 2^bits, by a coarser scale if need be.
  Real within_bits(const Real& x, int bits);
  // The number as integers of these parameters.
  ValueId store(const Real& x, const QParams& to);
  // The same of integers that are quantized already; exact: a table where multiplier and shift round
  // otherwise than dequantize and quantize do.
  ValueId requantize(const Real& x, const QParams& to);
  // Constant operand i as integers of these parameters, quantized here.
  ValueId quantized_constant(std::size_t i, const QParams& to);

  // A graph made of `node` alone, over other operands: its value on these constants, at stage exported.
  [[nodiscard]] ConstantRef evaluate(const std::vector<ConstantRef>& operands,
                                     const std::vector<const QParams*>& labels) const;
  // The values further back that alone decide the result, nearest first, and have its shape and integers:
  // between them and the node are elementwise operators and constants of one element, nothing else.
  [[nodiscard]] std::vector<ValueId> deciding_values() const;
  // The result where this operand, or one of the deciding values, has the values `at`; computed in f32.
  [[nodiscard]] ConstantRef evaluate_from(ValueId variable, const ConstantRef& at) const;
  // The same, where the result has parameters quantized as the source does, and then carried.
  [[nodiscard]] ConstantRef evaluate_stored(const std::vector<ConstantRef>& operands,
                                            const std::vector<const QParams*>& labels) const;

 private:
  struct Form {
    ValueId id;                // in the new graph
    std::optional<Real> real;  // of a value within an expansion, which has no label
    std::shared_ptr<const FunctionTable> table = {};
    std::shared_ptr<const FunctionTable> composed = {};  // of a value that has integers too, once asked for
    bool asked = false;
    const Node* left = nullptr;  // of a table: what makes the float where somebody reads it as one
    std::string reason = {};     // and why no rule did
  };

  void lower(const Node& node);
  [[nodiscard]] ConstantRef evaluated(const std::vector<ConstantRef>& operands,
                                      const std::vector<const QParams*>& labels, const QParams* stored) const;
  [[nodiscard]] bool counts(const Node& node);
  [[nodiscard]] Real counted(ValueId id);
  [[nodiscard]] std::optional<Real> stored_as(ValueId id, const QParams& label);
  [[nodiscard]] Real less_zero_points(const Constant& known, const QParams& label);
  bool evaluate_known(const Node& node);
  void lower_numbers(const Node& node);
  [[nodiscard]] bool lower_by_rule(const Node& node);
  [[nodiscard]] bool lower_expanded(const Node& node);
  void lower_part(const Node& part);
  void lower_inside(const Graph& inner, const std::vector<ValueId>& inputs, const Node& node);
  [[nodiscard]] ValueId dequantized(const Real& x, ValueId id);
  [[nodiscard]] std::optional<ValueId> requantized_bytes(const Real& x, const QParams& to);
  void find_ends();
  [[nodiscard]] bool may_be_real(ValueId id) const;
  [[nodiscard]] bool continues(const Node& node) const;
  [[nodiscard]] bool ends_in_integers(const Node& node) const;
  void lower_somehow(const Node& node);
  [[nodiscard]] bool lower_composed(const Node& node);
  [[nodiscard]] bool reads_table(const Node& node) const;
  [[nodiscard]] bool lower_tables(const Node& node);
  [[nodiscard]] bool defer(const Node& node, const std::string& reason);
  void leave_deferred(const Form& form);
  void note_left(const Node& node, const std::string& reason);
  void leave(const Node& node, const std::string& reason);
  void keep(const Node& node);
  void keep_border(const Node& node);
  void give(const Node& node, std::uint32_t result, const Lowered& made);
  [[nodiscard]] Lowered with_exceptions(Lowered made);
  [[nodiscard]] std::int64_t stored_nan() const;
  [[nodiscard]] ValueId with_nan(ValueId stored, ValueId undefined);
  // The same bits less the offset between unsigned and signed integers, or plus it.
  [[nodiscard]] ValueId with_other_sign(ValueId id, DType from, DType to);
  [[nodiscard]] std::vector<TensorType> float_types(const Node& node) const;
  [[nodiscard]] ValueId mapped(ValueId id);
  [[nodiscard]] ValueId as_float(ValueId id);
  [[nodiscard]] ValueId bounded_by_channel(const Real& x, const std::vector<ValueRange>& to);

  const Graph* source_;
  IntegerRules rules_;
  Graph out_;
  const Node* node_ = nullptr;
  OriginRef origin_;
  std::string name_;
  std::optional<QParams> target_;
  std::vector<bool> ends_quantized_;  // by value of the program
  std::vector<Form> forms_;           // by value of *source_
  std::vector<ValueId> floats_;       // by value: dequantized
  std::vector<ErrorParts> left_;
};

// The parameters that stand for the same numbers with signed integers: u8 as i8, i4 as i8, u16 as i16. None
// where the zero point is not one that integer arithmetic has: of 16 bits only the middle, of 32 only 0.
[[nodiscard]] std::optional<QParams> carried(const QParams& qparams);
// Stored integers of such parameters, less this, are those of carried().
[[nodiscard]] std::int64_t carried_offset(DType storage);

// The largest magnitude of a number of these parameters.
[[nodiscard]] double largest_number(const QParams& qparams);
// The fewest bits whose powers of two reach this count.
[[nodiscard]] int bits_to(std::int64_t count);

// Families of rules. Each throws NoIntegerForm where the node is beyond it.
[[nodiscard]] Lowered integer_conv(IntegerLowering& l);  // integer_contraction.cpp
[[nodiscard]] Lowered integer_linear(IntegerLowering& l);
[[nodiscard]] Lowered integer_matmul(IntegerLowering& l);
[[nodiscard]] Lowered integer_sum(IntegerLowering& l);  // sum, mean: integer_reduction.cpp
[[nodiscard]] Lowered integer_prod(IntegerLowering& l);
[[nodiscard]] Lowered integer_any(IntegerLowering& l);  // any, all
[[nodiscard]] Lowered integer_avg_pool(IntegerLowering& l);
[[nodiscard]] Lowered integer_choice(IntegerLowering& l);  // amax, amin, max_pool, argmax
[[nodiscard]] Lowered integer_logsumexp(IntegerLowering& l);
[[nodiscard]] Lowered integer_resize(IntegerLowering& l);    // integer_resize.cpp
[[nodiscard]] Lowered integer_movement(IntegerLowering& l);  // integer_movement.cpp
[[nodiscard]] Lowered integer_where(IntegerLowering& l);
[[nodiscard]] Lowered integer_add(IntegerLowering& l);  // add, sub: integer_arithmetic.cpp
[[nodiscard]] Lowered integer_mul(IntegerLowering& l);
[[nodiscard]] Lowered integer_div(IntegerLowering& l);
[[nodiscard]] Lowered integer_sign_change(IntegerLowering& l);  // neg, abs
[[nodiscard]] Lowered integer_extremum(IntegerLowering& l);     // maximum, minimum, relu, clamp
[[nodiscard]] Lowered integer_comparison(IntegerLowering& l);
[[nodiscard]] Lowered integer_softmax(IntegerLowering& l);  // integer_normalize.cpp
[[nodiscard]] Lowered integer_norm(IntegerLowering& l);     // layer_norm, rms_norm, group_norm
// Parts of such: x times, or plus, operand i, which lies in the result's shape as `own` says; a - b.
[[nodiscard]] Real times(IntegerLowering& l, const Real& x, std::size_t i, const Shape& own);
[[nodiscard]] Real plus(IntegerLowering& l, const Real& x, std::size_t i, const Shape& own);
[[nodiscard]] Real difference(IntegerLowering& l, const Real& a, const Real& b);
[[nodiscard]] Real total(IntegerLowering& l, const Real& a, const Real& b);
// In 8 bits, or in 16 where the target has them; what has more as two parts that add up to it.
[[nodiscard]] std::vector<Real> narrow_parts(IntegerLowering& l, const Real& x);
[[nodiscard]] inline bool is_minus_infinity(double x) { return std::isinf(x) && x < 0; }
// How far what stands for minus infinity is below all finite numbers of this size: more than exp can tell,
// and than rounding moves them.
[[nodiscard]] double hidden_below(double size);
// The greatest integer of another unit that stands for minus infinity.
[[nodiscard]] std::int64_t least_in_unit(const Real& x, double unit);
// i32 in a unit that leaves room for numbers of this size.
[[nodiscard]] double unit_for(double size);
// Operands of an elementwise function that is evaluated here: constants of one element each, and places of
// the operands that vary, by distinct value.
struct FunctionOperands {
  std::vector<ConstantRef> constants;
  std::vector<const QParams*> labels;
  std::vector<std::vector<std::size_t>> variables;

  void set(std::size_t variable, const ConstantRef& values, const QParams* label);
};
// Nothing where a constant has more elements, or an operand is a float. integer_table.cpp
[[nodiscard]] std::optional<FunctionOperands> function_operands(IntegerLowering& l);
// Elementwise functions of one or two tensors, from the float kernels: integer_table.cpp. Nothing where the
// node is no such function.
[[nodiscard]] std::optional<Lowered> tabulated(IntegerLowering& l);
// The node as a function of the numbers behind its operands, of which some are functions themselves; nothing
// where these are more than a table has room for.
[[nodiscard]] std::optional<FunctionTable> function_table(IntegerLowering& l);
// The same of a result that is quantized, or a truth value, as integers.
[[nodiscard]] std::optional<Lowered> tabulated_composition(IntegerLowering& l);
// Functions of one number of more bits, from the float kernels; `variable` is the operand, whose number is x:
// integer_samples.cpp.
[[nodiscard]] Lowered by_samples(IntegerLowering& l, ValueId variable, const Real& x);
// The same of the nearest number further back in which the result is smooth, if there is one.
[[nodiscard]] std::optional<Lowered> smooth_composition(IntegerLowering& l);
// Numbers so small that what is known of them has fewer than 17 bits.
[[nodiscard]] inline bool is_vague_near_zero(const Real& x) {
  const auto least = static_cast<double>(std::max<std::int64_t>(x.centred().low, 0)) * x.scale();
  return x.error > std::ldexp(least, -17);
}
// Functions of one number of more bits: integer_function.cpp.
[[nodiscard]] std::optional<Lowered> integer_function(IntegerLowering& l);
// floor, ceil, trunc and round of a number in one scale.
[[nodiscard]] Real in_whole_numbers(IntegerLowering& l, const Real& x, Op op);
[[nodiscard]] Real reciprocal_of(IntegerLowering& l, const Real& x);  // of i32
[[nodiscard]] Real quotient_of(IntegerLowering& l, const Real& a, const Real& b);

}  // namespace tosaic::passes
