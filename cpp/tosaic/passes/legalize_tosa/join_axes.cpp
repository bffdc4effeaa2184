// A value of more than 6 axes is stored with the same elements in the same order, but with fewer axes: axes
// of extent 1 are dropped, and neighbours are joined. An operator decides which of its axes can be joined:
//
//   elementwise      neighbours along which the same operands broadcast
//   reduction, cat,  all axes in front of the operator's axis, and all axes after it
//   reverse, argmax
//   slice            an axis with the one after it, if that one is read whole
//   pad              an axis with the one after it, if that one is not padded
//   tile             an axis with the one after it, if that one is not repeated
//   transpose        neighbours that stay neighbours (transpose_steps.h)
//
//   %y: f32[2,3,2,2,2,2,5] = tosa.add(%a, %b: f32[1,1,2,2,1,1,1])
//     ->  %a.reshape: f32[6,4,20] = tosa.reshape(%a)   %b.reshape: f32[1,4,1] = tosa.reshape(%b)
//         %y: f32[6,4,20] = tosa.add(%a.reshape, %b.reshape)
//
// If more than 6 axes remain, several operators follow each other, each over some of the axes. An elementwise
// operator whose operands broadcast along too many axes has an operand repeated by TILE instead.

#include "tosaic/passes/legalize_tosa/join_axes.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tosaic/ir/control_flow.h"
#include "tosaic/ir/op_table.h"
#include "tosaic/passes/legalize_tosa/transpose_steps.h"

namespace tosaic::passes {
namespace {

bool has_more_axes(const Graph& graph) {
  return std::any_of(graph.values().begin(), graph.values().end(),
                     [](const Value& value) { return value.type.rank() > kMostAxes; }) ||
         std::any_of(graph.nodes().begin(), graph.nodes().end(), [](const Node& node) {
           return std::any_of(node.regions.begin(), node.regions.end(),
                              [](const auto& region) { return has_more_axes(*region); });
         });
}

// The shape in which a value is stored between nodes: without axes of extent 1, and with its outermost axes
// joined until 6 are left.
Shape joined_shape(const Shape& shape) {
  if (shape.size() <= kMostAxes) return shape;
  Shape out;
  for (const std::int64_t extent : shape)
    if (extent != 1) out.push_back(extent);
  while (out.size() > kMostAxes) {
    out[1] *= out[0];
    out.erase(0);
  }
  return out.empty() ? Shape{1} : out;
}

// ---- axes of operators that treat each axis on its own ----
//
// `before` and `behind` are the extents in the operand and in the result. `absorb` merges the next axis
// into this one if the operator on the merged axis does the same, and returns whether it did. `whole` makes
// an axis that the operator leaves as it is.

struct SliceAxis {
  std::int64_t before, start, behind;

  static SliceAxis whole(std::int64_t extent) { return {extent, 0, extent}; }
  bool absorb(const SliceAxis& next) {
    const bool is_whole = next.start == 0 && next.behind == next.before;
    if (!is_whole && behind != 1) return false;
    *this = {before * next.before, start * next.before + next.start, behind * next.behind};
    return true;
  }
};

struct PadAxis {
  std::int64_t before, in_front, at_end, behind;

  static PadAxis whole(std::int64_t extent) { return {extent, 0, 0, extent}; }
  bool absorb(const PadAxis& next) {
    if (before == 1 && behind == 1) {
      *this = next;
      return true;
    }
    if (next.in_front != 0 || next.at_end != 0) return false;
    *this = {before * next.before, in_front * next.before, at_end * next.before, behind * next.behind};
    return true;
  }
};

struct TileAxis {
  std::int64_t before, times, behind;

