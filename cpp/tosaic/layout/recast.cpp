#include "tosaic/layout/recast.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "tosaic/base/error.h"
#include "tosaic/base/work.h"
#include "tosaic/layout/order.h"
#include "tosaic/layout/plan.h"
#include "tosaic/layout/solve.h"
#include "tosaic/layout/views.h"

namespace tosaic::layout {
namespace {

constexpr std::size_t kMostWays = 8;  // of a node
constexpr std::size_t kMostAxes = 6;  // of an elementwise operator of TOSA
constexpr std::size_t kWidest = std::size_t{1} << 18;

using PlacementId = std::uint32_t;
using PlacementIds = SmallVector<PlacementId, 3>;

const Shape& shape_of(const Graph& graph, ValueId value) { return graph.type(value).shape; }

bool is_constant(const Graph& graph, ValueId value) {
  return graph.value(value).kind == ValueKind::kConstant;
}

// The entries of a table are a list, which does not depend on the shape.
bool is_table(const Node& node, std::size_t operand) { return node.op == Op::kTosaTable && operand == 1; }

std::optional<std::int64_t> axis_of_scales(const Node& node) {
  const auto* rescale = get_if<RescaleAttrs>(node.attrs.get());
  return rescale != nullptr ? rescale->axis : std::nullopt;
}

// By axis of the result: true if the operand has that axis and is not broadcast along it.
SmallVector<bool, 8> has_axes(const Shape& operand, const Shape& result) {
  SmallVector<bool, 8> out;
  const std::size_t missing = result.size() - operand.size();
  for (std::size_t axis = 0; axis < result.size(); ++axis)
    out.push_back(axis >= missing && operand[axis - missing] == result[axis]);
  return out;
}

// The axis, of extent other than 1, that contains this stride: its own stride <= `stride` < its own stride *
// its extent.
std::size_t axis_with(const Shape& shape, std::int64_t stride) {
  const Dims strides = contiguous_strides(shape);
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    if (shape[axis] != 1 && strides[axis] <= stride && stride < strides[axis] * shape[axis]) return axis;
  throw InternalError({.where = "layout", .what = "a stride that no axis has"});
}

// The cuts between axes along which an operand is broadcast and axes along which it is not. 1 and the number
// of elements are always among them.
Cuts cuts_of_broadcast(const Shape& operand, const Shape& result) {
  const SmallVector<bool, 8> has = has_axes(operand, result);
  const Dims strides = contiguous_strides(result);
  Cuts cuts{1};
  std::optional<bool> last;
  for (std::size_t axis = result.size(); axis-- > 0;) {
    if (result[axis] == 1) continue;
    if (last && *last != has[axis]) cuts.push_back(strides[axis]);
    last = has[axis];
  }
  if (const std::int64_t elements = num_elements(result); elements != 1) cuts.push_back(elements);
  return cuts;
}

// A layout option of a node, in placements.
struct PlacedWay {
  PlacementIds operands, results;
  bool recast = false;  // the node computes in another shape
};

// Numbers placements; number 0 is the placement of one element.
class Placements {
 public:
  Placements() { known_.emplace_back(); }

  PlacementId id(const Placement& placement) {
    if (placement.empty()) return 0;
    std::uint64_t key = 0;
    for (const Run& run : placement) {
      key = mixed(key, static_cast<std::uint64_t>(run.extent));
      key = mixed(key, static_cast<std::uint64_t>(run.stride));
    }
    for (;; ++key) {  // two placements with one key: the second one gets the next free key
      const auto [it, is_new] = ids_.emplace(key, static_cast<PlacementId>(known_.size()));
      if (is_new) known_.push_back(placement);
      if (known_[it->second] == placement) return it->second;
    }
  }
  PlacementId id(const Shape& shape, const DimOrder& order) {
    if (!order.is_identity()) return id(placement_of(shape, order));
    const std::int64_t elements = num_elements(shape);
    return elements < 2 ? 0 : id(Placement{Run{elements, 1}});
  }
  [[nodiscard]] const Placement& operator[](PlacementId id) const { return known_[id]; }

