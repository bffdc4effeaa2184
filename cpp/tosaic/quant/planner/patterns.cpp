// patterns: functions of one tensor, residual streams and positions of grid samplers.
#include <algorithm>

#include "tosaic/quant/planner/planning.h"

namespace tosaic::quant {

// ---- functions of one tensor ----

bool Planner::is_elementwise(const Call& c) const {
  return c.main != nullptr && !c.nodes.empty() &&
         std::ranges::all_of(c.nodes, [](const Node* each) { return info(each->op).has(kElementwise); });
}

std::int64_t Planner::elements_of(NodeIndex i) const {
  const ValueId id = value(i);
  return id.valid() ? num_elements(graph_.type(id).shape) : -1;
}

// For each elementwise call: finds the one tensor on which all its operands depend, if there is one.
void Planner::find_functions() {
  for (std::uint32_t i = 0; i < calls_.size(); ++i) {
    Call& c = calls_[i];
    const NodeIndex self(i);
    if (c.dependence != Dependence::kFloats || !is_elementwise(c) || !is_float_value(self)) continue;
    NodeIndex from;
    bool one = true;
    for (const NodeIndex p : c.operands) {
      if (call(p).dependence == Dependence::kNothing) {
        // Constants must be scalars: with several elements, each element would need a function of its own.
        if (elements_of(p) != 1) one = false;
        continue;
      }
      const NodeIndex source = call(p).function_of.valid() ? call(p).function_of : p;
      if (from.valid() && from != source) one = false;
      from = source;
    }
    for (const Node* each : c.nodes)
      for (const ValueId operand : graph_.operands(*each))
        if (operand.valid() && graph_.value(operand).kind == ValueKind::kConstant &&
            num_elements(graph_.type(operand).shape) != 1)
          one = false;
    if (one && from.valid() && elements_of(from) == elements_of(self) && are_alike(self, from))
      c.function_of = from;
  }
}

// ---- residual streams ----

// The calls that read the elements of a result, directly or through movement. False if the graph returns it.
bool Planner::collect_readers(NodeIndex i, std::vector<NodeIndex>& out) {
  for (const NodeIndex user : node(i).users) {
    if (node(user).kind != CallKind::kCall) return false;
    if (call(user).behaviour == Behaviour::kMovement && !call(user).within) {
      if (!collect_readers(user, out)) return false;
    } else {
      out.push_back(user);
    }
  }
  return true;
}

// The only call that reads a result, through movement, and is quantized in the same way; else invalid.
NodeIndex Planner::only_reader(NodeIndex i) {
  std::vector<NodeIndex> readers;
  if (!collect_readers(i, readers) || readers.size() != 1) return {};
  return are_alike(i, readers[0]) ? readers[0] : NodeIndex();
}

bool Planner::is_sum(NodeIndex i) {
  const Call& c = call(i);
  if (c.main == nullptr || c.nodes.size() != 1 || c.within || c.large || precision(i) == nullptr)
    return false;
  if (c.main->op != Op::kAdd && c.main->op != Op::kSub) return false;
  return c.operands.size() == 2 && std::ranges::all_of(c.operands, [&](NodeIndex p) {
           return is_data(p) && elements_of(p) == elements_of(i);
         });
}

// True if the call can read 32 bits: it is a part of a unit, or a norm.
bool Planner::reads_wide(NodeIndex i) {
  const Call& c = call(i);
  if (c.within) return true;
  return c.behaviour == Behaviour::kComposite && c.main != nullptr && c.main->op != Op::kRecurrent &&
         c.main->op != Op::kGlu;
}

// Sums that read one another are a residual stream. If a norm reads one of them, no sum is rounded, since its
// error would remain in all later sums.
void Planner::find_wide_sums() {
  std::vector<std::uint32_t> stream(calls_.size());
  std::vector<bool> has_norm(calls_.size(), false);
  const auto root = [&](std::uint32_t i) {
    while (stream[i] != i) i = stream[i] = stream[stream[i]];
    return i;
  };
  std::vector<std::uint32_t> sums;
  for (std::uint32_t i = 0; i < calls_.size(); ++i) {
    stream[i] = i;
    if (!is_sum(NodeIndex(i)) || !precision(NodeIndex(i))->wide_sums) continue;
    sums.push_back(i);
    for (NodeIndex p : calls_[i].operands) {
      while (call(p).behaviour == Behaviour::kMovement && call(p).operands.size() == 1)
        p = call(p).operands[0];
      if (!call(p).wide) continue;
      const std::uint32_t a = root(p.index()), b = root(i);
      stream[b] = a;
      has_norm[a] = has_norm[a] || has_norm[b];
    }
    std::vector<NodeIndex> readers;
    calls_[i].wide = collect_readers(NodeIndex(i), readers);
    if (calls_[i].wide && std::ranges::any_of(readers, [&](NodeIndex r) { return reads_wide(r); }))
      has_norm[root(i)] = true;
  }
  for (const std::uint32_t i : sums) calls_[i].wide = calls_[i].wide && has_norm[root(i)];
  for (std::uint32_t i = 0; i < calls_.size(); ++i)
    if (starts_stream(NodeIndex(i))) calls_[i].wide = true;
}

// True for a contraction that a norm and a wide sum read: its rounding error would reach all sums of the
// stream.
bool Planner::starts_stream(NodeIndex i) {
  const Call& c = call(i);
  if ((c.behaviour != Behaviour::kWeighted && c.behaviour != Behaviour::kNormalize) || c.within ||
      precision(i) == nullptr || !precision(i)->wide_sums)
    return false;
  std::vector<NodeIndex> readers;
  return collect_readers(i, readers) &&
         std::ranges::any_of(readers, [&](NodeIndex r) { return reads_wide(r); }) &&
         std::ranges::any_of(readers, [&](NodeIndex r) { return call(r).wide && is_sum(r); });
}

// ---- positions of grid samplers ----

bool Planner::is_grid(NodeIndex p, NodeIndex i) {
  const Call& c = call(i);
  if (c.behaviour != Behaviour::kGrid || c.main == nullptr || precision(i) == nullptr) return false;
  const auto operands = graph_.operands(*c.main);
  return producer_among(c, operands[1]) == p && producer_among(c, operands[0]) != p;
}

// True if the call computes positions from positions: movement, a sum, a product with numbers, neg, bounds.
bool Planner::is_position_step(NodeIndex i) {
  const Call& c = call(i);
  if (c.main == nullptr || c.within || precision(i) == nullptr) return false;
  if (c.behaviour == Behaviour::kMovement) return true;
  if (c.nodes.size() != 1) return false;
  if (c.main->op == Op::kMul)
    return std::ranges::count_if(c.operands, [&](NodeIndex p) { return is_data(p); }) == 1 &&
           graph_.operands(*c.main)[0] != graph_.operands(*c.main)[1];
  return c.main->op == Op::kAdd || c.main->op == Op::kSub || c.main->op == Op::kNeg || bounds(*c.main);
}

void Planner::find_positions() {
  for (auto i = static_cast<std::uint32_t>(calls_.size()); i-- > 0;) {
    const auto& users = node(NodeIndex(i)).users;
    calls_[i].position =
        !users.empty() && is_data(NodeIndex(i)) && !calls_[i].large &&
        std::ranges::all_of(users, [&](NodeIndex user) {
          return is_grid(NodeIndex(i), user) || (call(user).position && is_position_step(user));
        });
  }
}

// The grid samplers that read the elements of a result, through movement.
std::vector<NodeIndex> Planner::samplers_of(NodeIndex i) {
  std::vector<NodeIndex> readers;
  static_cast<void>(collect_readers(i, readers));
  std::erase_if(readers, [&](NodeIndex r) { return call(r).behaviour != Behaviour::kGrid; });
  return readers;
}

ObservedSpec Planner::in_16_bits(const Precision& p) {
  ObservedSpec spec = p.activation;
  spec.dtype = "i16", spec.qmin = -32767, spec.qmax = 32767, spec.scheme = "per_tensor_symmetric";
  return spec;
}

// Positions need more than 8 bits, since an image may have more than 256 rows. All positions beyond the range
// read the same pixels.
QSpec Planner::grid_spec(std::span<const NodeIndex> samplers, const Precision& p) const {
  double range = 1.0;
  for (const NodeIndex sampler : samplers) {
    const Node& main = *calls_[sampler.index()].main;
    const auto& attrs = Graph::attrs<GridSampleAttrs>(main);
    if (attrs.padding == GridPadding::kReflection || !p.fixed_ranges) return in_16_bits(p);
    // Beyond the centre of the last pixel, positions make a difference up to this distance, in pixels.
    const double beyond = attrs.mode == ResizeMode::kBicubic     ? 2.0
                          : attrs.padding == GridPadding::kZeros ? 1.0
                                                                 : 0.0;
    const Shape& image = graph_.type(graph_.operands(main)[0]).shape;
    for (std::size_t axis = 2; axis < image.size(); ++axis) {
      const std::int64_t extent = image[axis];
      const auto pixels = static_cast<double>(extent);
      if (attrs.align_corners && extent > 1)
        range = std::max(range, 1.0 + 2.0 * beyond / (pixels - 1.0));
      else if (!attrs.align_corners)
        range = std::max(range, 1.0 + (2.0 * beyond - 1.0) / pixels);
    }
  }
  FixedSpec spec{.dtype = "i16", .scheme = "per_tensor_symmetric"};
  spec.scale = range / 32767, spec.qmin = -32767, spec.qmax = 32767;
  return spec;
}

void Planner::round_grid(NodeIndex grid, NodeIndex sampler, const Precision& p) {
  const Root root = root_of(grid, sampler);
  const Rounding rounding = call(root.call).rounding;
  if (rounding == Rounding::kRounded || rounding == Rounding::kForeign) return;
  const bool is_at_root = rounding == Rounding::kFloat && accepts(root.edge.node);
  set(is_at_root ? root.edge : Slot::edge(grid, sampler), grid_spec(std::span(&sampler, 1), p), "positions");
}

}  // namespace tosaic::quant
