// patterns: functions of one tensor, and positions of grid samplers.
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