 private:
  static std::uint64_t mixed(std::uint64_t key, std::uint64_t value) {
    key = (key ^ value) * 0x9e3779b97f4a7c15u;
    return key ^ key >> 29;
  }

  std::unordered_map<std::uint64_t, PlacementId> ids_;
  std::vector<Placement> known_;
};

// The option of an elementwise node whose result has placement `lead`, in another shape. None if no shape
// allows it.
std::optional<PlacedWay> recast_way(const Graph& graph, const Node& node, PlacementId lead,
                                    Placements& placements) {
  const ValueId made = graph.result(node);
  const std::optional<Cuts> cuts = needed_cuts(graph, node, placements[lead]);
  if (!cuts || cuts->size() > kMostAxes + 1) return std::nullopt;
  PlacedWay way{{}, {lead}, true};
  const Placement parts = split_at(*cuts, placements[lead]);
  for (std::size_t i = 0; i < node.operand_count; ++i) {
    const ValueId operand = graph.operands(node)[i];
    if (!operand.valid() || is_constant(graph, operand) || is_table(node, i)) {
      way.operands.push_back(operand.valid() ? placements.id(shape_of(graph, operand), {}) : lead);
      continue;
    }
    const Shape& shape = shape_of(graph, operand);
    if (shape == shape_of(graph, made)) {
      way.operands.push_back(lead);
      continue;
    }
    const SmallVector<bool, 8> has = has_axes(shape, shape_of(graph, made));
    const auto has_part = [&](const Run& part) { return has[axis_with(shape_of(graph, made), part.stride)]; };
    Placement own;
    for (const Run& part : parts) {
      if (!has_part(part)) continue;
      std::int64_t stride = 1;
      for (const Run& other : parts)
        if (other.stride < part.stride && has_part(other)) stride *= other.extent;
      own.push_back({part.extent, stride});
    }
    Placement joined;
    for (const Run& part : own) {
      if (!joined.empty() && joined.back().stride == part.extent * part.stride)
        joined[joined.size() - 1] = {joined.back().extent * part.extent, part.stride};
      else
        joined.push_back(part);
    }
    way.operands.push_back(placements.id(joined));
  }
  return way;
}

// Collects the options of all nodes: placements are offered from node to node until no value is offered a
// new one, as plan.cpp offers orders.
class Chooser {
 public:
  Chooser(const Graph& graph, Placements& placements)
      : graph_(graph), placements_(placements), ways(graph.nodes().size()), offered_(graph.values().size()) {}

  void run() {
    for (const Input& input : graph_.inputs()) offer(input.value, input.border.order);
    for (const Output& output : graph_.outputs()) offer(output.value, border_order(graph_, output));
    for (const Node& node : graph_.nodes())
      if (is_always_tried(graph_, node)) add(node, wanted(node));
    drain();
    for (const Node& node : graph_.nodes())
      if (ways_of(node).empty()) add(node, wanted(node));
    drain();
  }

  // False if all options are options of the plan (plan.h), too: then nothing can be saved.
  [[nodiscard]] bool offers_more_than_orders() const {
    for (const Node& node : graph_.nodes()) {
      const std::vector<PlacedWay>& known = ways[graph_.id(node).index()];
      if (std::any_of(known.begin(), known.end(), [](const PlacedWay& way) { return way.recast; }))
        return true;
      if (node.op == Op::kReshape && can_be_passed_at_once(node, known)) return true;
    }
    return false;
  }

 private:
  // True if the reshape has two placements for which one transpose needs a third shape: neither the shape in
  // front of the reshape nor the one behind it has orders for both placements.
  [[nodiscard]] bool can_be_passed_at_once(const Node& reshape, const std::vector<PlacedWay>& known) const {
    SmallVector<std::uint8_t, 8> sides;  // by placement, in bits: front (1), behind (2) has an order
    for (const PlacedWay& way : known) {
      const Placement& placement = placements_[way.results[0]];
      if (placement.size() < 2) continue;
      const bool front = order_with(shape_of(graph_, graph_.operands(reshape)[0]), placement).has_value();
      const bool behind = order_with(shape_of(graph_, graph_.result(reshape)), placement).has_value();
      sides.push_back(static_cast<std::uint8_t>((front ? 1 : 0) | (behind ? 2 : 0)));
    }
    for (std::size_t i = 0; i < sides.size(); ++i)
      for (std::size_t k = 0; k < i; ++k)
        if ((sides[i] & sides[k]) == 0) return true;
    return false;
  }

