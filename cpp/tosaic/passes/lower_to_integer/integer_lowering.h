// IntegerLowering: the state of the pass lower-to-integer, which all of its rules share.
//
// The class walks a graph whose values carry qparams and builds a graph whose operators compute with the
// integers. A `Real` is a tensor of scaled integers: number = (integer - zero point) * scale.
//
//   %x: i8 q(s, z)   Real{%x, scale s, zero point z}     a quantized value
//   %sums: i32       Real{%sums, scale s_x * s_w[c]}     the result of a contraction, an addition or a sum
//
// A rule computes a Real with a known range from the Reals of the operands. store() rounds it once, to the
// qparams of the result. Elementwise functions of one or two quantized tensors need no rule: the float
// kernels compute tables for them, which are exact (some of 16 bits: within one unit). An operator without a
// rule is expanded, and its parts are lowered without rounding between them. If a part has no rule either,
// the operator stays an operator over floats between dequantize and quantize nodes.
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
#include "tosaic/passes/lower_to_integer/lower_to_integer.h"
#include "tosaic/passes/pass.h"
#include "tosaic/quant/requantize.h"

namespace tosaic::passes {

// Scaled integers: number = (value - zero_point) * scale. Several scales belong to the positions of `axis` of
// `id`, as in the sums of a contraction.
struct Real {
  ValueId id;
  std::vector<double> scales;
  std::int64_t zero_point = 0;
  ValueRange range;  // of the integers in `id`, before the zero point is subtracted
  std::optional<std::int64_t> axis = {};
  // The shape that `id` is reshaped to once it has at most 32 bits: TOSA cannot reshape i48.
  std::optional<Shape> shape = {};
  // Integers up to this one represent minus infinity, as in attention masks; then the zero point is 0. Such a
  // Real "hides" minus infinity.
  std::optional<std::int64_t> minus_infinity = {};
  // A bound of the error, as a number and not in integers, that elementwise arithmetic has caused. Sums and
  // contractions do not add to it.
  double error = 0;
  // bool, broadcasts to `id`: true where the number is NaN. None: nowhere.
  std::optional<ValueId> undefined = {};

  [[nodiscard]] double scale() const { return scales.front(); }
  // The range of value - zero_point.
  [[nodiscard]] ValueRange centred() const { return {range.low - zero_point, range.high - zero_point}; }
  [[nodiscard]] std::int64_t magnitude() const;  // the largest |value - zero_point|
};

// A float value as a function of one variable of 8 or 16 bits, or of two of 8 bits, for each of their
// integers. The float kernels compute the tables of a chain of such functions one from the other; only the
// last node, whose result is quantized or a bool, is emitted. Infinities, NaN and large magnitudes in between
// do not matter.
//
//   %x: i8 -> exp -> log1p -> quantize     one TABLE of 256 entries, emitted for the quantize node
struct FunctionTable {
  std::vector<Real> variables;
  ConstantRef values;  // floats or bools; two variables: at 256 * (first + 128) + second + 128
};

// Thrown by rules: this node cannot be computed with integers.
class NoIntegerForm : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// True for the float dtypes that scaled integers may replace. Scaled integers have more bits than f16 and
// bf16; only tables reproduce the rounding of these.
[[nodiscard]] inline bool stands_for_number(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}
// The same elements in another dtype.
[[nodiscard]] ConstantRef converted(const ConstantRef& constant, DType dtype);

// What a rule returns: a Real that is still to be rounded to the qparams of the result, or the final value,
// which is integers in these qparams, bools or indices.
using Lowered = std::variant<Real, ValueId>;

class IntegerLowering {
 public:
  IntegerLowering(const Graph& source, const IntegerRules& rules);

