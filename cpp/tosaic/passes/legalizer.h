// Legalizer: the state of legalize-tosa, shared by its families of rules.
//
// Walks a canonical graph whose values carry dim orders and builds a TOSA graph over physical shapes. Each
// logical value has one physical value in the order of the plan; other orders are made on demand, once per
// value and order. A rule returns the physical result and the order it is in; the driver brings it to the
// planned order.
#pragma once

#include <map>
#include <string>
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

class Legalizer {
 public:
  // A region takes and gives values in row-major order, of the dtypes that stand for theirs inside the graph.
  enum class Part : std::uint8_t { kProgram, kRegion };
  explicit Legalizer(const Graph& source, const PassOptions& options = {}, Part part = Part::kProgram);

  // Walks the whole graph. Problems are collected; the result is only meaningful without any.
  [[nodiscard]] Graph run();
  [[nodiscard]] const std::vector<ErrorParts>& problems() const { return problems_; }

  // ---- for the rules: the node being legalized ----
  // The dtype that stands for a logical dtype inside a TOSA graph. i64 and i32 are i32 where the target has
  // integer arithmetic. Elsewhere they are counted in f32, exactly, since narrow_integers proves that none
  // leaves 24 bits; inputs, outputs and indices stay i32.
  [[nodiscard]] DType physical_dtype(DType dtype) const;
  // u8 and u16 are their bits in i8 and i16 where the target has RESCALE, else counted in f32.
  [[nodiscard]] DType border_dtype(DType dtype) const;
  [[nodiscard]] bool has_integers() const { return options_.integer_arithmetic; }
  [[nodiscard]] bool has_wide_integers() const { return has_integers() && options_.wide_integers; }
  // Indices for GATHER: i32.
  [[nodiscard]] ValueId as_i32(ValueId x);
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
    return in_order(logical(i), order);
  }
  [[nodiscard]] const DimOrder& order_of(std::size_t i) const { return physical_[logical(i).index()].order; }
  // What is known of the size of operand i.
  [[nodiscard]] const FloatRange& range_of(std::size_t i);
  // Operand i with leading axes of extent 1 up to `rank`, in an order of that rank.
  [[nodiscard]] ValueId aligned(std::size_t i, std::size_t rank, const DimOrder& order);
  // "not supported: ..." for the node; thrown as UnsupportedOp.
  [[noreturn]] void refuse(std::string reason, std::string hint = {}) const;

  // ---- emitting TOSA nodes on behalf of the node ----
  [[nodiscard]] const TensorType& type(ValueId physical) const { return out_.type(physical); }
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
  [[nodiscard]] const PassOptions& options() const { return options_; }

 private:
  [[nodiscard]] ValueId in_order(ValueId logical, const DimOrder& order);
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
  PassOptions options_;
  Part part_;
  Graph out_;
  const Node* node_ = nullptr;
  std::vector<Physical> physical_;
  std::map<std::pair<ValueId, std::vector<std::int64_t>>, ValueId> reordered_;
  std::vector<ErrorParts> problems_;
  std::optional<FloatRanges> ranges_;  // of the source, once asked for
};

// Position of a logical axis in an order.
[[nodiscard]] std::size_t physical_axis(const DimOrder& order, std::size_t rank, std::int64_t axis);
// dims[order[k]] for each k.
[[nodiscard]] Dims physical_dims(const Dims& dims, const DimOrder& order);

// Families of rules. Each returns the physical result of the node.
[[nodiscard]] Physical legalize_elementwise(Legalizer& l);  // legalize_elementwise.cpp
[[nodiscard]] Physical legalize_reduction(Legalizer& l);    // legalize_reduction.cpp
[[nodiscard]] Physical legalize_conv(Legalizer& l);         // legalize_contraction.cpp
[[nodiscard]] Physical legalize_linear(Legalizer& l);
[[nodiscard]] Physical legalize_matmul(Legalizer& l);
[[nodiscard]] Physical legalize_pool(Legalizer& l);  // legalize_spatial.cpp
[[nodiscard]] Physical legalize_resize(Legalizer& l);
[[nodiscard]] Physical legalize_movement(Legalizer& l);  // legalize_movement.cpp
// Families with several results.
[[nodiscard]] std::vector<Physical> legalize_cond(Legalizer& l);  // legalize_control_flow.cpp
[[nodiscard]] std::vector<Physical> legalize_while_loop(Legalizer& l);
[[nodiscard]] std::vector<Physical> legalize_fourier(Legalizer& l);  // legalize_fourier.cpp

// Proves that every integer value that takes part in a run fits i32, given what inputs may be; returns, by
// index into inputs(), the inclusive range that i64 and i32 inputs are checked against when run. Refuses
// (adds to `problems`) what cannot be proven.
struct IntegerRange {
  std::int64_t min = 0, max = 0;
};
// `bits`: of the integers that the target counts exactly, 31 (and a sign) or 24.
[[nodiscard]] std::vector<IntegerRange> narrow_integers(const Graph& graph, int bits,
                                                        std::vector<ErrorParts>& problems);

}  // namespace tosaic::passes
