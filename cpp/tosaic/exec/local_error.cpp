#include "tosaic/exec/local_error.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tosaic/exec/node.h"
#include "tosaic/exec/session.h"
#include "tosaic/exec/stand_in.h"
#include "tosaic/exec/steps.h"
#include "tosaic/ir/op_table.h"
#include "tosaic/ir/quantized.h"
#include "tosaic/ir/quantized_value.h"

namespace tosaic::exec {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// The bound of the root mean square of rounding errors, in units. Rounding to a whole number is off by at
// most half a unit; the additional sixteenth is for the arithmetic before the rounding.
constexpr double kRoundingLeaves = 0.5625;
// The mean of fewer errors than this is not checked: each may be a unit, e.g. from an interpolated table.
constexpr std::size_t kLeastRoundings = 16;
// One unit of an integer of 16 bits, in units of an integer of 8 bits.
constexpr double kUnit16 = 0x1p-8;

// The distance between 1 and the next number of the dtype. For an integer dtype it is the distance of f32, in
// which the numbers that the integers represent are computed.
double epsilon(DType dtype) { return kernels::epsilon(is_float(dtype) ? dtype : DType::kF32); }

double smallest_normal(DType dtype) { return dtype == DType::kF16 ? 0x1p-14 : 0x1p-126; }

std::vector<double> doubles(const ArrayView& view) {
  std::vector<double> out(static_cast<std::size_t>(num_elements(view.shape)));
  read_doubles(view, 0, out);
  return out;
}

// 1 or -1, chosen by a bit of a hash of the arguments.
double sign(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t z = (seed + 1) * 0x9e3779b97f4a7c15u + index * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return (z >> 63) != 0 ? 1.0 : -1.0;
}

// A copy in which every number is off by `units` units in the last place, up or down at random. In variant 1
// each number is off in the opposite direction of variant 0.
Array with_errors(const ArrayView& view, double units, std::uint64_t seed, std::size_t variant) {
  Array out = Array::allocate(view.dtype, view.shape);
  const double step = (variant % 2 == 0 ? 1 : -1) * units * epsilon(view.dtype);
  const std::size_t count = static_cast<std::size_t>(num_elements(view.shape));
  if (view.dtype == DType::kF32) {
    const auto* from = reinterpret_cast<const float*>(view.data);
    auto* to = reinterpret_cast<float*>(out.storage.writable());
    for (std::size_t i = 0; i < count; ++i)
      to[i] = static_cast<float>(from[i] * (1 + step * sign(seed + variant / 2, i)));
    return out;
  }
  const std::vector<double> values = doubles(view);
  for (std::size_t i = 0; i < count; ++i)
    store_element(view.dtype, out.storage.writable() + i * byte_size(view.dtype),
                  values[i] * (1 + step * sign(seed + variant / 2, i)));
  return out;
}

// A copy in which all numbers are larger by `shift`.
Array with_shift(const ArrayView& view, double shift) {
  Array out = Array::allocate(view.dtype, view.shape);
  const std::vector<double> values = doubles(view);
  for (std::size_t i = 0; i < values.size(); ++i)
    store_element(view.dtype, out.storage.writable() + i * byte_size(view.dtype), values[i] + shift);
  return out;
}

// A copy of integers that were rounded from numbers that are not known exactly. Each integer is off by one
// unit, but stays in the range of `attrs`.
Array with_units(const ArrayView& view, const QuantizeAttrs& attrs, std::uint64_t seed, std::size_t variant) {
  Array out = Array::allocate(view.dtype, view.shape);
  const std::vector<double> values = doubles(view);
  const double step = variant % 2 == 0 ? 1 : -1;
  for (std::size_t i = 0; i < values.size(); ++i)
    store_element(view.dtype, out.storage.writable() + i * byte_size(view.dtype),
                  std::clamp(values[i] + step * sign(seed + variant / 2, i), static_cast<double>(attrs.qmin),
                             static_cast<double>(attrs.qmax)));
  return out;
}

Array copy_of(const Array& array) {
  Array out = Array::allocate(array.dtype, array.shape);
  copy(array.view(), MutableArrayView::dense(out.storage.writable(), out.dtype, out.shape));
  return out;
}

// How far arithmetic may be off before a rounding: in units of the integer, and relative to the number.
struct ErrorBeforeRounding {
  double units = 0, relative = 0;
};

// If a number is within `error` of a tie, arithmetic with an error of up to `error` may round it up instead
// of down, or down instead of up. Changes such integers in `rounded` to the neighbor on the other side of
// `real`, except integers that already differ from `base`. Each variant changes a part of them; variants 0
// and 1 together change all. Returns true if any was changed.
bool round_ties_otherwise(Array& rounded, const ArrayView& base, const ArrayView& real,
                          const QuantizeAttrs& attrs, const ErrorBeforeRounding& error, std::uint64_t seed,
                          std::size_t variant) {
  const std::vector<double> values = doubles(rounded.view()), before = doubles(base), exact = doubles(real);
  const ScaleGrid grid(rounded.shape, attrs);
  Array out;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (sign(seed + variant / 2, i) != (variant % 2 == 0 ? 1 : -1) || values[i] != before[i]) continue;
    const std::size_t c = grid.of(static_cast<std::int64_t>(i));
    const double number = exact[i] * inverse_scale(attrs.scales[c]);
    const double off = number + static_cast<double>(attrs.zero_points[c]) - values[i];
    if (!(std::fabs(std::fabs(off) - 0.5) <= error.units + error.relative * std::fabs(number))) continue;
    if (!out.storage.bound()) out = copy_of(rounded);
    store_element(out.dtype, out.storage.writable() + i * byte_size(out.dtype),
                  std::clamp(values[i] + std::copysign(1.0, off), static_cast<double>(attrs.qmin),
                             static_cast<double>(attrs.qmax)));
  }
  if (!out.storage.bound()) return false;
  rounded = std::move(out);
  return true;
}

