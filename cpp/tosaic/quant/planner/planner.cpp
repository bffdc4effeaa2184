#include "tosaic/quant/planner/planner.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>

#include "tosaic/quant/planner/behaviour.h"

namespace tosaic::quant {

namespace {

constexpr double kLargestActivation = 1e4;
constexpr std::int64_t kMostScanned = 1 << 22;

// On what a value depends.
enum class Dependence : std::uint8_t { kNothing, kIntegers, kFloats };

// What a call does to the integers of its result.
enum class Rounding : std::uint8_t {
  kNone,         // no float tensor that depends on the caller's floats
  kRounded,      // its output has a scale of its own
  kTransparent,  // its output has the integers of an operand
  kWithin,       // part of a unit: numbers between operators
  kWide,         // a sum of 32 bits that norms and other sums read
  kLarge,        // may hold large numbers, which are not rounded
  kFloat,        // not selected, or without integer form
  kForeign,      // annotated by another quantizer
};

struct Call {
  std::vector<NodeIndex> operands;  // each once, in the order of the arguments
  std::vector<const Node*> nodes;   // of the graph, in order
  const Node* main = nullptr;
  Behaviour behaviour = Behaviour::kMovement;
  Dependence dependence = Dependence::kNothing;
  Rounding rounding = Rounding::kNone;
  bool large = false;
  bool within = false;    // inside a recognised unit
  bool wide = false;      // a sum of a stream that norms read
  bool whole = false;     // holds whole numbers, and does not depend on floats
  bool position = false;  // only positions of grid samplers are computed from it
  NodeIndex base;         // kTransparent: the operand whose integers the result has
  NodeIndex function_of;  // the only rounded tensor of which every element is a function, with constants
};

class Planner {
 public:
  Planner(const PlannerInput& input, AnnotationPlan& plan)
      : input_(input), graph_(input.graph), plan_(plan), calls_(plan.graph().size()) {}

  std::vector<LeftFloat> run() {
    read_calls();
    for (std::uint32_t i = 0; i < calls_.size(); ++i) classify(NodeIndex(i));
    if (input_.every_operator) {
      for (std::uint32_t i = 0; i < calls_.size(); ++i) decide_alone(NodeIndex(i));
    } else {
      find_functions();
      find_wide_sums();
      find_positions();
      for (std::uint32_t i = 0; i < calls_.size(); ++i)
        has_attention_ = has_attention_ || is_attention(NodeIndex(i));
      for (std::uint32_t i = 0; i < calls_.size(); ++i) decide(NodeIndex(i));
    }
    emit_groups();
    return std::move(left_);
  }

 private:
  // ---- reading ----

  [[nodiscard]] const CallNode& node(NodeIndex i) const { return plan_.graph().node(i); }
  [[nodiscard]] Call& call(NodeIndex i) { return calls_[i.index()]; }
  [[nodiscard]] ValueId value(NodeIndex i) const { return input_.values[i.index()]; }

  void read_calls() {
    std::unordered_map<std::string_view, std::uint32_t> by_name;
    by_name.reserve(calls_.size());
    for (std::uint32_t i = 0; i < calls_.size(); ++i) {
      by_name.emplace(node(NodeIndex(i)).name, i);
      for (const CallOperand& operand : node(NodeIndex(i)).operands)
        if (std::ranges::find(calls_[i].operands, operand.producer) == calls_[i].operands.end())
          calls_[i].operands.push_back(operand.producer);
    }
    const Origin* last = nullptr;
    std::uint32_t at = 0;
    call_of_.assign(graph_.nodes().size(), kNoCall);
    for (std::uint32_t n = 0; n < graph_.nodes().size(); ++n) {
      const Node& each = graph_.nodes()[n];
      if (!each.origin) continue;
      if (each.origin.get() != last) {
        const auto found = by_name.find(each.origin->fx_name);
        last = each.origin.get();
        at = found == by_name.end() ? kNoCall : found->second;
      }
      call_of_[n] = at;
      if (at == kNoCall) continue;
      Call& owner = calls_[at];
      owner.nodes.push_back(&each);
      const Behaviour behaviour = node_behaviour(each);
      if (owner.main == nullptr || behaviour >= owner.behaviour)
        owner.main = &each, owner.behaviour = behaviour;
    }
    if (!input_.every_operator) read_units(by_name);
  }

  [[nodiscard]] static Behaviour node_behaviour(const Node& node) {
    if (node.op == Op::kPad) {
      const auto& attrs = Graph::attrs<PadAttrs>(node);
      if (attrs.mode == PadMode::kConstant && !(attrs.value == Scalar(0.0)) &&
          !(attrs.value == Scalar(std::int64_t{0})))
        return Behaviour::kReduction;
    }
    return behaviour_of(node.op);
  }

  // A unit has the name of the call that computes its result. Its other origins are inside of it.
  void read_units(const std::unordered_map<std::string_view, std::uint32_t>& by_name) {
    for (const Node& each : input_.recognized.nodes()) {
      if (!each.origin || each.origin->parents.empty()) continue;
      const auto result = by_name.find(input_.recognized.node_name(each));
      if (result == by_name.end()) continue;
      Call& whole = calls_[result->second];
      if (whole.main == nullptr || whole.main->op == each.op) continue;
      for (const OriginRef& leaf : leaves(each.origin))
        if (const auto found = by_name.find(leaf->fx_name);
            found != by_name.end() && found->second < result->second)
          calls_[found->second].within = true;
      whole.behaviour = node_behaviour(each);
    }
  }

  [[nodiscard]] bool is_float_value(NodeIndex i) const {
    const ValueId id = value(i);
    return id.valid() && is_float(graph_.type(id).dtype);
  }
  [[nodiscard]] static bool is_float(DType dtype) {
    return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF64;
  }

  // ---- classification ----

