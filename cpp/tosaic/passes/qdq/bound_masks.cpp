// bound-masks: makes the large negative numbers of attention masks so small that integers can add them.
//
//   %s = dequantize(..)                     |%s| <= B
//   %m = add(%s, [0, -1e9, ..])      ->     %m = add(%s, [0, -2B - 200, ..])
//   %p = softmax(%m)                        %p = softmax(%m)
//
// In floats both softmaxes are equal, since exp(x) is 0 for x below -104. In integers, a sum that has one
// unit for small scores and for -1e9 has no bits left for the scores.
//
//   add(s, mask)                         mask is constant, and no row of it is hidden as a whole
//   add(s, where(hidden, -1e9, 0))       becomes where(hidden, -2B - 200, s)
//   add(s, where(hidden, -inf, 0))       becomes where(hidden, -inf, s), which integers can compute
//   baddbmm(mask, q, k), addmm           the same, with s = matmul(q, k)
//   add(s, (1 - cast(seen)) * -1e9)      the same, with hidden = not seen; cast(hidden) * -1e9, too
//   where(hidden, -1e9, s), or the reverse
//   add(s, (1 - cast(i)) * -1e9)         the same with integers i: hidden = i < 1
//   add(s, add(mask, where(hidden, -inf, 0)))     becomes where(hidden or mask < 0, -inf, s) for a mask of 0
//                                                 and -inf
//   add(s, dequantize(m))                the same if the scale of m is so large that one step of m hides
//   add(s, add(bias, mask))              is add(add(s, bias), mask)
//   add(s, mask) * 0.5                   is bounded before the product
//   maximum(.., -1e30)                   is removed, as nothing is below -1e30. If no other mask is changed,
//                                        the number becomes -2B - 200 instead
//   sdpa(q, k, v, mask)                  is expanded first
//
// Masks in front of a log_softmax, argmax or argsort get the same forms, except that added constant masks are
// left to bound-numbers.
//
// If -1e30 hides a whole row, all its shares are equal, because s - 1e30 is -1e30 in f32. With a smaller
// number, such as -1e9, f32 rounds the sum to some unit, and the shares depend on that rounding. If the unit
// is below 1, so that the sum has a fraction, the pass changes nothing. Views and permutes may stand between
// the mask and the sum, and between the sum and the softmax. B is the bound of the quantized scores, or of
// the product of quantized matrices, possibly times constants.

#include <cmath>
#include <limits>

#include "tosaic/ir/constant_value.h"
#include "tosaic/ir/op_table.h"
#include "tosaic/ir/quantized.h"
#include "tosaic/ir/reads_order.h"
#include "tosaic/ir/rewriter.h"
#include "tosaic/ir/softmax.h"
#include "tosaic/passes/match.h"
#include "tosaic/passes/pass.h"
#include "tosaic/passes/qdq/analyses.h"

namespace tosaic::passes {
namespace {

constexpr double kLarge = 1e4;
constexpr OpTable<bool> kArithmetic = {
    {Op::kAdd, true}, {Op::kSub, true}, {Op::kMul, true}, {Op::kDiv, true}};
constexpr std::int64_t kMostInteger = std::int64_t{1} << 53;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// True if `large` is finite in f32, and s + large in f32 is `large` for all |s| <= bound, or has no fraction.
bool absorbs(double large, double bound) {
  const auto x = static_cast<float>(std::abs(large));
  const double spacing = static_cast<double>(x - std::nextafter(x, 0.0F));
  return std::isfinite(x) && (spacing > 2 * bound || spacing >= 1);
}

class Masks {
 public:
  Masks(Rewriter& rewriter, Analyses& analyses, const Node& at)
      : rewriter_(rewriter), graph_(rewriter.source()), analyses_(analyses), at_(at) {}

  void run() {
    const ValueId operand = graph_.operands(at_)[0];
    if (is_softmax(at_.op) && row_of_softmax(graph_, at_) == 1) return rewriter_.copy(at_);  // its share is 1
    if (at_.op == Op::kLogSoftmax)
      hidden_share_ = std::fabs(std::min(analyses_.relevance().of_results(at_).bounds.low, 0.0));
    if (graph_.type(operand).dtype != DType::kF32 || !saturates_when_hidden() || !bounds(operand))
      return rewriter_.copy(at_);
    const std::vector<ValueId> operands{emit()};
    rewriter_.replace(at_, rewriter_.emit(at_, at_.op, *at_.attrs, operands));
  }