  const Graph& graph_;
  Placements& placements_;

 public:
  std::vector<std::vector<PlacedWay>> ways;  // by node

 private:
  struct Offer {
    ValueId value;
    PlacementId placement;
  };

  std::vector<PlacedWay>& ways_of(const Node& node) { return ways[graph_.id(node).index()]; }

  void offer(ValueId value, const DimOrder& order) {
    offer(value, placements_.id(shape_of(graph_, value), order));
  }
  void offer(ValueId value, PlacementId placement) {
    if (is_constant(graph_, value)) return;
    PlacementIds& known = offered_[value.index()];
    if (std::find(known.begin(), known.end(), placement) != known.end()) return;
    known.push_back(placement);
    offers_.push_back({value, placement});
  }

  void drain() {
    while (!offers_.empty()) {
      const Offer next = offers_.back();
      offers_.pop_back();
      if (const Node* producer = graph_.producer(next.value);
          producer != nullptr && !is_fixed(graph_, *producer))
        add(*producer, way_by_result(*producer, next));
      for (const NodeId user : graph_.users(next.value)) {
        const Node& node = graph_.node(user);
        if (is_fixed(graph_, node)) continue;
        const std::span<const ValueId> operands = graph_.operands(node);
        for (std::size_t i = 0; i < operands.size(); ++i)
          if (operands[i] == next.value) add(node, way_by_operand(node, i, next.placement));
      }
    }
  }

  PlacedWay way_by_result(const Node& node, const Offer& next) {
    const ValueId result = next.value;
    if (node.op == Op::kReshape) return {{next.placement}, {next.placement}, false};
    if (node.op == Op::kPermute) {
      const Dims& perm = Graph::attrs<PermuteAttrs>(node).perm;
      const std::optional<Placement> before =
          relabelled(shape_of(graph_, result), placements_[next.placement], inverse_permutation(perm));
      if (before) return {{placements_.id(*before)}, {next.placement}, false};
      return wanted(node);
    }
    if (const std::optional<DimOrder> order =
            order_with(shape_of(graph_, result), placements_[next.placement]))
      if (const std::optional<Way> way =
              layout::way_by_result(graph_, node, graph_.value(result).result_index, *order))
        return in_placements(node, *way);
    return recast_or_wanted(node, next.placement);
  }

  PlacedWay way_by_operand(const Node& node, std::size_t operand, PlacementId placement) {
    const ValueId value = graph_.operands(node)[operand];
    if (node.op == Op::kReshape) return {{placement}, {placement}, false};
    if (node.op == Op::kPermute) {
      const Dims& perm = Graph::attrs<PermuteAttrs>(node).perm;
      if (const std::optional<Placement> behind =
              relabelled(shape_of(graph_, value), placements_[placement], perm))
        return {{placement}, {placements_.id(*behind)}, false};
      return wanted(node);
    }
    if (const std::optional<DimOrder> order = order_with(shape_of(graph_, value), placements_[placement]))
      if (const std::optional<Way> way = layout::way_by_operand(graph_, node, operand, *order))
        return in_placements(node, *way);
    if (can_be_recast(graph_, node) && shape_of(graph_, value) == shape_of(graph_, graph_.result(node)))
      return recast_or_wanted(node, placement);
    return wanted(node);
  }

  PlacedWay recast_or_wanted(const Node& node, PlacementId lead) {
    if (can_be_recast(graph_, node))
      if (std::optional<PlacedWay> way = recast_way(graph_, node, lead, placements_)) return std::move(*way);
    return wanted(node);
  }

  // The option that a node itself wants. A permute moves no element, so its result is not row-major if its
  // operand is.
  PlacedWay wanted(const Node& node) {
    if (node.op != Op::kPermute) return in_placements(node, wanted_way(graph_, node));
    const Shape& shape = shape_of(graph_, graph_.operands(node)[0]);
    const DimOrder behind = layout::relabelled(DimOrder(), Graph::attrs<PermuteAttrs>(node).perm);
    return {
        {placements_.id(shape, {})}, {placements_.id(shape_of(graph_, graph_.result(node)), behind)}, false};
  }