  static TileAxis whole(std::int64_t extent) { return {extent, 1, extent}; }
  bool absorb(const TileAxis& next) {
    if (next.times != 1 && before != 1) return false;
    *this = {before * next.before, times * next.times, behind * next.behind};
    return true;
  }
};

template <class Axis>
std::vector<Axis> joined(const std::vector<Axis>& axes) {
  std::vector<Axis> out;
  for (const Axis& axis : axes)
    if (out.empty() || !out.back().absorb(axis)) out.push_back(axis);
  return out;
}

template <class Axis>
Shape extents(const std::vector<Axis>& axes, std::int64_t Axis::* extent) {
  Shape out;
  for (const Axis& axis : axes) out.push_back(axis.*extent);
  return out;
}

// ---- elementwise operators ----

// Neighbouring axes of an elementwise operator along which the same operands broadcast.
struct Group {
  std::uint32_t broadcast = 0;  // bit i: operand i has extent 1 while the result has not
  std::int64_t extent = 1;      // of the result
};

// The shape of operand i.
Shape shape_in(const std::vector<Group>& groups, std::size_t i) {
  Shape out;
  for (const Group& group : groups) out.push_back((group.broadcast >> i & 1) != 0 ? 1 : group.extent);
  return out;
}

bool broadcasts(const std::vector<Group>& groups, std::size_t i) {
  return std::any_of(groups.begin(), groups.end(),
                     [&](const Group& group) { return (group.broadcast >> i & 1) != 0; });
}

// Joins neighbouring groups along which the same operands broadcast. The last `apart` groups are not joined.
std::vector<Group> joined(const std::vector<Group>& groups, std::size_t apart) {
  std::vector<Group> out;
  const std::size_t count = groups.size() - apart;
  for (std::size_t i = 0; i < count; ++i) {
    const Group& group = groups[i];
    if (group.extent == 1) continue;
    if (!out.empty() && out.back().broadcast == group.broadcast)
      out.back().extent *= group.extent;
    else
      out.push_back(group);
  }
  for (std::size_t i = count; i < groups.size(); ++i) out.push_back(groups[i]);
  if (out.empty()) out.push_back({});
  return out;
}

// The groups of axes once operand i is expanded to the shape of the result, so that it no longer broadcasts.
std::vector<Group> without_broadcast(std::vector<Group> groups, std::size_t i, std::size_t apart) {
  for (Group& group : groups) group.broadcast &= ~(std::uint32_t{1} << i);
  return joined(groups, apart);
}

class AxisJoiner {
 public:
  AxisJoiner(const Graph& source, const target::TargetSpec& target)
      : source_(source), target_(target), made_(source.values().size()) {
    out_.name = source.name;
    out_.stage = source.stage;
  }

  Graph run() && {
    for (const Input& input : source_.inputs()) add_input(input);
    for (const Node& node : source_.nodes()) {
      node_ = &node;
      first_own_ = out_.values().size();
      rewrite();
    }
    for (Output output : source_.outputs()) {
      node_ = source_.producer(output.value);
      const Shape& shape = source_.type(output.value).shape;
      output.value = in_shape(output.value, joined_shape(shape));
      out_.add_output(std::move(output));
    }
    return std::move(out_);
  }

 private:
  using Rule = ValueId (AxisJoiner::*)();

  // Inputs of a region may have more than 6 axes.
  void add_input(const Input& input) {
    const Value& value = source_.value(input.value);
    TensorType type = value.type;
    type.shape = joined_shape(value.type.shape);
    const ValueId made =
        out_.add_input(input.kind, value.name, type, input.path, input.boundary, input.initial);
    take_over(value, made);
    made_[input.value.index()] = made;
  }

  static ConstantRef in_joined_shape(const ConstantRef& constant) {
    if (constant->shape.size() <= kMostAxes) return constant;
    auto out = std::make_shared<Constant>(*constant);
    out->shape = joined_shape(constant->shape);
    return out;
  }

  void take_over(const Value& old, ValueId made) {
    out_.set_source(made, old.source);
    if (old.canonical_order) out_.set_canonical_order(made, *old.canonical_order);
  }