  [[nodiscard]] Graph run();
  // Operators over quantized values that stay operators over floats, each with the reason.
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
  // True also if a rule made operand i a constant of the new graph.
  [[nodiscard]] bool is_known(std::size_t i) const;
  // The float dtype in which the source graph computes with operand i: f32 if it is quantized.
  [[nodiscard]] DType number_dtype(std::size_t i) const {
    const DType dtype = operand_type(i).dtype;
    return stands_for_number(dtype) ? dtype : DType::kF32;
  }
  // Operand i as scaled integers. is_real(): it has qparams, or a rule computed a Real. real() also accepts
  // bools and integers without qparams, with scale 1, and else throws NoIntegerForm.
  [[nodiscard]] bool is_real(std::size_t i) const;
  [[nodiscard]] Real real(std::size_t i);
  [[nodiscard]] Real real_with_one_scale(std::size_t i);  // by rescaled_to_one()
  [[nodiscard]] Real real_of(ValueId id);
  // Operand i in the new graph as it is: indices, bools, floats.
  [[nodiscard]] ValueId plain(std::size_t i) { return mapped(operand(i)); }
  // Operand i as a FunctionTable, or null: the one that defer() stored, or one that the first call here
  // computes.
  [[nodiscard]] const FunctionTable* table(std::size_t i);
  // The numbers (dequantized elements) of an operand for which is_known() holds, row-major.
  [[nodiscard]] std::vector<double> numbers(std::size_t i) const;
  // The qparams of the result, in signed form (carried()) and per tensor; null if it has none.
  [[nodiscard]] const QParams* target() const { return target_ ? &*target_ : nullptr; }
  // target(), or else the qparams (signed form) to which the only reader of the result quantizes it.
  [[nodiscard]] std::optional<QParams> goal() const;

  [[nodiscard]] const IntegerRules& rules() const { return rules_; }
  // QParams with the scales, axis and zero point of `x` and the full range of its dtype.
  [[nodiscard]] QParams parameters(const Real& x) const;

  // ---- emitting on behalf of the node ----
  [[nodiscard]] const Graph& out() const { return out_; }
  // Returns a copy: adding a value to the graph invalidates references to its types.
  [[nodiscard]] TensorType type(ValueId id) const { return out_.type(id); }
  // Adds a node with the origin of the current node. A view or movement of constants is folded.
  ValueId emit(Op op, Attrs attributes, const std::vector<ValueId>& operands);
  // Adds a node whose operands broadcast: all are reshaped to one rank first.
  ValueId elementwise(Op op, Attrs attributes, std::vector<ValueId> operands);
  ValueId binary(Op op, ValueId a, ValueId b);
  ValueId reshape(ValueId x, const Shape& shape);
  ValueId expand(ValueId x, const Shape& shape);
  ValueId cast(ValueId x, DType dtype);
  ValueId constant(DType dtype, const Shape& shape, const std::vector<std::int64_t>& values);
  // One element, in a shape of this rank.
  ValueId number(std::int64_t value, std::size_t rank, DType dtype = DType::kI32);
  // Logical or, and logical and, of bool masks. No value means a mask that is false everywhere.
  std::optional<ValueId> either(const std::optional<ValueId>& a, const std::optional<ValueId>& b);
  std::optional<ValueId> both(const std::optional<ValueId>& a, const std::optional<ValueId>& b);
  // Clamps `x`, whose values are in `range`, to the range `to`; adds no node if `range` is within `to`.
  ValueId bounded(ValueId x, ValueRange range, ValueRange to);
  // Adds a rescale to another dtype, scale and zero point. Integers for which RESCALE is not defined are
  // clamped first if they saturate anyway; else this throws NoIntegerForm. The range of the result is exact.
  Real rescaled(const Real& x, DType dtype, double scale, std::int64_t zero_point = 0);
  // x with one scale and at most 32 bits. Numbers with per-channel scales become i32 in a common scale, in
  // which the channel of the largest scale has 29 bits.
  [[nodiscard]] Real rescaled_to_one(const Real& x);
  // Sums of 48 bits as i32, divided by a power of two if they may have more than 30 bits.
  [[nodiscard]] Real within_32_bits(const Real& x);
  // x as i32 with zero point 0 and the same scales. Throws NoIntegerForm for i48.
  Real widened(const Real& x);
  // x with zero point 0 and a magnitude of at most 2^bits: x itself, or a rescale to i32, to a coarser scale
  // if needed.
  Real within_bits(const Real& x, int bits);
  // x rounded to integers with the qparams `to`. From i8 to i8 the result is exactly that of dequantize and
  // quantize, by a TABLE if multiplier and shift would round otherwise.
  ValueId store(const Real& x, const QParams& to);
  // store(), or only a clamp if `x` has the dtype, scale and zero point of `to` already.
  ValueId requantize(const Real& x, const QParams& to);
  // Constant operand i, quantized to the qparams `to` at compile time.
  ValueId quantized_constant(std::size_t i, const QParams& to);

