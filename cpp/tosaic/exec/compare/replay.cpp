#include "tosaic/exec/compare/replay.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tosaic/exec/compare/numbers.h"
#include "tosaic/ir/attributes.h"
#include "tosaic/ir/constant_value.h"

namespace tosaic::exec {
namespace {

constexpr double kSameResultDb = 10;

// The qparams with their axis counted in the axes of the aligned value. Returns null if the axis may be
// joined with others.
QParamsRef permuted_qparams(const QParamsRef& qparams, const Alignment& alignment) {
  if (!qparams || !qparams->axis || alignment.permutation.empty()) return qparams;
  if (alignment.regrouped_first) return nullptr;
  auto out = std::make_shared<QParams>(*qparams);
  out->axis = alignment.permutation[static_cast<std::size_t>(*qparams->axis)];
  if (out->groups) out->groups->axis = alignment.permutation[static_cast<std::size_t>(qparams->groups->axis)];
  return out;
}

// The qparams with which the same integers represent the numbers times the factor.
QParamsRef times(const QParamsRef& qparams, double factor) {
  if (!qparams || factor == 1) return qparams;
  auto out = std::make_shared<QParams>(*qparams);
  for (double& scale : out->scales) scale *= factor;
  return out;
}

class Replay {
 public:
  Replay(const RunValues& a, const Matcher& matcher, Errors errors, LocalReference& local)
      : a_(a), b_(matcher.values()), matcher_(matcher), errors_(errors), local_(local) {}

  // Chooses b's value for a result of a's node: the first candidate that is right or, if none is, the least
  // wrong one. Later nodes run on that value. `ran` is true if the node could be run on b's values.
  std::optional<ReplayedResult> meet(const Reference& reference, const Node& node, bool ran) const {
    const ValueId value = a_.graph().result(node, reference.of.index);
    if (!is_result(value, reference)) return std::nullopt;
    const std::vector<Match> candidates = matcher_.candidates(reference, node.result_count);
    if (candidates.empty()) return std::nullopt;
    ReplayedResult found;
    if (ran && errors_ != Errors::kMeasured) {
      const Chosen chosen = least_wrong(value, candidates);
      if (chosen.match != nullptr) found.match = *chosen.match;
      found.share = chosen.share;
    }
    if (found.share && *found.share > 1 && matcher_.may_be_rounded_later(found.match, reference)) {
      found.rounded_later = true;
      return found;
    }
    // An infinite share does not say which alignment is least wrong.
    if (!found.share || std::isinf(*found.share)) found.match = matcher_.nearest(reference, candidates);
    take_units_of_a(value, found);
    found.node = &node;
    const bool measured = found.share || (errors_ == Errors::kMeasured && ran);
    if (measured && errors_ != Errors::kTotal) measure(value, reference, found);
    found.quantization = quantization(reference, found.match);
    if (errors_ != Errors::kJudged) found.share.reset();
    if (std::optional<Held> operand = as_operand(value, found.match))
      local_.accept(value, std::move(*operand));
    return found;
  }

 private:
  struct Chosen {
    const Match* match = nullptr;
    std::optional<double> share;
  };

  // The first candidate whose share is at most 1. If there is none, the first candidate, in the alignment in
  // which it is least wrong. Returns nothing if no candidate can be judged.
  Chosen least_wrong(ValueId value, const std::vector<Match>& candidates) const {
    Chosen best;
    for (const Match& each : candidates) {
      const std::optional<double> share = share_of(value, each);
      if (!share) continue;
      const bool same = best.match != nullptr && each.value == best.match->value;
      if (best.match != nullptr && *share > 1 && !(same && *share < *best.share)) continue;
      best = {&each, share};
      if (*share <= 1) break;
    }
    return best;
  }

  // True if the result of a's last node for an FX node is the value in the reference (a, b: replay.h). An FX
  // call with several results may become several nodes; then the last one may compute another result. True
  // also if a's run has no array of the value.
  bool is_result(ValueId value, const Reference& reference) const {
    const ArrayView& own = a_[value];
    if (own.data == nullptr || own.data == reference.array.data) return true;
    if (!(own.shape == reference.array.shape) || is_float(own.dtype) != is_float(reference.array.dtype))
      return false;
    const double db = compute_metrics(reference.array, own, {}).sqnr_db;
    return db > kSameResultDb || num_elements(own.shape) == 0;
  }

