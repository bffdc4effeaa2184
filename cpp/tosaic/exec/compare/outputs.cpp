#include "tosaic/exec/compare/outputs.h"

#include <algorithm>
#include <limits>

#include "tosaic/exec/compare/alignment.h"
#include "tosaic/exec/compare/numbers.h"
#include "tosaic/exec/compare/replay.h"
#include "tosaic/exec/metrics.h"

namespace tosaic::exec {
namespace {

Array owned_dense(const ArrayView& view) {
  Array out = Array::allocate(view.dtype, view.shape);
  copy(view, MutableArrayView::dense(out.storage.writable(), view.dtype, out.shape));
  return out;
}

// An input that the program stores unchanged in a state: a trace has only results of nodes, so not this one.
Held passed_input(const ComparedSide& side, ValueId value) {
  const Graph& graph = side.values.graph();
  Held out;
  for (std::size_t k = 0; k < side.inputs.size(); ++k) {
    const std::uint32_t at = side.run.session.inputs()[k];
    if (graph.inputs()[at].value != value) continue;
    out.owner = side.run.session.imported(at, side.inputs[k]);
    out.view = out.owner.view();
  }
  return out;
}

// An output in its logical axes. If the caller gets the output, it is the caller's array; if it is stored in
// a state, it is the graph's value.
Held logical_output(const ComparedSide& side, std::uint32_t index) {
  const auto& [run, values, inputs] = side;
  const Graph& graph = values.graph();
  const Output& output = graph.outputs()[index];
  const std::span<const std::uint32_t> returned = run.session.outputs();
  const auto at = std::find(returned.begin(), returned.end(), index);
  const bool is_returned = at != returned.end();
  Held out;
  out.view = is_returned ? run.result.outputs[static_cast<std::size_t>(at - returned.begin())].view()
                         : values[output.value];
  if (out.view.data == nullptr) out = passed_input(side, output.value);
  if (out.view.data == nullptr) return {};
  // In a graph read from a file, Output::boundary says i8 or i16 for unsigned integers.
  const DType known = values[output.value].dtype;
  if (known == DType::kU8 && out.view.dtype == DType::kI8) out.view.dtype = known;
  if (known == DType::kU16 && out.view.dtype == DType::kI16) out.view.dtype = known;
  const DimOrder& order = output.boundary.order;
  if (!order.is_identity() && (output.boundary.physical || (!is_returned && graph.stage == Stage::kTosa)))
    out.view = permuted(out.view, inverse_permutation(order.axes(out.view.shape.size())));
  return out;
}

bool holds_integers(const ArrayView& view) { return !is_float(view.dtype); }

// The values of the reference's nodes, run from the inputs to the outputs without any value of the other run.
// The nodes run when a value is first needed.
class Carried {
 public:
  Carried(const Graph& graph, const TracedRun& run, std::span<const ArrayView> inputs,
          const PrepareOptions& options)
      : graph_(graph), run_(run), inputs_(inputs), options_(options) {}

  const LocalReference& reference() {
    if (!reference_) {
      reference_.emplace(graph_, options_);
      set_inputs(*reference_, graph_, run_.session, inputs_);
      for (const Node& node : graph_.nodes()) reference_->run(node);
    }
    return *reference_;
  }

 private:
  const Graph& graph_;
  const TracedRun& run_;
  std::span<const ArrayView> inputs_;
  const PrepareOptions& options_;
  std::optional<LocalReference> reference_;
};

QParamsRef output_qparams(const Graph& graph, std::uint32_t output, const QParamsRef& told) {
  if (told) return told;
  const Output& found = graph.outputs()[output];
  return found.boundary.qparams ? found.boundary.qparams : graph.type(found.value).qparams;
}

class OutputComparer {
 public:
  OutputComparer(const RunValues& a, const LocalReference* local, Carried& carried,
                 const CompareOptions& options)
      : a_(a),
        local_(local),
        carried_(carried),
        threshold_db_(options.threshold_db),
        bounds_(options.bounds) {}