  PlacedWay in_placements(const Node& node, const Way& way) {
    PlacedWay out;
    const std::span<const ValueId> operands = graph_.operands(node);
    for (std::size_t i = 0; i < operands.size(); ++i)
      out.operands.push_back(
          operands[i].valid() ? placements_.id(shape_of(graph_, operands[i]), way.operands[i]) : 0);
    for (std::uint32_t r = 0; r < node.result_count; ++r)
      out.results.push_back(placements_.id(shape_of(graph_, graph_.result(node, r)), way.results[r]));
    return out;
  }

  void add(const Node& node, PlacedWay way) {
    work::add(1);
    std::vector<PlacedWay>& known = ways_of(node);
    if (known.size() >= kMostWays) return;
    for (const PlacedWay& each : known)
      if (each.operands == way.operands && each.results == way.results) return;
    const std::span<const ValueId> operands = graph_.operands(node);
    for (std::size_t i = 0; i < operands.size(); ++i)
      if (operands[i].valid()) offer(operands[i], way.operands[i]);
    for (std::uint32_t r = 0; r < node.result_count; ++r) offer(graph_.result(node, r), way.results[r]);
    known.push_back(std::move(way));
  }

  std::vector<PlacementIds> offered_;  // by value
  std::vector<Offer> offers_;
};

// States the choice as a Problem. Variables are the nodes, the inputs, the outputs, and one more with a
// single state. That variable makes one tensor for each node that may be recast. The transpose of this
// tensor represents the recast. A recast costs less than any transpose.
class Statement {
 public:
  Statement(const Graph& graph, Placements& placements, const std::vector<std::vector<PlacedWay>>& ways)
      : graph_(graph),
        placements_(placements),
        ways_(ways),
        is_view_(graph.nodes().size()),
        tensor_of_(graph.values().size()) {
    find_views();
    const std::size_t nodes = graph.nodes().size(), inputs = graph.inputs().size();
    for (const auto& each : ways) problem.states.push_back(static_cast<std::uint32_t>(each.size()));
    problem.states.resize(nodes + inputs + graph.outputs().size() + 1, 1);
    for (std::uint32_t i = 0; i < inputs; ++i) {
      const Input& input = graph.inputs()[i];
      make(input.value, static_cast<VariableId>(nodes + i), {id(input.value, input.border.order)});
    }
    for (std::uint32_t n = 0; n < nodes; ++n) state_node(n);
    for (std::uint32_t o = 0; o < graph.outputs().size(); ++o) {
      const Output& output = graph.outputs()[o];
      read(output.value, static_cast<VariableId>(nodes + inputs + o),
           {id(output.value, border_order(graph, output))});
    }
    first_recast_ = problem.tensors.size();
    for (std::uint32_t n = 0; n < nodes; ++n) state_recast(n);
  }

  Problem problem;

  [[nodiscard]] bool is_view(std::size_t node) const { return is_view_[node]; }
  // The node that makes the value as a view of its operand, or null.
  [[nodiscard]] const Node* view(ValueId value) const {
    const Node* node = graph_.producer(value);
    return node != nullptr && is_view_[graph_.id(*node).index()] ? node : nullptr;
  }
  // The placement of a view's operand if its result has this placement.
  [[nodiscard]] std::optional<PlacementId> in_front(const Node& view, PlacementId placement) const {
    return shown(view, graph_.result(view), placement, true);
  }
  // The placement of a view's result if its operand has this placement.
  [[nodiscard]] std::optional<PlacementId> behind(const Node& view, PlacementId placement) const {
    return shown(view, graph_.operands(view)[0], placement, false);
  }

  // Sets the weights of the tensors. False if the costs are too large to be added up.
  bool weigh(const Objective& objective) {
    for (const int bits : {24, 12, 8})
      if (weigh(objective, bits)) return true;
    return false;
  }

 private:
  PlacementId id(ValueId value, const DimOrder& order) {
    return placements_.id(shape_of(graph_, value), order);
  }