 private:
  // A bound of the magnitude of scores, from their quantization where it is known.
  [[nodiscard]] double magnitude(ValueId id) const {
    const Node* node = graph_.producer(id);
    if (node == nullptr) return largest_of(constant_of(graph_, id));
    if (node->op == Op::kDequantize) {
      const auto& attrs = Graph::attrs<DequantizeAttrs>(*node);
      const std::optional<ValueRange> stored = integer_limits(graph_.type(graph_.operands(*node)[0]).dtype);
      if (attrs.axis || !stored) return range_of(id);
      const auto zero = static_cast<double>(attrs.zero_points[0]);
      return attrs.scales[0] *
             std::max(static_cast<double>(stored->high) - zero, zero - static_cast<double>(stored->low));
    }
    if (node->operand_count == 1 && rearranges(*node)) return magnitude(graph_.operands(*node)[0]);
    if (node->op == Op::kMul || node->op == Op::kDiv) {
      const std::optional<double> factor = splat_of(graph_, graph_.operands(*node)[1]);
      if (!factor || *factor == 0) return range_of(id);
      return magnitude(graph_.operands(*node)[0]) *
             (node->op == Op::kMul ? std::abs(*factor) : 1 / std::abs(*factor));
    }
    if ((node->op == Op::kAdd || node->op == Op::kSub) && *node->attrs == default_attrs(node->op))
      return magnitude(graph_.operands(*node)[0]) + magnitude(graph_.operands(*node)[1]);
    if (node->op == Op::kMatmul)
      return product_magnitude(graph_.operands(*node)[0], graph_.operands(*node)[1]);
    return range_of(id);
  }
  // A bound by the range analysis, for example for a maximum, or for a sum of per-channel products.
  [[nodiscard]] double range_of(ValueId id) const {
    return tosaic::magnitude(analyses_.ranges().of(id).bounds).high;
  }
  [[nodiscard]] static double largest_of(const Constant* constant) {
    if (constant == nullptr || !constant->storage.bound() || !is_float(constant->dtype)) return kInfinity;
    const Elements elements(*constant);
    double largest = 0;
    for (std::size_t i = 0; i < elements.size(); ++i) {
      const double x = std::abs(elements.as_double(i));
      if (!(x < kInfinity)) return kInfinity;
      largest = std::max(largest, x);
    }
    return largest;
  }
  // As magnitude(), but ignores elements of minus infinity: a constant mask may have been added.
  [[nodiscard]] double finite_magnitude(ValueId id) const {
    if (const Constant* constant = constant_of(graph_, id);
        constant != nullptr && constant->storage.bound()) {
      const Elements elements(*constant);
      double largest = 0;
      for (std::size_t i = 0; i < elements.size(); ++i)
        if (const double x = elements.as_double(i); x != -kInfinity) largest = std::max(largest, std::abs(x));
      return largest;
    }
    const Node* node = graph_.producer(id);
    if (node != nullptr && node->op == Op::kAdd && *node->attrs == default_attrs(Op::kAdd))
      return finite_magnitude(graph_.operands(*node)[0]) + finite_magnitude(graph_.operands(*node)[1]);
    return magnitude(id);
  }
  [[nodiscard]] double product_magnitude(ValueId a, ValueId b) const {
    return magnitude(a) * magnitude(b) * static_cast<double>(graph_.type(a).shape.back());
  }