  void rewrite() {
    const auto has_more = [this](ValueId id) { return id.valid() && source_.type(id).rank() > kMostAxes; };
    const std::span<const ValueId> operands = source_.operands(*node_);
    bool more = std::any_of(operands.begin(), operands.end(), has_more);
    for (std::uint32_t r = 0; r < node_->result_count; ++r)
      more = more || has_more(source_.result(*node_, r));
    if (!more && !has_more_axes_inside()) return copy();
    if (is_cond(node_->op) || is_while_loop(node_->op)) return control_flow();
    const Rule* rule = kRules.find(node_->op);
    if (rule == nullptr && !info(node_->op).has(kElementwise)) {
      ErrorParts parts{.where = "legalize-tosa",
                       .what = "operator '" + std::string(info(node_->op).name) + "' has too many axes",
                       .expected = "at most " + std::to_string(kMostAxes),
                       .hint = "Join axes in front of it, e.g. x.flatten(0, 1)"};
      throw UnsupportedOp(located(std::move(parts), node_->origin, source_.node_name(*node_)));
    }
    settle(rule != nullptr ? (this->**rule)() : elementwise());
  }

  [[nodiscard]] bool has_more_axes_inside() const {
    return std::any_of(node_->regions.begin(), node_->regions.end(),
                       [](const auto& region) { return has_more_axes(*region); });
  }

  void copy() {
    std::vector<ValueId> operands;
    for (const ValueId id : source_.operands(*node_)) operands.push_back(id.valid() ? value(id) : id);
    const NodeId made = out_.add_copy(source_, *node_, operands);
    for (std::uint32_t r = 0; r < node_->result_count; ++r)
      made_[node_->first_result + r] = out_.result(out_.node(made), r);
  }

  // Records the result of the node: `made`, which has the elements of the result in some shape.
  void settle(ValueId made) {
    const Value& old = source_.value(source_.result(*node_));
    if (old.type.rank() <= kMostAxes) made = reshape(made, old.type.shape);
    if (made.index() >= first_own_ && out_.value(made).kind == ValueKind::kResult) {
      out_.try_rename(made, old.name);
      take_over(old, made);
    }
    made_[node_->first_result] = made;
  }

  // ---- values of the new graph ----

  // The new value, in the shape in which it is stored.
  ValueId value(ValueId old) {
    ValueId& made = made_[old.index()];
    if (!made.valid()) {
      made = out_.add_constant(in_joined_shape(source_.value(old).constant));
      out_.set_source(made, source_.value(old).source);
    }
    return made;
  }

  ValueId in_shape(ValueId old, const Shape& shape) { return reshape(value(old), shape); }
  ValueId operand(std::size_t i, const Shape& shape) { return in_shape(source_.operands(*node_)[i], shape); }
  [[nodiscard]] const Shape& shape_of(std::size_t i) const {
    return source_.type(source_.operands(*node_)[i]).shape;
  }
  [[nodiscard]] const Shape& result_shape() const { return source_.type(source_.result(*node_)).shape; }

  ValueId reshape(ValueId x, const Shape& shape) {
    if (out_.type(x).shape == shape) return x;
    const auto key = std::pair(x, std::vector<std::int64_t>(shape.begin(), shape.end()));
    const auto known = reshaped_.find(key);
    if (known != reshaped_.end()) return known->second;
    const ValueId made = moved(Op::kTosaReshape, ShapeAttrs{shape}, x);
    reshaped_.emplace(key, made);
    return made;
  }

  ValueId emit(Op op, Attrs attrs, const std::vector<ValueId>& operands) {
    const std::string base = node_ != nullptr ? source_.node_name(*node_) : "border";
    return out_.add(op, std::move(attrs), operands, node_ != nullptr ? node_->origin : nullptr,
                    base + "." + std::string(info(op).name.substr(5)));
  }