// The number to add to integers of dtype `to` that are carried as signed integers minus half the range.
std::int64_t offset_of(DType from, DType to) {
  if (to == DType::kU8 && from == DType::kI8) return 128;
  if (to == DType::kU16 && from == DType::kI16) return 32768;
  return 0;
}

std::vector<Array> run_whole(const Graph& graph, const Node& node, std::span<const ArrayView> operands,
                             const PrepareOptions& options) {
  const std::vector<bool> all(operands.size(), true);
  const auto one = std::make_shared<const Graph>(node_alone(graph, node, all));
  std::vector<ArrayView> given;
  for (std::size_t i = 0; i < operands.size(); ++i)
    if (graph.operands(node)[i].valid()) given.push_back(operands[i]);
  PrepareOptions plain = options;
  plain.overrides.nodes.clear();
  plain.overrides = overrides_for(*one, std::move(plain.overrides));
  return exec::run(one, given, plain);
}

// A composite over an axis is lowered to several operators with wide numbers between them, at most four: two
// contractions or sums, a function and a product.
constexpr int kParts = 4;

int inner_units_of(Op op) {
  const bool parts = info(op).has(kComposite) && !info(op).has(kElementwise) && !info(op).has(kMovement);
  return std::max<int>(0, info(op).int16_units) * (parts ? kParts : 1);
}

// The largest scale of the dequantize node from whose result moving and bounding computes the value. 0 if
// there is no such node.
double unit_behind(const Graph& graph, ValueId value) {
  static constexpr OpTable<bool> kBounds = {{Op::kClamp, true}, {Op::kRelu, true}};
  const Node* node = graph.producer(value);
  while (node != nullptr && (moves_elements(node->op) || kBounds.contains(node->op)))
    node = graph.producer(graph.operands(*node)[0]);
  if (node == nullptr || node->op != Op::kDequantize) return 0;
  const std::vector<double>& scales = Graph::attrs<DequantizeAttrs>(*node).scales;
  return scales.empty() ? 0 : *std::ranges::max_element(scales);
}

struct Bounds {
  double ulp = 0, relative = 0, units = 0;
};

Bounds lowered(const kernels::Tolerance& tolerance) {
  const kernels::LoweredTolerance found = kernels::lowered_tolerance(tolerance);
  return {found.result.ulp, found.result.relative, found.operand_units};
}