  // The number of a constant if it is a finite number that hides scores up to `bound`.
  [[nodiscard]] std::optional<double> large_number(ValueId id, double bound, bool is_added = true) const {
    std::optional<double> number = splat_of(graph_, id);
    if (!number) {
      const Node* full = id.valid() ? graph_.producer(id) : nullptr;
      if (full == nullptr || full->operand_count != 1 || !rearranges(*full)) return {};
      return large_number(graph_.operands(*full)[0], bound, is_added);
    }
    if (!(*number <= -kLarge) || !std::isfinite(*number)) return {};
    if (is_added && !absorbs(*number, bound)) return {};
    return *number < low(bound) ? number : std::nullopt;
  }
  [[nodiscard]] bool is_infinite(ValueId id) const { return splat_of(graph_, id) == -kInfinity; }
  [[nodiscard]] bool hides(ValueId id, double bound) const {
    return is_infinite(id) || large_number(id, bound).has_value();
  }
  // A number that hides scores: next to scores up to `bound`, its exp(scale * x) is 0, and the logarithm of
  // its share saturates in the readers.
  [[nodiscard]] double low(double bound) const {
    return -2 * bound - (200 + hidden_share_) / std::min(scale_, 1.0);
  }

  // False if the reader of a log_softmax can tell how far a hidden number is below the others.
  [[nodiscard]] bool saturates_when_hidden() const { return std::isfinite(hidden_share_); }

  // ---- what is found after a softmax; each function returns whether there is something to change ----

  bool bounds(ValueId id) {
    const Node* node = graph_.producer(id);
    if (node == nullptr) return false;
    const auto operands = graph_.operands(*node);
    if (node->operand_count == 1 && rearranges(*node) && node->op != Op::kExpand) {
      through_.push_back(node);
      return bounds(operands[0]);
    }
    if (const std::optional<double> factor = factor_of(*node)) {
      through_.push_back(node);
      scale_ *= *factor;
      return bounds(operands[0]);
    }
    if (node->op == Op::kMaximum && (very_low(operands[1]) || very_low(operands[0]))) {
      const ValueId above = operands[very_low(operands[1]) ? 0 : 1];
      const std::size_t known = through_.size();
      if (bounds(above)) return true;
      through_.resize(known);
      const double bound = finite_magnitude(above);
      if (!std::isfinite(bound)) return false;
      floor_of_ = above, low_ = low(bound);
      return true;
    }
    if (node->op == Op::kWhere) return selects(operands);
    if (node->op == Op::kBaddbmm || node->op == Op::kAddmm) return adds_product(*node);
    if (node->op != Op::kAdd || *node->attrs != default_attrs(Op::kAdd)) return false;
    return adds(operands[0], operands[1]) || adds(operands[1], operands[0]);
  }
  // The positive number by which a node multiplies all elements.
  [[nodiscard]] std::optional<double> factor_of(const Node& node) const {
    if (node.op != Op::kMul && (node.op != Op::kDiv || *node.attrs != default_attrs(Op::kDiv))) return {};
    const auto operands = graph_.operands(node);
    const std::optional<double> number = splat_of(graph_, operands[1]);
    if (!number || !(*number >= 1e-6 && *number <= 1e6)) return {};
    if (graph_.type(operands[0]).shape != graph_.type(graph_.result(node)).shape) return {};
    return node.op == Op::kMul ? *number : 1 / *number;
  }
  [[nodiscard]] bool very_low(ValueId id) const {
    const std::optional<double> number = splat_of(graph_, id);
    return number && *number < -1e30;
  }

  bool selects(std::span<const ValueId> operands) {
    for (const std::size_t at : {1U, 2U}) {
      const ValueId scores = operands[3 - at];
      const double bound = magnitude(scores);
      if (!std::isfinite(bound) || !large_number(operands[at], bound, false)) continue;
      scores_ = scores, hidden_ = operands[0], low_ = low(bound), is_seen_ = at == 2;
      return true;
    }
    return false;
  }

