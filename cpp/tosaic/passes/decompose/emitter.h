// Emitter: functions that emit the nodes of an expansion in place of one node.
#pragma once

#include <vector>

#include "tosaic/ir/rewriter.h"

namespace tosaic::passes {

class Emitter {
 public:
  // Operands are mapped into the new graph; absent ones stay invalid. With kWide, f16 and bf16 operands are
  // cast to f32 and the results are cast back, because torch computes such operators in f32 and rounds once.
  enum class Width { kAsIs, kWide };
  Emitter(Rewriter& rewriter, const Node& node, Width width = Width::kAsIs)
      : rewriter_(rewriter),
        node_(node),
        graph_(rewriter.begin_output(node)),
        operands_(rewriter.map_operands(node)),
        width_(width) {
    for (ValueId& operand : operands_)
      if (operand.valid() && width == Width::kWide) operand = cast(operand, widened(type(operand).dtype));
  }

  [[nodiscard]] const Node& node() const { return node_; }
  [[nodiscard]] const Graph& graph() const { return graph_; }
  // The graph that the pass reads.
  [[nodiscard]] const Graph& source() const { return rewriter_.source(); }
  // Returns the value of the new graph that replaces a value of source().
  [[nodiscard]] ValueId mapped(ValueId id) const { return rewriter_.map(id); }
  [[nodiscard]] bool has(std::size_t i) const { return i < operands_.size() && operands_[i].valid(); }
  [[nodiscard]] ValueId operand(std::size_t i) const { return operands_[i]; }
  [[nodiscard]] const std::vector<ValueId>& operands() const { return operands_; }
  // Returns a copy, because adding a value may move the types stored in the graph.
  [[nodiscard]] TensorType type(ValueId id) const { return graph_.type(id); }
  [[nodiscard]] const TensorType& result_type(std::size_t i = 0) const {
    return rewriter_.source().type(rewriter_.source().result(node_, i));
  }
  // The dtype of the first result, widened if the operands are widened.
  [[nodiscard]] DType result_dtype() const {
    return width_ == Width::kWide ? widened(result_type().dtype) : result_type().dtype;
  }
  // The type of an operand in the source graph, before widening.
  [[nodiscard]] const TensorType& source_type(std::size_t operand) const {
    return rewriter_.source().type(rewriter_.source().operands(node_)[operand]);
  }
  // Returns f32 for f16 and bf16, and every other dtype itself.
  [[nodiscard]] static DType widened(DType dtype) {
    return dtype == DType::kF16 || dtype == DType::kBF16 ? DType::kF32 : dtype;
  }
  template <class A>
  [[nodiscard]] const A& attrs() const {
    return Graph::attrs<A>(node_);
  }

  ValueId emit(Op op, Attrs attributes, const std::vector<ValueId>& values) {
    return rewriter_.emit(node_, op, std::move(attributes), values);
  }
  ValueId unary(Op op, ValueId x) { return emit(op, default_attrs(op), {x}); }
  ValueId binary(Op op, ValueId a, ValueId b) { return emit(op, default_attrs(op), {a, b}); }
  ValueId add(ValueId a, ValueId b) { return binary(Op::kAdd, a, b); }
  ValueId sub(ValueId a, ValueId b) { return binary(Op::kSub, a, b); }
  ValueId mul(ValueId a, ValueId b) { return binary(Op::kMul, a, b); }
  ValueId mul(ValueId a, double b) { return mul(a, number(b, type(a).dtype)); }
  ValueId add(ValueId a, double b) { return add(a, number(b, type(a).dtype)); }
  ValueId where(ValueId condition, ValueId a, ValueId b) {
    return emit(Op::kWhere, NoAttrs{}, {condition, a, b});
  }
  ValueId cast(ValueId x, DType dtype) {
    return type(x).dtype == dtype ? x : emit(Op::kCast, CastAttrs{dtype}, {x});
  }
  ValueId reshape(ValueId x, Shape shape) {
    return type(x).shape == shape ? x : emit(Op::kReshape, ShapeAttrs{shape}, {x});
  }
  ValueId permute(ValueId x, Dims perm) {
    return is_identity_permutation(perm) ? x : emit(Op::kPermute, PermuteAttrs{perm}, {x});
  }
  ValueId expand(ValueId x, Shape shape) {
    return type(x).shape == shape ? x : emit(Op::kExpand, ShapeAttrs{shape}, {x});
  }
  ValueId slice(ValueId x, std::size_t axis, std::int64_t start, std::int64_t end) {
    return emit(Op::kSlice, SliceAttrs{static_cast<std::int64_t>(axis), start, end, 1}, {x});
  }
  ValueId reduce(Op op, ValueId x, Dims axes, bool keepdim) {
    return emit(op, ReduceAttrs{axes, keepdim, {}}, {x});
  }
  ValueId constant(DType dtype, const Shape& shape, const std::vector<double>& values) {
    return rewriter_.constant(node_, make_constant("", dtype, shape, values));
  }
  // A rank-0 constant. It takes part in type promotion like a Python number in torch.
  ValueId number(double value, DType dtype) { return constant(dtype, {}, {value}); }

  void replace(ValueId result) { rewriter_.replace(node_, cast(result, result_type().dtype)); }
  void replace(std::vector<ValueId> results) {
    for (std::size_t i = 0; i < results.size(); ++i) results[i] = cast(results[i], result_type(i).dtype);
    rewriter_.replace(node_, results);
  }

 private:
  Rewriter& rewriter_;
  const Node& node_;
  Graph& graph_;
  std::vector<ValueId> operands_;
  Width width_;
};

}  // namespace tosaic::passes