double mean_square(const std::vector<double>& values) {
  double sum = 0;
  std::size_t count = 0;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    sum += value * value;
    ++count;
  }
  return count == 0 ? 0 : sum / static_cast<double>(count);
}

// The effect of errors on each element: its greatest change in the variants, but at least the root of the
// mean square of all changes, since with few samples the change of one element may be small by chance. The
// effect is infinite if base and variant differ and one of them is not finite. `sparse` is true if only few
// elements change, but by much. The root of the mean square then says little about the other elements, so the
// least effect is at most 1.5 medians.
std::vector<double> effects(const std::vector<double>& base, const std::vector<Array>& variants,
                            bool sparse) {
  std::vector<double> out(base.size(), 0.0);
  for (const Array& variant : variants) {
    const std::vector<double> values = doubles(variant.view());
    for (std::size_t i = 0; i < out.size(); ++i) {
      const bool same = values[i] == base[i] || (std::isnan(values[i]) && std::isnan(base[i]));
      if (same) continue;
      const double off = std::fabs(values[i] - base[i]);
      out[i] = std::max(out[i], std::isnan(off) ? kInfinity : off);
    }
  }
  double least = std::sqrt(mean_square(out));
  if (sparse && !out.empty()) {
    std::vector<double> sorted = out;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    least = std::min(least, 1.5 * *middle);  // the root mean square of normal errors is 1.5 medians
  }
  for (double& off : out) off = std::max(off, least);
  return out;
}

// A number that was to be rounded, and its distance from the integer that came out. Both are in units of the
// integer.
struct Rounding {
  double number;
  double error;
  auto operator<=>(const Rounding&) const = default;
};

// The root mean square of the errors as a share of the limit. If it is above the limit, equal numbers count
// once, and 0 is returned if too few are left.
double share_of_mean(std::vector<Rounding> found, double limit) {
  const auto share = [&found, limit] {
    double sum = 0;
    for (const Rounding& each : found) sum += each.error * each.error;
    return std::sqrt(sum / static_cast<double>(std::max<std::size_t>(1, found.size()))) / limit;
  };
  if (const double all = share(); all <= 1) return all;
  std::ranges::sort(found);
  const auto repeated = std::ranges::unique(found);
  found.erase(repeated.begin(), repeated.end());
  return found.size() < kLeastRoundings ? 0 : share();
}

// The greatest distance of two arrays as a share of each element's bound. An element with an infinite bound
// is not compared.
double largest_share(const ArrayView& expected, const ArrayView& other, const std::vector<double>& bounds) {
  const std::vector<double> want = doubles(expected), found = doubles(other);
  double worst = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (want[i] == found[i] || (std::isnan(want[i]) && std::isnan(found[i])) || std::isinf(bounds[i]))
      continue;
    if (!std::isfinite(want[i]) || !std::isfinite(found[i])) return kInfinity;
    worst = std::max(worst, std::fabs(found[i] - want[i]) / bounds[i]);
  }
  return worst;
}

// Computes each element of the result as `element` of the operand's element and the position of its scale.
template <class F>
void compute_elements(const NodeCall& call, const auto& attrs, F element) {
  const MutableArrayView& out = call.results[0];
  const std::vector<double> values = doubles(call.operands[0]);
  const ScaleGrid grid(out.shape, attrs);
  for (std::size_t i = 0; i < values.size(); ++i)
    store_element(out.dtype, out.data + i * byte_size(out.dtype),
                  static_cast<double>(element(values[i], grid.of(static_cast<std::int64_t>(i)))));
}

void quantize_node(const NodeCall& call) {
  const auto& attrs = Graph::attrs<QuantizeAttrs>(call.node);
  compute_elements(call, attrs, [&attrs](double value, std::size_t c) {
    const float whole =
        quantize_unbounded(static_cast<float>(value), inverse_scale(attrs.scales[c]), attrs.zero_points[c]);
    return bound_quantized(whole, attrs.qmin, attrs.qmax);
  });
}

void dequantize_node(const NodeCall& call) {
  const auto& attrs = Graph::attrs<DequantizeAttrs>(call.node);
  compute_elements(call, attrs, [&attrs](double value, std::size_t c) {
    return dequantize_value(static_cast<std::int64_t>(value), attrs.scales[c], attrs.zero_points[c]);
  });
}

