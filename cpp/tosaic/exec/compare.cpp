#include "tosaic/exec/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <unordered_map>

#include "tosaic/exec/local_error.h"
#include "tosaic/exec/metrics.h"
#include "tosaic/ir/quantized_value.h"

namespace tosaic::exec {
namespace {

// True if the node's results are unsigned integers. RESCALE stores them as the same bits in the signed dtype.
bool gives_unsigned(const Node& node) {
  if (node.op == Op::kTosaRescale) return Graph::attrs<TosaRescaleAttrs>(node).output_unsigned;
  return node.op == Op::kRescale && Graph::attrs<RescaleAttrs>(node).rescale.output_unsigned;
}

// The values of one run by value id, dense and in the graph's axes. Values that are not known have no data.
class Values {
 public:
  Values(const Graph& graph, const std::vector<TracedValue>& trace)
      : graph_(graph), views_(graph.values().size()) {
    for (std::uint32_t i = 0; i < views_.size(); ++i)
      if (const ConstantRef& constant = graph.values()[i].constant; constant && constant->storage.bound())
        views_[i] = ArrayView::dense(constant->storage.bytes().data(), constant->dtype, constant->shape);
    for (const TracedValue& traced : trace) views_[traced.value.index()] = traced.array.view();
    std::vector<bool> is_unsigned(views_.size(), false);
    for (const Node& node : graph.nodes()) {
      const bool moves = info(node.op).has(kMovement) || info(node.op).has(kView);
      const bool found = moves && graph.operands(node)[0].valid()
                             ? bool{is_unsigned[graph.operands(node)[0].index()]}
                             : gives_unsigned(node);
      for (std::uint32_t r = 0; found && r < node.result_count; ++r) {
        const std::size_t at = graph.result(node, r).index();
        is_unsigned[at] = true;
        if (views_[at].dtype == DType::kI8) views_[at].dtype = DType::kU8;
        if (views_[at].dtype == DType::kI16) views_[at].dtype = DType::kU16;
      }
    }
  }
  void set(ValueId value, const ArrayView& view) { views_[value.index()] = view; }
  [[nodiscard]] const ArrayView& operator[](ValueId value) const { return views_[value.index()]; }
  [[nodiscard]] const Graph& graph() const { return graph_; }

 private:
  const Graph& graph_;
  std::vector<ArrayView> views_;
};

// A run that traces every value.
struct Run {
  Run(const std::shared_ptr<const Graph>& graph, std::span<const ArrayView> inputs,
      const PrepareOptions& options)
      : session(prepare(graph, options)) {
    RunOptions run_options;
    run_options.trace.all = true;
    result = session.run(inputs, run_options);
  }
  Session session;
  RunResult result;
};

// The array that a value of b is compared with.
struct Reference {
  std::string fx_name;
  std::uint32_t result = 0;
  ArrayView array;
  QParamsRef qparams;
  bool rounded = false;  // the integers of a quantize node, with these parameters
};

// The FX nodes in the order of the reference. A node of b belongs to the latest FX node among its origins.
class Ranks {
 public:
  void add(const std::string& fx_name) { ranks_.try_emplace(fx_name, ranks_.size()); }

  // Returns "" for a node that has no origin among the FX nodes of the reference.
  [[nodiscard]] std::string latest(const OriginRef& origin) const {
    std::string best;
    std::size_t best_rank = 0;
    for (const OriginRef& leaf : leaves(origin)) {
      const auto it = ranks_.find(leaf->fx_name);
      if (it == ranks_.end() || (!best.empty() && it->second < best_rank)) continue;
      best = leaf->fx_name;
      best_rank = it->second;
    }
    return best;
  }