  void classify(NodeIndex i) {
    Call& c = call(i);
    const CallNode& n = node(i);
    if (n.kind == CallKind::kPlaceholder || n.kind == CallKind::kGetAttr) {
      const ValueId id = value(i);
      if (!id.valid()) return;
      const bool is_constant = graph_.value(id).kind == ValueKind::kConstant;
      c.dependence = is_constant                       ? Dependence::kNothing
                     : is_float(graph_.type(id).dtype) ? Dependence::kFloats
                                                       : Dependence::kIntegers;
      c.whole = is_constant && !is_fractional(id);
      return;
    }
    for (const NodeIndex p : c.operands) c.dependence = std::max(c.dependence, call(p).dependence);
    if (c.main == nullptr && n.kind == CallKind::kCall && c.operands.size() == 1) {
      // An alias, or a result of a call that has several.
      const Call& from = call(c.operands[0]);
      if (!value(c.operands[0]).valid()) c.behaviour = from.behaviour, c.main = from.main;
    }
    // A table of numbers that is indexed by tokens holds the caller's floats; tables of positions do not.
    if (c.behaviour == Behaviour::kLookup && c.dependence == Dependence::kIntegers)
      c.dependence = Dependence::kFloats;
    if (c.dependence == Dependence::kIntegers && is_weighted(c)) c.dependence = Dependence::kFloats;
    if (input_.every_operator && c.dependence == Dependence::kIntegers && is_float_value(i))
      c.dependence = Dependence::kFloats;
    c.large = may_be_large(c);
    c.whole = c.dependence != Dependence::kFloats && has_whole_numbers(c);
  }

  // True if the call computes whole numbers from whole numbers, such as a mask of zeros and ones.
  bool has_whole_numbers(const Call& c) {
    const auto is_whole_operand = [&](NodeIndex p) { return !is_float_value(p) || call(p).whole; };
    return std::ranges::all_of(c.operands, is_whole_operand) &&
           std::ranges::all_of(c.nodes, [&](const Node* each) {
             return has_whole_results(*each) && std::ranges::all_of(graph_.operands(*each), [&](ValueId id) {
                      return !is_fractional(id);
                    });
           });
  }
  [[nodiscard]] static bool has_whole_results(const Node& node) {
    if (node.op == Op::kFull) {
      const double number = scalar_of(Graph::attrs<FullAttrs>(node).value);
      return number == std::trunc(number);
    }
    switch (behaviour_of(node.op)) {
      case Behaviour::kMovement:
      case Behaviour::kSelection:
      case Behaviour::kJoin:
      case Behaviour::kSource:
      case Behaviour::kSignChange:
      case Behaviour::kPredicate:
        return true;
      default:
        return node.op == Op::kAdd || node.op == Op::kSub || node.op == Op::kMul || node.op == Op::kWhere ||
               node.op == Op::kMaximum || node.op == Op::kMinimum || node.op == Op::kSum ||
               node.op == Op::kCumsum;
    }
  }
  // True for a constant of floats that are not whole numbers.
  [[nodiscard]] bool is_fractional(ValueId id) const {
    if (!id.valid() || graph_.value(id).kind != ValueKind::kConstant || !is_float(graph_.type(id).dtype))
      return false;
    const Elements elements(*graph_.value(id).constant);
    if (static_cast<std::int64_t>(elements.size()) > kMostScanned) return true;
    for (std::size_t i = 0; i < elements.size(); ++i)
      if (elements.as_double(i) != std::trunc(elements.as_double(i))) return true;
    return false;
  }

  [[nodiscard]] static bool is_weighted(const Call& c) {
    return c.behaviour == Behaviour::kWeighted || c.behaviour == Behaviour::kAttention;
  }

  // True if constants beyond the range of activations reach the result.
  bool may_be_large(const Call& c) {
    switch (c.behaviour) {
      case Behaviour::kMovement:
      case Behaviour::kSelection:
      case Behaviour::kJoin:
      case Behaviour::kSource:
      case Behaviour::kSignChange:
      case Behaviour::kArithmetic:
        break;
      default:
        return false;
    }
    for (const NodeIndex p : c.operands)
      if (call(p).large && !(c.main != nullptr && divides(*c.main))) return true;
    for (const Node* each : c.nodes) {
      if (each->op == Op::kFull && is_large(scalar_of(Graph::attrs<FullAttrs>(*each).value))) return true;
      if (each->op == Op::kMaximum || each->op == Op::kMinimum || each->op == Op::kClamp || divides(*each))
        continue;
      for (const ValueId operand : graph_.operands(*each))
        if (operand.valid() && graph_.value(operand).kind == ValueKind::kConstant &&
            constant_is_large(operand))
          return true;
    }
    return false;
  }
  [[nodiscard]] static bool divides(const Node& node) { return node.op == Op::kDiv || node.op == Op::kPow; }
  [[nodiscard]] static double scalar_of(const Scalar& scalar) {
    return std::visit([](auto x) { return static_cast<double>(x); }, scalar);
  }
  [[nodiscard]] static bool is_large(double x) { return !(std::abs(x) < kLargestActivation); }

  bool constant_is_large(ValueId id) {
    const TensorType& type = graph_.type(id);
    if (!is_float(type.dtype)) return false;
    const auto [entry, added] = large_constants_.try_emplace(id.index(), false);
    if (!added) return entry->second;
    const Constant& constant = *graph_.value(id).constant;
    const Elements elements(constant);
    if (static_cast<std::int64_t>(elements.size()) > kMostScanned) return false;
    for (std::size_t i = 0; i < elements.size(); ++i)
      if (is_large(elements.as_double(i))) return entry->second = true;
    return false;
  }

  // ---- functions of one tensor ----

  [[nodiscard]] bool is_elementwise(const Call& c) const {
    return c.main != nullptr && !c.nodes.empty() &&
           std::ranges::all_of(c.nodes, [](const Node* each) { return info(each->op).has(kElementwise); });
  }
  [[nodiscard]] std::int64_t elements_of(NodeIndex i) const {
    const ValueId id = value(i);
    return id.valid() ? num_elements(graph_.type(id).shape) : -1;
  }

