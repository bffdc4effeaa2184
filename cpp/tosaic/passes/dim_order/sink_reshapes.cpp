// sink-reshapes: moves elementwise operators in front of a reshape that joins axes. It does so where a
// transpose may be saved: if another reshape follows (possibly after more such operators), if two reshaped
// operands meet, or if the operator's result has fewer bytes than its operand.
//
//   %a: f32[1,4,12,12] = reshape(%x: f32[1,4,6,2,6,2])
//   %b: f32[1,4,12,12] = relu(%a)                            ->   %y: f32[1,4,6,2,6,2] = relu(%x)
//   %y: f32[1,4,6,2,6,2] = reshape(%b)
//
// The longer shape, with more axes, can have every dim order that the shorter shape can have, so no layout
// plan is lost. All operands of a moved operator must be results of reshapes of one shape, or constants.

#include <algorithm>
#include <vector>

#include "tosaic/ir/rewriter.h"
#include "tosaic/passes/match.h"
#include "tosaic/passes/pass.h"

namespace tosaic::passes {
namespace {

// The number of axes of `longer` that each axis of `shorter` joins. Returns nothing if `shorter` does not
// arise from `longer` by joining axes, or if `longer` has no elements.
std::optional<std::vector<std::size_t>> joined_axes(const Shape& longer, const Shape& shorter) {
  if (num_elements(longer) == 0) return std::nullopt;
  std::vector<std::size_t> counts;
  std::size_t at = 0;
  for (const std::int64_t extent : shorter) {
    const std::size_t first = at;
    for (std::int64_t joined = 1; joined < extent;) {
      joined *= longer[at++];
      if (joined > extent) return std::nullopt;
    }
    counts.push_back(at - first);
  }
  for (; at < longer.size(); ++at) {
    if (longer[at] != 1 || counts.empty()) return std::nullopt;
    ++counts.back();
  }
  return counts;
}

bool is_elementwise(const Node& node) {
  const OpInfo& row = info(node.op);
  return row.has(kElementwise) && !row.has(kComposite) && node.result_count == 1;
}

// The axis of `longer` that axis `axis` of `shorter` consists of, apart from axes of extent 1. Returns
// nothing if the axis joins several axes of `longer`.
std::optional<std::int64_t> same_axis(const Shape& longer, const Shape& shorter, std::int64_t axis) {
  const std::vector<std::size_t> counts = *joined_axes(longer, shorter);
  std::size_t first = 0;
  for (std::size_t k = 0; k < static_cast<std::size_t>(axis); ++k) first += counts[k];
  for (std::size_t k = first; k < first + counts[static_cast<std::size_t>(axis)]; ++k)
    if (longer[k] == shorter[static_cast<std::size_t>(axis)]) return static_cast<std::int64_t>(k);
  return std::nullopt;
}

const std::optional<std::int64_t>* axis_of_scales(const Node& node) {
  const auto* rescale = get_if<RescaleAttrs>(node.attrs.get());
  return rescale != nullptr && rescale->axis ? &rescale->axis : nullptr;
}

// The value in front of a chain of reshapes, and its shape. The result of an operator that may be moved also
// counts as a value in front, and has the longer shape. `shape` is null if there is no value in front.
struct Front {
  const Shape* shape = nullptr;
  ValueId value;
};

class Sinking {
 public:
  // `most_axes` is the largest number of axes of an elementwise operator.
  Sinking(const Graph& graph, std::size_t most_axes)
      : graph_(graph),
        most_axes_(most_axes),
        nearest_(graph.values().size()),
        farthest_(graph.values().size()),
        rewriter_(graph),
        made_(graph.values().size()) {}

  std::optional<Graph> run() && {
    for (const Node& node : graph_.nodes()) find(node);
    const std::vector<bool> sinks = wanted();
    if (std::find(sinks.begin(), sinks.end(), true) == sinks.end()) return std::nullopt;
    for (std::uint32_t n = 0; n < sinks.size(); ++n) {
      const Node& node = graph_.nodes()[n];
      if (sinks[n])
        hoist_elementwise(node);
      else if (node.op != Op::kReshape || !made_[graph_.operands(node)[0].index()].valid())
        rewriter_.copy(node);
      else
        reshape_of_moved(node);
    }
    std::optional<Graph> sunk = std::move(rewriter_).finish();
    std::optional<Graph> clean = dead_code(*sunk);
    return clean ? std::move(clean) : std::move(sunk);
  }