 private:
  std::unordered_map<std::string, std::size_t> ranks_;
};

using NodesByName = std::unordered_map<std::string, std::vector<const Node*>>;

NodesByName group_by_name(const Graph& graph, const Ranks& ranks) {
  NodesByName out;
  for (const Node& node : graph.nodes()) {
    std::string name = ranks.latest(node.origin);
    if (name.empty()) continue;
    std::vector<const Node*>& nodes = out[std::move(name)];
    // A dequantize that reads a quantize of the same FX node is not another result of that FX node.
    const Node* rounded =
        node.op == Op::kDequantize && !nodes.empty() ? graph.producer(graph.operands(node)[0]) : nullptr;
    if (rounded == nullptr || rounded->op != Op::kQuantize || nodes.back() != rounded) nodes.push_back(&node);
  }
  return out;
}

OriginRef leaf_named(const OriginRef& origin, const std::string& fx_name) {
  for (const OriginRef& leaf : leaves(origin))
    if (leaf->fx_name == fx_name) return leaf;
  return nullptr;
}

std::vector<std::int64_t> non_unit(const Shape& shape) {
  std::vector<std::int64_t> out;
  for (const std::int64_t extent : shape)
    if (extent != 1) out.push_back(extent);
  return out;
}

// True if, as far as the shapes show, `to` is a reshape of `from`: the same elements in the same order. False
// if the shapes have the same extents in another order, because that is a permutation.
bool is_regrouping(const Shape& from, const Shape& to) {
  std::vector<std::int64_t> a = non_unit(from), b = non_unit(to);
  if (num_elements(from) != num_elements(to)) return false;
  if (a == b) return true;
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  return a != b;
}

Held as_dense(Held value) {
  const DType dtype = value.view.dtype;
  return as_dtype(std::move(value), dtype);
}

// How b's value maps to a's axes. By default, axis i of b's value is axis permutation[i], and the permuted
// value is then reshaped to a's shape. If `regrouped_first`, b's value is first reshaped to permuted(a's
// shape, permutation), because b has joined or split axes after it permuted them. Then the permutation is
// undone.
struct Alignment {
  Dims permutation;  // empty: none
  bool regrouped_first = false;
};

// Returns no data if the shapes do not fit.
Held aligned(const ArrayView& view, const Shape& shape, const Alignment& alignment) {
  ArrayView out = view;
  if (alignment.regrouped_first) {
    const Shape turned = permuted(shape, alignment.permutation);
    if (!is_regrouping(view.shape, turned)) return {};
    Held held = as_dense({view, {}});
    held.view = permuted(ArrayView::dense(held.view.data, held.view.dtype, turned),
                         inverse_permutation(alignment.permutation));
    return as_dense(std::move(held));
  }
  if (!alignment.permutation.empty()) {
    if (!is_permutation_of_axes(alignment.permutation, view.shape.size())) return {};
    out = permuted(view, inverse_permutation(alignment.permutation));
  }
  if (out.shape == shape) return {out, {}};
  if (!is_regrouping(out.shape, shape)) return {};
  Held held = as_dense({out, {}});
  held.view = ArrayView::dense(held.view.data, held.view.dtype, shape);
  return held;
}

// The axes that have more than one element, in the order of the permutation. Alignments with equal lists are
// the same.
std::vector<std::int64_t> visible(const Shape& shape, const Dims& permutation) {
  std::vector<std::int64_t> out;
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (shape[i] != 1) out.push_back(permutation.empty() ? static_cast<std::int64_t>(i) : permutation[i]);
  return out;
}

constexpr std::size_t kMostRanks = 6;  // permutations are only tried for values of at most this rank

// Adds alignments in which b has permuted a's axes and then joined or split some: a's [8,3,5] in the order
// (1,0,2) is [3,8,5], which b holds as [24,5].
void add_regrouped(const Shape& from, const Shape& to, std::vector<Alignment>& out) {
  if (to.size() < 2 || to.size() > kMostRanks) return;
  std::vector<std::int64_t> a = non_unit(from), b = non_unit(to);
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  if (a == b) return;
  std::vector<std::vector<std::int64_t>> seen{visible(to, {})};
  Dims permutation = DimOrder().axes(to.size());
  while (std::next_permutation(permutation.begin(), permutation.end())) {
    std::vector<std::int64_t> key;
    for (const std::int64_t axis : permutation)
      if (to[static_cast<std::size_t>(axis)] != 1) key.push_back(axis);
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) continue;
    seen.push_back(std::move(key));
    if (is_regrouping(from, permuted(to, permutation))) out.push_back({permutation, true});
  }
}

// All alignments of a value of shape `from` to the shape `to`: first without permutation, then channels last,
// then all other permutations.
std::vector<Alignment> alignments(const Shape& from, const Shape& to) {
  std::vector<Alignment> out;
  if (num_elements(from) != num_elements(to)) return out;
  std::vector<std::vector<std::int64_t>> seen;
  const auto add = [&](const Dims& permutation) {
    Shape shape = from;
    if (!permutation.empty()) shape = permuted(from, inverse_permutation(permutation));
    if (!(shape == to) && !is_regrouping(shape, to)) return;
    std::vector<std::int64_t> key = visible(from, permutation);
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) return;
    seen.push_back(std::move(key));
    out.push_back({permutation});
  };
  add({});
  if (from.size() < 2 || from.size() > kMostRanks) {
    add_regrouped(from, to, out);
    return out;
  }
  add(DimOrder::channels_last(from.size()).axes(from.size()));
  Dims permutation = DimOrder().axes(from.size());
  while (std::next_permutation(permutation.begin(), permutation.end())) add(permutation);
  add_regrouped(from, to, out);
  return out;
}