  ComparedOutput compare(const CompareOptions::OutputPair& pair, const Held& a, const Held& b,
                         const Graph& graph_b) const {
    const QParamsRef qparams_a = output_qparams(a_.graph(), pair.a, nullptr);
    const QParamsRef qparams_b =
        pair.variable.empty() ? output_qparams(graph_b, pair.b, pair.qparams) : pair.qparams;
    const bool numbers = !holds_integers(a.view) || !holds_integers(b.view) || (qparams_a && qparams_b);
    const Held numbers_a = numbers && holds_integers(a.view) ? as_numbers(a.view, qparams_a) : a;
    const Held numbers_b = numbers && holds_integers(b.view) ? as_numbers(b.view, qparams_b) : b;
    std::vector<Alignment> tried{Alignment{}};
    if (!pair.orders.empty())
      tried = alignments_among(pair.orders, numbers_b.view.shape, numbers_a.view.shape);
    ComparedOutput out;
    out.a = owned_dense(numbers_a.view);
    double best = -std::numeric_limits<double>::infinity(), best_share = best;
    for (const Alignment& alignment : tried) {
      const Held turned = aligned(numbers_b.view, numbers_a.view.shape, alignment);
      if (turned.view.data == nullptr) continue;
      const double db = compute_metrics(numbers_a.view, turned.view, {}).sqnr_db;
      const std::optional<double> share = share_of(pair.a, turned.view, qparams_a);
      const bool right = share && *share <= 1 && !(best_share >= 0 && best_share <= 1);
      if (out.b.storage.size() != 0 && !right && !(db > best)) continue;
      out.b = owned_dense(turned.view);
      out.local_share = share;
      best = db;
      best_share = share.value_or(-1);
      if (right) break;
    }
    if (out.b.storage.bound()) out.carried_share = carried_share(pair, numbers_a.view, out.b.view());
    return out;
  }

 private:
  std::optional<double> carried_share(const CompareOptions::OutputPair& pair, const ArrayView& a,
                                      const ArrayView& found) const {
    const ArrayView& expected = pair.expected.data != nullptr ? pair.expected : a;
    const ValueId value = a_.graph().outputs()[pair.a].value;
    if (local_ == nullptr || !bounds_ || !is_float(a_.graph().type(value).dtype) || !is_float(found.dtype) ||
        !is_float(expected.dtype) || !(expected.shape == found.shape))
      return std::nullopt;
    if (compute_metrics(expected, found, {}).sqnr_db >= threshold_db_) return std::nullopt;
    const LocalReference& carried = carried_.reference();
    if (!carried.known(value)) return std::nullopt;
    const ArrayView turned = in_graph_axes(pair.a, found);
    if (!(turned.shape == carried.made(value).shape)) return std::nullopt;
    return carried.share_between(value, in_graph_axes(pair.a, expected), turned);
  }

  // True for floats and for integers that represent numbers; false for indices, counts and truth values.
  bool is_number(ValueId value) const {
    return is_float(a_.graph().type(value).dtype) || a_.qparams(value) != nullptr;
  }

  ArrayView in_graph_axes(std::uint32_t output, const ArrayView& logical) const {
    const DimOrder& order = a_.graph().outputs()[output].boundary.order;
    if (a_.graph().stage != Stage::kTosa || order.is_identity()) return logical;
    return permuted(logical, order.axes(logical.shape.size()));
  }

  std::optional<double> share_of(std::uint32_t output, const ArrayView& found,
                                 const QParamsRef& qparams_a) const {
    const ValueId value = a_.graph().outputs()[output].value;
    if (local_ == nullptr || !local_->known(value)) return std::nullopt;
    if (!bounds_ && is_number(value)) return std::nullopt;
    const ArrayView turned = in_graph_axes(output, found);
    if (!(turned.shape == local_->made(value).shape)) return std::nullopt;
    if (!holds_integers(local_->made(value)) || holds_integers(turned))
      return local_->share(value, turned, nullptr);
    if (!qparams_a) return local_->share(value, turned, nullptr);
    return std::nullopt;
  }

  const RunValues& a_;
  const LocalReference* local_;
  Carried& carried_;
  double threshold_db_;
  bool bounds_;
};

Held output_of(const CompareOptions::OutputPair& pair, const ComparedSide& side) {
  if (pair.variable.empty()) return logical_output(side, pair.b);
  Held out;
  out.owner = side.run.session.state(pair.variable);
  out.view = out.owner.view();
  return out;
}

}  // namespace

std::vector<ComparedOutput> compare_outputs(const ComparedSide& a, const ComparedSide& b,
                                            const LocalReference* local, const CompareOptions& options) {
  Carried carried(a.values.graph(), a.run, a.inputs, options.a);
  const OutputComparer comparer(a.values, local, carried, options);
  std::vector<ComparedOutput> out;
  for (const CompareOptions::OutputPair& pair : options.outputs)
    out.push_back(comparer.compare(pair, logical_output(a, pair.a), output_of(pair, b), b.values.graph()));
  return out;
}

}  // namespace tosaic::exec