  // The qparams of a's integers. A float has the qparams with which it was dequantized, perhaps in
  // front of nodes that move its elements or multiply them by a number: b has the same integers for these
  // floats.
  QParamsRef units_of_a(ValueId value) const {
    const Graph& graph = a_.graph();
    if (a_.qparams(value) || !is_float(graph.type(value).dtype)) return a_.qparams(value);
    double factor = 1;
    for (const Node* node = graph.producer(value); node != nullptr; node = graph.producer(value)) {
      const std::span<const ValueId> operands = graph.operands(*node);
      value = operands[0];
      if (moves_elements(node->op)) continue;
      if (node->op == Op::kDequantize) return times(a_.qparams(value), factor);
      if (node->op != Op::kMul) return nullptr;
      std::optional<double> by = splat_of(graph, operands[1]);
      if (!by) {
        by = splat_of(graph, operands[0]);
        value = operands[1];
      }
      if (!by || !(*by > 0)) return nullptr;
      factor *= *by;
    }
    return nullptr;
  }

  // Sets the qparams of b's value to those of a's value, if the value's node only moves elements, its label
  // represents other numbers, and b's integers are right with a's qparams.
  void take_units_of_a(ValueId value, ReplayedResult& found) const {
    const Node* const node = b_.graph().producer(found.match.value);
    const QParamsRef own = units_of_a(value), &stored = b_.qparams(found.match.value);
    if (errors_ != Errors::kJudged || !local_.known(value) || node == nullptr || !moves_elements(node->op) ||
        !own || !stored || own->storage != stored->storage || own->axis || stored->axis ||
        has_same_numbers(*own, *stored))
      return;
    Match match = found.match;
    match.units = own;
    const std::optional<double> share = share_of(value, match);
    if (!share || *share > 1) return;
    found.match = std::move(match);
    found.share = share;
  }

  Quantization quantization(const Reference& reference, const Match& match) const {
    const QParamsRef own = permuted_qparams(matcher_.qparams(match), match.alignment);
    if (!reference.qparams || !own || has_same_numbers(*reference.qparams, *own)) return Quantization::kSame;
    return is_near(*reference.qparams, *own) ? Quantization::kNear : Quantization::kOther;
  }

  // True if b's value can be compared with a's. Integers with other qparams cannot be compared: they
  // represent other numbers.
  bool is_comparable(ValueId value, const Match& match) const {
    const TensorType& a = a_.graph().type(value);
    const bool is_float_b = is_float(b_.graph().type(match.value).dtype);
    const QParamsRef &qparams_a = a_.qparams(value), &qparams_b = matcher_.qparams(match);
    if (is_float(a.dtype)) return is_float_b || qparams_b;
    const Node* producer = a_.graph().producer(value);
    const bool rounded = producer != nullptr && producer->op == Op::kQuantize;
    if (!qparams_a || (rounded && is_float_b)) return true;
    return !is_float_b && (!qparams_b || is_same(qparams_a, qparams_b));
  }

  std::optional<double> share_of(ValueId value, const Match& match) const {
    const QParamsRef &own = a_.qparams(value), &stored = matcher_.qparams(match);
    // u8 and i8, for example: b's integers are converted to a's
    const bool moved = own && stored && !is_same(own, stored) && has_same_numbers(*own, *stored);
    if (!moved && !is_comparable(value, match)) return std::nullopt;
    const ArrayView plain =
        own || stored ? b_[match.value] : with_sign_of(a_.graph().type(value).dtype, b_[match.value]);
    const Held numbers = as_numbers(plain, moved ? stored : nullptr);
    Held found = aligned(numbers.view, a_.graph().type(value).shape, match.alignment);
    if (found.view.data == nullptr) return std::nullopt;
    if (match.is_number && !own) return std::nullopt;
    if (moved || match.is_number) found = as_integers(found.view, *own);
    return local_.share(value, found.view, permuted_qparams(stored, match.alignment));
  }

  void measure(ValueId value, const Reference& reference, ReplayedResult& result) const {
    const QParamsRef& qparams = reference.rounded ? reference.qparams : a_.qparams(value);
    const Held made = as_numbers(local_.made(value), qparams);
    const Held found = matcher_.in_axes(result.match, reference);
    const Held expected = as_numbers(reference.array, reference.qparams);
    const MetricsOptions metrics = matcher_.metrics_options(reference, result.match.value);
    result.local = compute_metrics(made.view, found.view, metrics);
    if (made.view.shape == expected.view.shape)
      result.inherited = compute_metrics(expected.view, made.view, metrics);
  }