  bool adds(ValueId scores, ValueId mask) {
    scores_ = scores;
    const double bound = magnitude(scores);
    if (!std::isfinite(bound)) return false;
    if (adds_mask(bound, mask)) return true;
    mask_through_.clear();
    const Node* sum = produced_by(graph_, mask, Op::kAdd);
    if (sum == nullptr || *sum->attrs != default_attrs(Op::kAdd)) return false;
    const auto operands = graph_.operands(*sum);
    for (const std::size_t at : {0U, 1U}) {
      const double further = magnitude(operands[1 - at]);
      if (!(further < kLarge) || !adds_mask(bound + further, operands[at])) continue;
      bias_ = operands[1 - at];
      return true;
    }
    return false;
  }
  bool adds_product(const Node& node) {
    const auto& attrs = Graph::attrs<AddmmAttrs>(node);
    const auto operands = graph_.operands(node);
    if (as_double(attrs.beta) != 1.0 || as_double(attrs.alpha) == 0.0) return false;
    product_ = &node;
    return adds_mask(std::abs(as_double(attrs.alpha)) * product_magnitude(operands[1], operands[2]),
                     operands[0]);
  }
  bool adds_mask(double bound, ValueId mask) {
    if (!std::isfinite(bound) || graph_.type(mask).dtype != DType::kF32) return false;
    low_ = low(bound);
    if (is_constant_mask(mask, bound)) return true;
    mask_through_.clear();
    for (const Node* view = graph_.producer(mask);
         view != nullptr && view->operand_count == 1 && rearranges(*view); view = graph_.producer(mask)) {
      mask_through_.push_back(view);
      mask = graph_.operands(*view)[0];
    }
    return is_selected_mask(mask, bound) || is_scaled_mask(mask, bound) || is_stepped_mask(mask, bound) ||
           is_sum_of_masks(mask);
  }

  // True for a sum of masks of 0 and minus infinity. At least one of the masks is computed.
  bool is_sum_of_masks(ValueId mask) {
    const Node* const node = produced_by(graph_, mask, Op::kAdd);
    if (node == nullptr || !hides_by_infinity(mask)) return false;
    low_ = -kInfinity, mask_sum_ = mask;
    return true;
  }
  [[nodiscard]] bool hides_by_infinity(ValueId mask) const {
    if (const Constant* const constant = constant_of(graph_, mask)) {
      if (!constant->storage.bound()) return false;
      const Elements elements(*constant);
      for (std::size_t i = 0; i < elements.size(); ++i)
        if (const double x = elements.as_double(i); x != 0 && x != -kInfinity) return false;
      return true;
    }
    const Node* const node = graph_.producer(mask);
    if (node == nullptr) return false;
    const auto operands = graph_.operands(*node);
    if (node->operand_count == 1 && rearranges(*node)) return hides_by_infinity(operands[0]);
    if (node->op == Op::kAdd && *node->attrs == default_attrs(Op::kAdd))
      return hides_by_infinity(operands[0]) && hides_by_infinity(operands[1]);
    if (node->op != Op::kWhere) return false;
    return (is_infinite(operands[1]) && splat_of(graph_, operands[2]) == 0.0) ||
           (is_infinite(operands[2]) && splat_of(graph_, operands[1]) == 0.0);
  }

  bool is_constant_mask(ValueId mask, double bound) {
    const Constant* constant = constant_of(graph_, mask);
    if (constant == nullptr || !constant->storage.bound() || constant->shape.empty()) return false;
    const Elements elements(*constant);
    std::vector<double> out(elements.size());
    double highest = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = elements.as_double(i);
      if (std::isnan(out[i]) || out[i] > kLarge) return false;
      if (out[i] > -kLarge) highest = std::max(highest, std::abs(out[i]));
    }
    const double lowest = low(bound) - 2 * highest;
    const auto row = static_cast<std::size_t>(constant->shape.back());
    // Each row of the mask must be a row of the softmax.
    if (!is_softmax(at_.op) || row == 1 ||
        std::any_of(through_.begin(), through_.end(), [](const Node* node) { return rearranges(*node); }))
      return false;
    if (Graph::attrs<AxisDtypeAttrs>(at_).axis !=
        static_cast<std::int64_t>(graph_.type(graph_.operands(at_)[0]).rank()) - 1)
      return false;
    for (std::size_t begin = 0; begin < out.size(); begin += row) {
      bool is_seen = false;
      for (std::size_t i = begin; i < begin + row; ++i) is_seen = is_seen || out[i] > -kLarge;
      if (!is_seen) return false;
    }
    bool changed = false;
    for (double& x : out)
      if (x <= -kLarge && std::isfinite(x)) {
        if (x > lowest) return false;
        changed = changed || x != lowest;
        x = lowest;
      }
    if (!changed) return false;
    constant_ = make_constant(constant->name, constant->dtype, constant->shape, out);
    return true;
  }