 private:
  // Finds the longer shape in which an elementwise node may compute: the shape in front of all reshapes if
  // the operands agree on it, or the shape in front of the last reshape.
  void find(const Node& node) {
    if (node.op == Op::kReshape) return find_reshape(node);
    if (!is_elementwise(node)) return;
    const Shape* found = common_shape(node, farthest_);
    if (found == nullptr) found = common_shape(node, nearest_);
    nearest_[node.first_result] = farthest_[node.first_result] = {found, graph_.result(node)};
  }

  void find_reshape(const Node& node) {
    const ValueId from = graph_.operands(node)[0];
    const Shape& shape = graph_.type(graph_.result(node)).shape;
    const Front direct{&graph_.type(from).shape, from}, far = farthest_[from.index()];
    if (is_longer(*direct.shape, shape)) nearest_[node.first_result] = direct;
    farthest_[node.first_result] =
        far.shape != nullptr && is_longer(*far.shape, shape) ? far : nearest_[node.first_result];
  }

  // True if `shorter` arises from `longer` by joining axes, and an elementwise operator may compute in
  // `longer`.
  [[nodiscard]] bool is_longer(const Shape& longer, const Shape& shorter) const {
    return longer.size() <= most_axes_ && joined_axes(longer, shorter).has_value();
  }

  [[nodiscard]] const Shape* common_shape(const Node& node, const std::vector<Front>& fronts) const {
    const TensorType& type = graph_.type(graph_.result(node));
    if (type.qparams && type.qparams->axis) return nullptr;
    const Shape* found = nullptr;
    for (std::size_t i = 0; i < node.operand_count; ++i) {
      const ValueId operand = graph_.operands(node)[i];
      if (constant_of(graph_, operand) != nullptr) continue;
      const Shape* longer = operand.valid() ? fronts[operand.index()].shape : nullptr;
      if (longer == nullptr || !(graph_.type(operand).shape == type.shape)) return nullptr;
      if (found != nullptr && !(*found == *longer)) return nullptr;
      found = longer;
    }
    if (const auto* axis = axis_of_scales(node); found && axis && !same_axis(*found, type.shape, **axis))
      return nullptr;
    return found;
  }

  // The longer shape in which an elementwise node may compute, or null.
  [[nodiscard]] const Shape* longer(const Node& node) const { return nearest_[node.first_result].shape; }

  // By node: true for an elementwise operator that is moved, that is, computes in the longer shape.
  [[nodiscard]] std::vector<bool> wanted() const {
    std::vector<bool> out(graph_.nodes().size());
    for (std::size_t n = out.size(); n-- > 0;) {
      const Node& node = graph_.nodes()[n];
      if (!is_elementwise(node) || longer(node) == nullptr) continue;
      const std::span<const NodeId> users = graph_.users(graph_.result(node));
      out[n] = joins_or_narrows(node) || std::any_of(users.begin(), users.end(), [&](NodeId user) {
                 return graph_.node(user).op == Op::kReshape || out[user.index()];
               });
    }
    return out;
  }

  // True if there are fewer bytes to transpose after the node than in front of it: it reads several values,
  // or its result has fewer bytes than its operand.
  [[nodiscard]] bool joins_or_narrows(const Node& node) const {
    std::vector<ValueId> read;
    for (const ValueId operand : graph_.operands(node))
      if (constant_of(graph_, operand) == nullptr &&
          std::find(read.begin(), read.end(), operand) == read.end())
        read.push_back(operand);
    return read.size() > 1 || graph_.type(graph_.result(node)).bytes() < graph_.type(read.front()).bytes();
  }

