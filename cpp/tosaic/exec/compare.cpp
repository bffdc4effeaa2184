#include "tosaic/exec/compare.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "tosaic/exec/metrics.h"
#include "tosaic/exec/node.h"
#include "tosaic/ir/quantized_value.h"

namespace tosaic::exec {
namespace {

// The values of one run by id, dense and in the graph's axes; no data where unknown.
class Values {
 public:
  Values(const Graph& graph, const std::vector<TracedValue>& trace)
      : graph_(graph), views_(graph.values().size()) {
    for (std::uint32_t i = 0; i < views_.size(); ++i)
      if (const ConstantRef& constant = graph.values()[i].constant; constant && constant->storage.bound())
        views_[i] = ArrayView::dense(constant->storage.bytes().data(), constant->dtype, constant->shape);
    for (const TracedValue& traced : trace) views_[traced.value.index()] = traced.array.view();
  }
  void set(ValueId value, const ArrayView& view) { views_[value.index()] = view; }
  [[nodiscard]] const ArrayView& operator[](ValueId value) const { return views_[value.index()]; }
  [[nodiscard]] const Graph& graph() const { return graph_; }

 private:
  const Graph& graph_;
  std::vector<ArrayView> views_;
};

// A run with everything kept.
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

// What a value of b is compared with.
struct Reference {
  std::string fx_name;
  std::uint32_t result = 0;
  ArrayView array;
  QParamsRef qparams;
  const Node* node = nullptr;  // in a, if there is one
};

// FX nodes in the order of the reference; a node of b stands for the latest of the FX nodes it stems from.
class Ranks {
 public:
  void add(const std::string& fx_name) { ranks_.try_emplace(fx_name, ranks_.size()); }