  // Runs the current node with the float kernels on constants, null for absent operands. labels[i]
  // dequantizes operand i unless it is null.
  [[nodiscard]] ConstantRef evaluate(const std::vector<ConstantRef>& operands,
                                     const std::vector<const QParams*>& labels) const;
  // Upstream values of which the node's result is an elementwise function, nearest first. Between such a
  // value and the node are only elementwise operators and constants of one element. Each has scaled integers
  // and the shape of the result. A value that is the node's only variable operand is not listed.
  [[nodiscard]] std::vector<ValueId> deciding_values() const;
  // The node's result, computed in f32, if `variable` (an operand, or one of deciding_values()) has the
  // values `at`.
  [[nodiscard]] ConstantRef evaluate_from(ValueId variable, const ConstantRef& at) const;
  // evaluate(); a result with qparams is quantized as in the source graph, then converted to signed form.
  [[nodiscard]] ConstantRef evaluate_stored(const std::vector<ConstantRef>& operands,
                                            const std::vector<const QParams*>& labels) const;

 private:
  struct Form {
    ValueId id;                                          // in the new graph
    std::optional<Real> real;                            // of a value without qparams
    std::shared_ptr<const FunctionTable> table = {};     // stored by defer(): no node is emitted yet
    std::shared_ptr<const FunctionTable> composed = {};  // computed by table() for a value without `table`
    bool asked = false;                                  // table() has tried to compute `composed`
    const Node* left = nullptr;  // with `table`: the node to emit if a reader needs the float
    std::string reason = {};     // with `table`: why no rule lowered that node
  };

