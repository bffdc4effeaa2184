// Legalizer: the state of legalize-tosa, shared by its families of rules.
//
// Walks a canonical graph whose values carry dim orders and builds a TOSA graph over physical shapes. Each
// logical value has one physical value in the order of the plan; other orders are made on demand, once per
// value and order. A rule returns the physical result and the order it is in; the driver brings it to the
// planned order.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/passes/float_range.h"
#include "tosaic/passes/pass.h"

namespace tosaic::passes {

struct Physical {
  ValueId id;
  DimOrder order;
};

// Inclusive.
struct IntegerRange {
  std::int64_t min = 0, max = 0;
};

// How the integers of a graph are carried. Lists are empty where nothing is true of them.
struct IntegerPlan {
  std::vector<IntegerRange> inputs;  // what i64 and i32 inputs are checked against when run, by index
  std::vector<bool> wraps;           // by node: its dtype may wrap what it computes
  // Of a target without profile INT: by value, that it is i32 and not counted in f32; by node, that it
  // computes with i32.
  std::vector<bool> wide_values, wide_nodes;
};

class Legalizer {
 public:
  // A region takes and gives values in row-major order, of the dtypes that stand for theirs inside the graph.
  enum class Part : std::uint8_t { kProgram, kRegion };
  Legalizer(const Graph& source, const target::TargetSpec& target, Part part = Part::kProgram);

  // Walks the whole graph. Problems are collected; the result is only meaningful without any.
  [[nodiscard]] Graph run();
  [[nodiscard]] const std::vector<ErrorParts>& problems() const { return problems_; }

  // ---- for the rules: the node being legalized ----
  // The dtype that stands for a logical dtype inside a TOSA graph. i64 and i32 are i32 where the target has
  // integer arithmetic. Elsewhere all integers are counted in f32, and those are i32 of which narrow_integers
  // says that they may leave the 24 bits that f32 counts exactly, and that their last bits matter. Inputs,
  // outputs and indices are integers.
  [[nodiscard]] DType physical_dtype(DType dtype) const;
  // u8 and u16 are their bits in i8 and i16 where the target has RESCALE.
  [[nodiscard]] DType border_dtype(DType dtype) const;
  [[nodiscard]] DType physical_dtype(ValueId logical) const;
  [[nodiscard]] DType result_dtype() const { return physical_dtype(source_.result(*node_)); }
  [[nodiscard]] bool has_integers() const { return target_.has(target::Profile::kInt); }
  // The node computes with i32 though the target has no profile INT.
  [[nodiscard]] bool computes_wide() const { return is_set(plan_.wide_nodes, source_.id(*node_).index()); }
  // The dtype of the result may wrap what the node computes.
  [[nodiscard]] bool wraps() const { return is_set(plan_.wraps, source_.id(*node_).index()); }
  [[nodiscard]] bool has_wide_integers() const {
    return has_integers() && target_.has(target::Extension::kInt16);
  }
  // A counted integer as its dtype: indices, outputs.
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
  // Operand i in an order; the order it has anyway.
  [[nodiscard]] ValueId operand(std::size_t i, const DimOrder& order = {}) {
    return in_order(logical(i), order, !computes_wide());
  }
  [[nodiscard]] const DimOrder& order_of(std::size_t i) const { return physical_[logical(i).index()].order; }
  // What is known of the size of operand i.
  [[nodiscard]] const FloatRange& range_of(std::size_t i);
  // Operand i with leading axes of extent 1 up to `rank`, in an order of that rank.
  [[nodiscard]] ValueId aligned(std::size_t i, std::size_t rank, const DimOrder& order);
  // "not supported: ..." for the node; thrown as UnsupportedOp.
  [[noreturn]] void refuse(std::string reason, std::string hint = {}) const;

  // ---- emitting TOSA nodes on behalf of the node ----
  // A copy: those in the graph move where a value is added.
  [[nodiscard]] TensorType type(ValueId physical) const { return out_.type(physical); }
  [[nodiscard]] const Graph& out() const { return out_; }
  ValueId emit(Op op, Attrs attributes, const std::vector<ValueId>& operands);
  ValueId unary(Op op, ValueId x);
  ValueId binary(Op op, ValueId a, ValueId b) { return emit(op, default_attrs(op), {a, b}); }
  ValueId reshape(ValueId x, const Shape& shape);
  ValueId transpose(ValueId x, const Dims& perm);  // a reshape where only extents of 1 move
  ValueId slice(ValueId x, const Dims& start, const Dims& size);
  ValueId slice_axis(ValueId x, std::size_t axis, std::int64_t start, std::int64_t size);
  ValueId pad(ValueId x, const Dims& before, const Dims& after, const Scalar& value);
  ValueId concat(const std::vector<ValueId>& parts, std::size_t axis);
  ValueId tile(ValueId x, const Dims& multiples);
  ValueId cast(ValueId x, DType dtype);  // TOSA CAST, with the detours it needs for bool
  ValueId to_bool(ValueId x);            // x != 0
  ValueId logical_not(ValueId x) { return unary(Op::kTosaLogicalNot, x); }
  ValueId mul(ValueId a, ValueId b) { return binary(Op::kTosaMul, a, b); }
  ValueId select(ValueId condition, ValueId a, ValueId b) {
    return emit(Op::kTosaSelect, NoAttrs{}, {condition, a, b});
  }
  ValueId constant(DType dtype, const Shape& shape, const std::vector<double>& values);
  // A constant of one element with `rank` axes of extent 1, to broadcast against x.
  ValueId number_like(ValueId x, double value);
  ValueId zero_bias(DType dtype) { return constant(dtype, {1}, {0.0}); }
  // A node with several results, of these types.
  std::vector<ValueId> emit_all(Op op, Attrs attributes, const std::vector<ValueId>& operands,
                                const std::vector<TensorType>& results,
                                std::vector<std::shared_ptr<const Graph>> regions = {});
  // A region of the node, legalized; its problems become this graph's, and null is returned.
  [[nodiscard]] std::shared_ptr<const Graph> legalized_region(const Graph& region);
  [[nodiscard]] const target::TargetSpec& target() const { return target_; }