  // b's value as an operand of a's nodes: dense, in the shape and dtype of a's value. Integers with other
  // qparams are converted: a's integers for the numbers that they represent.
  std::optional<Held> as_operand(ValueId value, const Match& match) const {
    const TensorType& type = a_.graph().type(value);
    const QParamsRef &own = a_.qparams(value), &qparams = matcher_.qparams(match);
    const bool comparable = is_comparable(value, match);
    if (!comparable && !(own && qparams)) return std::nullopt;
    const bool numbers = is_float(type.dtype) || !comparable;
    const ArrayView plain = own || qparams ? b_[match.value] : with_sign_of(type.dtype, b_[match.value]);
    Held found = numbers ? as_numbers(plain, qparams) : Held{plain, {}};
    Held turned = aligned(found.view, type.shape, match.alignment);
    if (turned.view.data == nullptr) return std::nullopt;
    if (turned.owner.storage.size() == 0) turned.owner = std::move(found.owner);
    if (match.is_number && !own) return std::nullopt;
    if (!comparable || match.is_number) return as_dtype(as_integers(turned.view, *own), type.dtype);
    return as_dtype(std::move(turned), type.dtype);
  }

  const RunValues& a_;
  const RunValues& b_;
  const Matcher& matcher_;
  Errors errors_;
  LocalReference& local_;
};

}  // namespace

void set_inputs(LocalReference& local, const Graph& graph, const Session& session,
                std::span<const ArrayView> inputs) {
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    const Input& input = graph.inputs()[session.inputs()[k]];
    Held held;
    held.owner = session.imported(session.inputs()[k], inputs[k]);
    held.view = held.owner.view();
    local.set_input(input.value, std::move(held));
  }
  for (const Input& input : graph.inputs())
    if (input.kind == InputKind::kState && input.initial)
      local.set_input(
          input.value,
          {ArrayView::dense(input.initial->bytes().data(), input.initial->dtype, input.initial->shape), {}});
}

// The error that double rounding adds: it adds 2^30 before a shift of at least 32, so at most 1/4 of a unit.
double rescale_error(const Graph& graph) {
  for (const Node& node : graph.nodes()) {
    const bool twice = (node.op == Op::kRescale && Graph::attrs<RescaleAttrs>(node).rescale.rounding_mode ==
                                                       RoundingMode::kDoubleRound) ||
                       (node.op == Op::kTosaRescale &&
                        Graph::attrs<TosaRescaleAttrs>(node).rounding_mode == RoundingMode::kDoubleRound);
    if (twice) return 0.25;
  }
  return 0;
}

bool is_quantized_otherwise(const std::map<FxResult, ReplayedResult>& replayed) {
  return std::ranges::any_of(
      replayed, [](const auto& each) { return each.second.quantization != Quantization::kSame; });
}

void drop_bounds(std::map<FxResult, ReplayedResult>& replayed) {
  for (auto& [result, found] : replayed) {
    found.share.reset();
    if (found.quantization == Quantization::kOther) found.share = std::numeric_limits<double>::infinity();
  }
}

std::map<FxResult, ReplayedResult> replay(const RunValues& a, const NodesOfFx& nodes_a,
                                          const Matcher& matcher, const std::vector<Reference>& references,
                                          Errors errors, LocalReference& local) {
  std::map<FxResult, const Reference*> wanted;
  for (const Reference& each : references) wanted.emplace(each.of, &each);
  const Replay run(a, matcher, errors, local);
  std::map<FxResult, ReplayedResult> out;
  for (const Node& node : a.graph().nodes()) {
    const bool ran = local.run(node);
    const FxId id = nodes_a.owner(node);
    if (!id.valid() || nodes_a.of(id).back() != &node) continue;
    for (std::uint32_t i = 0; i < node.result_count; ++i) {
      const auto it = wanted.find({id, i});
      if (it == wanted.end()) continue;
      if (std::optional<ReplayedResult> found = run.meet(*it->second, node, ran))
        out.emplace(FxResult{id, i}, std::move(*found));
    }
  }
  return out;
}

}  // namespace tosaic::exec
