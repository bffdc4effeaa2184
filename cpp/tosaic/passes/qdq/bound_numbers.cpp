// bound-numbers: replaces numbers far beyond those that matter by the nearest number that matters.
//
//   %x = dequantize(..)                          %x = dequantize(..)
//   %m = where(%hidden, -1e9, %x)        ->      %m = where(%hidden, -12.9, %x)
//   %a = amax(%m)                                %a = amax(%m)
//   %q = quantize(%a) {scale=0.1 ..}             %q = quantize(%a) {scale=0.1 ..}
//
// Integer arithmetic computes with operands in one unit, in which the largest number has 29 bits. Next to
// -1e9, few bits are left for %x. In floats the change has no effect: numbers below -12.9 saturate in the
// reader, here the quantize node (analysis/ranges, Relevance).
//
// A constant operand of floats, or a dequantized constant, is replaced by a constant with other elements. A
// pad inserts another number, and a clamp that replaces minus infinity gets another bound. A computed operand
// gets a clamp, if its range is known. Only numbers more than 2^8 times as large as the relevant numbers are
// replaced, since smaller numbers cost too few bits to matter, and plus infinity, which has no integer form.
// Minus infinity stays: integer arithmetic has a form for it (lower_to_integer/scaled_integer.h). An addend
// of scores stays too if f32 rounds the sum to the addend: in a row that is hidden as a whole, all shares are
// then equal. bound-masks has the form for it.
//
// A number that hides elements from an argsort or argmax becomes minus infinity, which has an integer form:
//
//   %m = where(%hidden, -1e9, %x)        ->      %m = where(%hidden, -inf, %x)
//   %i = argsort(%m)                             %i = argsort(%m)
//
// A negation moves to the operands of a `where` if that makes minus infinity of plus infinity, as in a
// softmax of distances:
//
//   %m = where(%hidden, inf, %x)                 %y = neg(%x)
//   %n = neg(%m)                         ->      %n = where(%hidden, -inf, %y)
//
// -1e9 also becomes minus infinity in a sum, if f32 rounds -1e9 + x to -1e9 for every x: equal elements stay
// equal, and elements below all others stay below them.

#include <algorithm>
#include <cmath>

#include "tosaic/ir/control_flow.h"
#include "tosaic/ir/op_table.h"
#include "tosaic/ir/quantized_value.h"
#include "tosaic/ir/rewriter.h"
#include "tosaic/ir/softmax.h"
#include "tosaic/passes/match.h"
#include "tosaic/passes/pass.h"
#include "tosaic/passes/qdq/analyses.h"