// By how much a sum may be off because its operands are rounded to floats; 0 for other nodes. It matters
// where large operands cancel.
double rounding_of_addends(const Node& node, const std::vector<ArrayView>& operands,
                           const ArrayView& result) {
  static constexpr OpTable<bool> kSums = {
      {Op::kAdd, true}, {Op::kSub, true}, {Op::kSum, true}, {Op::kMean, true}};
  if (!kSums.contains(node.op) || !is_float(result.dtype)) return 0;
  double most = 0;
  for (const ArrayView& operand : operands)
    for (const double x : doubles(operand))
      if (std::isfinite(x)) most = std::max(most, std::fabs(x));
  const auto count = [](const ArrayView& view) { return static_cast<double>(num_elements(view.shape)); };
  const double terms = node.op == Op::kSum ? count(operands[0]) / std::max(1.0, count(result)) : 1;
  return terms * most * epsilon(result.dtype);
}

}  // namespace

bool moves_elements(Op op) { return info(op).has(kMovement) || info(op).has(kView); }

Overrides with_quantizers(Overrides overrides) {
  overrides.ops.try_emplace(std::string(info(Op::kQuantize).name), quantize_node);
  overrides.ops.try_emplace(std::string(info(Op::kDequantize).name), dequantize_node);
  return overrides;
}

Held as_dtype(Held value, DType dtype) {
  const ArrayView& view = value.view;
  if (view.dtype == dtype && is_dense(view.shape, view.strides, dtype)) return value;
  Array out = Array::allocate(dtype, view.shape);
  if (view.dtype == dtype) {
    copy(view, MutableArrayView::dense(out.storage.writable(), dtype, out.shape));
  } else {
    const auto offset = static_cast<double>(offset_of(view.dtype, dtype));
    const std::vector<double> elements = doubles(view);
    for (std::size_t i = 0; i < elements.size(); ++i)
      store_element(dtype, out.storage.writable() + i * byte_size(dtype), elements[i] + offset);
  }
  const ArrayView made = out.view();
  return {made, std::move(out)};
}

LocalReference::LocalReference(const Graph& graph, const PrepareOptions& options)
    : graph_(graph), options_(options), values_(graph.values().size()), readers_(graph.values().size(), 0) {
  for (const Node& node : graph.nodes())
    for (const ValueId operand : graph.operands(node))
      if (operand.valid()) ++readers_[operand.index()];
  for (const Output& output : graph.outputs()) ++readers_[output.value.index()];
  for (std::uint32_t i = 0; i < values_.size(); ++i) {
    const ConstantRef& constant = graph.values()[i].constant;
    if (!constant || !constant->storage.bound()) continue;
    values_[i].base.view =
        ArrayView::dense(constant->storage.bytes().data(), constant->dtype, constant->shape);
    values_[i].known = true;
  }
}

void LocalReference::set_input(ValueId value, Held array) { accept(value, std::move(array)); }

void LocalReference::accept(ValueId value, Held array) {
  Estimate& estimate = values_[value.index()];
  estimate = {};
  estimate.base = std::move(array);
  estimate.known = true;
}

bool LocalReference::known(ValueId value) const { return values_[value.index()].known; }

ArrayView LocalReference::made(ValueId value) const { return values_[value.index()].base.view; }

std::optional<std::vector<Array>> LocalReference::compute(const Node& node,
                                                          std::span<const ArrayView> operands) const {
  std::optional<std::vector<Array>> made = run_node(graph_, node, operands, options_);
  if (made || node.regions.empty()) return made;
  return run_whole(graph_, node, operands, options_);
}

// The k-th variant of a value: the value with small errors. If no node here computed a float value, it is an
// input or an accepted value, and each number is changed by the number of units by which operands may be off.
// Constants and integers are exact.
Held LocalReference::variant(ValueId value, std::size_t k) const {
  const Estimate& estimate = values_[value.index()];
  if (!estimate.variants.empty()) return {estimate.variants[k].view(), {}};
  if (!is_float(estimate.base.view.dtype) || graph_.value(value).kind == ValueKind::kConstant)
    return {estimate.base.view, {}};
  Array noisy = with_errors(estimate.base.view, lowered({}).units, value.index(), k);
  const ArrayView view = noisy.view();
  return {view, std::move(noisy)};
}