  // A reshape is a view of its operand. A permute is one if every placement in which its result may be read
  // corresponds to a placement of its operand.
  void find_views() {
    std::vector<PlacementIds> read(graph_.values().size());
    const auto note = [&](ValueId value, PlacementId placement) {
      PlacementIds& known = read[value.index()];
      if (std::find(known.begin(), known.end(), placement) == known.end()) known.push_back(placement);
    };
    for (const Output& output : graph_.outputs())
      note(output.value, id(output.value, border_order(graph_, output)));
    for (std::size_t n = graph_.nodes().size(); n-- > 0;) {
      const Node& node = graph_.nodes()[n];
      const std::span<const ValueId> operands = graph_.operands(node);
      if ((node.op == Op::kReshape || node.op == Op::kPermute) && !is_constant(graph_, operands[0])) {
        PlacementIds before;
        for (const PlacementId each : read[node.first_result])
          if (const std::optional<PlacementId> known = in_front(node, each)) before.push_back(*known);
        is_view_[n] = before.size() == read[node.first_result].size();
        if (is_view_[n])
          for (const PlacementId each : before) note(operands[0], each);
      }
      if (is_view_[n]) continue;
      for (const PlacedWay& way : ways_[n])
        for (std::size_t i = 0; i < operands.size(); ++i)
          if (operands[i].valid()) note(operands[i], way.operands[i]);
    }
  }

  [[nodiscard]] std::optional<PlacementId> shown(const Node& view, ValueId from, PlacementId placement,
                                                 bool inverse) const {
    if (view.op == Op::kReshape) return placement;
    const Dims& perm = Graph::attrs<PermuteAttrs>(view).perm;
    const std::optional<Placement> there = relabelled(shape_of(graph_, from), placements_[placement],
                                                      inverse ? inverse_permutation(perm) : perm);
    return there ? std::optional(placements_.id(*there)) : std::nullopt;
  }

  void state_node(std::uint32_t n) {
    if (is_view_[n]) return;
    const Node& node = graph_.nodes()[n];
    const std::span<const ValueId> operands = graph_.operands(node);
    PlacementIds each;
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if (!operands[i].valid()) continue;
      each = {};
      for (const PlacedWay& way : ways_[n]) each.push_back(way.operands[i]);
      read(operands[i], n, each);
    }
    for (std::uint32_t r = 0; r < node.result_count; ++r) {
      each = {};
      for (const PlacedWay& way : ways_[n]) each.push_back(way.results[r]);
      make(graph_.result(node, r), n, each);
    }
  }

  void state_recast(std::uint32_t n) {
    const bool any =
        std::any_of(ways_[n].begin(), ways_[n].end(), [](const auto& way) { return way.recast; });
    if (!any || is_view_[n]) return;
    Access read{n, {}};
    for (const PlacedWay& way : ways_[n]) read.order.push_back(way.recast ? 1 : 0);
    Tensor tensor{{static_cast<VariableId>(problem.states.size() - 1), {0}}, {}, 0};
    tensor.read.push_back(read);
    problem.tensors.push_back(std::move(tensor));
  }

  void make(ValueId value, VariableId variable, const PlacementIds& placements) {
    tensor_of_[value.index()] = static_cast<std::uint32_t>(problem.tensors.size());
    data_.push_back(value);
    labels_.emplace_back();
    problem.tensors.push_back({{variable, labelled(problem.tensors.size(), placements)}, {}, 0});
  }

  void read(ValueId value, VariableId variable, PlacementIds placements) {
    while (const Node* node = view(value)) {
      for (PlacementId& each : placements) each = *in_front(*node, each);
      value = graph_.operands(*node)[0];
    }
    if (const std::optional<std::uint32_t>& tensor = tensor_of_[value.index()])
      problem.tensors[*tensor].read.push_back({variable, labelled(*tensor, placements)});
  }

