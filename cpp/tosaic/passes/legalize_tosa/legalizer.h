// Legalizer: the state of pass legalize-tosa, which its families of rules share.
//
// The legalizer walks a canonical graph, whose values carry dim orders, and builds a TOSA graph over physical
// shapes: the extents in dim order, outermost first.
//
//   logical f32[1,8,4,5] order(0,2,3,1)   ->   physical f32[1,4,5,8]
//
// Each logical value has one physical value, in the dim order that the layout plan chose ("planned order"). A
// copy in another order is made when a rule asks for it, once per value and order. A rule returns a physical
// result and its dim order. Legalizer brings the result to the planned order.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "tosaic/analysis/ranges/ranges.h"
#include "tosaic/ir/graph.h"
#include "tosaic/ir/op_table.h"
#include "tosaic/layout/order.h"
#include "tosaic/passes/pass.h"

namespace tosaic::passes {

// A value of the TOSA graph that represents a logical value, and the dim order of its axes.
struct Physical {
  ValueId id;
  DimOrder order;
};

// What the range analysis decides about the integers of a graph. An empty list of flags means that every flag
// is false.
struct IntegerPlan {
  std::vector<ValueRange> inputs;  // by index: the range that a run checks an i64 or i32 input against
  std::vector<bool> wraps;         // by node: the result may exceed its dtype, and then wraps
  // Set only for a target without profile INT, which represents integers in f32. wide_values has an entry per
  // value, which is true if the value is i32 instead. wide_nodes has an entry per node, which is true if the
  // node computes in i32.
  std::vector<bool> wide_values, wide_nodes;
};

class Legalizer {
 public:
  // The inputs and outputs of a region (of cond or while_loop) are in row-major order, and have the dtypes
  // that values have inside the TOSA graph (physical_dtype), not the dtypes of the program's inputs and
  // outputs.
  enum class Part : std::uint8_t { kProgram, kRegion };
  Legalizer(const Graph& source, const target::TargetSpec& target, Part part = Part::kProgram);

  // Legalizes the whole graph and collects problems(). The result is meaningful only if there are none.
  [[nodiscard]] Graph run();
  [[nodiscard]] const std::vector<ErrorParts>& problems() const { return problems_; }

  // ---- the node being legalized, for the rules ----
  // The dtype that represents a logical dtype inside the TOSA graph. On a target with profile INT, i64
  // becomes i32, and u8 and u16 become i8 and i16 of the same bits. On a target without profile INT every
  // integer is represented in f32, which is exact up to 24 bits; the overload for a value returns i32 instead
  // if narrow_integers found that the value may exceed 24 bits and that its last bits matter. Graph inputs,
  // graph outputs and indices are integers on every target.
  [[nodiscard]] DType physical_dtype(DType dtype) const;
  // The dtype of a graph input or output. i64 becomes i32. If the target has profile INT, whose RESCALE can
  // read integers as unsigned, u8 and u16 become i8 and i16 of the same bits. If the target lacks profile
  // INT, u8 and u16 become i32.
  [[nodiscard]] DType boundary_dtype(DType dtype) const;
  [[nodiscard]] DType physical_dtype(ValueId logical) const;
  [[nodiscard]] DType result_dtype() const { return physical_dtype(source_.result(*node_)); }
  [[nodiscard]] bool has_integers() const { return target_.has(target::Profile::kInt); }
  // True if the node computes in i32 although the target has no profile INT.
  [[nodiscard]] bool computes_wide() const { return is_set(plan_.wide_nodes, source_.id(*node_).index()); }
  // True if the result may exceed its dtype, and then wraps.
  [[nodiscard]] bool wraps() const { return is_set(plan_.wraps, source_.id(*node_).index()); }
  [[nodiscard]] bool has_wide_integers() const {
    return has_integers() && target_.has(target::Extension::kInt16);
  }
  // Casts the integer x, which may be represented in f32, to the integer dtype `dtype`. Indices and graph
  // outputs need an integer dtype.
  [[nodiscard]] ValueId as_integer(ValueId x, DType dtype);
  [[nodiscard]] const Graph& source() const { return source_; }
  [[nodiscard]] const Node& node() const { return *node_; }
  template <class A>
  [[nodiscard]] const A& attrs() const {
    return Graph::attrs<A>(*node_);
  }
  [[nodiscard]] std::size_t operand_count() const { return node_->operand_count; }
  [[nodiscard]] ValueId logical(std::size_t i) const { return source_.operands(*node_)[i]; }
  [[nodiscard]] bool has(std::size_t i) const { return i < operand_count() && logical(i).valid(); }
  [[nodiscard]] const TensorType& logical_type(std::size_t i) const { return source_.type(logical(i)); }
  [[nodiscard]] const TensorType& result_type() const { return source_.type(source_.result(*node_)); }
  [[nodiscard]] const DimOrder& planned_order() const { return result_type().order; }
  // The physical value of operand i in `order`. Without profile INT an i32 value is rounded to f32, unless
  // the node computes in i32. order_of() is the order in which operand i is stored, so it needs no copy.
  [[nodiscard]] ValueId operand(std::size_t i, const DimOrder& order = {}) {
    return in_order(logical(i), order, !computes_wide());
  }
  [[nodiscard]] const DimOrder& order_of(std::size_t i) const { return physical_[logical(i).index()].order; }
  // The range of the elements of operand i, from the range analysis.
  [[nodiscard]] const analysis::FloatRange& range_of(std::size_t i);
  // The range of operand i, which is an integer, for all integers that the graph's inputs may have.
  [[nodiscard]] const ValueRange& integer_range_of(std::size_t i);
  // Operand i, reshaped to `rank` by leading logical axes of extent 1, in dim order `order`, of `rank` axes.
  [[nodiscard]] ValueId aligned(std::size_t i, std::size_t rank, const DimOrder& order);
  // Throws UnsupportedOp ("not supported: ...") for the node.
  [[noreturn]] void refuse(std::string reason, std::string hint = {}) const;