  // where(hidden, large, 0) and where(seen, 0, large).
  bool is_selected_mask(ValueId mask, double bound) {
    const Node* node = produced_by(graph_, mask, Op::kWhere);
    if (node == nullptr) return false;
    const auto operands = graph_.operands(*node);
    for (const std::size_t at : {1U, 2U})
      if (splat_of(graph_, operands[3 - at]) == 0.0 && hides(operands[at], bound)) {
        if (is_infinite(operands[at])) low_ = -kInfinity;
        hidden_ = operands[0], is_seen_ = at == 2;
        return true;
      } else if (splat_of(graph_, operands[3 - at]) == 0.0 && large_number(operands[at], bound, false)) {
        hidden_ = operands[0], is_seen_ = at == 2, is_added_ = true;
        return true;
      }
    // where(hidden, large, 1 - cast(seen)): where nothing is hidden, the other operand is 0.
    if (!large_number(operands[1], bound)) return false;
    const Node* condition = produced_by(graph_, operands[0], Op::kCast);
    if (condition == nullptr || graph_.operands(*condition)[0] != operands[2]) return false;
    hidden_ = operands[0], is_seen_ = false;
    return truth_of(operands[2]).has_value();
  }

  bool is_scaled_mask(ValueId mask, double bound) {
    const Node* node = produced_by(graph_, mask, Op::kMul);
    if (node == nullptr) return false;
    const auto operands = graph_.operands(*node);
    for (const std::size_t at : {0U, 1U}) {
      if (!large_number(operands[at], bound)) continue;
      const auto truth = truth_of(operands[1 - at]);
      if (!truth) return false;
      hidden_ = truth->first, is_seen_ = !truth->second;
      return true;
    }
    return false;
  }

  // A mask that is step * (n - visible) for integers n: the operand of a cast, or integers that are
  // dequantized. Elements with n = visible are seen, and elements on one side of it are hidden. Elements on
  // the other side, if there are such integers, are so large that they hide all elements that are seen.
  bool is_stepped_mask(ValueId mask, double bound) {
    const std::optional<Steps> steps = steps_of(mask);
    if (!steps || steps->slope == 0) return false;
    const double visible = -steps->offset / steps->slope, nearest = std::round(visible);
    const double step = std::abs(steps->slope);
    if (std::abs(visible - nearest) > 1e-6 * std::max(1.0, std::abs(visible)) || step < -low(bound))
      return false;
    steps_ = steps;
    steps_->visible = nearest;
    hides_below_ = steps->slope > 0;
    // Dequantized integers that hide are at the end of the range, other integers one step from `visible`.
    const double end = static_cast<double>(hides_below_ ? steps->range.low : steps->range.high);
    const bool is_code = is_float(graph_.type(steps->leaf).dtype);
    const double most = is_code ? step * std::abs(nearest - end) : step;
    is_added_ = !absorbs(most, bound);
    return true;
  }

  struct Steps {
    ValueId leaf;     // integers, or the result of a dequantize
    double unit = 1;  // of the leaf: 1, or its scale
    double slope = 1, offset = 0;
    double visible = 0;
    ValueRange range;  // of n
  };

  // Reads the mask as slope * n + offset. Appends the views between mask and leaf to mask_through_.
  std::optional<Steps> steps_of(ValueId id) {
    const Node* node = id.valid() ? graph_.producer(id) : nullptr;
    if (node == nullptr) return {};
    const auto operands = graph_.operands(*node);
    if (node->operand_count == 1 && rearranges(*node)) {
      mask_through_.push_back(node);
      return steps_of(operands[0]);
    }
    if (node->op == Op::kDequantize) return steps_of_codes(id, *node);
    if (node->op == Op::kCast) {
      const DType from = graph_.type(operands[0]).dtype;
      if (from == DType::kF32) return steps_of(operands[0]);
      if (!is_integer(from) || from == DType::kBool) return {};
      const std::optional<ValueRange> range = integer_limits(from);
      return Steps{.leaf = operands[0], .range = range ? *range : ValueRange{-kMostInteger, kMostInteger}};
    }
    if (node->op == Op::kNeg) {
      std::optional<Steps> out = steps_of(operands[0]);
      if (out) out->slope = -out->slope, out->offset = -out->offset;
      return out;
    }
    return steps_of_arithmetic(*node);
  }