std::vector<Array> LocalReference::compute_with_errors(const Node& node, std::size_t k,
                                                       const std::vector<Array>& results) const {
  bool exact = true;  // true if no operand has errors
  std::vector<Held> held;
  std::vector<ArrayView> views;
  for (const ValueId operand : graph_.operands(node)) {
    held.push_back(operand.valid() ? variant(operand, k) : Held{});
    views.push_back(held.back().view);
    if (operand.valid()) exact = exact && views.back().data == values_[operand.index()].base.view.data;
  }
  std::vector<Array> out = exact ? results : compute(node, views).value_or(results);
  for (std::uint32_t r = 0; r < node.result_count; ++r)
    if (is_float(out[r].dtype) && !moves_elements(node.op))
      out[r] = with_errors(out[r].view(), lowered({}).units, graph_.result(node, r).index(), k);
  return out;
}

// Integers that no error changes are exact. Integers of 8 bits need no tolerance either: their variants show
// how the errors change them. Only wider integers with differing variants have a tolerance.
void LocalReference::forget_equal(Estimate& estimate) {
  const std::span<const std::byte> base = estimate.base.owner.storage.bytes();
  bool equal = true;
  for (const Array& variant : estimate.variants)
    equal = equal && std::ranges::equal(base, variant.storage.bytes());
  if (equal) {
    estimate.variants.clear();
    estimate.ties = false;
  }
  if (!equal && byte_size(estimate.base.view.dtype) > 1) return;
  estimate.tolerance = {};
  estimate.int16_units = 0;
  estimate.inner_units = 0;
  estimate.of_addends = 0;
  estimate.functions = false;
}

void LocalReference::release_operands_of_last() {
  if (last_ == nullptr) return;
  for (const ValueId operand : graph_.operands(*last_)) {
    if (!operand.valid() || --readers_[operand.index()] != 0) continue;
    Estimate& estimate = values_[operand.index()];
    estimate.variants.clear();
    if (graph_.value(operand).kind == ValueKind::kResult) estimate = {};
  }
  last_ = nullptr;
}

