#include "tosaic/memory/plan.h"

#include <algorithm>

#include "tosaic/memory/sharing.h"

namespace tosaic::memory {
namespace {

using analysis::Lifetime;

// True if all axes before `axis` have extent 1, so that entries along it are contiguous blocks.
bool outermost(const Shape& shape, std::int64_t axis) {
  return std::all_of(shape.begin(), shape.begin() + axis, [](std::int64_t extent) { return extent == 1; });
}

std::size_t entry_bytes(const TensorType& type, std::int64_t axis) {
  const std::int64_t extent = type.shape[static_cast<std::size_t>(axis)];
  return extent == 0 ? 0 : type.bytes() / static_cast<std::size_t>(extent);
}

// The axis along which a node cuts its operand into blocks, and the index on that axis at which each result
// begins. blocks() returns nothing for a node whose results are not whole blocks.
struct Blocks {
  std::int64_t axis = 0;
  std::vector<std::int64_t> starts;
};

std::optional<Blocks> blocks(const Graph& graph, const Node& node) {
  if (const auto* slice = get_if<SliceAttrs>(node.attrs.get()))
    return slice->step == 1 ? std::optional(Blocks{slice->axis, {slice->start}}) : std::nullopt;
  if (const auto* select = get_if<SelectAttrs>(node.attrs.get()))
    return Blocks{select->axis, {select->index}};
  if (const auto* split = get_if<SplitAttrs>(node.attrs.get())) {
    Blocks out{split->axis, {0}};
    for (std::size_t i = 0; i + 1 < split->sizes.size(); ++i)
      out.starts.push_back(out.starts.back() + split->sizes[i]);
    return out;
  }
  if (node.op == Op::kUnbind) {
    Blocks out{Graph::attrs<AxisAttrs>(node).axis, {}};
    for (std::uint32_t i = 0; i < node.result_count; ++i) out.starts.push_back(i);
    return out;
  }
  if (const auto* slice = get_if<TosaSliceAttrs>(node.attrs.get())) {
    const Shape& shape = graph.type(graph.operands(node)[0]).shape;
    std::int64_t axis = 0;
    while (axis + 1 < static_cast<std::int64_t>(shape.size()) && shape[static_cast<std::size_t>(axis)] == 1)
      ++axis;
    for (std::size_t i = static_cast<std::size_t>(axis) + 1; i < shape.size(); ++i)
      if (slice->size[i] != shape[i]) return std::nullopt;
    return shape.empty() ? std::nullopt
                         : std::optional(Blocks{axis, {slice->start[static_cast<std::size_t>(axis)]}});
  }
  return std::nullopt;
}

// The locations of roots (values that own memory). Inputs, constants, and results that are computed in the
// memory of an output are outside the arena. All other roots are in the arena.
class Roots {
 public:
  Roots(const Graph& graph, const Sharing& sharing, const PlanOptions& options)
      : where_(graph.values().size()) {
    for (std::uint32_t i = 0; i < where_.size(); ++i)
      if (graph.values()[i].kind == ValueKind::kConstant) where_[i] = {Area::kConstant, i, 0};
    for (std::uint32_t i = 0; i < graph.inputs().size(); ++i) {
      const Input& input = graph.inputs()[i];
      const bool outside = input.kind == InputKind::kState || !options.inputs_in_arena;
      where_[input.value.index()] = {outside ? Area::kInput : Area::kArena, outside ? i : 0, 0};
    }
    for (std::uint32_t i = 0; i < graph.outputs().size(); ++i) {
      const Output& output = graph.outputs()[i];
      const std::uint32_t root = sharing.root(output.value);
      const bool whole = sharing.offset(output.value) == 0 &&
                         graph.type(output.value).bytes() == graph.values()[root].type.bytes();
      if (where_[root].area != Area::kNone || !whole) continue;
      if (output.kind == OutputKind::kUser && options.outputs_in_arena) continue;
      where_[root] = {Area::kOutput, i, 0};
    }
    for (Location& location : where_)
      if (location.area == Area::kNone) location.area = Area::kArena;
  }
  [[nodiscard]] const Location& of(std::uint32_t root) const { return where_[root]; }