  void hoist_elementwise(const Node& node) {
    const TensorType& type = graph_.type(graph_.result(node));
    static_cast<void>(rewriter_.begin_output(node));  // ids from here on are of the new graph
    std::vector<ValueId> operands;
    for (std::size_t i = 0; i < node.operand_count; ++i)
      operands.push_back(info(node.op).is_table(i)
                             ? rewriter_.map(graph_.operands(node)[i])
                             : in_longer_shape(node, graph_.operands(node)[i], type.shape));
    const ValueId made = rewriter_.emit(node, node.op, attrs_in_longer_shape(node, type.shape), operands);
    rewriter_.begin_output(node).set_qparams(made, type.qparams);
    made_[node.first_result] = made;
    const ValueId short_again = rewriter_.emit(node, Op::kReshape, ShapeAttrs{type.shape}, {made});
    rewriter_.begin_output(node).set_qparams(short_again, type.qparams);
    rewriter_.replace(node, short_again);
  }

  [[nodiscard]] Attrs attrs_in_longer_shape(const Node& node, const Shape& shorter) const {
    Attrs attrs = *node.attrs;
    if (const auto* axis = axis_of_scales(node))
      get<RescaleAttrs>(attrs).axis = same_axis(*longer(node), shorter, **axis);
    return attrs;
  }

  ValueId in_longer_shape(const Node& node, ValueId operand, const Shape& shorter) {
    if (const Constant* constant = constant_of(graph_, operand)) {
      if (constant->shape.empty()) return rewriter_.map(operand);
      auto reshaped = std::make_shared<Constant>(*constant);
      reshaped->kind = ConstantKind::kFolded;
      reshaped->name = graph_.value(graph_.result(node)).name + "." + constant->name;
      reshaped->shape = taken_apart(constant->shape, *longer(node), shorter);
      return rewriter_.constant(node, std::move(reshaped));
    }
    const Front& far = farthest_[operand.index()];
    const Front& front = *far.shape == *longer(node) ? far : nearest_[operand.index()];
    const ValueId made = made_[front.value.index()];
    const bool fits = made.valid() && rewriter_.current().type(made).shape == *longer(node);
    return fits ? made : rewriter_.map(front.value);
  }

  // The shape of a constant operand of a moved node. An axis of `shorter` that the constant has is split as
  // in `longer`; an axis along which the constant broadcasts becomes axes of extent 1.
  static Shape taken_apart(const Shape& constant, const Shape& longer, const Shape& shorter) {
    const std::vector<std::size_t> counts = *joined_axes(longer, shorter);
    const std::size_t missing = shorter.size() - constant.size();
    Shape out;
    for (std::size_t axis = 0; axis < shorter.size(); ++axis)
      for (std::size_t k = 0; k < counts[axis]; ++k)
        out.push_back(axis >= missing && constant[axis - missing] != 1 ? longer[out.size()] : 1);
    return out;
  }

  // Emits a reshape whose operand was moved, unless the operand has its shape already.
  void reshape_of_moved(const Node& node) {
    const TensorType& type = graph_.type(graph_.result(node));
    ValueId made = made_[graph_.operands(node)[0].index()];
    if (!(rewriter_.current().type(made).shape == type.shape)) {
      made = rewriter_.emit(node, Op::kReshape, *node.attrs, {made});
      rewriter_.begin_output(node).set_qparams(made, type.qparams);
    }
    rewriter_.replace(node, made);
  }

  const Graph& graph_;
  std::size_t most_axes_;
  std::vector<Front> nearest_,
      farthest_;  // by old value: the value in front of its last reshape, and in front of all
  Rewriter rewriter_;
  std::vector<ValueId> made_;  // by old value: the new value in the longer shape
};

}  // namespace

std::optional<Graph> sink_reshapes(const Graph& graph, const PassOptions& options) {
  const std::size_t most_axes = options.layout_needs.most_elementwise_axes;
  std::optional<Graph> result;
  while (std::optional<Graph> next = Sinking(result ? *result : graph, most_axes).run())
    result = std::move(next);
  return result;
}

}  // namespace tosaic::passes
