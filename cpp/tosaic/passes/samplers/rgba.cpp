#include <algorithm>
#include <cstring>

#include "tosaic/base/error.h"
#include "tosaic/passes/pass.h"
#include "tosaic/passes/samplers/samplers.h"

namespace tosaic::passes {
namespace {

constexpr std::int64_t kRgb = 3, kRgba = 4;

bool is_rgb(const TensorType& type) { return type.rank() == 4 && type.shape[1] == kRgb; }

bool has_axis(const TensorType& type) { return type.qparams && type.qparams->axis.has_value(); }

TensorType with_alpha(TensorType type) {
  type.shape[1] = kRgba;
  return type;
}

class Widener {
 public:
  Widener(const Graph& graph, const RgbaBoundary& boundary)
      : graph_(graph),
        boundary_(boundary),
        made_(graph.values().size()),
        wide_(graph.values().size()),
        wanted_(graph.values().size()),
        provided_(graph.values().size()) {}

  std::optional<Graph> run() {
    find_provided();
    find_wanted();
    if (!changes()) return std::nullopt;
    out_.name = graph_.name;
    out_.stage = graph_.stage;
    for (std::size_t i = 0; i < graph_.inputs().size(); ++i) add_input(i);
    for (const Node& node : graph_.nodes()) add(node);
    for (std::size_t i = 0; i < graph_.outputs().size(); ++i) add_output(i);
    std::optional<Graph> clean = dead_code(out_);
    return clean ? std::move(clean) : std::optional(std::move(out_));
  }

 private:
  static bool at(const std::vector<bool>& list, std::size_t i) { return i < list.size() && list[i]; }

  // ---- which values exist with four channels, and which of them are read so ----
  [[nodiscard]] bool samples_rgb(const Node& node) const {
    return node.op == Op::kGridSample && is_rgb(graph_.type(graph_.operands(node)[0]));
  }

  // A convolution of the image whose weight can get zeros for the new channel.
  [[nodiscard]] bool takes_alpha(const Node& node) const {
    if (node.op != Op::kConv || !is_rgb(graph_.type(graph_.operands(node)[0]))) return false;
    const auto& attrs = Graph::attrs<ConvAttrs>(node);
    const Value& weight = graph_.value(graph_.operands(node)[1]);
    if (attrs.groups != 1 || attrs.transposed || !weight.constant || !weight.constant->storage.bound())
      return false;
    const QParamsRef& qparams = weight.type.qparams;
    const auto is_zero = [](std::int64_t zero_point) { return zero_point == 0; };
    return !qparams ||
           (!qparams->groups && qparams->axis != 1 && std::ranges::all_of(qparams->zero_points, is_zero));
  }

  // An operator of one operand that computes each element alone: it can compute the fourth channel, too.
  [[nodiscard]] bool carries(const Node& node) const {
    if (!info(node.op).has(kElementwise) || node.operand_count != 1 || node.result_count != 1) return false;
    if (const auto* quantize = get_if<QuantizeAttrs>(node.attrs.get())) return !quantize->axis;
    if (const auto* dequantize = get_if<DequantizeAttrs>(node.attrs.get())) return !dequantize->axis;
    return !has_axis(graph_.type(graph_.operands(node)[0])) && !has_axis(graph_.type(graph_.result(node)));
  }

  void find_provided() {
    for (std::size_t i = 0; i < graph_.inputs().size(); ++i)
      if (at(boundary_.inputs, i))
        require_image("input", graph_.inputs()[i].value, graph_.inputs()[i].kind == InputKind::kUser);
    for (std::size_t i = 0; i < graph_.outputs().size(); ++i)
      if (at(boundary_.outputs, i))
        require_image("output", graph_.outputs()[i].value, graph_.outputs()[i].kind == OutputKind::kUser);
    for (std::size_t i = 0; i < graph_.inputs().size(); ++i)
      if (at(boundary_.inputs, i)) provided_[graph_.inputs()[i].value.index()] = true;
    for (const Node& node : graph_.nodes()) {
      if (samples_rgb(node) || (carries(node) && provided_[graph_.operands(node)[0].index()]))
        provided_[graph_.result(node).index()] = true;
    }
  }

  void require_image(const char* side, ValueId id, bool is_user) const {
    if (is_user && is_rgb(graph_.type(id))) return;
    throw InvalidGraph(
        {.where = "rgba",
         .what = std::string(side) + " '" + graph_.value(id).name + "' is no image of three channels",
         .expected = "a user's " + std::string(side) + " of shape (N, 3, H, W)",
         .got = is_user ? to_string(graph_.type(id)) : "a state"});
  }

  void find_wanted() {
    for (std::size_t i = 0; i < graph_.outputs().size(); ++i)
      if (at(boundary_.outputs, i)) wanted_[graph_.outputs()[i].value.index()] = true;
    for (auto node = graph_.nodes().rbegin(); node != graph_.nodes().rend(); ++node)
      if (node->operand_count != 0 && reads_wide(*node)) wanted_[graph_.operands(*node)[0].index()] = true;
  }

  [[nodiscard]] bool reads_wide(const Node& node) const {
    return samples_rgb(node) || takes_alpha(node) || (carries(node) && wanted_[graph_.result(node).index()]);
  }

  [[nodiscard]] bool changes() const {
    return std::ranges::any_of(graph_.nodes(), [&](const Node& node) { return samples_rgb(node); }) ||
           std::ranges::count(boundary_.inputs, true) != 0 ||
           std::ranges::count(boundary_.outputs, true) != 0;
  }