bool LocalReference::run(const Node& node) {
  release_operands_of_last();
  last_ = &node;
  std::vector<ArrayView> operands;
  kernels::Tolerance tolerance;
  int int16_units = 0, inner_units = 0;
  bool functions = false, ties = false, has_errors = false;
  DType dtype = DType::kF32;
  for (const ValueId operand : graph_.operands(node)) {
    if (!operand.valid()) {
      operands.emplace_back();
      continue;
    }
    const Estimate& estimate = values_[operand.index()];
    if (!estimate.known) return false;
    operands.push_back(estimate.base.view);
    tolerance.ulp = std::max(tolerance.ulp, estimate.tolerance.ulp);
    tolerance.relative = std::max(tolerance.relative, estimate.tolerance.relative);
    int16_units = std::max(int16_units, estimate.int16_units);
    inner_units = std::max(inner_units, estimate.inner_units);
    functions = functions || estimate.functions;
    ties = ties || estimate.ties;
    has_errors = has_errors || !estimate.variants.empty();
    if (is_float(operands.back().dtype)) dtype = operands.back().dtype;
  }
  // For integers of 8 bits, inner_units is 0 if no arithmetic computed the number: both runs then round it to
  // the same integer. Integers of 16 bits are so fine that the rounding of their numbers to f32 may change
  // them.
  const auto before_rounding = [this](DType to, int units) -> std::optional<ErrorBeforeRounding> {
    if (byte_size(to) == 1 && units > 0) return ErrorBeforeRounding{error_before_rounding(units), 0};
    if (byte_size(to) == 2) return ErrorBeforeRounding{0, 0x1p-22};
    return std::nullopt;
  };
  std::optional<std::vector<Array>> results = compute(node, operands);
  if (!results) return false;
  const kernels::Tolerance own = kernels::tolerance(node.op, dtype);
  // Integers of 8 bits differ only where a few units of a float decide the rounding, and a run of the node
  // shows where. Wider integers may be off by a unit anywhere, also where an exact function of other integers
  // is rounded: its table may be interpolated.
  const bool uncertain = node.op == Op::kQuantize && has_errors && byte_size((*results)[0].dtype) > 1 &&
                         (tolerance.ulp + tolerance.relative > 0 || int16_units > 0);
  bool floats = false;
  for (const Array& result : *results) floats = floats || is_float(result.dtype);
  // If a quantized number is near a whole number, its cast may be this whole number or the one below. The two
  // programs may differ in this, so the variants shift the operand by half a unit up and down.
  const double unit = node.op == Op::kCast && !floats ? unit_behind(graph_, graph_.operands(node)[0]) : 0;
  std::vector<std::vector<Array>> variants;
  if (floats || has_errors || is_float(dtype))
    for (std::size_t k = 0; k < kVariants; ++k) {
      if (unit > 0) {
        const Array moved = with_shift(operands[0], k == 0 ? unit / 2 : -unit / 2);
        variants.push_back(compute(node, std::vector<ArrayView>{moved.view()}).value_or(*results));
      } else if (uncertain) {
        std::vector<Array>& out = variants.emplace_back();
        out.push_back(with_units((*results)[0].view(), Graph::attrs<QuantizeAttrs>(node),
                                 graph_.result(node).index(), k));
      } else if (!operands.empty()) {
        variants.push_back(compute_with_errors(node, k, *results));
        if (node.op == Op::kQuantize)
          if (const std::optional<ErrorBeforeRounding> error =
                  before_rounding((*results)[0].dtype, inner_units))
            ties |= round_ties_otherwise(variants.back()[0], (*results)[0].view(), operands[0],
                                         Graph::attrs<QuantizeAttrs>(node), *error,
                                         graph_.result(node).index(), k);
      }
    }
  for (std::uint32_t r = 0; r < node.result_count; ++r) {
    Estimate& estimate = values_[graph_.result(node, r).index()];
    estimate = {};
    estimate.base.owner = std::move((*results)[r]);
    estimate.base.view = estimate.base.owner.view();
    for (std::vector<Array>& each : variants) estimate.variants.push_back(std::move(each[r]));
    estimate.tolerance = {tolerance.ulp + own.ulp, tolerance.relative + own.relative};
    estimate.int16_units = int16_units + std::max<int>(0, info(node.op).int16_units);
    estimate.inner_units = inner_units + inner_units_of(node.op);
    estimate.functions = functions || own.ulp >= 4;
    estimate.of_addends = rounding_of_addends(node, operands, estimate.base.view);
    estimate.ties = ties;
    estimate.known = true;
    if (node.op == Op::kQuantize) forget_equal(estimate);
  }
  return true;
}

double LocalReference::share(ValueId value, const ArrayView& other, const QParamsRef& qparams) const {
  const Estimate& estimate = values_[value.index()];
  const Node* producer = graph_.producer(value);
  if (num_elements(other.shape) == 0) return 0;
  if (producer != nullptr && producer->op == Op::kQuantize) {
    const ValueId real = graph_.operands(*producer)[0];
    if (!known(real)) return share_of_decisions(estimate, other);
    const auto& attrs = Graph::attrs<QuantizeAttrs>(*producer);
    return share_of_rounded(real, *qparams_of(attrs, attrs.dtype), other);
  }
  if (!is_float(estimate.base.view.dtype)) return share_of_decisions(estimate, other);
  if (qparams && !is_float(other.dtype)) return share_of_rounded(value, *qparams, other);
  return share_of_floats(estimate, other);
}

double LocalReference::error_before_rounding(int inner_units) const {
  return std::max(1, inner_units) * kUnit16 + rescale_error_;
}

std::vector<double> LocalReference::bounds_of_floats(const Estimate& estimate, DType other,
                                                     double least) const {
  const std::vector<double> want = doubles(estimate.base.view);
  const std::vector<double> effect = effects(want, estimate.variants, estimate.ties);
  const double eps = std::max(epsilon(estimate.base.view.dtype), epsilon(other));
  const Bounds allowed = lowered(estimate.tolerance);
  least = std::max(least, std::sqrt(mean_square(want)));
  std::vector<double> out(want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double size = std::max(std::isfinite(want[i]) ? std::fabs(want[i]) : 0.0, least);
    const double scale = std::max(size, effect[i] / (allowed.units * eps));
    const double rounded =
        effect[i] > 0 ? eps * size : 0;  // an effect is a difference of two rounded numbers
    out[i] =
        allowed.ulp * eps * size + allowed.relative * scale + effect[i] + rounded + smallest_normal(other);
  }
  return out;
}