  std::optional<Steps> steps_of_codes(ValueId id, const Node& node) {
    const auto& attrs = Graph::attrs<DequantizeAttrs>(node);
    const std::optional<ValueRange> stored = integer_limits(graph_.type(graph_.operands(node)[0]).dtype);
    if (attrs.axis || !stored) return {};
    const std::int64_t zero = attrs.zero_points[0];
    return Steps{.leaf = id,
                 .unit = attrs.scales[0],
                 .slope = attrs.scales[0],
                 .range = {stored->low - zero, stored->high - zero}};
  }

  std::optional<Steps> steps_of_arithmetic(const Node& node) {
    if (!kArithmetic.contains(node.op)) return {};
    if (node.op != Op::kMul && *node.attrs != default_attrs(node.op)) return {};
    const auto operands = graph_.operands(node);
    for (const std::size_t at : {1U, 0U}) {
      const std::optional<double> number = splat_of(graph_, operands[at]);
      const ValueId x = operands[1 - at];
      if (!number || !std::isfinite(*number) ||
          graph_.type(x).shape != graph_.type(graph_.result(node)).shape)
        continue;
      if (at == 0 && node.op == Op::kDiv) return {};
      std::optional<Steps> out = steps_of(x);
      if (!out) return {};
      if (node.op == Op::kMul || node.op == Op::kDiv) {
        if (*number == 0) return {};
        const double factor = node.op == Op::kMul ? *number : 1 / *number;
        out->slope *= factor, out->offset *= factor;
      } else if (node.op == Op::kSub && at == 0) {
        out->slope = -out->slope, out->offset = *number - out->offset;
      } else {
        out->offset += node.op == Op::kAdd ? *number : -*number;
      }
      return out;
    }
    return {};
  }

  // The bool value from which the number is cast. With false, the number is 1 where that value is false.
  [[nodiscard]] std::optional<std::pair<ValueId, bool>> truth_of(ValueId id) const {
    if (const Node* cast = produced_by(graph_, id, Op::kCast)) {
      const ValueId from = graph_.operands(*cast)[0];
      if (graph_.type(from).dtype == DType::kBool) return std::pair(from, true);
      return truth_of(from);
    }
    const Node* sub = produced_by(graph_, id, Op::kSub);
    if (sub == nullptr || *sub->attrs != default_attrs(Op::kSub)) return {};
    if (splat_of(graph_, graph_.operands(*sub)[0]) != 1.0) return {};
    auto inner = truth_of(graph_.operands(*sub)[1]);
    if (inner) inner->second = !inner->second;
    return inner;
  }

  // ---- the new nodes ----

  ValueId emit() {
    static_cast<void>(rewriter_.begin_output(at_));
    if (floor_of_.valid()) {
      const ValueId lowest = rewriter_.constant(
          at_, make_constant("low", DType::kF32, Shape{}, std::span<const double>(&low_, 1)));
      return moved(rewriter_.emit(at_, Op::kMaximum, NoAttrs{}, {rewriter_.map(floor_of_), lowest}),
                   through_);
    }
    ValueId scores = product_ == nullptr ? rewriter_.map(scores_) : product();
    if (bias_.valid())
      scores = rewriter_.emit(at_, Op::kAdd, default_attrs(Op::kAdd), {scores, rewriter_.map(bias_)});
    const auto number = [&](double x) {
      return rewriter_.constant(at_, make_constant("low", DType::kF32, Shape{}, std::span(&x, 1)));
    };
    ValueId out;
    if (constant_ != nullptr) {
      out = rewriter_.emit(at_, Op::kAdd, default_attrs(Op::kAdd),
                           {scores, rewriter_.constant(at_, constant_)});
    } else if (steps_) {
      out = stepped(scores);
    } else {
      const ValueId hidden =
          moved(mask_sum_.valid() ? hidden_by(mask_sum_) : rewriter_.map(hidden_), mask_through_);
      ValueId lowest = number(low_);
      // If f32 retains the scores in the sum, a row that is hidden as a whole has the shares of its scores.
      if (is_added_) lowest = rewriter_.emit(at_, Op::kAdd, default_attrs(Op::kAdd), {scores, lowest});
      out = is_seen_ ? rewriter_.emit(at_, Op::kWhere, NoAttrs{}, {hidden, scores, lowest})
                     : rewriter_.emit(at_, Op::kWhere, NoAttrs{}, {hidden, lowest, scores});
    }
    return moved(out, through_);
  }