Array dequantized(const ArrayView& view, const QParams& qparams) {
  Array out = Array::allocate(DType::kF32, view.shape);
  auto* to = reinterpret_cast<float*>(out.storage.writable());
  const auto count = static_cast<std::size_t>(num_elements(view.shape));
  std::vector<double> values(count);
  read_doubles(view, 0, values);
  std::size_t inner = 1, channels = 1;
  if (qparams.axis) {
    const auto axis = static_cast<std::size_t>(*qparams.axis);
    channels = static_cast<std::size_t>(view.shape[axis]);
    for (std::size_t i = axis + 1; i < view.shape.size(); ++i)
      inner *= static_cast<std::size_t>(view.shape[i]);
  }
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t channel = qparams.axis ? i / inner % channels : 0;
    to[i] = dequantize_value(static_cast<std::int64_t>(values[i]), qparams.scales[channel],
                             qparams.zero_points[channel]);
  }
  return out;
}

Held as_real(const ArrayView& view, const QParamsRef& qparams) {
  if (!qparams) return {view, {}};
  Held out;
  out.owner = dequantized(view, *qparams);
  out.view = out.owner.view();
  return out;
}

std::optional<double> unit_of(const QParamsRef& qparams) {
  if (!qparams || qparams->axis) return std::nullopt;
  return qparams->scales.front();
}

bool same_qparams(const QParamsRef& a, const QParamsRef& b) { return a == b || (a && b && *a == *b); }

std::string label_of(const std::string& fx_name, std::uint32_t result) {
  return result == 0 ? fx_name : fx_name + "." + std::to_string(result);
}

class Comparer {
 public:
  Comparer(const Values& b, const Ranks& ranks, const CompareOptions& options)
      : b_(b), options_(options), nodes_b_(group_by_name(b.graph(), ranks)) {
    out_.threshold_db = options.threshold_db;
  }

  // Runs a's nodes in order on b's values and chooses the value of b that each result of a is compared with.
  // `references` (by label) are the arrays that total errors are measured against. Must be called before the
  // first add().
  void with_reference_graph(const Values& a, LocalReference& local,
                            const std::unordered_map<std::string, const Reference*>& references,
                            const NodesByName& nodes_a, const Ranks& ranks) {
    a_ = &a;
    for (const Node& node : a.graph().nodes()) {
      const bool ran = local.run(node);
      const std::string name = ranks.latest(node.origin);
      if (name.empty() || nodes_a.at(name).back() != &node) continue;
      for (std::uint32_t i = 0; i < node.result_count; ++i) {
        const std::string label = label_of(name, i);
        const auto it = references.find(label);
        if (it != references.end()) meet(*it->second, node, i, label, ran, local);
      }
    }
  }

  void add(const Reference& reference) {
    const std::string label = label_of(reference.fx_name, reference.result);
    const auto it = nodes_b_.find(reference.fx_name);
    if (it == nodes_b_.end()) {
      out_.unmatched.push_back({label, "no node in b"});
      return;
    }
    if (const auto found = met_.find(label); found != met_.end()) {
      add_row(reference, label, found->second);
      return;
    }
    std::vector<Match> matches = candidates(reference, 0, it->second);
    if (matches.empty())
      out_.unmatched.push_back({label, mismatch_reason(reference, it->second)});
    else
      add_row(reference, label, nearest(reference, matches));
  }

  void leave_out(const std::string& name, const std::string& reason) {
    out_.unmatched.push_back({name, reason});
  }

  report::Comparison finish() && { return std::move(out_); }

 private:
  struct Match {
    ValueId value;
    Alignment alignment;
    // The rest is set if a's graph is known.
    const Node* node = nullptr;
    std::optional<report::Metrics> local, inherited;
    std::optional<double> share;
  };
  static constexpr std::size_t kMostTries = 64;

  std::vector<Alignment> alignments_of(ValueId value, const Shape& shape) const {
    std::vector<Alignment> out;
    const auto it = options_.permutations.find(b_.graph().value(value).name);
    if (it != options_.permutations.end()) out.push_back({it->second});
    const bool known = !out.empty() && aligned(b_[value], shape, out.front()).view.data != nullptr;
    if (!known) out.clear();
    for (Alignment& each : alignments(b_.graph().type(value).shape, shape))
      if (!known || each.regrouped_first ||
          !(visible(b_.graph().type(value).shape, each.permutation) ==
            visible(b_.graph().type(value).shape, out.front().permutation)))
        out.push_back(std::move(each));
    return out;
  }