double LocalReference::share_of_floats(const Estimate& estimate, const ArrayView& other) const {
  const double least = estimate.functions ? 1.0 : 0.0;
  return largest_share(estimate.base.view, other, bounds_of_floats(estimate, other.dtype, least));
}

double LocalReference::share_between(ValueId value, const ArrayView& expected, const ArrayView& other) const {
  const Estimate& estimate = values_[value.index()];
  return largest_share(expected, other, bounds_of_floats(estimate, other.dtype, 0.0));
}

double LocalReference::share_of_decisions(const Estimate& estimate, const ArrayView& other) const {
  const auto offset = static_cast<double>(offset_of(other.dtype, estimate.base.view.dtype));
  const std::vector<double> want = doubles(estimate.base.view), found = doubles(other);
  std::vector<bool> undecided(want.size(), false);
  for (const Array& variant : estimate.variants) {
    const std::vector<double> values = doubles(variant.view());
    for (std::size_t i = 0; i < want.size(); ++i) undecided[i] = undecided[i] || values[i] != want[i];
  }
  double worst = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (want[i] == found[i] + offset) continue;
    if (!undecided[i]) return kInfinity;
    worst = 1;
  }
  return worst;
}

// Integers of 8 bits are rounded once, from a nearly exact number, so they are within half a unit of the
// unrounded number. Wider integers are off the rounded number by at most the units of the operator table.
double LocalReference::share_of_rounded(ValueId real, const QParams& qparams, const ArrayView& other) const {
  const Estimate& estimate = values_[real.index()];
  const std::vector<double> want = doubles(estimate.base.view), found = doubles(other);
  const std::vector<double> effect = effects(want, estimate.variants, estimate.ties);
  const ScaleGrid grid(estimate.base.view.shape, qparams);
  const Bounds numeric = lowered(estimate.tolerance);
  const auto offset = static_cast<double>(offset_of(other.dtype, qparams.storage));
  const auto low = static_cast<double>(qparams.qmin), high = static_cast<double>(qparams.qmax);
  const std::size_t bits = 8 * byte_size(qparams.storage);
  const double units = std::max(1, estimate.int16_units);
  const double once = 0.5 + error_before_rounding(estimate.inner_units);
  const double eps = epsilon(estimate.base.view.dtype);
  const double of_addends = bits > 8 ? estimate.of_addends : 0;
  double worst = 0;
  std::vector<Rounding> inside;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const std::size_t c = grid.of(static_cast<std::int64_t>(i));
    const float inverse = inverse_scale(qparams.scales[c]);
    const auto zero = qparams.zero_points[c];
    const double exact = want[i] * inverse + static_cast<double>(zero);
    const double value = found[i] + offset;
    if (std::isnan(exact) || std::isinf(effect[i])) continue;
    const double size = std::fabs(want[i]);
    const double scale = std::max(size, effect[i] / (numeric.units * eps));
    double slack = (numeric.ulp * eps * size + numeric.relative * scale + effect[i] + of_addends) * inverse;
    if (bits <= 8) {
      worst = std::max(worst, std::fabs(value - std::clamp(exact, low, high)) / (once + slack));
      continue;
    }
    if (bits > 16) slack += std::fabs(exact) * 0x1p-22;
    const auto rounded = static_cast<double>(bound_quantized(
        quantize_unbounded(static_cast<float>(want[i]), inverse, zero), qparams.qmin, qparams.qmax));
    worst = std::max(worst, std::fabs(value - rounded) / (units + slack));
    if (exact <= low || exact >= high) continue;
    inside.push_back({exact, std::max(0.0, std::fabs(value - exact) - slack)});
  }
  return std::max(worst, share_of_mean(std::move(inside), kRoundingLeaves + units - 1));
}

}  // namespace tosaic::exec