  StateOrders labelled(std::size_t tensor, const PlacementIds& placements) {
    StateOrders out;
    PlacementIds& known = labels_[tensor];
    for (const PlacementId each : placements) {
      const auto* const at = std::find(known.begin(), known.end(), each);
      const auto label = static_cast<std::size_t>(at - known.begin());
      if (at == known.end()) known.push_back(each);
      if (label > 255) throw InternalError({.where = "layout", .what = "a value has more than 256 orders"});
      out.push_back(static_cast<std::uint8_t>(label));
    }
    return out;
  }

  // The weights, so that ties are decided by the number of transposes (for Measure::kCount: by their bytes),
  // and then by the number of recasts:
  //
  //   transpose   cost * 2^bits + 2^(bits / 3)   cost: the bytes, the caller's cost, or, for Measure::kCount,
  //   recast      1                              the bytes + the sum of all bytes + 1
  //
  // Tensors that cannot be moved get a weight above the sum of all others.
  bool weigh(const Objective& objective, int bits) {
    const Cost finer = Cost{1} << bits, one = Cost{1} << (bits / 3);
    double all = 0, fixed = 1, bytes = 0;
    for (const ValueId value : data_) bytes += static_cast<double>(bytes_of(graph_.type(value)));
    if (bytes > 0x1p40) return false;
    for (std::size_t t = 0; t < problem.tensors.size(); ++t) {
      Tensor& tensor = problem.tensors[t];
      tensor.weight = 1;
      if (t < first_recast_) {
        const TensorType& type = graph_.type(data_[t]);
        if (!can_be_moved(type.dtype)) {
          fixed += uses_of(tensor);
          continue;
        }
        const auto* own = std::get_if<TransposeCost>(&objective);
        if (own != nullptr)
          tensor.weight = std::max<Cost>((*own)(graph_, data_[t]), 0);
        else if (std::get<Measure>(objective) == Measure::kBytes)
          tensor.weight = bytes_of(type);
        else
          tensor.weight = bytes_of(type) + static_cast<Cost>(bytes) + 1;
        if (static_cast<double>(tensor.weight) > 0x1p60 / static_cast<double>(finer)) return false;
        tensor.weight = tensor.weight * finer + one;
      }
      all += static_cast<double>(tensor.weight) * uses_of(tensor);
    }
    if (all * fixed >= 0x1p60) return false;
    for (std::size_t t = 0; t < first_recast_; ++t)
      if (!can_be_moved(graph_.type(data_[t]).dtype)) problem.tensors[t].weight = static_cast<Cost>(all) + 1;
    return true;
  }

  const Graph& graph_;
  Placements& placements_;
  const std::vector<std::vector<PlacedWay>>& ways_;
  std::vector<bool> is_view_;  // by node
  std::vector<std::optional<std::uint32_t>> tensor_of_;
  std::vector<ValueId> data_;         // by tensor
  std::vector<PlacementIds> labels_;  // by tensor
  std::size_t first_recast_ = 0;
};

// Reads the recasts from a solution: which nodes compute in another shape, and the cuts that let each
// transpose be done at once.
class Reading {
 public:
  Reading(const Graph& graph, Placements& placements, const std::vector<std::vector<PlacedWay>>& ways,
          const Statement& statement, const std::vector<std::uint32_t>& state)
      : graph_(graph),
        placements_(placements),
        ways_(ways),
        statement_(statement),
        state_(state),
        cuts_(graph.nodes().size()) {}

  Recasts run() && {
    for (std::uint32_t n = 0; n < ways_.size(); ++n)
      if (way(n).recast) cuts_[n] = needed_cuts(graph_, graph_.nodes()[n], placements_[way(n).results[0]]);
    for (std::uint32_t n = 0; n < ways_.size(); ++n) {
      if (statement_.is_view(n)) continue;
      const std::span<const ValueId> operands = graph_.operands(graph_.nodes()[n]);
      for (std::size_t i = 0; i < operands.size(); ++i)
        if (operands[i].valid() && !is_constant(graph_, operands[i]))
          note(operands[i], way(n).operands[i], way(n).recast ? std::optional(n) : std::nullopt);
    }
    for (const Output& output : graph_.outputs())
      if (!is_constant(graph_, output.value))
        note(output.value, placements_.id(shape_of(graph_, output.value), border_order(graph_, output)),
             std::nullopt);
    Recasts out;
    for (std::uint32_t n = 0; n < ways_.size(); ++n) {
      if (!cuts_[n]) continue;
      (way(n).recast ? out.nodes : out.reshapes).push_back({NodeId(n), *cuts_[n]});
    }
    return out;
  }

