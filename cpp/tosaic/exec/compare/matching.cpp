#include "tosaic/exec/compare/matching.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tosaic/exec/compare/numbers.h"

namespace tosaic::exec {
namespace {

constexpr std::size_t kMostCandidates = 64;

bool has_integers_only(const ArrayView& view) {
  std::vector<double> values(static_cast<std::size_t>(num_elements(view.shape)));
  read_doubles(view, 0, values);
  return std::ranges::all_of(values, [](double x) { return std::nearbyint(x) == x; });
}

}  // namespace

Matcher::Matcher(const RunValues& b, const FxNodes& fx, std::optional<Stage> stage_a,
                 std::map<FxId, FxId> moved, OtherValues others)
    : b_(b),
      fx_(fx),
      moved_(std::move(moved)),
      others_(std::move(others)),
      nodes_(b.graph(), fx, moved_),
      stage_a_(stage_a) {
  for (const Node& node : b.graph().nodes())
    for (const OriginRef& leaf : leaves(node.origin))
      if (const FxId id = fx.latest(leaf); id.valid() && id != nodes_.owner(node)) merged_.insert(id);
}

bool Matcher::may_be_rounded_later(const Match& match, const Reference& reference) const {
  return reference.rounded && !b_.qparams(match.value) && is_integer(b_.graph().type(match.value).dtype) &&
         merged_.contains(reference.of.fx);
}

std::optional<Alignment> Matcher::stored_alignment(ValueId value, const Reference& reference) const {
  const std::optional<DimOrder>& order = b_.graph().value(value).canonical_order;
  if (!order) return std::nullopt;
  const std::size_t rank = b_.graph().type(value).shape.size();
  Alignment out{order->axes(rank)};
  out.regrouped_first = out.permutation.size() != rank;  // the value joins axes of the canonical value
  if (stage_a_ == Stage::kTosa) {
    if (!reference.order || reference.array.shape.size() != rank || out.regrouped_first) return std::nullopt;
    if (reference.order->axes(rank).size() != rank) return std::nullopt;
    const Dims stored = inverse_permutation(reference.order->axes(rank));
    for (std::int64_t& axis : out.permutation) axis = stored[static_cast<std::size_t>(axis)];
  }
  if (aligned(b_[value], reference.array.shape, out).view.data == nullptr) return std::nullopt;
  return out;
}

std::vector<Alignment> Matcher::alignments_of(ValueId value, const Reference& reference) const {
  const Shape& own = b_.graph().type(value).shape;
  const std::optional<Alignment> known = stored_alignment(value, reference);
  std::vector<Alignment> out;
  if (known) out.push_back(*known);
  for (Alignment& each : alignments(own, reference.array.shape))
    if (!known || each.regrouped_first || each.reshaped ||
        !is_same_permutation(own, each.permutation, known->permutation))
      out.push_back(std::move(each));
  return out;
}

std::vector<Match> Matcher::candidates(const Reference& reference, std::uint32_t result_count) const {
  const std::vector<const Node*>& nodes = nodes_.of(reference.of.fx);
  const std::unordered_set<std::uint32_t> unrounded = before_rounding(reference.of.fx);
  std::vector<Match> labelled, out, others;
  for (std::size_t i = nodes.size(); i-- > 0 && labelled.size() < kMostCandidates;) {
    const std::optional<ValueId> found = value_of(*nodes[i], reference, result_count);
    if (!found) continue;
    const ValueId value = *found;
    if (b_[value].data == nullptr || !means_the_same(value, reference)) continue;
    if (unrounded.contains(value.index())) continue;
    const QParamsRef& own = b_.qparams(value);
    std::vector<Match>& to = !reference.rounded || !own                   ? out
                             : has_same_numbers(*reference.qparams, *own) ? labelled
                                                                          : others;
    if (to.size() >= kMostCandidates) continue;
    if (&to != &labelled && is_no_result(value)) continue;
    const bool may_be_number = reference.rounded && !own && is_float(b_.graph().type(value).dtype);
    const std::vector<Alignment> fitting = alignments_of(value, reference);
    if (!may_be_number || has_integers_only(b_[value]))
      for (const Alignment& each : fitting) to.push_back({value, each});
    if (may_be_number)
      for (const Alignment& each : fitting) to.push_back({value, each, true});
  }
  labelled.insert(labelled.end(), out.begin(), out.end());
  return labelled.empty() ? others : labelled;
}

// True if the value is a number that the FX node reads in a, a part of it (%x.dequantize.cast), a number
// between its nodes, or a value with such numbers in another order.
bool Matcher::is_no_result(ValueId value) const {
  const Graph& graph = b_.graph();
  const auto is_named = [this](std::string name) {
    if (others_.intermediates.contains(name)) return true;
    while (!others_.operands.contains(name)) {
      const std::size_t dot = name.rfind('.');
      if (dot == std::string::npos) return false;
      name.resize(dot);
    }
    return true;
  };
  while (!is_named(graph.value(value).name)) {
    const Node* const node = graph.producer(value);
    if (node == nullptr || !moves_elements(node->op)) return false;
    value = graph.operands(*node)[0];
  }
  return true;
}

// The value of the node that may be the reference's result: see candidates().
std::optional<ValueId> Matcher::value_of(const Node& node, const Reference& reference,
                                         std::uint32_t result_count) const {
  if (reference.several && node.result_count == 1) {
    const ValueId only = b_.graph().result(node);
    const bool named = b_.graph().value(only).name == fx_.label(reference.of);
    return named ? std::optional(only) : std::nullopt;
  }
  const bool same_results = result_count == 0 || result_count == node.result_count;
  if (reference.of.index >= node.result_count || !same_results) return std::nullopt;
  return b_.graph().result(node, reference.of.index);
}

const Match& Matcher::nearest(const Reference& reference, const std::vector<Match>& candidates) const {
  const ValueId value = candidates.front().value;
  const bool is_stored = b_.graph().value(value).canonical_order.has_value();
  if (is_stored && (stage_a_ != Stage::kTosa || reference.order)) return candidates.front();
  const Held expected = as_numbers(reference.array, reference.qparams);
  std::size_t best = 0;
  double best_db = -std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < candidates.size() && candidates[i].value == value; ++i) {
    const Held found = in_axes(candidates[i], reference);
    const double db = compute_metrics(expected.view, found.view, {}).sqnr_db;
    if (db > best_db) {
      best_db = db;
      best = i;
    }
  }
  return candidates[best];
}