 private:
  static bool is_set(const std::vector<bool>& flags, std::size_t i) { return i < flags.size() && flags[i]; }
  // `counted`: rounded to f32 where the target has no profile INT.
  [[nodiscard]] ValueId in_order(ValueId logical, const DimOrder& order, bool counted);
  [[nodiscard]] ValueId physical_of(ValueId logical, bool counted);
  // Movement of i32 where TOSA moves floats alone: of both halves.
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
  void add_outputs();
  void legalize_node(const Node& node);
  void settle(const Node& node, std::uint32_t result, const Physical& made);
  [[nodiscard]] bool is_representable(ValueId id) const;
  void check_dtype(ValueId id) const;
  [[nodiscard]] ValueId physical_constant(ValueId id);

  const Graph& source_;
  target::TargetSpec target_;
  Part part_;
  Graph out_;
  const Node* node_ = nullptr;
  std::vector<Physical> physical_;
  IntegerPlan plan_;
  std::map<std::tuple<ValueId, bool, std::vector<std::int64_t>>, ValueId> reordered_;
  std::map<ValueId, ValueId> counted_;  // i32 -> rounded to f32
  std::map<ValueId, Halves> halves_;
  std::vector<ErrorParts> problems_;
  std::optional<FloatRanges> ranges_;  // of the source, once asked for
};

// Position of a logical axis in an order.
[[nodiscard]] std::size_t physical_axis(const DimOrder& order, std::size_t rank, std::int64_t axis);
// dims[order[k]] for each k.
[[nodiscard]] Dims physical_dims(const Dims& dims, const DimOrder& order);

// Families of rules. Each returns the physical result of the node.
[[nodiscard]] Physical legalize_elementwise(Legalizer& l);  // legalize_elementwise.cpp
// Integers beyond 24 bits under profile FP, in i32; a truth value of comparisons.
[[nodiscard]] std::vector<Physical> legalize_foreign(Legalizer& l);  // legalize_foreign.cpp
[[nodiscard]] ValueId legalize_wide_integers(Legalizer& l, const std::vector<ValueId>& given);
// The same of reductions of i32, each axis keeping its place with extent 1; their results are i32.
[[nodiscard]] ValueId wide_extreme(Legalizer& l, Op reduce, ValueId x, const std::vector<std::size_t>& axes);
[[nodiscard]] ValueId wide_sum(Legalizer& l, ValueId x, const std::vector<std::size_t>& axes);
[[nodiscard]] ValueId wide_argmax(Legalizer& l, ValueId x, std::size_t axis);
// x, of f32 or i32, wrapped to `bits` of two's complement, in f32.
[[nodiscard]] ValueId wrap_integers(Legalizer& l, ValueId x, int bits);
[[nodiscard]] Physical legalize_reduction(Legalizer& l);  // legalize_reduction.cpp
[[nodiscard]] Physical legalize_conv(Legalizer& l);       // legalize_contraction.cpp
[[nodiscard]] Physical legalize_linear(Legalizer& l);
[[nodiscard]] Physical legalize_matmul(Legalizer& l);
[[nodiscard]] Physical legalize_pool(Legalizer& l);  // legalize_spatial.cpp
// What is computed of windows that lie side by side, as reductions in the order of the operand; none where
// that is the order of the operator that TOSA has for it.
[[nodiscard]] std::optional<Physical> reduced_windows(Legalizer& l);
[[nodiscard]] Physical legalize_resize(Legalizer& l);
[[nodiscard]] Physical legalize_movement(Legalizer& l);  // legalize_movement.cpp
// Families with several results.
[[nodiscard]] std::vector<Physical> legalize_cond(Legalizer& l);  // legalize_control_flow.cpp
[[nodiscard]] std::vector<Physical> legalize_while_loop(Legalizer& l);
[[nodiscard]] std::vector<Physical> legalize_fourier(Legalizer& l);  // legalize_fourier.cpp

// Proves that every integer that takes part in a run fits i32, given what inputs may be, and plans how each
// is carried. Refuses (adds to `problems`) what cannot be proven.
[[nodiscard]] IntegerPlan narrow_integers(const Graph& graph, bool integer_arithmetic,
                                          std::vector<ErrorParts>& problems);
// Of a region, whose integers the plan of the graph around it has proven to fit.
[[nodiscard]] IntegerPlan narrow_region_integers(const Graph& region, bool integer_arithmetic);

}  // namespace tosaic::passes