  // ---- emitting TOSA nodes on behalf of the node ----
  // Returns a copy: a reference into the graph is invalid once a value is added.
  [[nodiscard]] TensorType type(ValueId physical) const { return out_.type(physical); }
  [[nodiscard]] const Graph& out() const { return out_; }
  ValueId emit(Op op, Attrs attributes, const std::vector<ValueId>& operands);
  ValueId unary(Op op, ValueId x);
  ValueId binary(Op op, ValueId a, ValueId b) { return emit(op, default_attrs(op), {a, b}); }
  ValueId reshape(ValueId x, const Shape& shape);
  ValueId transpose(ValueId x, const Dims& perm);
  ValueId slice(ValueId x, const Dims& start, const Dims& size);
  ValueId slice_axis(ValueId x, std::size_t axis, std::int64_t start, std::int64_t size);
  ValueId pad(ValueId x, const Dims& before, const Dims& after, const Scalar& value);
  ValueId concat(const std::vector<ValueId>& parts, std::size_t axis);
  ValueId tile(ValueId x, const Dims& multiples);
  // Casts x. If the target has no such CAST, another operator replaces it: SELECT from bool to float, a
  // comparison to bool, and without profile INT two casts by way of f32 between integer dtypes.
  ValueId cast(ValueId x, DType dtype);
  ValueId to_bool(ValueId x);  // x != 0
  ValueId logical_not(ValueId x) { return unary(Op::kTosaLogicalNot, x); }
  ValueId mul(ValueId a, ValueId b) { return binary(Op::kTosaMul, a, b); }
  ValueId select(ValueId condition, ValueId a, ValueId b) {
    return emit(Op::kTosaSelect, NoAttrs{}, {condition, a, b});
  }
  ValueId constant(DType dtype, const Shape& shape, const std::vector<double>& values);
  // A constant of one element, with the dtype and the rank of x, so that it broadcasts against x.
  ValueId number_like(ValueId x, double value);
  ValueId zero_bias(DType dtype) { return constant(dtype, {1}, {0.0}); }
  // A node whose results have the types `results`.
  std::vector<ValueId> emit_all(Op op, Attrs attributes, const std::vector<ValueId>& operands,
                                const std::vector<TensorType>& results,
                                std::vector<std::shared_ptr<const Graph>> regions = {});
  // Legalizes a region of the node. Problems in the region are added to problems(), and the result is then
  // null.
  [[nodiscard]] std::shared_ptr<const Graph> legalized_region(const Graph& region);
  [[nodiscard]] const target::TargetSpec& target() const { return target_; }