  // Without profile INT, data movement takes no i32: the two halves of an i32 value are moved as f32.
  ValueId moved(Op op, const Attrs& attrs, ValueId x) {
    if (out_.type(x).dtype != DType::kI32 || target_.has(target::Profile::kInt)) return emit(op, attrs, {x});
    const ValueId low = shifted(Op::kTosaLogicalRightShift, shifted(Op::kTosaLogicalLeftShift, x));
    const ValueId top = half_moved(op, attrs, shifted(Op::kTosaLogicalRightShift, x));
    return emit(Op::kTosaAdd, NoAttrs{},
                {shifted(Op::kTosaLogicalLeftShift, top), half_moved(op, attrs, low)});
  }

  ValueId half_moved(Op op, const Attrs& attrs, ValueId half) {
    const ValueId made = emit(op, attrs, {emit(Op::kTosaCast, CastAttrs{DType::kF32}, {half})});
    return emit(Op::kTosaCast, CastAttrs{DType::kI32}, {made});
  }

  ValueId shifted(Op shift, ValueId x) {
    const double bits[] = {16.0};
    const Shape one = Dims::filled(out_.type(x).rank(), 1);
    return emit(shift, NoAttrs{}, {x, out_.add_constant(make_constant("bits", DType::kI32, one, bits))});
  }

  // ---- rules ----

  ValueId identity() {
    name_axes_of_operand();
    return operand(0, joined_shape(result_shape()));
  }

  // A node of the canonical graph may become a reduction and a reshape that drops the reduced axis. Then the
  // result of the reduction gets the canonical order of the reshape, since later passes may merge the reshape
  // with another one.
  void name_axes_of_operand() {
    const ValueId before = value(source_.operands(*node_)[0]);
    const Node* producer = out_.producer(before);
    const std::optional<DimOrder>& order = source_.value(source_.result(*node_)).canonical_order;
    if (order && producer != nullptr && producer->origin == node_->origin &&
        !out_.value(before).canonical_order)
      out_.set_canonical_order(before, *order);
  }

  ValueId transpose() {
    const Dims& perm = Graph::attrs<PermuteAttrs>(*node_).perm;
    ValueId x = value(source_.operands(*node_)[0]);
    for (const TransposeStep& step : transpose_steps(shape_of(0), perm, kMostAxes)) {
      x = reshape(x, step.shape);
      if (!is_identity_permutation(step.perm)) x = emit(Op::kTosaTranspose, PermuteAttrs{step.perm}, {x});
    }
    return x;
  }

  // The extents in front of an axis, of the axis, and after it.
  static Shape around(const Shape& shape, std::int64_t axis) {
    Shape out = {1, shape[static_cast<std::size_t>(axis)], 1};
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(shape.size()); ++i)
      if (i != axis) out[i < axis ? 0 : 2] *= shape[static_cast<std::size_t>(i)];
    return out;
  }

  ValueId along_axis() {
    Attrs attrs = *node_->attrs;
    auto* const with_nan = get_if<TosaAxisNanAttrs>(&attrs);
    std::int64_t& axis = with_nan != nullptr ? with_nan->axis : get<AxisAttrs>(attrs).axis;
    std::vector<ValueId> operands;
    for (std::size_t i = 0; i < node_->operand_count; ++i)
      operands.push_back(operand(i, around(shape_of(i), axis)));
    axis = 1;
    return emit(node_->op, std::move(attrs), operands);
  }

  ValueId slice() {
    const auto& attrs = Graph::attrs<TosaSliceAttrs>(*node_);
    std::vector<SliceAxis> axes;
    for (std::size_t i = 0; i < attrs.size.size(); ++i)
      axes.push_back({shape_of(0)[i], attrs.start[i], attrs.size[i]});
    return in_steps(axes, [&](ValueId x, const std::vector<SliceAxis>& step) {
      return emit(Op::kTosaSlice,
                  TosaSliceAttrs{extents(step, &SliceAxis::start), extents(step, &SliceAxis::behind)}, {x});
    });
  }