  // The values of b that belong to the FX node, are the same result (by index) of a node with as many
  // results, and fit the reference: the shapes align, and a floating-point or quantized reference needs a
  // float or a value with qparams. The last value comes first.
  std::vector<Match> candidates(const Reference& reference, std::uint32_t result_count,
                                const std::vector<const Node*>& nodes) const {
    std::vector<Match> out;
    for (std::size_t i = nodes.size(); i-- > 0 && out.size() < kMostTries;) {
      const Node& node = *nodes[i];
      const bool same_results = result_count == 0 || result_count == node.result_count;
      if (reference.result >= node.result_count || !same_results) continue;
      const ValueId value = b_.graph().result(node, reference.result);
      if (b_[value].data == nullptr || !means_the_same(value, reference)) continue;
      for (Alignment& each : alignments_of(value, reference.array.shape))
        out.push_back({value, std::move(each), nullptr, {}, {}, {}});
    }
    return out;
  }

  // Of the alignments of the first match's value: the known permutation, else the alignment nearest to the
  // reference.
  Match nearest(const Reference& reference, std::vector<Match>& matches) const {
    std::size_t best = 0;
    if (!options_.permutations.contains(b_.graph().value(matches[0].value).name)) {
      const Held expected = as_real(reference.array, reference.qparams);
      double best_db = -std::numeric_limits<double>::infinity();
      for (std::size_t i = 0; i < matches.size() && matches[i].value == matches[0].value; ++i) {
        const Held found = in_axes(matches[i], reference);
        const double db = compute_metrics(expected.view, found.view, {}).sqnr_db;
        if (db > best_db) {
          best_db = db;
          best = i;
        }
      }
    }
    return std::move(matches[best]);
  }

  // Chooses b's value for a result of a's node: the first candidate that is right, else the least wrong one.
  void meet(const Reference& reference, const Node& node, std::uint32_t result, const std::string& label,
            bool ran, LocalReference& local) {
    const auto it = nodes_b_.find(reference.fx_name);
    if (it == nodes_b_.end()) return;
    const ValueId value = a_->graph().result(node, result);
    if (!is_result(value, reference)) return;
    std::vector<Match> matches = candidates(reference, node.result_count, it->second);
    if (matches.empty()) return;
    Match match;
    bool judged = false;
    if (ran) {
      double best = std::numeric_limits<double>::infinity();
      for (Match& each : matches) {
        const std::optional<double> share = share_of(value, each, local);
        if (!share) continue;
        // If no value is right, the last value of b is reported, in the alignment that is least wrong.
        const bool same = judged && each.value == match.value;
        if (judged && *share > 1 && !(same && *share < best)) continue;
        match = each;
        match.share = share;
        best = *share;
        judged = true;
        if (*share <= 1) break;
      }
    }
    if (!judged) match = nearest(reference, matches);
    match.node = &node;
    if (judged && options_.local) {
      const QParamsRef& qparams = reference.rounded ? reference.qparams : a_->graph().type(value).qparams;
      const Held made = as_real(local.made(value), qparams);
      const Held found = in_axes(match, reference);
      const Held expected = as_real(reference.array, reference.qparams);
      const MetricsOptions metrics = metrics_options(reference.qparams, match.value);
      match.local = compute_metrics(made.view, found.view, metrics);
      if (made.view.shape == expected.view.shape)
        match.inherited = compute_metrics(expected.view, made.view, metrics);
    }
    if (!options_.local) match.share.reset();
    if (std::optional<Held> operand = as_operand(value, match)) local.accept(value, std::move(*operand));
    met_.emplace(label, std::move(match));
  }

  // True if the result of a's last node for an FX node is the value in the reference. An FX call with several
  // results may become several nodes; then the last node may compute another result of the call. True also if
  // a's own run does not know the value.
  bool is_result(ValueId value, const Reference& reference) const {
    const ArrayView& own = (*a_)[value];
    if (own.data == nullptr || own.data == reference.array.data) return true;
    if (!(own.shape == reference.array.shape) || is_float(own.dtype) != is_float(reference.array.dtype))
      return false;
    const double db = compute_metrics(reference.array, own, {}).sqnr_db;
    return db > kSameResultDb || num_elements(own.shape) == 0;
  }
  static constexpr double kSameResultDb = 10;

  // True if b's value can be compared with a's. Integers with other qparams cannot: they represent other
  // numbers.
  bool is_comparable(ValueId value, const Match& match) const {
    const TensorType& a = a_->graph().type(value);
    const TensorType& b = b_.graph().type(match.value);
    if (is_float(a.dtype)) return is_float(b.dtype) || b.qparams != nullptr;
    const Node* producer = a_->graph().producer(value);
    const bool rounded = producer != nullptr && producer->op == Op::kQuantize;
    if (!a.qparams || (rounded && is_float(b.dtype))) return true;
    return !is_float(b.dtype) && (!b.qparams || same_qparams(a.qparams, b.qparams));
  }