 private:
  static bool is_set(const std::vector<bool>& flags, std::size_t i) { return i < flags.size() && flags[i]; }
  // If `counted` is true and the target has no profile INT, an i32 value is rounded to f32.
  [[nodiscard]] ValueId in_order(ValueId logical, const DimOrder& order, bool counted);
  [[nodiscard]] ValueId physical_of(ValueId logical, bool counted);
  // Without profile INT the operators that move elements (RESHAPE, CONCAT, ...) take floats and bool only.
  // move_halves moves both halves of an i32 value, each as f32, and joins them.
  struct Halves {
    ValueId high, low;
  };
  [[nodiscard]] Halves halves(ValueId x);
  [[nodiscard]] ValueId move_halves(Op op, const Attrs& attributes, const std::vector<ValueId>& operands);
  ValueId add_node(Op op, Attrs attributes, const std::vector<ValueId>& operands);
  [[nodiscard]] ValueId reordered(ValueId x, const Shape& logical_shape, const DimOrder& from,
                                  const DimOrder& to);
  void add_inputs();
  void add_region_inputs();
  [[nodiscard]] ConstantRef physical_initial(const Input& input, const TensorType& type) const;
  void check_outputs();
  void add_outputs();
  void legalize_node(const Node& node);
  void settle(const Node& node, std::uint32_t result, const Physical& made);
  [[nodiscard]] bool is_own(ValueId physical) const;
  [[nodiscard]] bool is_representable(ValueId id) const;
  void check_dtype(ValueId id) const;
  [[nodiscard]] ValueId physical_constant(ValueId id);

  const Graph& source_;
  target::TargetSpec target_;
  Part part_;
  Graph out_;
  const Node* node_ = nullptr;
  std::vector<Physical> physical_;
  std::size_t first_own_ = 0;  // values of out_ from here on were added for the node
  IntegerPlan plan_;
  std::map<std::tuple<ValueId, bool, std::vector<std::int64_t>>, ValueId> reordered_;
  std::map<ValueId, ValueId> counted_;  // i32 value -> the same value rounded to f32
  std::map<ValueId, Halves> halves_;
  std::vector<ErrorParts> problems_;
  std::optional<analysis::FloatRanges> ranges_;  // the ranges of source_; computed by the first range_of
  std::optional<analysis::IntegerRanges> integer_ranges_;  // computed by the first integer_range_of
};

// The position of a logical axis in an order.
[[nodiscard]] std::size_t physical_axis(const DimOrder& order, std::size_t rank, std::int64_t axis);
using layout::physical_dims;

// Families of rules. Each legalizes the node and returns its physical result.
[[nodiscard]] Physical legalize_elementwise(Legalizer& l);           // legalize_elementwise.cpp
[[nodiscard]] std::vector<Physical> legalize_foreign(Legalizer& l);  // legalize_foreign.cpp
// Computes the node in i32, for integers beyond 24 bits on a target without profile INT. `given` has the
// aligned operands. The result is i32, or bool for a comparison.
[[nodiscard]] ValueId legalize_wide_integers(Legalizer& l, const std::vector<ValueId>& given);
// Reductions of an i32 value on a target without profile INT; the results are i32. The reduced axes stay with
// extent 1, but wide_argmax removes its axis, as ARGMAX does.
[[nodiscard]] ValueId wide_extreme(Legalizer& l, Op reduce, ValueId x, const std::vector<std::size_t>& axes);
[[nodiscard]] ValueId wide_sum(Legalizer& l, ValueId x, const std::vector<std::size_t>& axes);
[[nodiscard]] ValueId wide_argmax(Legalizer& l, ValueId x, std::size_t axis);
// Wraps integers x, in f32 or i32, to the range of an integer dtype. The result is f32.
[[nodiscard]] ValueId wrap_integers(Legalizer& l, ValueId x, DType dtype);
// Reduces one axis to extent 1 by `op`, a reduction of TOSA.
[[nodiscard]] ValueId reduce_axis(Legalizer& l, Op op, ValueId x, std::size_t axis);
[[nodiscard]] Physical legalize_reduction(Legalizer& l);  // legalize_reduction.cpp
[[nodiscard]] Physical legalize_argmax(Legalizer& l);
[[nodiscard]] Physical legalize_conv(Legalizer& l);  // legalize_contraction.cpp
[[nodiscard]] Physical legalize_linear(Legalizer& l);
[[nodiscard]] Physical legalize_matmul(Legalizer& l);
[[nodiscard]] Physical legalize_pool(Legalizer& l);  // legalize_spatial.cpp
// A pool or sum over windows that are side by side (layout/windows.h), computed by reductions in the dim
// order of the operand. Returns nothing if the windows are not side by side, or if the operand is already in
// the dim order that TOSA's operator for windows requires.
[[nodiscard]] std::optional<Physical> reduced_windows(Legalizer& l);
[[nodiscard]] Physical legalize_resize(Legalizer& l);
[[nodiscard]] Physical legalize_movement(Legalizer& l);  // legalize_movement.cpp
[[nodiscard]] Physical legalize_rescale(Legalizer& l);   // legalize_tosa.cpp
// Refuses the node: `decompose` expands composites, and `fold-constants` evaluates operators that create a
// tensor (arange, full).
[[noreturn]] Physical not_expanded(Legalizer& l);
// An operator of TOSA, which the graph has at stage integer already.
[[nodiscard]] Physical legalize_tosa_op(Legalizer& l);
// These families have several results.
[[nodiscard]] std::vector<Physical> legalize_cond(Legalizer& l);  // legalize_control_flow.cpp
[[nodiscard]] std::vector<Physical> legalize_while_loop(Legalizer& l);
[[nodiscard]] std::vector<Physical> legalize_fourier(Legalizer& l);  // legalize_fourier.cpp

// The rule of an operator, which has one result (`One`) or several.
struct Legalization {
  using One = Physical (*)(Legalizer&);
  using All = std::vector<Physical> (*)(Legalizer&);