 private:
  [[nodiscard]] const PlacedWay& way(std::size_t node) const { return ways_[node][state_[node]]; }

  [[nodiscard]] PlacementId made(ValueId data) {
    if (const Node* producer = graph_.producer(data))
      return way(graph_.id(*producer).index()).results[graph_.value(data).result_index];
    for (const Input& input : graph_.inputs())
      if (input.value == data) return placements_.id(shape_of(graph_, data), input.border.order);
    throw InternalError({.where = "layout", .what = "a value that nobody makes"});
  }

  // A value between a reader and the data that it reads through views: the placement in which it is wanted,
  // and the one in which the data is made. `made` is none as long as it is not known, or if a permute cannot
  // show that placement.
  struct Seen {
    ValueId value;
    PlacementId wanted;
    std::optional<PlacementId> made;
  };

  void note(ValueId value, PlacementId wanted, std::optional<std::uint32_t> recast_reader) {
    std::vector<Seen> seen{{value, wanted, std::nullopt}};
    while (const Node* view = statement_.view(seen.back().value))
      seen.push_back({graph_.operands(*view)[0], *statement_.in_front(*view, seen.back().wanted), {}});
    seen.back().made = made(seen.back().value);
    if (*seen.back().made == seen.back().wanted) return;
    for (std::size_t i = seen.size() - 1; i-- > 0;)
      if (seen[i + 1].made)
        seen[i].made = statement_.behind(*statement_.view(seen[i].value), *seen[i + 1].made);
    const Node* producer = graph_.producer(seen.back().value);
    if (producer != nullptr && way(graph_.id(*producer).index()).recast &&
        widen(graph_.id(*producer).index(), seen.back()))
      return;
    // A recast reader reads in front of the reshapes that precede it, so the transpose cannot be in their
    // results.
    std::size_t first = 0;
    while (recast_reader && is_reshaped(seen[first].value)) ++first;
    for (std::size_t i = first; i < seen.size(); ++i)
      if (can_be_transposed(seen[i])) return;
    if (recast_reader && widen(*recast_reader, seen.front())) return;
    for (const Seen& each : seen)
      if (is_reshaped(each.value) && widen(graph_.id(*statement_.view(each.value)).index(), each)) return;
  }

  [[nodiscard]] bool is_reshaped(ValueId value) const {
    const Node* view = statement_.view(value);
    return view != nullptr && view->op == Op::kReshape;
  }

  // True if the shape of the value has orders for both placements.
  [[nodiscard]] bool can_be_transposed(const Seen& seen) const {
    const Shape& shape = shape_of(graph_, seen.value);
    return seen.made && order_with(shape, placements_[seen.wanted]) &&
           order_with(shape, placements_[*seen.made]);
  }

  // Adds the cuts of both placements to those that the node needs. False if no shape of at most kMostAxes
  // axes has all of them.
  bool widen(std::size_t node, const Seen& seen) {
    if (!seen.made) return false;
    const std::int64_t elements = num_elements(shape_of(graph_, seen.value));
    std::optional<Cuts> cuts =
        merged(cuts_of(placements_[seen.wanted], elements), cuts_of(placements_[*seen.made], elements));
    if (cuts && cuts_[node]) {
      if (cuts_[node]->back() != elements) return false;  // the value is broadcast by the node
      cuts = merged(*cuts, *cuts_[node]);
    }
    if (!cuts || cuts->size() > kMostAxes + 1) return false;
    cuts_[node] = cuts;
    return true;
  }

  const Graph& graph_;
  Placements& placements_;
  const std::vector<std::vector<PlacedWay>>& ways_;
  const Statement& statement_;
  const std::vector<std::uint32_t>& state_;
  std::vector<std::optional<Cuts>> cuts_;  // by node
};

}  // namespace