  std::optional<double> share_of(ValueId value, const Match& match, const LocalReference& local) const {
    if (!is_comparable(value, match)) return std::nullopt;
    const Held found = aligned(b_[match.value], a_->graph().type(value).shape, match.alignment);
    if (found.view.data == nullptr) return std::nullopt;
    const QParamsRef qparams = permuted_qparams(b_.graph().type(match.value).qparams, match.alignment);
    return local.share(value, found.view, qparams);
  }

  // The qparams with their axis counted in the axes of the aligned value. Null if the axis may be joined with
  // others.
  static QParamsRef permuted_qparams(const QParamsRef& qparams, const Alignment& alignment) {
    if (!qparams || !qparams->axis || alignment.permutation.empty()) return qparams;
    if (alignment.regrouped_first) return nullptr;  // the axis may be joined with others
    auto out = std::make_shared<QParams>(*qparams);
    out->axis = alignment.permutation[static_cast<std::size_t>(*qparams->axis)];
    return out;
  }

  std::optional<Held> as_operand(ValueId value, const Match& match) const {
    if (!is_comparable(value, match)) return std::nullopt;
    const TensorType& type = a_->graph().type(value);
    const QParamsRef& qparams = b_.graph().type(match.value).qparams;
    Held found = is_float(type.dtype) ? as_real(b_[match.value], qparams) : Held{b_[match.value], {}};
    Held turned = aligned(found.view, type.shape, match.alignment);
    if (turned.view.data == nullptr) return std::nullopt;
    if (turned.owner.storage.size() == 0) turned.owner = std::move(found.owner);
    return as_dtype(std::move(turned), type.dtype);
  }

  // False if one side is a float or a quantized value and the other side is an integer without qparams. At
  // stage integer, the integers between two quantized values have no qparams, so they cannot be dequantized.
  bool means_the_same(ValueId value, const Reference& reference) const {
    const TensorType& type = b_.graph().type(value);
    if (reference.rounded) return is_float(type.dtype) || !type.qparams || same_storage(type, reference);
    const bool whole = !is_float(reference.array.dtype) && !reference.qparams;
    if (whole && is_float(type.dtype) && a_ != nullptr && a_->graph().stage != Stage::kExported) return false;
    return is_float(type.dtype) || type.qparams || !(is_float(reference.array.dtype) || reference.qparams);
  }

  static bool same_storage(const TensorType& type, const Reference& reference) {
    return same_qparams(type.qparams, reference.qparams);
  }

  std::string mismatch_reason(const Reference& reference, const std::vector<const Node*>& nodes) const {
    for (std::size_t i = nodes.size(); i-- > 0;) {
      if (reference.result >= nodes[i]->result_count) continue;
      const ValueId value = b_.graph().result(*nodes[i], reference.result);
      const TensorType& type = b_.graph().type(value);
      const bool fits = b_[value].data != nullptr && !alignments_of(value, reference.array.shape).empty();
      if (fits && !means_the_same(value, reference) && is_float(type.dtype))
        return std::string(to_string(reference.array.dtype)) + " without quantization parameters in a";
      if (fits && !means_the_same(value, reference))
        return std::string(to_string(type.dtype)) + " without quantization parameters in b";
      return "shape " + to_string(reference.array.shape) + " against " + to_string(type.shape);
    }
    return "no such result in b";
  }

  void add_row(const Reference& reference, const std::string& label, const Match& match) {
    const Graph& graph_b = b_.graph();
    const Node& node_b = *graph_b.producer(match.value);
    report::CompareRow row;
    row.fx_name = label;
    row.op_b = info(node_b.op).name;
    row.value_b = graph_b.value(match.value).name;
    if (match.node != nullptr) {
      row.op_a = info(match.node->op).name;
      row.value_a = a_->graph().value(a_->graph().result(*match.node, reference.result)).name;
    }
    const OriginRef& from = match.node != nullptr ? match.node->origin : node_b.origin;
    if (const OriginRef leaf = leaf_named(from, reference.fx_name)) {
      row.module_path = leaf->module_path;
      row.source = leaf->source();
    }
    const Held value = in_axes(match, reference);
    const Held expected = as_real(reference.array, reference.qparams);
    row.total = compute_metrics(expected.view, value.view, metrics_options(reference.qparams, match.value));
    row.local = match.local;
    row.inherited = match.inherited;
    row.local_share = match.share;
    if (!out_.first_divergence && row.total.sqnr_db < options_.threshold_db)
      out_.first_divergence = out_.rows.size();
    out_.rows.push_back(std::move(row));
  }

  MetricsOptions metrics_options(const QParamsRef& reference, ValueId value) const {
    const std::optional<double> unit = unit_of(b_.graph().type(value).qparams);
    return {unit ? unit : unit_of(reference)};
  }