  // A foreign operator with a description that computes with integers: integer_foreign.cpp.
  [[nodiscard]] bool computes_with_integers(const Node& node) const;
  void lower_foreign(const Node& node);
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
  // The same numbers in unsigned or signed storage: adds a rescale that subtracts or adds carried_offset().
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
  std::vector<bool> ends_quantized_;  // by value of the program's graph: see find_ends()
  std::vector<Form> forms_;           // by value of *source_
  std::vector<ValueId> floats_;       // by value: its dequantize node, see as_float()
  std::vector<ErrorParts> left_;
};

// The qparams of the same numbers in signed form: u8 and i4 become i8, u16 becomes i16. Nothing if integer
// arithmetic has no such dtype or zero point: i8 has all, i16 and i32 only 0, hence u16 only 32768.
[[nodiscard]] std::optional<QParams> carried(const QParams& qparams);
// The signed form of a stored integer is the integer minus this offset: 128 for u8, 32768 for u16, else 0.
[[nodiscard]] std::int64_t carried_offset(DType storage);

// The largest magnitude of a number that these per-tensor qparams can represent.
[[nodiscard]] double largest_number(const QParams& qparams);
// The smallest number of bits b with 2^b >= count; 0 for a count below 2.
[[nodiscard]] int bits_to(std::int64_t count);

// The rules, by file. Each throws NoIntegerForm for a node that it cannot lower.
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
// Parts of rules: x * operand i, x + operand i, a - b, a + b. `own` is the shape of operand i that broadcasts
// to the shape of x.
[[nodiscard]] Real times(IntegerLowering& l, const Real& x, std::size_t i, const Shape& own);
[[nodiscard]] Real plus(IntegerLowering& l, const Real& x, std::size_t i, const Shape& own);
[[nodiscard]] Real difference(IntegerLowering& l, const Real& a, const Real& b);
[[nodiscard]] Real total(IntegerLowering& l, const Real& a, const Real& b);
// x as i8, or as i16 if the target has int16. If x has more bits: as two such parts that add up to it.
[[nodiscard]] std::vector<Real> narrow_parts(IntegerLowering& l, const Real& x);
[[nodiscard]] inline bool is_minus_infinity(double x) { return std::isinf(x) && x < 0; }
// How far the number that represents minus infinity is below finite numbers of magnitude up to `size`: exp is
// 0 there, and rounding does not close the gap.
[[nodiscard]] double hidden_below(double size);
// The largest integer, in another unit, that represents minus infinity.
[[nodiscard]] std::int64_t least_in_unit(const Real& x, double unit);
// A unit, a power of two, in which numbers of magnitude `size` have 29 bits.
[[nodiscard]] double unit_for(double size);
// The operands of an elementwise function that is evaluated at compile time: by operand, constants of one
// element and the qparams of quantized ones; by distinct value that varies, the operands that are this value.
struct FunctionOperands {
  std::vector<ConstantRef> constants;
  std::vector<const QParams*> labels;
  std::vector<std::vector<std::size_t>> variables;

  // All operands that are this variable become the constant `values` with qparams `label`.
  void set(std::size_t variable, const ConstantRef& values, const QParams* label);
};
// Nothing if a constant has more than one element, if an operand has no scaled integers, or if no operand
// varies. integer_table.cpp
[[nodiscard]] std::optional<FunctionOperands> function_operands(IntegerLowering& l);
// Elementwise functions of one or two quantized tensors, as tables that the float kernels compute:
// integer_table.cpp. Nothing if the node is no such function.
[[nodiscard]] std::optional<Lowered> tabulated(IntegerLowering& l);
// The node as a function of the variables of its operands, which may be FunctionTables themselves. Nothing if
// a table has no room for all these variables.
[[nodiscard]] std::optional<FunctionTable> function_table(IntegerLowering& l);
// The same for a node whose result is quantized or a bool: emits the table.
[[nodiscard]] std::optional<Lowered> tabulated_composition(IntegerLowering& l);
// Elementwise functions of one number of more than 16 bits, from samples of the float kernels. `variable` is
// the operand and x its scaled integers: integer_samples.cpp.
[[nodiscard]] Lowered by_samples(IntegerLowering& l, ValueId variable, const Real& x);
// The same as a function of the nearest of deciding_values() in which the result is smooth. Nothing if there
// is none.
[[nodiscard]] std::optional<Lowered> smooth_composition(IntegerLowering& l);
// True if the error of x is more than 2^-17 of its smallest numbers, or more than 0 if they may be 0 or less.
[[nodiscard]] inline bool is_vague_near_zero(const Real& x) {
  const auto least = static_cast<double>(std::max<std::int64_t>(x.centred().low, 0)) * x.scale();
  return x.error > std::ldexp(least, -17);
}
// Elementwise functions of one number of more than 16 bits: integer_function.cpp. Nothing if the node is no
// such function.
[[nodiscard]] std::optional<Lowered> integer_function(IntegerLowering& l);
// floor, ceil, trunc or round of a number with one scale.
[[nodiscard]] Real in_whole_numbers(IntegerLowering& l, const Real& x, Op op);
[[nodiscard]] Real reciprocal_of(IntegerLowering& l, const Real& x);  // 1 / x, for x in i32
[[nodiscard]] Real quotient_of(IntegerLowering& l, const Real& a, const Real& b);

}  // namespace tosaic::passes