  ValueId pad() {
    const auto& attrs = Graph::attrs<TosaPadAttrs>(*node_);
    std::vector<PadAxis> axes;
    for (std::size_t i = 0; i < attrs.before.size(); ++i)
      axes.push_back({shape_of(0)[i], attrs.before[i], attrs.after[i], result_shape()[i]});
    return in_steps(axes, [&](ValueId x, const std::vector<PadAxis>& step) {
      return emit(
          Op::kTosaPad,
          TosaPadAttrs{extents(step, &PadAxis::in_front), extents(step, &PadAxis::at_end), attrs.value}, {x});
    });
  }

  ValueId tile() {
    std::vector<TileAxis> axes;
    for (std::size_t i = 0; i < result_shape().size(); ++i)
      axes.push_back({shape_of(0)[i], result_shape()[i] / shape_of(0)[i], result_shape()[i]});
    return tiled(value(source_.operands(*node_)[0]), axes);
  }

  ValueId tiled(ValueId x, const std::vector<TileAxis>& axes) {
    return in_steps(
        axes,
        [&](ValueId operand, const std::vector<TileAxis>& step) {
          return moved(Op::kTosaTile, ShapeAttrs{extents(step, &TileAxis::times)}, operand);
        },
        x);
  }

  // Emits the operator over the joined axes. More than 6 axes take several steps. Each step computes along
  // some of the axes, the outermost ones first, and merges the axes of the later steps into one.
  template <class Axis, class Emit>
  ValueId in_steps(std::vector<Axis> axes, Emit emit_step, ValueId x = {}) {
    if (!x.valid()) x = value(source_.operands(*node_)[0]);
    axes = joined(axes);
    for (;;) {
      std::vector<Axis> step(axes.begin(), axes.begin() + std::min(axes.size(), kMostAxes));
      std::vector<Axis> rest = {Axis::whole(1)};
      std::int64_t extent = 1;
      for (std::size_t i = step.size(); i < axes.size(); ++i) {
        extent *= axes[i].before;
        rest.push_back(axes[i]);
      }
      step.back().absorb(Axis::whole(extent));
      x = emit_step(reshape(x, extents(step, &Axis::before)), step);
      if (rest.size() == 1) return x;
      rest[0] = Axis::whole(num_elements(extents(step, &Axis::behind)) / extent);
      axes = joined(rest);
    }
  }

  ValueId elementwise() {
    const std::size_t rank = result_shape().size();
    const auto* rescale = get_if<TosaRescaleAttrs>(node_->attrs.get());
    const std::size_t apart = rescale != nullptr && rescale->per_channel ? 1 : 0;  // the channels
    std::vector<Group> groups(rank);
    for (std::size_t axis = 0; axis < rank; ++axis) {
      groups[axis].extent = result_shape()[axis];
      for (std::size_t i = 0; i < node_->operand_count; ++i)
        if (!is_table(i) && shape_of(i)[axis] != groups[axis].extent)
          groups[axis].broadcast |= std::uint32_t{1} << i;
    }
    groups = joined(groups, apart);
    std::vector<ValueId> operands;
    for (std::size_t i = 0; i < node_->operand_count; ++i)
      operands.push_back(value(source_.operands(*node_)[i]));
    while (groups.size() > kMostAxes) {
      const std::size_t i = best_to_repeat(groups, apart);
      operands[i] = tiled(operands[i], repeats(groups, i));
      groups = without_broadcast(std::move(groups), i, apart);
    }
    for (std::size_t i = 0; i < operands.size(); ++i)
      if (!is_table(i)) operands[i] = reshape(operands[i], shape_in(groups, i));
    return emit(node_->op, *node_->attrs, operands);
  }

  [[nodiscard]] bool is_table(std::size_t i) const { return info(node_->op).is_table(i); }