  // b's value in a's axes. It is dequantized, except if the reference is an integer without qparams.
  Held in_axes(const Match& match, const Reference& reference) const {
    const ArrayView& view = b_[match.value];
    // b may hold integers in a float dtype, if the target lacks the integer dtype.
    const bool counted = is_float(view.dtype);
    if (reference.rounded) {
      Held whole = aligned(view, reference.array.shape, match.alignment);
      whole = as_dtype(std::move(whole), reference.array.dtype);
      Held real = as_real(whole.view, reference.qparams);
      return real;
    }
    const bool whole = !is_float(reference.array.dtype) && !reference.qparams;
    Held real = whole ? as_dtype({view, {}}, counted ? view.dtype : reference.array.dtype)
                      : as_real(view, b_.graph().type(match.value).qparams);
    Held out = aligned(real.view, reference.array.shape, match.alignment);
    if (out.owner.storage.size() == 0) out.owner = std::move(real.owner);
    return out;
  }

  const Values& b_;
  const Values* a_ = nullptr;
  const CompareOptions& options_;
  NodesByName nodes_b_;
  std::unordered_map<std::string, Match> met_;  // by label
  report::Comparison out_;
};

QParamsRef qparams_of(const Node& node) {
  const auto& attrs = Graph::attrs<QuantizeAttrs>(node);
  return std::make_shared<QParams>(
      QParams{attrs.dtype, attrs.qmin, attrs.qmax, attrs.axis, attrs.scales, attrs.zero_points});
}

// Names of FX nodes that have several values of equal type which other FX nodes or outputs read, such as the
// two parts of a complex number. It is not known which value of b corresponds to which of them.
std::set<std::string> several_results(const Graph& graph, const NodesByName& nodes, const Ranks& ranks) {
  std::vector<bool> read(graph.values().size(), false);  // by a node of another FX node, or by an output
  for (const Output& output : graph.outputs()) read[output.value.index()] = true;
  for (const Node& node : graph.nodes()) {
    const std::string name = ranks.latest(node.origin);
    for (const ValueId operand : graph.operands(node)) {
      const Node* producer = operand.valid() ? graph.producer(operand) : nullptr;
      if (producer != nullptr && ranks.latest(producer->origin) != name) read[operand.index()] = true;
    }
  }
  std::set<std::string> out;
  for (const auto& [name, group] : nodes) {
    if (group.back()->result_count == 0) continue;
    const TensorType& last = graph.type(graph.result(*group.back()));
    for (const Node* node : group)
      for (std::uint32_t i = 0; node != group.back() && i < node->result_count; ++i) {
        const ValueId value = graph.result(*node, i);
        if (read[value.index()] && graph.type(value).shape == last.shape &&
            graph.type(value).dtype == last.dtype)
          out.insert(name);
      }
  }
  return out;
}

// The final value of each FX node of a, in the order of a's nodes.
std::vector<Reference> final_values(const Values& a, const NodesByName& nodes, const Ranks& ranks,
                                    const std::set<std::string>& several) {
  std::vector<Reference> out;
  for (const Node& node : a.graph().nodes()) {
    const std::string name = ranks.latest(node.origin);
    if (name.empty() || nodes.at(name).back() != &node || several.contains(name)) continue;
    for (std::uint32_t i = 0; i < node.result_count; ++i) {
      const ValueId value = a.graph().result(node, i);
      if (a[value].data != nullptr)
        out.push_back({name, i, a[value], a.graph().type(value).qparams, node.op == Op::kQuantize});
      if (node.op == Op::kQuantize) out.back().qparams = qparams_of(node);
    }
  }
  return out;
}

// Sets a's inputs to the values that a's run used.
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

Array owned_dense(const ArrayView& view) {
  Array out = Array::allocate(view.dtype, view.shape);
  copy(view, MutableArrayView::dense(out.storage.writable(), view.dtype, out.shape));
  return out;
}

// An output in its logical axes. If the caller gets the output, it is the caller's array; if it is stored in
// a state, it is the graph's value.
Held logical_output(const Run& run, const Values& values, std::uint32_t index) {
  const Graph& graph = values.graph();
  const Output& output = graph.outputs()[index];
  const std::span<const std::uint32_t> given = run.session.outputs();
  const auto at = std::find(given.begin(), given.end(), index);
  const bool given_back = at != given.end();
  Held out;
  out.view = given_back ? run.result.outputs[static_cast<std::size_t>(at - given.begin())].view()
                        : values[output.value];
  if (out.view.data == nullptr) return {};
  // In a graph read from a file, Output::border says i8 or i16 for unsigned integers.
  const DType known = values[output.value].dtype;
  if (known == DType::kU8 && out.view.dtype == DType::kI8) out.view.dtype = known;
  if (known == DType::kU16 && out.view.dtype == DType::kI16) out.view.dtype = known;
  const DimOrder& order = output.border.order;
  if (!order.is_identity() && (output.border.physical || (!given_back && graph.stage == Stage::kTosa)))
    out.view = permuted(out.view, inverse_permutation(order.axes(out.view.shape.size())));
  return out;
}