// False if one side is a truth value and the other one is a number, or if one side is a float or a quantized
// value and the other side is an integer without qparams. At stage integer, the integers between two
// quantized values have no qparams, so they cannot be dequantized.
bool Matcher::means_the_same(ValueId value, const Reference& reference) const {
  const TensorType& type = b_.graph().type(value);
  if ((reference.array.dtype == DType::kBool) != (type.dtype == DType::kBool)) return false;
  if (reference.rounded)
    return is_float(type.dtype) || b_.qparams(value) ||
           byte_size(type.dtype) == byte_size(reference.qparams->storage);
  const bool whole = !is_float(reference.array.dtype) && !reference.qparams;
  if (whole && is_float(type.dtype) && stage_a_ && *stage_a_ != Stage::kExported) return false;
  return is_float(type.dtype) || b_.qparams(value) || !(is_float(reference.array.dtype) || reference.qparams);
}

// The floats, and their comparisons, from which an FX node computes the integers that it rounds to. They are
// no results: the result is the rounded value, or what is computed from it. Their numbers may be in units of
// a scale.
std::unordered_set<std::uint32_t> Matcher::before_rounding(FxId fx) const {
  const Graph& graph = b_.graph();
  std::unordered_set<std::uint32_t> found;
  const std::vector<const Node*>& nodes = nodes_.of(fx);
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    const ValueId first = graph.result(**node);
    const Op op = (*node)->op;
    const bool casts = op == Op::kCast || op == Op::kTosaCast;
    const bool rounds = op == Op::kQuantize || (casts && is_integer(graph.type(first).dtype));
    if (!rounds && !found.contains(first.index())) continue;
    for (const ValueId operand : graph.operands(**node))
      if (operand.valid() && !is_integer(graph.type(operand).dtype)) found.insert(operand.index());
  }
  return found;
}

std::string Matcher::mismatch_reason(const Reference& reference) const {
  const std::vector<const Node*>& nodes = nodes_.of(reference.of.fx);
  if (const auto to = moved_.find(reference.of.fx); to != moved_.end())
    return "quantized as the result of '" + fx_.name(to->second) + "'";
  if (nodes.empty()) return "no node in b";
  for (std::size_t i = nodes.size(); i-- > 0;) {
    if (reference.of.index >= nodes[i]->result_count) continue;
    const ValueId value = b_.graph().result(*nodes[i], reference.of.index);
    const TensorType& type = b_.graph().type(value);
    const bool fits = b_[value].data != nullptr && !alignments_of(value, reference).empty();
    if (fits && !means_the_same(value, reference) && is_float(type.dtype))
      return std::string(to_string(reference.array.dtype)) + " without quantization parameters in a";
    if (fits && !means_the_same(value, reference))
      return std::string(to_string(type.dtype)) + " without quantization parameters in b";
    return "shape " + to_string(reference.array.shape) + " against " + to_string(type.shape);
  }
  return "no such result in b";
}

Held Matcher::in_axes(const Match& match, const Reference& reference) const {
  const ArrayView& view = b_[match.value];
  const QParamsRef& own = qparams(match);
  if (match.is_number) return aligned(view, reference.array.shape, match.alignment);
  if (reference.rounded && (!own || is_same(own, reference.qparams))) {
    Held whole = aligned(view, reference.array.shape, match.alignment);
    whole = as_dtype(std::move(whole), reference.array.dtype);
    return as_numbers(whole.view, reference.qparams);
  }
  const bool whole = !is_float(reference.array.dtype) && !reference.qparams;
  // b may hold integers in a float dtype, if the target lacks the integer dtype.
  const DType dtype = is_float(view.dtype) ? view.dtype : reference.array.dtype;
  Held numbers = whole ? as_dtype({with_sign_of(dtype, view), {}}, dtype) : as_numbers(view, own);
  Held out = aligned(numbers.view, reference.array.shape, match.alignment);
  if (out.owner.storage.size() == 0) out.owner = std::move(numbers.owner);
  return out;
}

MetricsOptions Matcher::metrics_options(const Reference& reference, ValueId value) const {
  const std::optional<double> unit = unit_of(b_.qparams(value));
  return {unit ? unit : unit_of(reference.qparams)};
}

}  // namespace tosaic::exec