  // For elementwise calls: the one tensor that all operands depend on, if there is one.
  void find_functions() {
    for (std::uint32_t i = 0; i < calls_.size(); ++i) {
      Call& c = calls_[i];
      const NodeIndex self(i);
      if (c.dependence != Dependence::kFloats || !is_elementwise(c) || !is_float_value(self)) continue;
      NodeIndex from;
      bool one = true;
      for (const NodeIndex p : c.operands) {
        if (call(p).dependence == Dependence::kNothing) {
          // Only numbers: a constant with several elements makes another function of each element.
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

  // The calls that read the elements of a result, behind movement; nothing if the graph returns them.
  bool collect_readers(NodeIndex i, std::vector<NodeIndex>& out) {
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
  // The only call that reads a result, behind movement, and is quantized in the same way; else invalid.
  NodeIndex only_reader(NodeIndex i) {
    std::vector<NodeIndex> readers;
    if (!collect_readers(i, readers) || readers.size() != 1) return {};
    return are_alike(i, readers[0]) ? readers[0] : NodeIndex();
  }

  [[nodiscard]] bool is_sum(NodeIndex i) {
    const Call& c = call(i);
    if (c.main == nullptr || c.nodes.size() != 1 || c.within || c.large || precision(i) == nullptr)
      return false;
    if (c.main->op != Op::kAdd && c.main->op != Op::kSub) return false;
    return c.operands.size() == 2 && std::ranges::all_of(c.operands, [&](NodeIndex p) {
             return is_data(p) && elements_of(p) == elements_of(i);
           });
  }
  [[nodiscard]] bool is_norm(NodeIndex i) {
    const Call& c = call(i);
    if (c.within) return true;
    return c.behaviour == Behaviour::kComposite && c.main != nullptr && c.main->op != Op::kRecurrent &&
           c.main->op != Op::kGlu;
  }

  // Sums that read one another are a stream. If a norm reads one of them, none is rounded: the error of each
  // would remain in all that follow.
  void find_wide_sums() {
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
      if (calls_[i].wide && std::ranges::any_of(readers, [&](NodeIndex r) { return is_norm(r); }))
        has_norm[root(i)] = true;
    }
    for (const std::uint32_t i : sums) calls_[i].wide = calls_[i].wide && has_norm[root(i)];
    for (std::uint32_t i = 0; i < calls_.size(); ++i)
      if (starts_stream(NodeIndex(i))) calls_[i].wide = true;
  }

  // True for a contraction that a norm and a wide sum read: what its rounding loses, all sums would lack.
  bool starts_stream(NodeIndex i) {
    const Call& c = call(i);
    if ((c.behaviour != Behaviour::kWeighted && c.behaviour != Behaviour::kNormalize) || c.within ||
        precision(i) == nullptr || !precision(i)->wide_sums)
      return false;
    std::vector<NodeIndex> readers;
    return collect_readers(i, readers) &&
           std::ranges::any_of(readers, [&](NodeIndex r) { return is_norm(r); }) &&
           std::ranges::any_of(readers, [&](NodeIndex r) { return call(r).wide && is_sum(r); });
  }

  // ---- positions of grid samplers ----

  [[nodiscard]] bool is_grid(NodeIndex p, NodeIndex i) {
    const Call& c = call(i);
    if (c.behaviour != Behaviour::kGrid || c.main == nullptr || precision(i) == nullptr) return false;
    const auto operands = graph_.operands(*c.main);
    return producer_among(c, operands[1]) == p && producer_among(c, operands[0]) != p;
  }
  // A step from positions to positions: movement, a sum, a product with numbers, a change of sign, bounds.
  [[nodiscard]] bool is_position_step(NodeIndex i) {
    const Call& c = call(i);
    if (c.main == nullptr || c.within || precision(i) == nullptr) return false;
    if (c.behaviour == Behaviour::kMovement) return true;
    if (c.nodes.size() != 1) return false;
    if (c.main->op == Op::kMul)
      return std::ranges::count_if(c.operands, [&](NodeIndex p) { return is_data(p); }) == 1 &&
             graph_.operands(*c.main)[0] != graph_.operands(*c.main)[1];
    return c.main->op == Op::kAdd || c.main->op == Op::kSub || c.main->op == Op::kNeg || bounds(*c.main);
  }
  void find_positions() {
    for (auto i = static_cast<std::uint32_t>(calls_.size()); i-- > 0;) {
      const auto& users = node(NodeIndex(i)).users;
      calls_[i].position =
          !users.empty() && is_data(NodeIndex(i)) && !calls_[i].large &&
          std::ranges::all_of(users, [&](NodeIndex user) {
            return is_grid(NodeIndex(i), user) || (call(user).position && is_position_step(user));
          });
    }
  }
  // The grid samplers that read the elements of a result, behind movement.
  std::vector<NodeIndex> samplers_of(NodeIndex i) {
    std::vector<NodeIndex> readers;
    static_cast<void>(collect_readers(i, readers));
    std::erase_if(readers, [&](NodeIndex r) { return call(r).behaviour != Behaviour::kGrid; });
    return readers;
  }

  [[nodiscard]] static ObservedSpec in_16_bits(const Precision& p) {
    ObservedSpec spec = p.activation;
    spec.dtype = "i16", spec.qmin = -32767, spec.qmax = 32767, spec.scheme = "per_tensor_symmetric";
    return spec;
  }
  // Positions need more than 8 bits: an image has more rows. Of the positions beyond the range, all read the
  // same pixels.
  [[nodiscard]] QSpec grid_spec(std::span<const NodeIndex> samplers, const Precision& p) const {
    double range = 1.0;
    for (const NodeIndex sampler : samplers) {
      const Node& main = *calls_[sampler.index()].main;
      const auto& attrs = Graph::attrs<GridSampleAttrs>(main);
      if (attrs.padding == GridPadding::kReflection || !p.fixed_ranges) return in_16_bits(p);
      // How far beyond the centre of the last pixel positions make a difference, in pixels.
      const double beyond = attrs.mode == ResizeMode::kBicubic     ? 2.0
                            : attrs.padding == GridPadding::kZeros ? 1.0
                                                                   : 0.0;
      const Shape& image = graph_.type(graph_.operands(main)[0]).shape;
      for (const std::int64_t extent : {image[2], image[3]}) {
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
  void round_grid(NodeIndex grid, NodeIndex sampler, const Precision& p) {
    const Root root = root_of(grid, sampler);
    const Rounding rounding = call(root.call).rounding;
    if (rounding == Rounding::kRounded || rounding == Rounding::kForeign) return;
    const bool is_at_root = rounding == Rounding::kFloat && accepts(root.edge.node);
    set(is_at_root ? root.edge : Slot::edge(grid, sampler), grid_spec(std::span(&sampler, 1), p),
        "positions");
  }

  // ---- decisions, in the order of the graph ----

  [[nodiscard]] const Precision* precision(NodeIndex i) const {
    const auto& index = input_.precision[i.index()];
    return index ? &input_.precisions[*index] : nullptr;
  }
  // True if the results of both calls are rounded in the same way, or both stay float.
  [[nodiscard]] bool are_alike(NodeIndex a, NodeIndex b) const {
    const Precision *x = precision(a), *y = precision(b);
    return x == y || (x != nullptr && y != nullptr && x->activation == y->activation);
  }
  // Torch refuses annotations of calls that have tensors by keyword.
  [[nodiscard]] bool accepts(NodeIndex i) const {
    return std::ranges::none_of(node(i).operands,
                                [](const CallOperand& each) { return each.path.starts_with("kwargs"); });
  }

  // True if the call computes float64, which torch's quantize operators refuse.
  [[nodiscard]] bool has_doubles(NodeIndex i) {
    const auto is_double = [this](NodeIndex n) {
      return value(n).valid() && graph_.type(value(n)).dtype == DType::kF64;
    };
    return is_double(i) || std::ranges::any_of(call(i).operands, is_double);
  }

  void decide(NodeIndex i) {
    Call& c = call(i);
    const CallNode& n = node(i);
    if (n.kind == CallKind::kOutput || c.dependence == Dependence::kNothing) return;
    if (plan_.has_annotation(i) && plan_.annotated(i)) {
      c.rounding = plan_.output(i) != nullptr ? Rounding::kForeign : Rounding::kFloat;
      return;
    }
    if (n.kind != CallKind::kCall) {
      c.rounding = c.dependence == Dependence::kFloats ? Rounding::kFloat : Rounding::kNone;
      return;
    }
    const bool is_tuple = !value(i).valid();
    if (c.dependence == Dependence::kIntegers) {
      if (is_float_value(i)) leave(i, Rounding::kNone, "it depends on integers only: positions or a mask");
      return;
    }
    if (c.within) {
      if (const Precision* p = precision(i); p != nullptr && accepts(i) && !has_doubles(i))
        round_operands(i, *p);
      return leave(i, Rounding::kWithin, "it is a part of a unit that is computed at once");
    }
    if (has_doubles(i)) return leave(i, Rounding::kFloat, "torch quantizes no float64");
    if (passes_through(i)) return;
    const Precision* p = precision(i);
    if (p == nullptr) return leave(i, Rounding::kFloat, "it is not selected");
    if (c.behaviour == Behaviour::kFloatOnly)
      return leave(i, Rounding::kFloat, "the operator has no integer form");
    if (!accepts(i))
      return leave(i, Rounding::kFloat, "torch refuses annotations of calls with tensors by keyword");
    if (c.behaviour == Behaviour::kJoin && joins(i, *p)) return;
    if (!is_result_of_tuple(i)) round_operands(i, *p);
    if (is_tuple || !is_float_value(i)) return;
    if (c.large)
      return leave(i, Rounding::kLarge, "it may hold numbers that leave no precision to the others");
    if (c.wide) return leave(i, Rounding::kWide, "norms and sums read it with 32 bits");
    if (const char* reason = computed_with_user(i)) return leave(i, Rounding::kWithin, reason);
    c.rounding = Rounding::kRounded;
    set_output(i, *p);
  }

  void leave(NodeIndex i, Rounding rounding, std::string_view reason) {
    call(i).rounding = rounding;
    left_.push_back({i, reason});
  }

  [[nodiscard]] bool is_result_of_tuple(NodeIndex i) {
    const Call& c = call(i);
    return c.nodes.empty() && c.operands.size() == 1 && !value(c.operands[0]).valid();
  }

  // Movement and selection of the elements of one operand.
  bool passes_through(NodeIndex i) {
    Call& c = call(i);
    if (c.behaviour != Behaviour::kMovement && c.behaviour != Behaviour::kSelection) return false;
    NodeIndex base;
    for (const NodeIndex p : c.operands)
      if (call(p).dependence == Dependence::kFloats && (is_float_value(p) || !value(p).valid())) {
        base = p;
        break;
      }
    if (!base.valid()) {
      c.rounding = Rounding::kNone;
      return !is_float_value(i) || c.behaviour == Behaviour::kMovement;
    }
    if (call(base).rounding == Rounding::kWithin && c.behaviour == Behaviour::kSelection) return false;
    if (value(i).valid() && !is_float_value(i)) return true;
    c.rounding = Rounding::kTransparent;
    c.base = base;
    return true;
  }

  // The call that computes the numbers of operand `p` of `user`, and the slot where they are rounded if it
  // does not round them itself.
  struct Root {
    NodeIndex call;
    Slot edge;
  };
  [[nodiscard]] Root root_of(NodeIndex p, NodeIndex user) {
    while (call(p).rounding == Rounding::kTransparent) {
      user = p;
      p = call(p).base;
    }
    return {p, Slot::edge(p, user)};
  }

  [[nodiscard]] bool is_data(NodeIndex p) {
    return call(p).dependence == Dependence::kFloats && (is_float_value(p) || !value(p).valid());
  }

  void round_operands(NodeIndex i, const Precision& p) {
    Call& c = call(i);
    const bool is_narrow = is_weighted(c);
    if (c.behaviour == Behaviour::kWeighted && c.main != nullptr) return round_contraction(i, p);
    const NodeIndex mask = c.behaviour == Behaviour::kAttention ? mask_of(c) : NodeIndex();
    for (const NodeIndex operand : c.operands) {
      if (operand == mask) continue;
      if (is_grid(operand, i))
        round_grid(operand, i, p);
      else if (is_data(operand))
        round_operand(operand, i, p, is_narrow);
      else
        round_table(operand, i, p);
    }
  }

  // Numbers that are computed from integers at run time, such as the cosines of rotary angles, are rounded where
  // data meets them: the angles themselves may be large. Masks and whole numbers are exact without a scale.
  void round_table(NodeIndex operand, NodeIndex user, const Precision& p) {
    const Call& c = call(operand);
    if (c.dependence != Dependence::kIntegers || !is_float_value(operand) || c.large || c.whole) return;
    if (call(user).dependence == Dependence::kFloats && !call(user).within)
      set(Slot::edge(operand, user), in_16_bits(p), "table");
  }

  // The call behind the mask of an attention.
  NodeIndex mask_of(const Call& c) {
    const auto operands = graph_.operands(*c.main);
    return operands.size() > 3 && operands[3].valid() ? producer_among(c, operands[3]) : NodeIndex();
  }

  // The operand of a call that is, behind movement inside the call, this value.
  NodeIndex producer_among(const Call& c, ValueId id) {
    while (id.valid()) {
      for (const NodeIndex p : c.operands)
        if (value(p) == id) return p;
      const Node* producer = graph_.producer(id);
      if (producer == nullptr || std::ranges::find(c.nodes, producer) == c.nodes.end()) break;
      const auto operands = graph_.operands(*producer);
      if (operands.empty()) break;
      id = operands[0];
    }
    return {};
  }

  // Rounds the operand unless it is rounded where it is computed. `is_narrow`: the operator multiplies
  // integers of few bits, so even numbers within a unit must be rounded.
  void round_operand(NodeIndex operand, NodeIndex user, const Precision& p, bool is_narrow) {
    const Root root = root_of(operand, user);
    const Rounding rounding = call(root.call).rounding;
    if (rounding == Rounding::kRounded) {
      const PlanEntry* entry = plan_.output(root.call);
      if (!is_narrow || entry == nullptr || narrower(entry->spec, p.activation)) return;
      return set(Slot::edge(operand, user), p.activation, "operand");
    }
    if (rounding == Rounding::kForeign) return;
    if (rounding == Rounding::kWide) {
      if (!is_norm(user) && !is_sum(user)) set(Slot::edge(operand, user), p.activation, "operand");
      return;
    }
    if (rounding == Rounding::kWithin || rounding == Rounding::kLarge || rounding == Rounding::kNone) {
      if (is_narrow) set(Slot::edge(operand, user), p.activation, "operand");
      return;
    }
    set(accepts(root.edge.node) ? root.edge : Slot::edge(operand, user), p.activation, "operand");
  }

  // True if integers of the first spec have at most as many bits as those of the second.
  [[nodiscard]] static bool narrower(const QSpec& spec, const ObservedSpec& than) {
    if (const auto* observed = std::get_if<ObservedSpec>(&spec))
      return bits_of(observed->dtype) <= bits_of(than.dtype);
    if (const auto* fixed = std::get_if<FixedSpec>(&spec))
      return bits_of(fixed->dtype) <= bits_of(than.dtype);
    return true;
  }
  [[nodiscard]] static int bits_of(std::string_view dtype) {
    return dtype.ends_with("32") ? 32 : dtype.ends_with("16") ? 16 : 8;
  }

  // ---- contractions ----

  void round_contraction(NodeIndex i, const Precision& p) {
    Call& c = call(i);
    const auto operands = graph_.operands(*c.main);
    std::size_t bias_at = operands.size();
    if (c.main->op == Op::kConv || c.main->op == Op::kLinear) bias_at = 2;
    if (c.main->op == Op::kAddmm || c.main->op == Op::kBaddbmm) bias_at = 0;
    std::optional<Slot> data, weight;
    std::vector<std::pair<NodeIndex, std::size_t>> found;
    for (std::size_t k = 0; k < operands.size(); ++k)
      if (k != bias_at && operands[k].valid())
        if (const NodeIndex producer = producer_among(c, operands[k]); producer.valid())
          found.emplace_back(producer, k);
    for (const auto& [producer, k] : found) {
      if (call(producer).dependence == Dependence::kNothing) continue;
      if (c.main->op == Op::kConv)
        round_data_of_conv(producer, i, p);
      else
        round_operand(producer, i, p, true);
      const Root root = root_of(producer, i);
      const Slot edge = Slot::edge(producer, i);
      data = input_.every_operator && plan_.find(edge) != nullptr ? edge
             : call(root.call).rounding == Rounding::kRounded     ? Slot::output(root.call)
             : plan_.find(root.edge) != nullptr                   ? root.edge
                                                                  : edge;
    }
    for (const auto& [producer, k] : found) {
      if (call(producer).dependence != Dependence::kNothing) continue;
      weight = Slot::edge(producer, i);
      const std::optional<std::int64_t> axis = channel_axis(*c.main, k);
      const char* rule = "weight";
      ObservedSpec spec = p.weight;
      if (p.grouped_weight && is_divided(operands[k], axis, *p.grouped_weight->group_size))
        spec = *p.grouped_weight;
      else if (p.grouped_weight && !is_one_group(operands[k], axis, *p.grouped_weight->group_size))
        rule = kUngroupedWeight;
      if (spec.scheme && spec.scheme->starts_with("per_channel")) {
        if (axis)
          spec.axis = axis;
        else
          spec.scheme = "per_tensor_symmetric", spec.observer = {};
      }
      set(*weight, spec, rule);
    }
    if (bias_at >= operands.size() || !operands[bias_at].valid()) return;
    const NodeIndex bias = producer_among(c, operands[bias_at]);
    if (!bias.valid()) return;
    if (call(bias).dependence != Dependence::kNothing) {
      if (is_data(bias))
        round_operand(bias, i, p, false);
      else
        round_table(bias, i, p);
      return;
    }
    if (!p.bias || !data || !weight || plan_.find(*data) == nullptr || has_groups(*weight)) return;
    if (graph_.type(operands[bias_at]).rank() != 1) return;
    DerivedSpec spec = *p.bias;
    spec.from = {*data, *weight};
    const auto* of_weight = std::get_if<ObservedSpec>(&plan_.find(*weight)->spec);
    if (of_weight != nullptr && of_weight->scheme && of_weight->scheme->starts_with("per_channel")) {
      spec.scheme = "per_channel_symmetric";
      spec.axis = 0;
    }
    set(Slot::edge(bias, i), spec, "bias");
  }

  // Torch fuses conv and batch norm for training only if the conv has specs for its input and its weight.
  void round_data_of_conv(NodeIndex producer, NodeIndex i, const Precision& p) {
    round_operand(producer, i, p, true);
    const Slot edge = Slot::edge(producer, i);
    if (plan_.find(edge) != nullptr) return;
    const Root root = root_of(producer, i);
    const Slot rounded = call(root.call).rounding == Rounding::kRounded ? Slot::output(root.call) : root.edge;
    if (rounded == edge || plan_.find(rounded) == nullptr) return;
    set(edge, SharedSpec{rounded}, "operand");
  }

  // The input channels of a weight with its result channels on `axis`, 0 or 1. Returns nothing for others.
  [[nodiscard]] std::optional<std::int64_t> input_channels(ValueId weight,
                                                           std::optional<std::int64_t> axis) const {
    const TensorType& type = graph_.type(weight);
    if (!axis || *axis > 1 || type.rank() < 2) return {};
    return type.shape[static_cast<std::size_t>(1 - *axis)];
  }
  // True if groups of `size` input channels divide the weight into several groups.
  [[nodiscard]] bool is_divided(ValueId weight, std::optional<std::int64_t> axis, std::int64_t size) const {
    const std::optional<std::int64_t> channels = input_channels(weight, axis);
    return channels && *channels > size && *channels % size == 0;
  }
  [[nodiscard]] bool is_one_group(ValueId weight, std::optional<std::int64_t> axis, std::int64_t size) const {
    return input_channels(weight, axis) == size;
  }
  [[nodiscard]] bool has_groups(Slot weight) const {
    const auto* entry = plan_.find(weight);
    const auto* spec = entry == nullptr ? nullptr : std::get_if<ObservedSpec>(&entry->spec);
    return spec != nullptr && spec->group_size;
  }

  // The axis of the result's channels in operand k of a contraction.
  [[nodiscard]] std::optional<std::int64_t> channel_axis(const Node& main, std::size_t k) const {
    const std::int64_t rank = graph_.type(graph_.operands(main)[k]).rank();
    if (main.op == Op::kConv) {
      const auto& attrs = Graph::attrs<ConvAttrs>(main);
      if (k != 1 || (attrs.transposed && attrs.groups != 1)) return {};
      return attrs.transposed ? 1 : 0;
    }
    if (rank != 2) return {};
    if (main.op == Op::kLinear && k == 1) return 0;
    if (main.op == Op::kMatmul && k == 1) return 1;
    if (main.op == Op::kAddmm && k == 2) return 1;
    return {};
  }

  // ---- results ----

  // Why the result is not rounded before its only user reads it; null if it is rounded.
  const char* computed_with_user(NodeIndex i) {
    const Call& c = call(i);
    if (c.behaviour == Behaviour::kWeighted || c.behaviour == Behaviour::kNormalize ||
        c.behaviour == Behaviour::kArithmetic || c.behaviour == Behaviour::kReduction) {
      const NodeIndex user = only_user(i);
      if (user.valid()) {
        const Call& u = call(user);
        if (u.behaviour == Behaviour::kNormalize && c.main->op == Op::kConv)
          return "the batch norm after it is a part of it";
        if (u.behaviour == Behaviour::kSelection && u.main != nullptr && bounds(*u.main))
          return "the activation after it bounds it";
      }
    }
    if (c.behaviour == Behaviour::kWeighted || c.behaviour == Behaviour::kNormalize) {
      const NodeIndex reader = only_reader(i);
      if (reader.valid() && (is_sum(reader) || is_exact_step(reader)))
        return "the sum that reads it is rounded";
      if (has_function_behind(i)) return "the function that reads it is rounded";
    }
    if (c.position && samplers_of(i).empty() &&
        (is_position_step(i) || c.behaviour == Behaviour::kWeighted || c.behaviour == Behaviour::kNormalize))
      return "positions are computed from it with 32 bits";
    if (is_part_of_function(i)) return "it is a part of a function of one tensor";
    if (is_exact_step(i)) return "it is exact, and its only user rounds";
    return nullptr;
  }
  [[nodiscard]] static bool bounds(const Node& node) { return node.op == Op::kRelu || node.op == Op::kClamp; }

  // The only call that reads the result and is quantized in the same way; invalid if there are others.
  NodeIndex only_user(NodeIndex i) {
    const auto& users = node(i).users;
    if (users.size() != 1 || node(users[0]).kind != CallKind::kCall || call(users[0]).within) return {};
    if (!are_alike(i, users[0])) return {};
    return users[0];
  }

  // True if all readers are functions of the same rounded tensor, so that one table computes them from it.
  bool is_part_of_function(NodeIndex i) {
    const Call& c = call(i);
    if (!c.function_of.valid() || node(i).users.empty()) return false;
    // What stays float is rounded by each of its readers, in the same way.
    const Rounding from = call(c.function_of).rounding;
    if (from != Rounding::kRounded && from != Rounding::kTransparent && from != Rounding::kFloat)
      return false;
    return std::ranges::all_of(node(i).users, [&](NodeIndex user) {
      return call(user).function_of == c.function_of && precision(user) != nullptr;
    });
  }

  // True if a contraction has no reader but a smooth function of it alone, and is not rounded before it.
  // Rounding before and after such a function makes twice the error of rounding after it. Sixteen bits before
  // it are as good as all.
  bool has_function_behind(NodeIndex i) {
    const Precision& p = *precision(i);
    if (!p.wide_functions.value_or(has_attention_ && call(i).main->op == Op::kConv)) return false;
    const NodeIndex user = only_user(i);
    return bits_of(p.activation.dtype) == 8 && user.valid() && call(user).behaviour == Behaviour::kFunction &&
           call(user).function_of == i && call(user).nodes.size() == 1 && accepts(user);
  }
  bool is_attention(NodeIndex i) {
    const Call& c = call(i);
    if (c.behaviour == Behaviour::kAttention) return true;
    if (c.main == nullptr || c.main->op != Op::kSoftmax) return false;
    std::vector<NodeIndex> readers;
    collect_readers(i, readers);
    return std::ranges::any_of(readers,
                               [&](NodeIndex r) { return call(r).behaviour == Behaviour::kWeighted; });
  }

  // A change of sign or a product with a table, behind which a sum rounds: x * cos + rotated(x) * sin.
  bool is_exact_step(NodeIndex i) {
    const Call& c = call(i);
    const bool is_product =
        c.main != nullptr && c.main->op == Op::kMul && c.nodes.size() == 1 && has_table(c);
    if (!is_product) return false;
    const NodeIndex user = only_reader(i);
    if (!user.valid() || call(user).within) return false;
    const Call& u = call(user);
    return u.main != nullptr && (u.main->op == Op::kAdd || u.main->op == Op::kSub) && u.nodes.size() == 1;
  }
  bool has_table(const Call& c) {
    return std::ranges::any_of(c.operands, [&](NodeIndex p) {
      return call(p).dependence != Dependence::kFloats && is_float_value(p);
    });
  }

  void set_output(NodeIndex i, const Precision& p) {
    // A function becomes a table, whose results have 16 bits only for targets with that extension.
    const Behaviour behaviour = call(i).behaviour;
    const bool is_table = behaviour == Behaviour::kFunction || behaviour == Behaviour::kUnit ||
                          behaviour == Behaviour::kSymmetricUnit || call(i).function_of.valid();
    if (call(i).position && !is_table)
      if (const std::vector<NodeIndex> samplers = samplers_of(i); !samplers.empty())
        return set(Slot::output(i), grid_spec(samplers, p), "positions");
    if (p.fixed_ranges)
      if (const std::optional<FixedSpec> fixed = range_of(behaviour, p.activation))
        return set(Slot::output(i), *fixed, "known range");
    set(Slot::output(i), p.activation, reader_is_function(i) ? kBeforeFunction : "activation");
  }

  // True if only an elementwise function reads the result: the error behind it is what counts.
  bool reader_is_function(NodeIndex i) {
    const NodeIndex user = only_user(i);
    return user.valid() && call(user).function_of == i && call(user).nodes.size() == 1 &&
           call(user).operands.size() == 1;
  }

  [[nodiscard]] static std::optional<FixedSpec> range_of(Behaviour behaviour,
                                                         const ObservedSpec& activation) {
    const bool is_unit = behaviour == Behaviour::kUnit;
    if (!is_unit && behaviour != Behaviour::kSymmetricUnit) return {};
    FixedSpec spec{.dtype = activation.dtype, .scheme = activation.scheme};
    spec.qmin = activation.qmin;
    spec.qmax = activation.qmax;
    if (activation.dtype == "i16")
      spec.scale = 1.0 / 32767;
    else if (activation.dtype == "i8")
      spec.scale = is_unit ? 1.0 / 256 : 1.0 / 128, spec.zero_point = is_unit ? -128 : 0;
    else if (activation.dtype == "u8")
      spec.scale = is_unit ? 1.0 / 256 : 1.0 / 128, spec.zero_point = is_unit ? 0 : 128;
    else
      return {};
    return spec;
  }

  void set(Slot slot, QSpec spec, const char* rule) {
    if (plan_.find(slot) != nullptr) return;
    const auto [entry, added] = rules_.try_emplace(rule, RuleId());
    if (added) entry->second = plan_.add_rule(rule);
    plan_.set(slot, std::move(spec), entry->second);
  }

  // ---- joins ----

  // Operands of a concatenation that this plan rounds share one scale, and the result has their integers.
  bool joins(NodeIndex i, const Precision& p) {
    Call& c = call(i);
    std::vector<Slot> slots;
    for (const NodeIndex operand : c.operands) {
      if (!is_data(operand)) {
        if (is_float_value(operand)) return false;
        continue;
      }
      const Root root = root_of(operand, i);
      const Rounding rounding = call(root.call).rounding;
      if (rounding == Rounding::kRounded && !are_alike(root.call, i)) return false;
      if (rounding == Rounding::kRounded)
        slots.push_back(Slot::output(root.call));
      else if (rounding == Rounding::kFloat && accepts(root.edge.node))
        slots.push_back(root.edge);
      else
        return false;
      if (const PlanEntry* entry = plan_.find(slots.back());
          entry != nullptr && !std::holds_alternative<ObservedSpec>(entry->spec))
        return false;
    }
    if (slots.empty()) return false;
    for (const Slot slot : slots) {
      set(slot, p.activation, "operand");
      unite(slots[0], slot);
    }
    c.rounding = Rounding::kTransparent;
    for (const NodeIndex operand : c.operands)
      if (is_data(operand)) {
        c.base = operand;
        break;
      }
    return true;
  }

  // ---- every operator on its own ----

  void decide_alone(NodeIndex i) {
    Call& c = call(i);
    const CallNode& n = node(i);
    if (n.kind == CallKind::kOutput || c.dependence == Dependence::kNothing) return;
    if (plan_.has_annotation(i) && plan_.annotated(i)) {
      c.rounding = plan_.output(i) != nullptr ? Rounding::kForeign : Rounding::kFloat;
      return;
    }
    if (n.kind != CallKind::kCall) {
      c.rounding = c.dependence == Dependence::kFloats ? Rounding::kFloat : Rounding::kNone;
      return;
    }
    std::vector<NodeIndex> floats;
    for (const NodeIndex operand : c.operands)
      if (is_float_value(operand) || is_data(operand)) floats.push_back(operand);
    const bool has_float_result = is_float_value(i) || (!value(i).valid() && !floats.empty());
    if (floats.empty() && !has_float_result) return;
    const Precision* p = precision(i);
    if (p == nullptr) return leave(i, Rounding::kFloat, "it is not selected");
    if (c.behaviour == Behaviour::kFloatOnly)
      return leave(i, Rounding::kFloat, "the operator has no integer form");
    if (!accepts(i))
      return leave(i, Rounding::kFloat, "torch refuses annotations of calls with tensors by keyword");
    if (floats.empty()) return convert_integers(i);
    const bool is_norm_of_conv = c.behaviour == Behaviour::kNormalize;
    if (is_norm_of_conv && call(c.operands[0]).rounding != Rounding::kWithin)
      return leave(i, Rounding::kFloat, "a batch norm is computed with the convolution before it only");
    plan_.set_annotated(i, true);
    const bool is_predicate = c.behaviour == Behaviour::kPredicate;
    if (is_predicate || shares_scale(c)) {
      share_scale(i, floats, *p, has_float_result && !is_predicate);
      return;
    }
    for (const NodeIndex operand : floats)
      if (!is_norm_of_conv && (!has_weight(c) || call(operand).dependence != Dependence::kNothing))
        read_operand(operand, i, *p);
    if (has_weight(c)) round_contraction(i, *p);
    if (!has_float_result) return;
    if (const char* reason = computed_with_activation(i, *p)) return leave(i, Rounding::kWithin, reason);
    c.rounding = Rounding::kRounded;
    set_output(i, *p);
  }

  // Integers become floats: the same integers, with scale 1.
  void convert_integers(NodeIndex i) {
    Call& c = call(i);
    const DType from = c.operands.empty() || !value(c.operands[0]).valid()
                           ? DType::kI64
                           : graph_.type(value(c.operands[0])).dtype;
    FixedSpec spec{.dtype = "", .scale = 1.0, .scheme = "per_tensor_symmetric"};
    if (from == DType::kI8)
      spec.dtype = "i8", spec.qmin = -128, spec.qmax = 127;
    else if (from == DType::kI16)
      spec.dtype = "i16", spec.qmin = -32768, spec.qmax = 32767;
    else if (from == DType::kI32)
      spec.dtype = "i32", spec.qmin = -(std::int64_t{1} << 31), spec.qmax = (std::int64_t{1} << 31) - 1;
    if (c.main == nullptr || c.main->op != Op::kCast || spec.dtype.empty())
      return leave(i, Rounding::kFloat, "it depends on integers only: positions or a mask");
    c.rounding = Rounding::kRounded;
    set(Slot::output(i), spec, "the same integers");
  }

  // Weights per channel and derived biases. Other products have two operands of activations.
  [[nodiscard]] static bool has_weight(const Call& c) {
    return c.main != nullptr && (c.main->op == Op::kConv || c.main->op == Op::kLinear);
  }

  // True if the result has the scale of the operands.
  [[nodiscard]] static bool shares_scale(const Call& c) {
    switch (c.behaviour) {
      case Behaviour::kMovement:
      case Behaviour::kSelection:
      case Behaviour::kJoin:
        return true;
      default:
        break;
    }
    if (c.main == nullptr) return false;
    switch (c.main->op) {
      case Op::kNeg:
      case Op::kWhere:
      case Op::kMean:
      case Op::kAvgPool:
      case Op::kAdaptiveAvgPool:
      case Op::kResize:
      case Op::kEmbedding:
      case Op::kIndexPut:
      case Op::kScatter:
      case Op::kSliceScatter:
        return true;
      default:
        return false;
    }
  }

  // Operands, and the result if there is one of floats, have one scale.
  void share_scale(NodeIndex i, const std::vector<NodeIndex>& floats, const Precision& p, bool result) {
    Call& c = call(i);
    if (floats.size() == 1 && call(floats[0]).rounding == Rounding::kWithin) {
      c.rounding = Rounding::kRounded;
      return set_output(i, p);
    }
    std::vector<Slot> slots;
    for (const NodeIndex operand : floats) {
      const Slot slot = scale_of(operand, i, p);
      const PlanEntry* entry = plan_.find(slot);
      const bool is_shareable = entry == nullptr || std::holds_alternative<ObservedSpec>(entry->spec);
      slots.push_back(is_shareable || floats.size() == 1 ? slot : Slot::edge(operand, i));
      set(slots.back(), p.activation, "operand");
    }
    if (slots.empty()) return;
    for (const Slot slot : slots)
      if (slot != slots[0]) unite(slots[0], slot);
    if (!result) return;
    c.rounding = Rounding::kRounded;
    set(Slot::output(i), SharedSpec{find(slots[0])}, "one scale with the operand");
  }

  // The slot whose scale an operand has; its own edge if it has none, or integers of other bits.
  Slot scale_of(NodeIndex operand, NodeIndex i, const Precision& p) {
    const Slot edge = Slot::edge(operand, i);
    if (call(operand).rounding != Rounding::kRounded && call(operand).rounding != Rounding::kForeign)
      return edge;
    Slot slot = Slot::output(operand);
    const PlanEntry* entry = plan_.find(slot);
    for (; entry != nullptr && std::holds_alternative<SharedSpec>(entry->spec); entry = plan_.find(slot))
      slot = std::get<SharedSpec>(entry->spec).with;
    return entry != nullptr && dtype_of(entry->spec) == p.activation.dtype ? slot : edge;
  }
  [[nodiscard]] static std::string_view dtype_of(const QSpec& spec) {
    if (const auto* observed = std::get_if<ObservedSpec>(&spec)) return observed->dtype;
    if (const auto* fixed = std::get_if<FixedSpec>(&spec)) return fixed->dtype;
    return {};
  }

  void read_operand(NodeIndex operand, NodeIndex i, const Precision& p) {
    if (call(operand).rounding == Rounding::kWithin) return;
    if (const Slot slot = scale_of(operand, i, p); slot.is_edge()) set(slot, p.activation, "operand");
  }

  // Why the result of a convolution or linear layer is not rounded before a batch norm or activation.
  const char* computed_with_activation(NodeIndex i, const Precision& p) {
    const Call& c = call(i);
    const NodeIndex user = only_user(i);
    if (!user.valid() || (!has_weight(c) && c.behaviour != Behaviour::kNormalize)) return nullptr;
    const Call& u = call(user);
    if (u.behaviour == Behaviour::kNormalize && c.main->op == Op::kConv)
      return "the batch norm after it is a part of it";
    // With a zero point, the integers of the result begin at 0, so that saturation computes the activation.
    const bool is_affine = p.activation.scheme && *p.activation.scheme == "per_tensor_affine";
    const std::string_view target = node(user).target;
    const bool begins_at_zero =
        target.starts_with("aten.relu") ||
        (target.starts_with("aten.hardtanh") && u.main != nullptr && u.main->op == Op::kClamp &&
         Graph::attrs<ClampAttrs>(*u.main).min && scalar_of(*Graph::attrs<ClampAttrs>(*u.main).min) == 0);
    return is_affine && begins_at_zero ? "the activation after it bounds it" : nullptr;
  }

  Slot find(Slot slot) {
    for (auto entry = group_of_.find(slot); entry != group_of_.end() && entry->second != slot;
         entry = group_of_.find(slot))
      slot = entry->second;
    return slot;
  }
  // The earlier slot becomes the root: torch makes the observer of a group at its first slot.
  void unite(Slot a, Slot b) {
    a = find(a), b = find(b);
    group_of_.try_emplace(a, a);
    group_of_.try_emplace(b, b);
    if (a == b) return;
    if (before(b, a)) std::swap(a, b);
    group_of_[b] = a;
  }
  [[nodiscard]] bool before(Slot a, Slot b) const {
    if (a.node != b.node) return a.node < b.node;
    return a.is_edge() && (!b.is_edge() || a.producer < b.producer);
  }

  void emit_groups() {
    std::vector<Slot> members;
    for (const auto& [slot, parent] : group_of_) members.push_back(slot);
    std::ranges::sort(members, [this](Slot a, Slot b) { return before(a, b); });
    if (members.empty()) return;
    const RuleId rule = plan_.add_rule("one scale for the operands of a concatenation");
    for (const Slot slot : members)
      if (const Slot root = find(slot); root != slot) plan_.set(slot, SharedSpec{root}, rule);
  }

  static constexpr std::uint32_t kNoCall = 0xffffffffu;

  const PlannerInput& input_;
  const Graph& graph_;
  AnnotationPlan& plan_;
  std::vector<Call> calls_;
  std::vector<std::uint32_t> call_of_;
  std::unordered_map<std::uint32_t, bool> large_constants_;
  std::unordered_map<Slot, Slot> group_of_;
  std::map<std::string, RuleId> rules_;
  std::vector<LeftFloat> left_;
  bool has_attention_ = false;
};

}  // namespace

std::vector<LeftFloat> plan_specs(const PlannerInput& input, AnnotationPlan& plan) {
  return Planner(input, plan).run();
}

}  // namespace tosaic::quant