  // ---- the new graph ----
  void add_input(std::size_t index) {
    const Input& input = graph_.inputs()[index];
    const Value& value = graph_.value(input.value);
    const bool widens = at(boundary_.inputs, index);
    const ValueId made = out_.add_input(input.kind, value.name, widens ? with_alpha(value.type) : value.type,
                                        input.path, input.boundary, input.initial);
    (widens ? wide_ : made_)[input.value.index()] = made;
  }

  void add(const Node& node) {
    const std::span<const ValueId> operands = graph_.operands(node);
    const bool widens = samples_rgb(node) || (carries(node) && provided_[operands[0].index()] &&
                                              wanted_[graph_.result(node).index()]);
    if (widens) {
      std::vector<ValueId> now{wide(operands[0])};
      for (std::size_t i = 1; i < operands.size(); ++i) now.push_back(narrow(operands[i]));
      const ValueId old = graph_.result(node);
      const TensorType type = with_alpha(graph_.type(old));
      const NodeId made = out_.add_node(node.op, node.attrs, now, std::span(&type, 1), node.origin,
                                        graph_.value(old).name + ".rgba");
      wide_[old.index()] = out_.result(out_.node(made));
      return;
    }
    std::vector<ValueId> now;
    const bool alpha = takes_alpha(node) && provided_[operands[0].index()];
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if (!operands[i].valid())
        now.emplace_back();
      else
        now.push_back(alpha && i == 0   ? wide(operands[0])
                      : alpha && i == 1 ? padded_weight(operands[1])
                                        : narrow(operands[i]));
    }
    const NodeId copy = out_.add_copy(graph_, node, now);
    for (std::uint32_t r = 0; r < node.result_count; ++r)
      made_[node.first_result + r] = out_.result(out_.node(copy), r);
  }

  void add_output(std::size_t index) {
    Output output = graph_.outputs()[index];
    output.value = at(boundary_.outputs, index) ? wide(output.value) : narrow(output.value);
    out_.add_output(std::move(output));
  }

  [[nodiscard]] OriginRef origin_of(ValueId old) const {
    if (const Node* producer = graph_.producer(old)) return producer->origin;
    const std::span<const NodeId> users = graph_.users(old);
    return users.empty() ? nullptr : graph_.node(users.front()).origin;
  }

  // The value with three channels, as it was.
  ValueId narrow(ValueId old) {
    if (!old.valid()) return old;
    ValueId& made = made_[old.index()];
    if (made.valid()) return made;
    if (const ConstantRef& constant = graph_.value(old).constant) {
      made = out_.add_constant(constant);
      if (const QParamsRef& qparams = graph_.type(old).qparams) out_.set_qparams(made, qparams);
      return made;
    }
    const ValueId operands[] = {wide_[old.index()]};
    const TensorType type = graph_.type(old);
    made = out_.result(out_.node(out_.add_node(Op::kSlice, share(SliceAttrs{1, 0, kRgb, 1}), operands,
                                               std::span(&type, 1), origin_of(old), graph_.value(old).name)));
    return made;
  }

  // The value with four channels.
  ValueId wide(ValueId old) {
    ValueId& made = wide_[old.index()];
    if (made.valid()) return made;
    const ValueId operands[] = {narrow(old)};
    const TensorType type = with_alpha(graph_.type(old));
    const PadAttrs pad{.before = {0, 0, 0, 0}, .after = {0, kRgba - kRgb, 0, 0}};
    made = out_.result(out_.node(out_.add_node(Op::kPad, share(pad), operands, std::span(&type, 1),
                                               origin_of(old), graph_.value(old).name + ".rgba")));
    return made;
  }

  // The weight (O, 3, ...) with zeros for the fourth channel.
  ValueId padded_weight(ValueId old) {
    ValueId& made = wide_[old.index()];
    if (made.valid()) return made;
    const Constant& weight = *graph_.value(old).constant;
    Shape shape = weight.shape;
    shape[1] = kRgba;
    const std::span<const std::byte> from = weight.bytes();
    const std::size_t filters = static_cast<std::size_t>(std::max<std::int64_t>(shape[0], 1));
    const std::size_t row = from.size() / filters, wide_row = row / kRgb * kRgba;
    Storage storage = Storage::allocate(filters * wide_row);  // zeros
    std::byte* to = storage.writable();
    for (std::size_t o = 0; o < filters && !from.empty(); ++o)
      std::memcpy(to + o * wide_row, from.data() + o * row, row);
    made = out_.add_constant(
        constant_over(weight.name + ".rgba", ConstantKind::kFolded, weight.dtype, shape, std::move(storage)));
    if (const QParamsRef& qparams = graph_.type(old).qparams) out_.set_qparams(made, qparams);
    return made;
  }

  const Graph& graph_;
  const RgbaBoundary& boundary_;
  Graph out_;
  std::vector<ValueId> made_, wide_;  // by old value: as it was, and with four channels
  std::vector<bool> wanted_, provided_;
};

}  // namespace

std::optional<Graph> rgba(const Graph& graph, const RgbaBoundary& boundary) {
  if (graph.stage != Stage::kExported && graph.stage != Stage::kQuantized)
    throw InvalidGraph({.where = "rgba",
                        .what = "a graph of this stage is not rewritten",
                        .expected = "stage exported or quantized",
                        .got = std::string(to_string(graph.stage))});
  return Widener(graph, boundary).run();
}

}  // namespace tosaic::passes