namespace tosaic::passes {
namespace {

constexpr double kFar = 0x1p8;

using Numbers = Interval<double>;

// The largest magnitude of the finite bounds.
double size_of(const Numbers& bounds) {
  double size = 0;
  for (const double bound : {bounds.low, bounds.high})
    if (std::isfinite(bound)) size = std::max(size, std::fabs(bound));
  return size;
}

// If nothing depends on an operand, none of its numbers matters: 0 is as good as any.
Numbers or_zero(const Numbers& bounds) { return bounds.low > bounds.high ? Numbers::only(0) : bounds; }

bool is_far(double x, const Numbers& bounds) {
  return std::isfinite(x) && !bounds.contains(x) && std::fabs(x) > kFar * size_of(bounds);
}

// True if a constant number x is replaced by the nearest relevant number. Readers of whole rows take plus
// infinity as it is: a softmax makes NaN of it.
bool is_replaced(double x, const analysis::RelevantNumbers& relevant) {
  const Numbers bounds = or_zero(relevant.bounds);
  if (std::isinf(x) && x > 0) return std::isfinite(bounds.high) && !relevant.by_row;
  return is_far(x, bounds);
}

// Operators whose operands share a unit, or whose result may need too many bits.
constexpr OpTable<bool> kSharesUnit = {
    {Op::kWhere, true},   {Op::kScatter, true}, {Op::kIndexPut, true},     {Op::kCat, true},
    {Op::kStack, true},   {Op::kAdd, true},     {Op::kSub, true},          {Op::kMul, true},
    {Op::kMaximum, true}, {Op::kMinimum, true}, {Op::kEq, true},           {Op::kNe, true},
    {Op::kLt, true},      {Op::kLe, true},      {Op::kGt, true},           {Op::kGe, true},
    {Op::kExp, true},     {Op::kExpm1, true},   {Op::kSliceScatter, true}, {Op::kAddmm, true},
    {Op::kBaddbmm, true}, {Op::kConv, true},    {Op::kLinear, true},       {Op::kVar, true},
    {Op::kStd, true}};
constexpr OpTable<bool> kAddsBias = {
    {Op::kAddmm, true}, {Op::kBaddbmm, true}, {Op::kConv, true}, {Op::kLinear, true}};
// Operators whose result consists of elements of their operands.
constexpr OpTable<bool> kChooses = {{Op::kWhere, true},   {Op::kCat, true},     {Op::kStack, true},
                                    {Op::kScatter, true}, {Op::kMinimum, true}, {Op::kMaximum, true}};
constexpr int kDeepest = 8;  // operators that hides_by_infinity() looks through
// Operators that read only the order of their operand's elements, and that take minus infinity as integers.
constexpr OpTable<bool> kReadsOrder = {{Op::kArgsort, true}, {Op::kArgmax, true}, {Op::kCumargmax, true}};
constexpr double kHides = 0x1p12;  // times the other numbers; below that, the others have enough bits
// Operators that put elements of several operands into one result.
constexpr OpTable<bool> kPlaces = {{Op::kWhere, true},   {Op::kCat, true},      {Op::kStack, true},
                                   {Op::kScatter, true}, {Op::kIndexPut, true}, {Op::kSliceScatter, true}};
constexpr Numbers kNone{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
constexpr OpTable<bool> kArithmetic = {{Op::kAdd, true}, {Op::kSub, true}, {Op::kMul, true}};

// False for comparisons, whose computed operands lower-to-integer bounds itself, and for operators with a
// bias: no known network computes a bias that is far.
bool takes_clamp(Op op) { return !info(op).has(kComparison) && !kAddsBias.contains(op); }

// First the constants: after bounded constants, few computed operands are still far.
enum class Operands { kConstant, kComputed };

// Duplicates a node for a reader to which fewer numbers matter than to the other readers, so that the numbers
// can be bounded for that reader:
//
//   %m = where(%hidden, 1e9, %x)            %m = where(%hidden, 1e9, %x)
//   %a = mean(%m)                   ->      %a = mean(%m)
//   %p = softmax(%m)                        %n = where(%hidden, 1e9, %x)
//                                           %p = softmax(%n)
class Copies {
 public:
  Copies(const Graph& graph, Analyses& analyses) : rewriter_(graph), graph_(graph), analyses_(analyses) {}

  std::optional<Graph> run() {
    for (const Node& node : graph_.nodes()) visit(node);
    return std::move(rewriter_).finish();
  }

 private:
  void visit(const Node& node) {
    const std::span<const ValueId> operands = graph_.operands(node);
    std::vector<std::size_t> own;
    if (node.regions.empty() && !is_foreign(node.op))
      for (std::size_t i = 0; i < operands.size(); ++i)
        if (operands[i].valid() && needs_own(node, i)) own.push_back(i);
    if (own.empty()) return rewriter_.copy(node);
    static_cast<void>(rewriter_.begin_output(node));
    std::vector<ValueId> mapped = rewriter_.map_operands(node);
    for (const std::size_t i : own) {
      const Node& producer = *graph_.producer(operands[i]);
      mapped[i] = rewriter_.emit(node, producer.op, *producer.attrs, rewriter_.map_operands(producer));
    }
    rewriter_.replace(node, rewriter_.emit(node, node.op, *node.attrs, mapped));
  }

  [[nodiscard]] bool needs_own(const Node& node, std::size_t i) const {
    const ValueId value = graph_.operands(node)[i];
    const Node* const producer = graph_.producer(value);
    const bool places = producer != nullptr && (kPlaces.contains(producer->op) || producer->op == Op::kPad);
    const bool is_shared = graph_.users(value).size() + (graph_.is_output(value) ? 1 : 0) > 1;
    if (!places || !is_shared || node.result_count != 1 || graph_.type(value).dtype != DType::kF32)
      return false;
    const std::vector<double> numbers = numbers_of(*producer);
    if (numbers.empty()) return false;
    const analysis::Relevance& relevance = analyses_.relevance();
    const analysis::RelevantNumbers all = relevance.of_value(value), own = relevance.of(node, i);
    if (all.bounds == or_zero(own.bounds)) return false;
    return std::ranges::any_of(numbers, [&](double x) {
      return is_replaced(x, own) && (!is_replaced(x, all) || all.bounds == Numbers::all());
    });
  }

  // The constant numbers that a node puts into its result.
  [[nodiscard]] std::vector<double> numbers_of(const Node& node) const {
    std::vector<double> out;
    if (node.op == Op::kPad && Graph::attrs<PadAttrs>(node).mode == PadMode::kConstant)
      out.push_back(as_double(Graph::attrs<PadAttrs>(node).value));
    for (const ValueId id : graph_.operands(node)) {
      const ConstantRef constant = id.valid() ? graph_.value(id).constant : nullptr;
      if (!constant || !constant->storage.bound() || constant->dtype != DType::kF32) continue;
      const Elements elements(*constant);
      for (std::size_t k = 0; k < elements.size(); ++k) out.push_back(elements.as_double(k));
    }
    return out;
  }

  Rewriter rewriter_;
  const Graph& graph_;
  Analyses& analyses_;
};

class Bounds {
 public:
  Bounds(const Graph& graph, Operands which, Analyses& analyses)
      : rewriter_(graph),
        graph_(graph),
        which_(which),
        ranges_(analyses.ranges()),
        relevance_(analyses.relevance()) {}

  std::optional<Graph> run() {
    for (const Node& node : graph_.nodes()) visit(node);
    return std::move(rewriter_).finish();
  }

 private:
  // True for an exponential that a clamp reads. With any other reader, an exponential becomes one table,
  // whose results saturate anyway.
  [[nodiscard]] bool needs_bound(const Node& node) const {
    if (node.op != Op::kExp && node.op != Op::kExpm1) return false;
    const std::span<const NodeId> users = graph_.users(graph_.result(node));
    return std::ranges::any_of(users, [&](NodeId user) { return graph_.node(user).op == Op::kClamp; });
  }

  void visit(const Node& node) {
    if (!node.regions.empty() || is_foreign(node.op)) return rewriter_.copy(node);
    if (const std::optional<double> share = only_share(node)) return become(node, *share);
    if (const Node* const selection = selects_plus_infinity(node)) return become_selection(node, *selection);
    if (const std::optional<double> most = largest_deviation(node)) return become_variance(node, *most);
    const std::span<const ValueId> operands = graph_.operands(node);
    std::vector<std::pair<std::size_t, ConstantRef>> constants;
    std::vector<std::pair<std::size_t, Numbers>> clamps;
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if (!operands[i].valid() || !kSharesUnit.contains(node.op) ||
          graph_.type(operands[i]).dtype != DType::kF32)
        continue;
      const analysis::RelevantNumbers relevant = relevance_.of(node, i);
      const Numbers bounds = or_zero(relevant.bounds);
      const Value* const integers = dequantized(operands[i]);
      const bool is_constant = integers != nullptr || graph_.value(operands[i]).kind == ValueKind::kConstant;
      if (is_constant != (which_ == Operands::kConstant)) continue;
      if (!is_constant && !takes_clamp(node.op)) continue;
      if (is_constant) {
        const ConstantRef made = in_place_of(node, i, integers, relevant);
        if (made) constants.emplace_back(i, made);
      } else if (bounds == Numbers::all()) {
        continue;
      } else if (const Numbers own = ranges_.of(operands[i]).bounds;
                 is_far(own.low, bounds) || is_far(own.high, bounds) ||
                 (needs_bound(node) && own.high > bounds.high + std::log(kFar))) {
        clamps.emplace_back(i, bounds);
      }
    }
    Attrs attrs = *node.attrs;
    const bool changes =
        which_ == Operands::kConstant && ((node.op == Op::kPad && bounds_pad(node, attrs)) ||
                                          (node.op == Op::kClamp && bounds_clamp(node, attrs)));
    if (constants.empty() && clamps.empty() && !changes) return rewriter_.copy(node);
    static_cast<void>(rewriter_.begin_output(node));
    std::vector<ValueId> mapped = rewriter_.map_operands(node);
    for (const auto& [i, constant] : constants) mapped[i] = rewriter_.constant(node, constant);
    for (const auto& [i, bounds] : clamps)
      mapped[i] = rewriter_.emit(node, Op::kClamp, clamp_to(bounds), {mapped[i]});
    rewriter_.replace(node, rewriter_.emit(node, node.op, std::move(attrs), mapped));
  }

  // The result of a softmax over one finite number: 1, or 0 for log_softmax. Returns nothing for other nodes.
  [[nodiscard]] std::optional<double> only_share(const Node& node) const {
    if (!is_softmax(node.op) || row_of_softmax(graph_, node) != 1) return {};
    const ValueId x = graph_.operands(node)[0];
    const Numbers range = ranges_.of(x).bounds;
    const bool is_finite = std::isfinite(range.low) && std::isfinite(range.high);
    if (!is_finite || graph_.type(x).dtype != graph_.type(graph_.result(node)).dtype) return {};
    return node.op == Op::kLogSoftmax ? 0.0 : 1.0;
  }

  // Replaces the node by a clamp that makes `number` of every number, and preserves NaN.
  void become(const Node& node, double number) {
    static_cast<void>(rewriter_.begin_output(node));
    const std::vector<ValueId> x{rewriter_.map_operands(node)[0]};
    rewriter_.replace(node, rewriter_.emit(node, Op::kClamp, clamp_to(Numbers::only(number)), x));
  }

  // The `where` that a negation reads, if it selects plus infinity, which is not replaced; null otherwise.
  [[nodiscard]] const Node* selects_plus_infinity(const Node& node) const {
    if (node.op != Op::kNeg || which_ != Operands::kConstant) return nullptr;
    const Node* const selection = produced_by(graph_, graph_.operands(node)[0], Op::kWhere);
    if (selection == nullptr) return nullptr;
    for (const std::size_t i : {1, 2}) {
      const Constant* const constant = constant_of(graph_, graph_.operands(*selection)[i]);
      if (constant == nullptr || constant->dtype != DType::kF32 || !constant->storage.bound()) continue;
      const std::vector<double> numbers = elements_of(*constant);
      const double high = numbers.empty() ? 0 : *std::ranges::max_element(numbers);
      if (std::isinf(high) && high > 0 && !is_replaced(high, relevance_.of(*selection, i))) return selection;
    }
    return nullptr;
  }

  // Replaces the negation of a `where` by a `where` of negated operands.
  void become_selection(const Node& node, const Node& selection) {
    static_cast<void>(rewriter_.begin_output(node));
    std::vector<ValueId> operands = rewriter_.map_operands(selection);
    for (const std::size_t i : {1, 2}) {
      if (const Constant* const constant = constant_of(graph_, graph_.operands(selection)[i])) {
        std::vector<double> numbers = elements_of(*constant);
        for (double& x : numbers) x = -x;
        operands[i] = rewriter_.constant(
            node, make_constant(constant->name, constant->dtype, constant->shape, numbers));
      } else {
        operands[i] = rewriter_.emit(node, Op::kNeg, NoAttrs{}, {operands[i]});
      }
    }
    rewriter_.replace(node, rewriter_.emit(node, Op::kWhere, NoAttrs{}, operands));
  }

  // For a variance or standard deviation that saturates far below the largest result possible for x: the
  // deviation from the mean at which a single element makes the result saturate. Otherwise nothing.
  [[nodiscard]] std::optional<double> largest_deviation(const Node& node) const {
    const bool is_root = node.op == Op::kStd;
    if ((node.op != Op::kVar && !is_root) || which_ == Operands::kConstant) return {};
    constexpr double kFewTimes = 4, kFinest = 0x1p14;  // squares have 30 bits, of which a sum takes two
    const analysis::RelevantNumbers results = relevance_.of_results(node);
    const double wanted = results.bounds.high, freedom = freedom_of(node);
    const double high = is_root ? wanted * wanted : wanted;
    const double size = size_of(ranges_.of(graph_.operands(node)[0]).bounds);
    if (!std::isfinite(high) || !(wanted > 0) || !(freedom > 0) || !(size > 0)) return {};
    const double most = std::sqrt(high * freedom) * (1 + 0x1p-10);
    const double finest = is_root ? results.finest : std::sqrt(results.finest);
    const bool is_coarse = size > kFewTimes * most && size > kFinest * finest;
    return size > kFar * most || is_coarse ? std::optional(most) : std::nullopt;
  }

  [[nodiscard]] double freedom_of(const Node& node) const {
    const auto& attrs = Graph::attrs<VarAttrs>(node);
    const auto results = static_cast<double>(num_elements(graph_.type(graph_.result(node)).shape));
    const auto numbers = static_cast<double>(num_elements(graph_.type(graph_.operands(node)[0]).shape));
    return numbers / std::max(results, 1.0) - attrs.correction;
  }

  void become_variance(const Node& node, double most) {
    static_cast<void>(rewriter_.begin_output(node));
    const auto& attrs = Graph::attrs<VarAttrs>(node);
    const ValueId x = rewriter_.map_operands(node)[0];
    const ValueId mean =
        rewriter_.emit(node, Op::kMean, ReduceAttrs{.axes = attrs.axes, .keepdim = true, .dtype = {}}, {x});
    const ValueId deviation = rewriter_.emit(node, Op::kSub, default_attrs(Op::kSub), {x, mean});
    const ValueId within = rewriter_.emit(node, Op::kClamp, clamp_to({-most, most}), {deviation});
    const ValueId square = rewriter_.emit(node, Op::kMul, default_attrs(Op::kMul), {within, within});
    const ValueId sum = rewriter_.emit(
        node, Op::kSum, ReduceAttrs{.axes = attrs.axes, .keepdim = attrs.keepdim, .dtype = {}}, {square});
    const std::vector<double> factor{1 / freedom_of(node)};
    const ValueId by = rewriter_.constant(node, make_constant("", DType::kF32, Shape{}, factor));
    const ValueId made = rewriter_.emit(node, Op::kMul, default_attrs(Op::kMul), {sum, by});
    const bool is_root = node.op == Op::kStd;
    rewriter_.replace(node, is_root ? rewriter_.emit(node, Op::kSqrt, NoAttrs{}, {made}) : made);
  }

  static ClampAttrs clamp_to(const Numbers& bounds) {
    ClampAttrs attrs;
    if (std::isfinite(bounds.low)) attrs.min = bounds.low;
    if (std::isfinite(bounds.high)) attrs.max = bounds.high;
    return attrs;
  }

  // The integer constant from which a dequantize node makes the value; null for other values.
  [[nodiscard]] const Value* dequantized(ValueId id) const {
    const Node* producer = graph_.producer(id);
    if (producer == nullptr || producer->op != Op::kDequantize) return nullptr;
    const Value& integers = graph_.value(graph_.operands(*producer)[0]);
    return integers.constant && integers.constant->storage.bound() ? &integers : nullptr;
  }

  // A constant of floats with each far number replaced by the nearest relevant one; null if none is far.
  static ConstantRef bounded_constant(const Value& value, const analysis::RelevantNumbers& relevant) {
    if (!value.constant || !value.constant->storage.bound()) return nullptr;
    const Constant& constant = *value.constant;
    return bounded(constant, elements_of(constant), relevant);
  }

  static std::vector<double> elements_of(const Constant& constant) {
    const Elements elements(constant);
    std::vector<double> out(elements.size());
    for (std::size_t k = 0; k < out.size(); ++k) out[k] = elements.as_double(k);
    return out;
  }

  // The same for the floats that a dequantize node makes of a constant of integers. The new constant has
  // floats, so that a bias of 32 bits is still a constant operand of its contraction.
  [[nodiscard]] ConstantRef bounded_dequantized(const Value& integers, ValueId id,
                                                const analysis::RelevantNumbers& relevant) const {
    const auto& attrs = Graph::attrs<DequantizeAttrs>(*graph_.producer(id));
    const Constant& constant = *integers.constant;
    const Elements elements(constant);
    const ScaleGrid grid(constant.shape, attrs.axis, attrs.groups);
    std::vector<double> out(elements.size());
    for (std::size_t k = 0; k < out.size(); ++k) {
      const std::size_t c = grid.of(static_cast<std::int64_t>(k));
      out[k] = dequantize_value(elements.as_int(k), attrs.scales[c], attrs.zero_points[c]);
    }
    return bounded(constant, std::move(out), relevant);
  }

  static ConstantRef bounded(const Constant& constant, std::vector<double> numbers,
                             const analysis::RelevantNumbers& relevant) {
    const Numbers bounds = or_zero(relevant.bounds);
    bool changed = false;
    for (double& x : numbers) {
      if (!is_replaced(x, relevant)) continue;
      x = std::clamp(x, bounds.low, bounds.high);
      changed = true;
    }
    return changed ? make_constant(constant.name, DType::kF32, constant.shape, numbers) : nullptr;
  }

  bool bounds_pad(const Node& node, Attrs& attrs) const {
    PadAttrs& pad = *get_if<PadAttrs>(&attrs);
    if (pad.mode != PadMode::kConstant || graph_.type(graph_.operands(node)[0]).dtype != DType::kF32)
      return false;
    const analysis::RelevantNumbers relevant = relevance_.of(node, 0);
    const Numbers bounds = or_zero(relevant.bounds);
    const double value = as_double(pad.value);
    if (!is_replaced(value, relevant)) return false;
    pad.value = std::clamp(value, bounds.low, bounds.high);
    return true;
  }

  // Raises a far lower bound, as in clamp(masked_fill(x, -inf), -1e30), to the least relevant number.
  bool bounds_clamp(const Node& node, Attrs& attrs) const {
    ClampAttrs& clamp = *get_if<ClampAttrs>(&attrs);
    if (!clamp.min || graph_.type(graph_.operands(node)[0]).dtype != DType::kF32) return false;
    const analysis::RelevantNumbers relevant = relevance_.of_results(node);
    const Numbers& bounds = relevant.bounds;
    const double least = as_double(*clamp.min);
    if (bounds.low > bounds.high || !is_far(least, bounds) || !(least < bounds.low)) return false;
    if (relevant.by_row && !hides_by_infinity(graph_.operands(node)[0], bounds.low)) return false;
    clamp.min = bounds.low;
    return true;
  }

  // ---- numbers that hide elements from argsort and argmax ----

  // The number that hides elements of one value, and the bounds of all other numbers of the value.
  struct Hidden {
    double number;
    Numbers others;
    [[nodiscard]] bool is_far() const { return number < others.low && -number > kHides * size_of(others); }
  };

  // Constant operand i with its far numbers replaced by minus infinity or bounds; null if it is unchanged.
  [[nodiscard]] ConstantRef in_place_of(const Node& node, std::size_t i, const Value* integers,
                                        const analysis::RelevantNumbers& relevant) const {
    const ValueId id = graph_.operands(node)[i];
    const Numbers bounds = or_zero(relevant.bounds);
    ConstantRef bounded;
    if (bounds != Numbers::all() && !(relevant.by_row && kArithmetic.contains(node.op)))
      bounded = integers != nullptr ? bounded_dequantized(*integers, id, relevant)
                                    : bounded_constant(graph_.value(id), relevant);
    if (integers != nullptr) return bounded;
    const ConstantRef hiding = hidden_by_infinity(node, i, bounded == nullptr);
    return hiding ? hiding : bounded;
  }

  // Constant operand i with its least number replaced by minus infinity, if that changes no result; otherwise
  // null. `may_saturate`: readers may also be quantize nodes in which the number saturates. It is false if
  // such numbers have been bounded already.
  [[nodiscard]] ConstantRef hidden_by_infinity(const Node& node, std::size_t i, bool may_saturate) const {
    const Constant& constant = *graph_.value(graph_.operands(node)[i]).constant;
    const std::span<const ValueId> operands = graph_.operands(node);
    const bool is_beside_data = std::ranges::any_of(operands, [&](ValueId id) {
      return id.valid() && is_float_or_quantized(id) && graph_.value(id).kind != ValueKind::kConstant;
    });
    if (!constant.storage.bound() || !is_beside_data) return nullptr;
    if (node.op != Op::kAdd && !kPlaces.contains(node.op)) return nullptr;
    std::vector<double> numbers = elements_of(constant);
    const double least = numbers.empty() ? 0 : *std::ranges::min_element(numbers);
    Hidden hidden{least, kNone};
    for (const double x : numbers)
      if (x != least) hidden.others = united(hidden.others, Numbers::only(x));
    const bool is_number = std::ranges::none_of(numbers, [](double x) { return std::isnan(x); });
    if (!is_number || !(least < 0) || !std::isfinite(least) || !goes_unnoticed(node, i, hidden, may_saturate))
      return nullptr;
    for (double& x : numbers)
      if (x == least) x = -std::numeric_limits<double>::infinity();
    return make_constant(constant.name, DType::kF32, constant.shape, numbers);
  }

  // True if minus infinity in place of the hidden numbers of operand i changes no result that is read.
  [[nodiscard]] bool goes_unnoticed(const Node& node, std::size_t i, Hidden hidden, bool may_saturate,
                                    int depth = 0) const {
    if (kReadsOrder.contains(node.op)) return true;
    if (node.op == Op::kQuantize)
      return may_saturate && saturates(Graph::attrs<QuantizeAttrs>(node), hidden.number);
    if (depth > kDeepest || node.result_count != 1 || !node.regions.empty()) return false;
    const std::span<const ValueId> operands = graph_.operands(node);
    if (node.op == Op::kAdd) {
      const Numbers other = ranges_.of(operands[1 - i]).bounds;
      // f32 rounds the sum of the number and less than half of its last bit to the number.
      const bool absorbs = magnitude(other).high < std::ldexp(-hidden.number, -25);
      if (!absorbs || *node.attrs != default_attrs(node.op)) return false;
      hidden.others = hidden.others.low > hidden.others.high ? hidden.others : sum(hidden.others, other);
    } else if (kPlaces.contains(node.op)) {
      if (node.op == Op::kIndexPut && Graph::attrs<IndexPutAttrs>(node).accumulate) return false;
      for (std::size_t k = 0; k < operands.size(); ++k)
        if (k != i && operands[k].valid() && is_float_or_quantized(operands[k]))
          hidden.others = united(hidden.others, ranges_.of(operands[k]).bounds);
    } else if (i != 0 || node.op == Op::kCast || !info(node.op).has(kElementsOfInput)) {
      return false;
    }
    if (!hidden.is_far()) return false;
    const ValueId result = graph_.result(node);
    if (const QParamsRef& qparams = graph_.type(result).qparams)
      return may_saturate && saturates(*qparams, hidden.number);
    if (graph_.is_output(result)) return false;
    return std::ranges::all_of(graph_.users(result), [&](NodeId id) {
      const Node& user = graph_.node(id);
      const std::span<const ValueId> read = graph_.operands(user);
      for (std::size_t k = 0; k < read.size(); ++k)
        if (read[k] == result && !goes_unnoticed(user, k, hidden, may_saturate, depth + 1)) return false;
      return true;
    });
  }

  [[nodiscard]] bool is_float_or_quantized(ValueId id) const {
    return is_float(graph_.type(id).dtype) || graph_.type(id).qparams != nullptr;
  }

  // True if the number saturates to the least integer for every scale, as minus infinity does. `Parameters`
  // is QuantizeAttrs or QParams.
  template <class Parameters>
  static bool saturates(const Parameters& q, double number) {
    for (std::size_t c = 0; c < q.scales.size(); ++c)
      if (!(number < static_cast<double>(q.qmin - 1 - q.zero_points[c]) * q.scales[c])) return false;
    return true;
  }

  // True if no number except minus infinity is below `low`. Other hidden numbers of a row that is hidden as a
  // whole may differ, and a softmax distinguishes them.
  [[nodiscard]] bool hides_by_infinity(ValueId id, double low, int depth = 0) const {
    if (ranges_.of(id).bounds.low >= low) return true;
    if (depth > kDeepest) return false;
    const Value& value = graph_.value(id);
    if (value.kind == ValueKind::kConstant) {
      if (!value.constant->storage.bound()) return false;
      const Elements elements(*value.constant);
      for (std::size_t k = 0; k < elements.size(); ++k)
        if (const double x = elements.as_double(k); x < low && std::isfinite(x)) return false;
      return true;
    }
    const Node* const producer = graph_.producer(id);
    if (producer == nullptr || producer->result_count != 1) return false;
    if (!kChooses.contains(producer->op) && !info(producer->op).has(kElementsOfInput)) return false;
    const std::span<const ValueId> operands = graph_.operands(*producer);
    return std::ranges::all_of(operands, [&](ValueId operand) {
      return !operand.valid() || !is_float(graph_.type(operand).dtype) ||
             hides_by_infinity(operand, low, depth + 1);
    });
  }

  Rewriter rewriter_;
  const Graph& graph_;
  Operands which_;
  const analysis::FloatRanges& ranges_;
  const analysis::Relevance& relevance_;
};

}  // namespace

std::optional<Graph> bound_numbers(const Graph& graph) {
  // Each step uses the analyses of the graph before it, unless an earlier step made a new graph.
  Analyses known(graph);
  std::optional<Graph> copies = Copies(graph, known).run();
  const Graph& apart = copies ? *copies : graph;
  std::optional<Analyses> of_copies;
  Analyses& known_apart = copies ? of_copies.emplace(apart) : known;
  std::optional<Graph> constants = Bounds(apart, Operands::kConstant, known_apart).run();
  const Graph& bounded = constants ? *constants : apart;
  std::optional<Analyses> of_constants;
  Analyses& known_bounded = constants ? of_constants.emplace(bounded) : known_apart;
  std::optional<Graph> out = Bounds(bounded, Operands::kComputed, known_bounded).run();
  if (!out) out = std::move(constants);
  if (!out) return copies;
  return without_dead_code(std::move(out));
}

}  // namespace tosaic::passes