 private:
  std::vector<Location> where_;
};

// Buffers that are placed together. The hidden results are one such set. All other buffers of the arena are
// the second one: other results, the scratch of each node, and the inputs if inputs_in_arena is set.
struct ArenaBuffers {
  std::vector<Buffer> buffers;
  std::vector<std::uint32_t> of_value, of_node;  // kNoTarget where there is none
};

ArenaBuffers arena_buffers(const Graph& graph, std::span<const NodeNeeds> needs, const Sharing& sharing,
                           const Roots& roots, const MemoryPlan& plan, const std::vector<bool>& hidden_roots,
                           bool hidden) {
  ArenaBuffers out;
  out.of_value.assign(graph.values().size(), kNoTarget);
  out.of_node.assign(graph.nodes().size(), kNoTarget);
  for (std::uint32_t i = 0; i < graph.values().size(); ++i) {
    const std::uint32_t root = sharing.root(ValueId(i));
    if (roots.of(root).area != Area::kArena || hidden_roots[root] != hidden) continue;
    const Lifetime& live = sharing.live(ValueId(i));
    out.of_value[i] = static_cast<std::uint32_t>(out.buffers.size());
    out.buffers.push_back({graph.values()[i].type.bytes(), kAlignment, live.first, live.last});
  }
  for (std::uint32_t i = 0; i < graph.values().size(); ++i) {
    if (out.of_value[i] == kNoTarget || plan.alias[i] == AliasKind::kNone) continue;
    const ValueId with = plan.alias_of[i];
    Buffer& buffer = out.buffers[out.of_value[i]];
    buffer.alias = plan.alias[i];
    buffer.target = out.of_value[with.index()];
    buffer.target_offset = sharing.offset(ValueId(i)) - sharing.offset(with);
  }
  for (std::uint32_t step = 0; !hidden && step < needs.size(); ++step) {
    if (needs[step].scratch_bytes == 0) continue;
    out.of_node[step] = static_cast<std::uint32_t>(out.buffers.size());
    out.buffers.push_back({needs[step].scratch_bytes, kAlignment, step, step});
  }
  return out;
}

}  // namespace

std::string_view to_string(Area area) {
  switch (area) {
    case Area::kNone:
      return "none";
    case Area::kArena:
      return "arena";
    case Area::kInput:
      return "input";
    case Area::kOutput:
      return "output";
    case Area::kConstant:
      return "constant";
  }
  return "";
}

std::optional<std::vector<std::size_t>> view_offsets(const Graph& graph, const Node& node,
                                                     std::size_t alignment) {
  if (info(node.op).has(kView)) return std::vector<std::size_t>{0};
  const std::optional<Blocks> parts = blocks(graph, node);
  if (!parts) return std::nullopt;
  const TensorType& type = graph.type(graph.operands(node)[0]);
  if (!outermost(type.shape, parts->axis)) return std::nullopt;
  std::vector<std::size_t> offsets;
  for (const std::int64_t start : parts->starts) {
    offsets.push_back(static_cast<std::size_t>(start) * entry_bytes(type, parts->axis));
    if (offsets.back() % alignment != 0) return std::nullopt;
  }
  return offsets;
}

std::optional<std::vector<std::size_t>> part_offsets(const Graph& graph, const Node& node,
                                                     std::size_t alignment) {
  if (node.op != Op::kCat && node.op != Op::kTosaConcat && node.op != Op::kStack) return std::nullopt;
  const TensorType& whole = graph.type(graph.result(node));
  const auto axis =
      static_cast<std::int64_t>(normalize_axis(Graph::attrs<AxisAttrs>(node).axis, whole.shape.size()));
  if (!outermost(whole.shape, axis)) return std::nullopt;
  std::vector<std::size_t> offsets;
  std::size_t at = 0;
  for (const ValueId operand : graph.operands(node)) {
    const std::size_t bytes = graph.type(operand).bytes();
    offsets.push_back(bytes != 0 && at % alignment == 0 ? at : kNoPart);
    at += bytes;
  }
  return at == whole.bytes() ? std::optional(std::move(offsets)) : std::nullopt;
}

std::vector<bool> operands_in_place(const Graph& graph, const Node& node, const MemoryPlan& plan) {
  const auto operands = graph.operands(node);
  std::vector<bool> found(operands.size());
  const auto offsets = part_offsets(graph, node);
  if (!offsets) return found;
  const Location& whole = plan.values[graph.result(node).index()];
  for (std::size_t i = 0; i < operands.size(); ++i)
    found[i] = (*offsets)[i] != kNoPart && plan.values[operands[i].index()] ==
                                               Location{whole.area, whole.slot, whole.offset + (*offsets)[i]};
  return found;
}

MemoryPlan plan_memory(const Graph& graph, std::span<const NodeNeeds> needs, const PlanOptions& options) {
  MemoryPlan plan;
  const Sharing sharing(graph, needs, options, plan);
  const Roots roots(graph, sharing, options);
  const std::vector<bool> hidden_roots = sharing.hidden_roots();
  const ArenaBuffers arena = arena_buffers(graph, needs, sharing, roots, plan, hidden_roots, false);
  const ArenaBuffers behind = arena_buffers(graph, needs, sharing, roots, plan, hidden_roots, true);
  const Placement placement = place(arena.buffers, options.place);
  const Placement placement_behind = place(behind.buffers, options.place);
  plan.arena_bytes = placement.bytes;
  plan.lower_bound = placement.lower_bound;
  plan.hidden_bytes = placement_behind.bytes;
  for (std::uint32_t i = 0; i < graph.values().size(); ++i) {
    Location location = roots.of(sharing.root(ValueId(i)));
    if (arena.of_value[i] != kNoTarget)
      location.offset = placement.offsets[arena.of_value[i]];
    else if (behind.of_value[i] != kNoTarget)
      location.offset = placement.bytes + placement_behind.offsets[behind.of_value[i]];
    else
      location.offset = sharing.offset(ValueId(i));
    plan.values.push_back(location);
  }
  for (const std::uint32_t buffer : arena.of_node)
    plan.scratch.push_back(buffer == kNoTarget ? 0 : placement.offsets[buffer]);
  plan.live_bytes = live_bytes(arena.buffers);
  plan.live_bytes.resize(graph.nodes().size());
  for (const Node& node : graph.nodes())
    for (std::uint32_t i = 0; i < node.result_count; ++i)
      plan.unshared_bytes += graph.type(graph.result(node, i)).bytes();
  for (const NodeNeeds& need : needs) plan.unshared_bytes += need.scratch_bytes;
  return plan;
}

}  // namespace tosaic::memory