bool is_whole(const ArrayView& view) { return !is_float(view.dtype); }

// The alignments by those of the `orders` that fit the shapes. Any other order would be an error of b, which
// must not be hidden. If none of the orders fits, all alignments.
std::vector<Alignment> alignments_among(const std::vector<Dims>& orders, const Shape& from, const Shape& to) {
  std::vector<Alignment> out;
  for (const Dims& order : orders) {
    Shape shape = from;
    if (!order.empty() && !is_permutation_of_axes(order, from.size())) continue;
    if (!order.empty()) shape = permuted(from, inverse_permutation(order));
    if (shape == to || is_regrouping(shape, to)) out.push_back({order});
  }
  return out.empty() ? alignments(from, to) : out;
}

// The reference's nodes run from the inputs to the outputs without any value of the other run. Runs at the
// first use.
class Carried {
 public:
  Carried(const Graph& graph, const Run& run, std::span<const ArrayView> inputs,
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
  const Run& run_;
  std::span<const ArrayView> inputs_;
  const PrepareOptions& options_;
  std::optional<LocalReference> reference_;
};

// The error of rescales in addition to one rounding to nearest, in units. Double rounding adds 2^30 before a
// shift of at least 32, i.e. at most 1/4.
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

QParamsRef stands_for(const Graph& graph, std::uint32_t output, const QParamsRef& told) {
  if (told) return told;
  const Output& found = graph.outputs()[output];
  return found.border.qparams ? found.border.qparams : graph.type(found.value).qparams;
}

// Compares a pair of outputs. If one of them is float, or both have qparams, integers are dequantized first.
// b is brought into a's axes.
class OutputComparer {
 public:
  OutputComparer(const Values& a, const LocalReference* local, Carried& carried, double threshold_db)
      : a_(a), local_(local), carried_(carried), threshold_db_(threshold_db) {}

  ComparedOutput compare(const CompareOptions::OutputPair& pair, const Held& a, const Held& b,
                         const Graph& graph_b) const {
    const QParamsRef qparams_a = stands_for(a_.graph(), pair.a, nullptr);
    const QParamsRef qparams_b =
        pair.variable.empty() ? stands_for(graph_b, pair.b, pair.qparams) : pair.qparams;
    const bool numbers = !is_whole(a.view) || !is_whole(b.view) || (qparams_a && qparams_b);
    const Held real_a = numbers && is_whole(a.view) ? as_real(a.view, qparams_a) : a;
    const Held real_b = numbers && is_whole(b.view) ? as_real(b.view, qparams_b) : b;
    std::vector<Alignment> tried{Alignment{}};
    if (!pair.orders.empty()) tried = alignments_among(pair.orders, real_b.view.shape, real_a.view.shape);
    ComparedOutput out;
    out.a = owned_dense(real_a.view);
    double best = -std::numeric_limits<double>::infinity(), best_share = best;
    for (const Alignment& alignment : tried) {
      const Held turned = aligned(real_b.view, real_a.view.shape, alignment);
      if (turned.view.data == nullptr) continue;
      const double db = compute_metrics(real_a.view, turned.view, {}).sqnr_db;
      const std::optional<double> share = share_of(pair.a, turned.view, qparams_a);
      const bool right = share && *share <= 1 && !(best_share >= 0 && best_share <= 1);
      if (out.b.storage.size() != 0 && !right && !(db > best)) continue;
      out.b = owned_dense(turned.view);
      out.local_share = share;
      best = db;
      best_share = share.value_or(-1);
      if (right) break;
    }
    if (out.b.storage.bound()) out.carried_share = carried_share(pair, real_a.view, out.b.view());
    return out;
  }

 private:
  std::optional<double> carried_share(const CompareOptions::OutputPair& pair, const ArrayView& a,
                                      const ArrayView& found) const {
    const ArrayView& expected = pair.expected.data != nullptr ? pair.expected : a;
    const ValueId value = a_.graph().outputs()[pair.a].value;
    if (local_ == nullptr || !is_float(a_.graph().type(value).dtype) || !is_float(found.dtype) ||
        !is_float(expected.dtype) || !(expected.shape == found.shape))
      return std::nullopt;
    if (compute_metrics(expected, found, {}).sqnr_db >= threshold_db_) return std::nullopt;
    const LocalReference& carried = carried_.reference();
    if (!carried.known(value)) return std::nullopt;
    const ArrayView turned = in_graph_axes(pair.a, found);
    if (!(turned.shape == carried.made(value).shape)) return std::nullopt;
    return carried.share_between(value, in_graph_axes(pair.a, expected), turned);
  }

