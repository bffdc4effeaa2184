// options: the layout options of an operator.
//
// A layout option is a dim order for every operand and result of a node. The node computes the same elements
// with each of its options. Which options a node has depends on two things:
//
//   the meaning of the operator     how the order of the result follows from the orders of the operands:
//     elementwise, movement           one order for all operands and results
//     permute                         the order that results if the axes are renamed and no element moves
//     reduction                       the remaining axes stay in the operand's order
//     reshape                         axes that are joined have to be adjacent, and axes into which one axis
//                                     is split are adjacent (order.h, reshaped)
//   the needs of the target         which of these orders the target's operator accepts
//                                   (target/layout_needs.h), e.g. channels last for a convolution
#pragma once

#include <optional>

#include "tosaic/base/small_vector.h"
#include "tosaic/ir/graph.h"
#include "tosaic/target/layout_needs.h"

namespace tosaic::layout {

// The order of an output at the boundary of the graph: its declared order, or, for a mutation, that of the
// input to which it is stored.
[[nodiscard]] const DimOrder& boundary_order(const Graph& graph, const Output& output);

struct LayoutOption {
  SmallVector<DimOrder, 3> operands;  // orders of absent operands have no meaning
  SmallVector<DimOrder, 1> results;
};

// True if the input has several channels and each has weights of its own, which TOSA stores as (H, W, C, M).
// False for transposed convolutions.
[[nodiscard]] bool is_depthwise(const Shape& input, const Shape& weight, const ConvAttrs& attrs);

// The layout options of the nodes of one graph on one target. Both must outlive this object.
class LayoutRules {
 public:
  LayoutRules(const Graph& graph, const target::LayoutNeeds& needs) : graph_(graph), needs_(needs) {}

  [[nodiscard]] const target::LayoutNeeds& needs() const { return needs_; }
  // What the target's operator, or the description of a foreign operator, needs.
  [[nodiscard]] target::OpLayout need_of(const Node& node) const;

  // The option that the operator needs on the target, or row-major order if it accepts any order.
  [[nodiscard]] LayoutOption preferred(const Node& node) const;
  // True if the preferred option is the only one.
  [[nodiscard]] bool has_one_option(const Node& node) const;
  // True if the plan always considers the preferred option, even if no neighbour's order leads to this
  // option: the target has an operator for it.
  [[nodiscard]] bool always_considers_preferred(const Node& node) const;
  // The option in which an operand, or a result, has this order. Returns nothing if there is no such option,
  // or if the order does not determine the orders of the other values (e.g. the order of an operand that is
  // broadcast).
  [[nodiscard]] std::optional<LayoutOption> by_operand(const Node& node, std::size_t operand,
                                                       const DimOrder& order) const;
  [[nodiscard]] std::optional<LayoutOption> by_result(const Node& node, std::size_t result,
                                                      const DimOrder& order) const;

 private:
  // How all orders of an option follow from one of them, which is called the lead. It is the order of the
  // result, or of the operand of a reduction.
  enum class Relation : std::uint8_t {
    kNone,      // there is only one option
    kSame,      // one order for all operands and the result
    kPermuted,  // the result has the order of the operand, relabelled
    kReduced,   // the result has the remaining axes of the operand
    kReshaped,  // the axes of the operand are joined and split
    kRows,      // operand 0 and the result have one order, all other operands are row-major
    kMatrices,  // as kRows; if operand 1 is several matrices, operand 1 has that order, too
    kWindows,   // as kRows, or the preferred option
  };
  [[nodiscard]] Relation relation_of(const Node& node) const;
  [[nodiscard]] std::optional<LayoutOption> same(const Node& node, const DimOrder& lead) const;
  [[nodiscard]] LayoutOption reduced(const Node& node, const DimOrder& lead) const;
  [[nodiscard]] std::optional<LayoutOption> rows(const Node& node, const DimOrder& lead) const;
  [[nodiscard]] std::optional<LayoutOption> matrices(const Node& node, const DimOrder& lead) const;
  [[nodiscard]] LayoutOption windows(const Node& node, const Shape& shape, const DimOrder& lead,
                                     const DimOrder& preferred_order) const;
  [[nodiscard]] LayoutOption channels_last(const Node& node) const;
  [[nodiscard]] LayoutOption foreign_channels_last(const Node& node) const;
  [[nodiscard]] DimOrder weight_order(const Node& node, const ConvAttrs& attrs) const;
  [[nodiscard]] std::optional<std::int64_t> innermost_axis(const Node& node) const;
  [[nodiscard]] std::size_t result_rank(const Node& node) const;
  [[nodiscard]] const Shape& operand_shape(const Node& node, std::size_t operand) const;
  [[nodiscard]] const Shape& result_shape(const Node& node) const;

  const Graph& graph_;
  const target::LayoutNeeds& needs_;
};

}  // namespace tosaic::layout