  // The operand to repeat by TILE: its repetition leaves the fewest groups. Of several such operands, the one
  // with the fewest elements.
  [[nodiscard]] std::size_t best_to_repeat(const std::vector<Group>& groups, std::size_t apart) const {
    std::size_t best = 0;
    std::pair<std::size_t, std::int64_t> least{kMaxRank + 1, 0};
    for (std::size_t i = 0; i < node_->operand_count; ++i) {
      if (!broadcasts(groups, i)) continue;
      const std::pair cost{without_broadcast(groups, i, apart).size(), num_elements(shape_in(groups, i))};
      if (cost < least) {
        least = cost;
        best = i;
      }
    }
    return best;
  }

  static std::vector<TileAxis> repeats(const std::vector<Group>& groups, std::size_t i) {
    std::vector<TileAxis> out;
    for (const Group& group : groups) {
      const bool repeated = (group.broadcast >> i & 1) != 0;
      out.push_back({repeated ? 1 : group.extent, repeated ? group.extent : 1, group.extent});
    }
    return out;
  }

  void control_flow() {
    std::vector<ValueId> operands;
    for (const ValueId id : source_.operands(*node_))
      operands.push_back(in_shape(id, joined_shape(source_.type(id).shape)));
    std::vector<TensorType> types;
    for (std::uint32_t r = 0; r < node_->result_count; ++r) {
      types.push_back(source_.type(source_.result(*node_, r)));
      types.back().shape = joined_shape(types.back().shape);
    }
    std::vector<std::shared_ptr<const Graph>> regions;
    for (const auto& region : node_->regions)
      regions.push_back(has_more_axes(*region)
                            ? std::make_shared<const Graph>(AxisJoiner(*region, target_).run())
                            : region);
    const NodeId made = out_.add_node(node_->op, node_->attrs, operands, types, node_->origin,
                                      source_.node_name(*node_), std::move(regions));
    for (std::uint32_t r = 0; r < node_->result_count; ++r) {
      const Value& old = source_.value(source_.result(*node_, r));
      const ValueId id = out_.result(out_.node(made), r);
      if (r != 0) out_.try_rename(id, old.name);
      take_over(old, id);
      made_[node_->first_result + r] = id;
    }
  }

  static const OpTable<Rule> kRules;

  const Graph& source_;
  const target::TargetSpec& target_;
  Graph out_;
  const Node* node_ = nullptr;
  std::size_t first_own_ = 0;  // values of out_ from here on were added for the node
  std::vector<ValueId> made_;  // by old value: the new value, in some shape with the same elements
  std::map<std::pair<ValueId, std::vector<std::int64_t>>, ValueId> reshaped_;
};

constexpr OpTable<AxisJoiner::Rule> AxisJoiner::kRules = {
    {Op::kTosaIdentity, &AxisJoiner::identity},
    {Op::kTosaReshape, &AxisJoiner::identity},
    {Op::kTosaTranspose, &AxisJoiner::transpose},
    {Op::kTosaArgmax, &AxisJoiner::along_axis},
    {Op::kTosaConcat, &AxisJoiner::along_axis},
    {Op::kTosaReverse, &AxisJoiner::along_axis},
    {Op::kTosaReduceAll, &AxisJoiner::along_axis},
    {Op::kTosaReduceAny, &AxisJoiner::along_axis},
    {Op::kTosaReduceMax, &AxisJoiner::along_axis},
    {Op::kTosaReduceMin, &AxisJoiner::along_axis},
    {Op::kTosaReduceProduct, &AxisJoiner::along_axis},
    {Op::kTosaReduceSum, &AxisJoiner::along_axis},
    {Op::kTosaSlice, &AxisJoiner::slice},
    {Op::kTosaPad, &AxisJoiner::pad},
    {Op::kTosaTile, &AxisJoiner::tile},
};

}  // namespace

std::optional<Graph> join_axes(const Graph& graph, const target::TargetSpec& target) {
  if (!has_more_axes(graph)) return std::nullopt;
  return AxisJoiner(graph, target).run();
}

}  // namespace tosaic::passes