  constexpr Legalization(One rule) : one(rule) {}
  constexpr Legalization(All rule) : all(rule) {}
  One one = nullptr;
  All all = nullptr;
};

// The column `legalization` of ops.def, by operator.
inline constexpr std::array<Legalization, kOpCount> kLegalizations = {
#define TOSAIC_OP(Name, text, AttrsT, operands, results, traits, int16, inference, error, kernel, expansion, \
                  legalization, ...)                                                                         \
  legalization,
#define TOSAIC_TOSA_OP(Name, ...) legalize_tosa_op,
#include "tosaic/ir/ops.def"
};
[[nodiscard]] constexpr const Legalization& legalization_of(Op op) {
  return kLegalizations[static_cast<std::size_t>(op)];
}

// True if the row of the operator names `family`. This is a predicate for OpTable::mismatch().
template <Legalization::One family>
[[nodiscard]] constexpr bool is_legalized_by(Op op) {
  constexpr bool kIs[] = {
#define TOSAIC_OP(Name, text, AttrsT, operands, results, traits, int16, inference, error, kernel, expansion, \
                  legalization, ...)                                                                         \
  is_same_function<legalization, family>,
#define TOSAIC_TOSA_OP(Name, ...) is_same_function<legalize_tosa_op, family>,
#include "tosaic/ir/ops.def"
  };
  return kIs[static_cast<std::size_t>(op)];
}

// Finds a range for each integer input under which every integer of a run provably fits i32, and plans the
// dtype of each integer. Adds a problem for each node that may still overflow.
[[nodiscard]] IntegerPlan narrow_integers(const Graph& graph, bool integer_arithmetic,
                                          std::vector<ErrorParts>& problems);
// The plan for a region. The analysis of the enclosing graph has proven that the region's integers fit.
[[nodiscard]] IntegerPlan narrow_region_integers(const Graph& region, bool integer_arithmetic);

}  // namespace tosaic::passes