bool can_be_recast(const Graph& graph, const Node& node) {
  const OpInfo& row = info(node.op);
  if (!row.has(kElementwise) || row.has(kComposite) || node.result_count != 1) return false;
  const auto can_be_reshaped = [&](ValueId value) {
    const TensorType& type = graph.type(value);
    return can_be_moved(type.dtype) && num_elements(type.shape) > 0 && !(type.qparams && type.qparams->axis);
  };
  const std::span<const ValueId> operands = graph.operands(node);
  const Shape& shape = shape_of(graph, graph.result(node));
  if (num_elements(shape) < 2 || !can_be_reshaped(graph.result(node))) return false;
  bool any = false;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (!operands[i].valid() || is_table(node, i)) continue;
    if (!is_constant(graph, operands[i]) && !can_be_reshaped(operands[i])) return false;
    any |= !is_constant(graph, operands[i]) && shape_of(graph, operands[i]) == shape;
  }
  return any;
}

bool may_be_recast(const Graph& graph) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(), [&](const Node& node) {
    return node.op == Op::kReshape && !is_constant(graph, graph.operands(node)[0]) &&
           !makes_view(graph, node);
  });
}

Recasts recasts_of(const Graph& graph, const Objective& objective) {
  Placements placements;
  Chooser chooser(graph, placements);
  chooser.run();
  if (!chooser.offers_more_than_orders()) return {};
  Statement statement(graph, placements, chooser.ways);
  if (!statement.weigh(objective)) return {};
  const Solution solution = solve(statement.problem, {.widest = kWidest});
  return Reading(graph, placements, chooser.ways, statement, solution.state).run();
}

std::optional<Cuts> needed_cuts(const Graph& graph, const Node& node, const Placement& placement) {
  const Shape& result = shape_of(graph, graph.result(node));
  std::optional<Cuts> cuts = cuts_of(placement, num_elements(result));
  for (std::size_t i = 0; cuts && i < node.operand_count; ++i)
    if (const ValueId operand = graph.operands(node)[i]; operand.valid() && !is_table(node, i))
      cuts = merged(*cuts, cuts_of_broadcast(shape_of(graph, operand), result));
  if (const std::optional<std::int64_t> axis = axis_of_scales(node); cuts && axis) {
    const auto at = static_cast<std::size_t>(*axis);
    const std::int64_t stride = contiguous_strides(result)[at], end = stride * result[at];
    if (stride == end) return std::nullopt;
    Cuts own{1};
    for (const std::int64_t cut : {stride, end, num_elements(result)})
      if (own.back() != cut) own.push_back(cut);
    cuts = merged(*cuts, own);
    if (!cuts) return std::nullopt;
    const Run innermost = split_at(*cuts, placement).back();
    if (!(innermost == Run{result[at], stride})) return std::nullopt;
  }
  return cuts;
}

bool fits(const Graph& graph, const Node& node, const Cuts& needed, const Shape& shape) {
  if (shape.size() > kMostAxes) return false;
  const Cuts cuts = cuts_of(shape);
  if (!std::all_of(needed.begin(), needed.end(), [&](std::int64_t cut) { return contains(cuts, cut); }))
    return false;
  const std::optional<std::int64_t> axis = axis_of_scales(node);
  if (!axis) return true;
  const Shape& result = shape_of(graph, graph.result(node));
  const auto at = static_cast<std::size_t>(*axis);
  const std::int64_t stride = contiguous_strides(result)[at];
  return std::none_of(cuts.begin(), cuts.end(),
                      [&](std::int64_t cut) { return stride < cut && cut < stride * result[at]; });
}

Shape operand_shape(const Shape& operand, const Shape& result, const Shape& shape) {
  if (operand.empty()) return operand;
  const SmallVector<bool, 8> has = has_axes(operand, result);
  const Dims strides = contiguous_strides(shape);
  Shape out;
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    out.push_back(shape[axis] != 1 && has[axis_with(result, strides[axis])] ? shape[axis] : 1);
  return out;
}

std::int64_t axis_in(const Shape& result, std::int64_t axis, const Shape& shape) {
  const std::int64_t stride = contiguous_strides(result)[static_cast<std::size_t>(axis)];
  return static_cast<std::int64_t>(axis_with(shape, stride));
}

}  // namespace tosaic::layout