  // Bools that are true where the mask has minus infinity. Requires hides_by_infinity(mask).
  ValueId hidden_by(ValueId mask) {
    if (const Constant* const constant = constant_of(graph_, mask)) {
      const Elements elements(*constant);
      std::vector<double> hidden(elements.size());
      for (std::size_t i = 0; i < hidden.size(); ++i) hidden[i] = elements.as_double(i) != 0 ? 1 : 0;
      return rewriter_.constant(at_, make_constant(constant->name, DType::kBool, constant->shape, hidden));
    }
    const Node& node = *graph_.producer(mask);
    const auto operands = graph_.operands(node);
    if (node.op == Op::kAdd)
      return rewriter_.emit(at_, Op::kLogicalOr, NoAttrs{}, {hidden_by(operands[0]), hidden_by(operands[1])});
    if (node.op != Op::kWhere) return rewriter_.emit(at_, node.op, *node.attrs, {hidden_by(operands[0])});
    const ValueId condition = rewriter_.map(operands[0]);
    const ValueId chosen =
        is_infinite(operands[1]) ? condition : rewriter_.emit(at_, Op::kLogicalNot, NoAttrs{}, {condition});
    // The operands of a `where` may have more axes than its condition.
    const Shape& shape = graph_.type(mask).shape;
    if (graph_.type(operands[0]).shape == shape) return chosen;
    return rewriter_.emit(at_, Op::kExpand, ShapeAttrs{shape}, {chosen});
  }

  ValueId stepped(ValueId scores) {
    const DType dtype = graph_.type(steps_->leaf).dtype;
    const ValueId leaf = moved(rewriter_.map(steps_->leaf), mask_through_);
    const auto number = [&](DType of, double x) {
      return rewriter_.constant(at_, make_constant("", of, Shape{}, std::span(&x, 1)));
    };
    // Halfway to the next unit, so that rounding of the unit makes no difference.
    const auto beyond = [&](bool is_below) {
      const double half = is_float(dtype) ? (is_below ? -0.5 : 0.5) : 0.0;
      return rewriter_.emit(at_, is_below ? Op::kLt : Op::kGt, NoAttrs{},
                            {leaf, number(dtype, (steps_->visible + half) * steps_->unit)});
    };
    const auto select = [&](ValueId where, ValueId x, ValueId otherwise) {
      return rewriter_.emit(at_, Op::kWhere, NoAttrs{}, {where, x, otherwise});
    };
    // If f32 retains the scores in the sum, a row that is hidden as a whole has the shares of its scores.
    const auto shifted = [&](double by) {
      const ValueId all = number(DType::kF32, by);
      return is_added_ ? rewriter_.emit(at_, Op::kAdd, default_attrs(Op::kAdd), {scores, all}) : all;
    };
    const double end = static_cast<double>(hides_below_ ? steps_->range.high : steps_->range.low);
    const bool has_others = hides_below_ ? end > steps_->visible : end < steps_->visible;
    ValueId out = scores;
    if (has_others) out = select(beyond(!hides_below_), shifted(-low_), out);
    return select(beyond(hides_below_), shifted(low_), out);
  }

  // The value after the views, permutes and products in `through`, which begins with the last of them.
  ValueId moved(ValueId value, const std::vector<const Node*>& through) {
    for (auto node = through.rbegin(); node != through.rend(); ++node) {
      std::vector<ValueId> operands = rewriter_.map_operands(**node);
      operands[0] = value;
      value = rewriter_.emit(at_, (*node)->op, *(*node)->attrs, operands);
    }
    return value;
  }