  // "" for a node that stems from no FX node of the reference.
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
  for (const Node& node : graph.nodes())
    if (std::string name = ranks.latest(node.origin); !name.empty()) out[std::move(name)].push_back(&node);
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

// The same elements in the same order, as far as shapes tell: not where the same extents stand in another
// order.
bool is_regrouping(const Shape& from, const Shape& to) {
  std::vector<std::int64_t> a = non_unit(from), b = non_unit(to);
  if (num_elements(from) != num_elements(to)) return false;
  if (a == b) return true;
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  return a != b;
}

// A value of b in a's axes: permuted as told, else as it is, else reshaped. No data where none of these.
ArrayView aligned(const ArrayView& view, const Shape& shape, const Dims* permutation) {
  if (permutation != nullptr) {
    if (!is_permutation_of_axes(*permutation, view.shape.size())) return {};
    const ArrayView out = permuted(view, inverse_permutation(*permutation));
    return out.shape == shape ? out : ArrayView{};
  }
  if (view.shape == shape) return view;
  if (is_regrouping(view.shape, shape)) return ArrayView::dense(view.data, view.dtype, shape);
  return {};
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

// A view with what keeps it alive.
struct Held {
  ArrayView view;
  Array owner;
};

Held as_real(const ArrayView& view, const QParamsRef& qparams) {
  if (!qparams) return {view, {}};
  Held out;
  out.owner = dequantized(view, *qparams);
  out.view = out.owner.view();
  return out;
}

// Dense and of the dtype.
Held as_operand(Held value, DType dtype) {
  if (value.view.dtype == dtype && is_dense(value.view.shape, value.view.strides, dtype)) return value;
  Array out = Array::allocate(dtype, value.view.shape);
  if (value.view.dtype == dtype) {
    copy(value.view, MutableArrayView::dense(out.storage.writable(), dtype, out.shape));
  } else {
    std::vector<double> elements(static_cast<std::size_t>(num_elements(out.shape)));
    read_doubles(value.view, 0, elements);
    for (std::size_t i = 0; i < elements.size(); ++i)
      store_element(dtype, out.storage.writable() + i * byte_size(dtype), elements[i]);
  }
  const ArrayView view = out.view();
  return {view, std::move(out)};
}

std::optional<double> unit_of(const QParamsRef& qparams) {
  if (!qparams || qparams->axis) return std::nullopt;
  return qparams->scales.front();
}

bool same_qparams(const QParamsRef& a, const QParamsRef& b) { return a == b || (a && b && *a == *b); }

class Comparer {
 public:
  Comparer(const Values& b, const Ranks& ranks, const CompareOptions& options)
      : b_(b), options_(options), nodes_b_(group_by_name(b.graph(), ranks)) {
    out_.threshold_db = options.threshold_db;
  }

  // Lets local errors be computed: a's values, and b's counterpart of each. Before the first row.
  void with_reference_graph(const Values& a, std::span<const Reference> references) {
    a_ = &a;
    for (const Reference& reference : references) {
      const auto it = nodes_b_.find(reference.fx_name);
      if (it == nodes_b_.end()) continue;
      const ValueId match = find_match(reference, it->second);
      if (match.valid()) counterpart_[a.graph().result(*reference.node, reference.result).index()] = match;
    }
  }

  void add(const Reference& reference) {
    const std::string label = reference.result == 0
                                  ? reference.fx_name
                                  : reference.fx_name + "." + std::to_string(reference.result);
    const auto it = nodes_b_.find(reference.fx_name);
    if (it == nodes_b_.end()) {
      out_.unmatched.push_back({label, "no node in b"});
      return;
    }
    const ValueId match = find_match(reference, it->second);
    if (!match.valid()) {
      out_.unmatched.push_back({label, mismatch_reason(reference, it->second)});
      return;
    }
    add_row(reference, label, match);
  }

  report::Comparison finish() && { return std::move(out_); }

 private:
  const Dims* permutation(ValueId value) const {
    const auto it = options_.permutations.find(b_.graph().value(value).name);
    return it == options_.permutations.end() ? nullptr : &it->second;
  }

  ArrayView aligned_value(ValueId value, const Shape& shape) const {
    return aligned(b_[value], shape, permutation(value));
  }

  // The last value of b that stems from the FX node, is the same result of it and fits the reference: its
  // shape, and real numbers where the reference has them.
  ValueId find_match(const Reference& reference, const std::vector<const Node*>& nodes) const {
    for (std::size_t i = nodes.size(); i-- > 0;) {
      const Node& node = *nodes[i];
      const bool same_results =
          reference.node == nullptr || reference.node->result_count == node.result_count;
      if (reference.result >= node.result_count || !same_results) continue;
      const ValueId value = b_.graph().result(node, reference.result);
      if (fits(value, reference.array.shape) && means_the_same(value, reference)) return value;
    }
    return {};
  }

  // Integers without parameters, as stage integer has them between quantized values, mean no real numbers.
  bool means_the_same(ValueId value, const Reference& reference) const {
    const TensorType& type = b_.graph().type(value);
    return is_float(type.dtype) || type.qparams || !(is_float(reference.array.dtype) || reference.qparams);
  }

  bool fits(ValueId value, const Shape& shape) const {
    return b_[value].data != nullptr && aligned_value(value, shape).data != nullptr;
  }

  std::string mismatch_reason(const Reference& reference, const std::vector<const Node*>& nodes) const {
    for (std::size_t i = nodes.size(); i-- > 0;) {
      if (reference.result >= nodes[i]->result_count) continue;
      const ValueId value = b_.graph().result(*nodes[i], reference.result);
      const TensorType& type = b_.graph().type(value);
      if (fits(value, reference.array.shape) && !means_the_same(value, reference))
        return std::string(to_string(type.dtype)) + " without quantization parameters in b";
      return "shape " + to_string(reference.array.shape) + " against " + to_string(type.shape);
    }
    return "no such result in b";
  }

  void add_row(const Reference& reference, const std::string& label, ValueId match) {
    const Graph& graph_b = b_.graph();
    const Node& node_b = *graph_b.producer(match);
    report::CompareRow row;
    row.fx_name = label;
    row.op_b = info(node_b.op).name;
    row.value_b = graph_b.value(match).name;
    if (reference.node != nullptr) {
      row.op_a = info(reference.node->op).name;
      row.value_a = a_->graph().value(a_->graph().result(*reference.node, reference.result)).name;
    }
    const OriginRef& from = reference.node != nullptr ? reference.node->origin : node_b.origin;
    if (const OriginRef leaf = leaf_named(from, reference.fx_name)) {
      row.module_path = leaf->module_path;
      row.source = leaf->source();
    }
    const Held value = real_value(match, reference.array.shape);
    const Held expected = as_real(reference.array, reference.qparams);
    const MetricsOptions metrics = metrics_options(reference.qparams, match);
    row.total = compute_metrics(expected.view, value.view, metrics);
    if (options_.local && reference.node != nullptr)
      add_local(reference, expected.view, value.view, metrics, row);
    if (!out_.first_divergence && row.total.sqnr_db < options_.threshold_db)
      out_.first_divergence = out_.rows.size();
    out_.rows.push_back(std::move(row));
  }

  MetricsOptions metrics_options(const QParamsRef& reference, ValueId value) const {
    const std::optional<double> unit = unit_of(b_.graph().type(value).qparams);
    return {unit ? unit : unit_of(reference)};
  }

  // In a's axes; quantized values as real numbers.
  Held real_value(ValueId value, const Shape& shape) const {
    Held out = as_real(b_[value], b_.graph().type(value).qparams);
    out.view = aligned(out.view, shape, permutation(value));
    return out;
  }

  void add_local(const Reference& reference, const ArrayView& expected, const ArrayView& value,
                 const MetricsOptions& metrics, report::CompareRow& row) {
    const std::vector<Array>* alone = run_alone(*reference.node);
    if (alone == nullptr) return;
    const Held made = as_real((*alone)[reference.result].view(), reference.qparams);
    row.local = compute_metrics(made.view, value, metrics);
    row.inherited = compute_metrics(expected, made.view, metrics);
  }

  // a's node on b's operands; null where that cannot be. Kept for the node's other results.
  const std::vector<Array>* run_alone(const Node& node) {
    if (alone_node_ == &node) return alone_ ? &*alone_ : nullptr;
    alone_node_ = &node;
    alone_.reset();
    std::vector<Held> held;
    std::vector<ArrayView> operands;
    for (const ValueId operand : a_->graph().operands(node)) {
      if (!operand.valid()) {
        operands.emplace_back();
        continue;
      }
      std::optional<Held> found = operand_from_b(operand);
      if (!found) return nullptr;
      held.push_back(std::move(*found));
      operands.push_back(held.back().view);
    }
    alone_ = run_node(a_->graph(), node, operands, options_.a);
    return alone_ ? &*alone_ : nullptr;
  }

  std::optional<Held> operand_from_b(ValueId operand) const {
    const Value& value = a_->graph().value(operand);
    const ArrayView own = (*a_)[operand];
    if (value.kind != ValueKind::kResult)
      return own.data == nullptr ? std::nullopt : std::optional(Held{own, {}});
    const auto it = counterpart_.find(operand.index());
    if (it == counterpart_.end()) return std::nullopt;
    const QParamsRef& qparams_b = b_.graph().type(it->second).qparams;
    if (value.type.qparams) {
      if (!same_qparams(value.type.qparams, qparams_b)) return std::nullopt;
      Held raw{aligned_value(it->second, value.type.shape), {}};
      return as_operand(std::move(raw), value.type.dtype);
    }
    return as_operand(real_value(it->second, value.type.shape), value.type.dtype);
  }

  const Values& b_;
  const Values* a_ = nullptr;
  const CompareOptions& options_;
  NodesByName nodes_b_;
  std::unordered_map<std::uint32_t, ValueId> counterpart_;  // value of a -> value of b
  const Node* alone_node_ = nullptr;
  std::optional<std::vector<Array>> alone_;
  report::Comparison out_;
};

// The final value of each FX node of a, in order.
std::vector<Reference> final_values(const Values& a, const Ranks& ranks) {
  std::vector<Reference> out;
  const NodesByName nodes = group_by_name(a.graph(), ranks);
  for (const Node& node : a.graph().nodes()) {
    const std::string name = ranks.latest(node.origin);
    if (name.empty() || nodes.at(name).back() != &node) continue;
    for (std::uint32_t i = 0; i < node.result_count; ++i) {
      const ValueId value = a.graph().result(node, i);
      if (a[value].data != nullptr) out.push_back({name, i, a[value], a.graph().type(value).qparams, &node});
    }
  }
  return out;
}

// a's inputs as its run saw them: needed as operands of single nodes. Returns what keeps them alive.
std::vector<Array> add_inputs(Values& values, const Session& session, std::span<const ArrayView> inputs) {
  std::vector<Array> owners;
  const Graph& graph = values.graph();
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    const Input& input = graph.inputs()[session.inputs()[k]];
    owners.push_back(session.imported(session.inputs()[k], inputs[k]));
    values.set(input.value, owners.back().view());
  }
  for (const Input& input : graph.inputs()) {
    if (input.kind != InputKind::kState || !input.initial) continue;
    values.set(input.value,
               ArrayView::dense(input.initial->bytes().data(), input.initial->dtype, input.initial->shape));
  }
  return owners;
}

}  // namespace

report::Comparison compare(const std::shared_ptr<const Graph>& a, const std::shared_ptr<const Graph>& b,
                           std::span<const ArrayView> inputs_a, std::span<const ArrayView> inputs_b,
                           const CompareOptions& options) {
  const Run run_a(a, inputs_a, options.a), run_b(b, inputs_b, options.b);
  Values values_a(*a, run_a.result.trace);
  const Values values_b(*b, run_b.result.trace);
  const std::vector<Array> owners = add_inputs(values_a, run_a.session, inputs_a);
  Ranks ranks;
  for (const Node& node : a->nodes())
    for (const OriginRef& leaf : leaves(node.origin)) ranks.add(leaf->fx_name);
  const std::vector<Reference> references = final_values(values_a, ranks);
  Comparer comparer(values_b, ranks, options);
  comparer.with_reference_graph(values_a, references);
  for (const Reference& reference : references) comparer.add(reference);
  return std::move(comparer).finish();
}

report::Comparison compare_traces(std::span<const NamedArray> reference,
                                  const std::shared_ptr<const Graph>& b, std::span<const ArrayView> inputs_b,
                                  const CompareOptions& options) {
  const Run run_b(b, inputs_b, options.b);
  const Values values_b(*b, run_b.result.trace);
  Ranks ranks;
  for (const NamedArray& named : reference) ranks.add(named.fx_name);
  Comparer comparer(values_b, ranks, options);
  for (const NamedArray& named : reference)
    comparer.add({named.fx_name, named.result, named.array, nullptr, nullptr});
  return std::move(comparer).finish();
}

}  // namespace tosaic::exec