  ArrayView in_graph_axes(std::uint32_t output, const ArrayView& logical) const {
    const DimOrder& order = a_.graph().outputs()[output].border.order;
    if (a_.graph().stage != Stage::kTosa || order.is_identity()) return logical;
    return permuted(logical, order.axes(logical.shape.size()));
  }

  std::optional<double> share_of(std::uint32_t output, const ArrayView& found,
                                 const QParamsRef& qparams_a) const {
    const ValueId value = a_.graph().outputs()[output].value;
    if (local_ == nullptr || !local_->known(value)) return std::nullopt;
    const ArrayView turned = in_graph_axes(output, found);
    if (!(turned.shape == local_->made(value).shape)) return std::nullopt;
    if (!is_whole(local_->made(value)) || is_whole(turned)) return local_->share(value, turned, nullptr);
    if (!qparams_a) return local_->share(value, turned, nullptr);
    return std::nullopt;
  }

  const Values& a_;
  const LocalReference* local_;
  Carried& carried_;
  double threshold_db_;
};

Held output_of(const CompareOptions::OutputPair& pair, const Run& run, const Values& values) {
  if (pair.variable.empty()) return logical_output(run, values, pair.b);
  Held out;
  out.owner = run.session.state(pair.variable);
  out.view = out.owner.view();
  return out;
}

}  // namespace

ComparedRuns compare_runs(const std::shared_ptr<const Graph>& a, const std::shared_ptr<const Graph>& b,
                          std::span<const ArrayView> inputs_a, std::span<const ArrayView> inputs_b,
                          const CompareOptions& options, std::span<const NamedArray> reference) {
  const Run run_a(a, inputs_a, options.a), run_b(b, inputs_b, options.b);
  const Values values_a(*a, run_a.result.trace), values_b(*b, run_b.result.trace);
  Ranks ranks;
  for (const NamedArray& named : reference) ranks.add(named.fx_name);
  for (const Node& node : a->nodes())
    for (const OriginRef& leaf : leaves(node.origin)) ranks.add(leaf->fx_name);
  const NodesByName nodes_a = group_by_name(*a, ranks);
  std::set<std::string> several;
  if (reference.empty()) several = several_results(*a, nodes_a, ranks);
  std::vector<Reference> references = final_values(values_a, nodes_a, ranks, several);
  std::unordered_map<std::string, const Reference*> by_label;
  if (!reference.empty()) {
    references.clear();
    for (const NamedArray& named : reference)
      references.push_back({named.fx_name, named.result, named.array, nullptr});
    for (Reference& each : references) {
      const auto it = nodes_a.find(each.fx_name);
      if (it == nodes_a.end() || it->second.back()->op != Op::kQuantize || is_float(each.array.dtype))
        continue;
      each.qparams = qparams_of(*it->second.back());
      each.rounded = true;
    }
  }
  for (const Reference& each : references) by_label.emplace(label_of(each.fx_name, each.result), &each);
  Comparer comparer(values_b, ranks, options);
  LocalReference local(*a, options.a);
  local.set_rescale_error(rescale_error(*b));
  set_inputs(local, *a, run_a.session, inputs_a);
  comparer.with_reference_graph(values_a, local, by_label, nodes_a, ranks);
  for (const Reference& each : references) comparer.add(each);
  for (const std::string& name : several) comparer.leave_out(name, "several values in a");
  ComparedRuns out;
  out.report = std::move(comparer).finish();
  Carried carried(*a, run_a, inputs_a, options.a);
  const OutputComparer outputs(values_a, options.local ? &local : nullptr, carried, options.threshold_db);
  for (const CompareOptions::OutputPair& pair : options.outputs)
    out.outputs.push_back(
        outputs.compare(pair, logical_output(run_a, values_a, pair.a), output_of(pair, run_b, values_b), *b));
  return out;
}

report::Comparison compare(const std::shared_ptr<const Graph>& a, const std::shared_ptr<const Graph>& b,
                           std::span<const ArrayView> inputs_a, std::span<const ArrayView> inputs_b,
                           const CompareOptions& options) {
  return compare_runs(a, b, inputs_a, inputs_b, options).report;
}

report::Comparison compare_traces(std::span<const NamedArray> reference,
                                  const std::shared_ptr<const Graph>& b, std::span<const ArrayView> inputs_b,
                                  const CompareOptions& options) {
  const Run run_b(b, inputs_b, options.b);
  const Values values_b(*b, run_b.result.trace);
  Ranks ranks;
  for (const NamedArray& named : reference) ranks.add(named.fx_name);
  Comparer comparer(values_b, ranks, options);
  for (const NamedArray& named : reference) comparer.add({named.fx_name, named.result, named.array, nullptr});
  return std::move(comparer).finish();
}

}  // namespace tosaic::exec