  // alpha * (a @ b) of a baddbmm or addmm.
  ValueId product() {
    const auto operands = graph_.operands(*product_);
    const double alpha = as_double(Graph::attrs<AddmmAttrs>(*product_).alpha);
    const ValueId a = rewriter_.map(operands[1]), b = rewriter_.map(operands[2]);
    const ValueId out = rewriter_.emit(*product_, Op::kMatmul, NoAttrs{}, {a, b});
    if (alpha == 1.0) return out;
    const ValueId factor =
        rewriter_.constant(*product_, make_constant("alpha", DType::kF32, Shape{}, std::span(&alpha, 1)));
    return rewriter_.emit(*product_, Op::kMul, default_attrs(Op::kMul), {out, factor});
  }

  Rewriter& rewriter_;
  const Graph& graph_;
  Analyses& analyses_;
  const Node& at_;
  double hidden_share_ =
      0;  // for a log_softmax: its results below minus this number are all the same to the readers
  const Node* product_ = nullptr;
  std::vector<const Node*> through_;  // between the sum and the softmax: views, and products with numbers
  double scale_ = 1;                  // the product of these numbers
  std::vector<const Node*> mask_through_;  // between the mask and the sum
  ValueId scores_, hidden_;
  ValueId mask_sum_;            // a sum of masks of 0 and minus infinity, used instead of hidden_
  ValueId floor_of_;            // the operand of a maximum with -1e30, if there is no other mask
  ValueId bias_;                // added to the scores, in addition to the mask
  std::optional<Steps> steps_;  // of a mask that is computed from integers
  bool hides_below_ = false, is_added_ = false;
  double low_ = 0;
  bool is_seen_ = false;
  ConstantRef constant_;
};

}  // namespace

namespace {

// True if the value follows from a dequantize node by products, by casts between floats and by operators that
// commute with quantization. fold-qdq moves such operators to the integers.
bool is_dequantized(const Graph& graph, ValueId id) {
  for (const Node* node = graph.producer(id); node != nullptr; node = graph.producer(id)) {
    if (node->op == Op::kDequantize) return true;
    const auto operands = graph.operands(*node);
    const bool is_step = node->op == Op::kMul || node->op == Op::kDiv || node->op == Op::kCast;
    if (!commutes_with_quantize(*node) && !is_step) return false;
    const auto data = std::ranges::find_if(operands, [&](ValueId operand) {
      return operand.valid() && is_float(graph.type(operand).dtype) && graph.producer(operand) != nullptr;
    });
    if (data == operands.end()) return false;
    id = *data;
  }
  return false;
}

// True for an sdpa of dequantized operands whose f32 mask is computed at run time, or is a constant with
// large finite numbers.
bool has_large_mask(const Graph& graph, const Node& node) {
  const auto operands = graph.operands(node);
  if (node.op != Op::kSdpa || operands.size() < 4 || !operands[3].valid()) return false;
  if (graph.type(operands[3]).dtype != DType::kF32) return false;
  if (!is_dequantized(graph, operands[0]) && !is_dequantized(graph, operands[1])) return false;
  const Constant* constant = constant_of(graph, operands[3]);
  if (constant == nullptr || !constant->storage.bound()) return true;
  const Elements elements(*constant);
  for (std::size_t i = 0; i < elements.size(); ++i)
    if (const double x = elements.as_double(i); std::isfinite(x) && x <= -kLarge) return true;
  return false;
}

}  // namespace

std::optional<Graph> bound_masks(const Graph& graph) {
  std::optional<Graph> expanded = expand_composites(graph, has_large_mask);
  const Graph& source = expanded ? *expanded : graph;
  Analyses analyses(source);
  Rewriter rewriter(source);
  for (const Node& node : source.nodes())
    // For an operator that reads only the order, hidden numbers stay below all others, and numbers that f32
    // makes equal stay equal.
    if (is_softmax(node.op) || reads_order(node.op))
      Masks(rewriter, analyses, node).run();
    else
      rewriter.copy(node);
  std::optional<Graph> out = std::move(rewriter).finish();
  if (!out) return expanded;
  return without_dead_code(std::move(out));
}

}  // namespace tosaic::passes
