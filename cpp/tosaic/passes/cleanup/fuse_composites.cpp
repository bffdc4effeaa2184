// fuse-composites: replaces norms, softmaxes and activations that are spelled out by composite operators.
//
//   %p = mul(%x, %x)
//   %m = mean(%p) {axes=[2], keepdim=true}
//   %v = add(%m, 1e-6)                              ->     %n = rms_norm(%x, %w) {eps=1e-6}
//   %r = rsqrt(%v)
//   %u = mul(%x, %r)
//   %n = mul(%u, %w)
//
//   rms_norm     x / sqrt(mean(x^2) + eps), perhaps times a constant weight. If the expression has the sum of
//                squares instead of their mean, the composite has another weight
//   layer_norm   the same for x - mean(x), perhaps plus a constant bias; also with var or std, of any
//                correction
//   softmax      exp(x - max(x)) / sum(..), with or without the maximum, and log_softmax, its logarithm
//   gelu         0.5 x (1 + erf(x / sqrt(2))), or 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
//   silu         x * sigmoid(x)
//
// The pass is for quantized programs whose quantizer observed only the inputs and outputs of such an
// expression. In between, the expression computes with floats, e.g. the square of a row, whose magnitude
// nobody observed. lower-to-integer has rules for the composites, which need no such magnitude.
//
// An epsilon outside of the root, x / (sqrt(..) + eps) or x / max(sqrt(..), eps), becomes its square under
// the root. Results differ by eps / sqrt(..), so eps must be small compared with the numbers of x.
//
// A norm may divide x while it reduces x after an expand, as cosine_similarity does with operands that
// broadcast. The composite then reduces x itself, and its result is expanded.
//
// Conditions: no value inside of the expression is quantized, all values are f32, and the reductions retain
// their axes. Only reduced values, such as the norm of a row, may have readers outside; they stay for these.
// A norm over axes that are not the last ones gets permutes around it.
//
// In floats, the composite rounds as its expansion does, so results are within the tolerance of the kernels.
// exp(x) / sum(exp(x)) without a maximum is fused only if x is known to be so small that nothing overflows.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "tosaic/ir/rewriter.h"
#include "tosaic/passes/match.h"
#include "tosaic/passes/pass.h"
#include "tosaic/passes/pattern.h"

namespace tosaic::passes {
namespace {

enum Slot : std::size_t { kX, kRow, kWeight, kBias, kExps };
// The epsilon under the root and the one outside of it, the correction of a variance, and whether squares are
// summed without a division.
enum NumberSlot : std::size_t { kEps, kBeside, kCorrection, kIsSum };

Pattern square(const Pattern& x) {
  return either({node(Op::kMul, {x, x}), node(Op::kPow, {x, number(2.0)})});
}
Pattern exponential(const Pattern& x) { return node(Op::kExp, {x}); }

// y / sqrt(power), where the root may also be one operator
Pattern over_root(const Pattern& y, const Pattern& power, const Pattern& root_at_once) {
  const Pattern root = either({node(Op::kSqrt, {power}), node(Op::kPow, {power, number(0.5)}), root_at_once});
  const Pattern denominator =
      either({root, node(Op::kAdd, {root, bound_number(kBeside)}), at_least_number(root, kBeside)});
  const Pattern inverse =
      either({node(Op::kRsqrt, {power}), node(Op::kReciprocal, {denominator}),
              node(Op::kDiv, {number(1.0), denominator}), node(Op::kPow, {power, number(-0.5)})});
  return either(
      {node(Op::kMul, {y, behind_expand(inverse)}), node(Op::kDiv, {y, behind_expand(denominator)})});
}

struct NormPatterns {
  Pattern plain, weighted;
  // `row` is the value that is divided, and `power` its mean square or sum of squares.
  NormPatterns(const Pattern& row, const Pattern& power, const Pattern& root_at_once) {
    const Pattern sum = either({node(Op::kAdd, {power, bound_number(kEps)}), power});
    const Pattern weight = constant(kWeight);
    plain = over_root(row, sum, root_at_once);
    weighted = either(
        {node(Op::kMul, {plain, weight}), over_root(node(Op::kMul, {row, weight}), sum, root_at_once)});
  }
};

// The mean of squares, or their sum.
Pattern power_of(const Pattern& squares) {
  return either({mean(squares), with_number(kIsSum, 1.0, reduction(Op::kSum, squares))});
}

struct SoftmaxPatterns {
  Pattern shares, unshifted, logarithms;
  SoftmaxPatterns() {
    const Pattern x = value(kX);
    const Pattern shifted = both(value(kRow), node(Op::kSub, {x, reduction(Op::kAmax, x)}));
    const Pattern exps = both(value(kExps), exponential(shifted));
    const Pattern plain_exps = both(value(kExps), exponential(x));
    const auto quotient = [](const Pattern& of) {
      const Pattern sum = reduction(Op::kSum, of);
      return either({node(Op::kDiv, {of, sum}), node(Op::kMul, {of, node(Op::kReciprocal, {sum})})});
    };
    shares = quotient(exps);
    unshifted = quotient(plain_exps);
    logarithms =
        either({node(Op::kSub, {shifted, node(Op::kLog, {reduction(Op::kSum, exponential(shifted))})}),
                node(Op::kSub, {x, reduction(Op::kLogsumexp, x)})});
  }
};

struct ActivationPatterns {
  Pattern gelu_erf, gelu_tanh, silu;
  ActivationPatterns() {
    const Pattern x = value(kX);
    const Pattern one_more = number(1.0);
    const auto gelu = [&](const Pattern& gate) { return product(0.5, x, node(Op::kAdd, {gate, one_more})); };
    gelu_erf = gelu(node(Op::kErf, {scaled(1.0 / std::numbers::sqrt2, x)}));
    constexpr double kCubic = 0.044715;
    const double inner = std::sqrt(2.0 / std::numbers::pi);
    const Pattern cube = either({node(Op::kPow, {x, number(3.0)}), node(Op::kMul, {square(x), x})});
    const Pattern part_of_square = either({scaled(kCubic, square(x)), product(kCubic, x, x)});
    const Pattern part_of_cube =
        either({scaled(kCubic, cube), product(kCubic, x, square(x)), node(Op::kMul, {part_of_square, x})});
    const Pattern sum = node(Op::kAdd, {x, part_of_cube}), grown = node(Op::kAdd, {one_more, part_of_square});
    gelu_tanh = gelu(node(Op::kTanh, {either({scaled(inner, sum), product(inner, x, grown)})}));
    silu = either({node(Op::kMul, {x, node(Op::kSigmoid, {x})}),
                   node(Op::kDiv, {x, node(Op::kAdd, {one_more, exponential(node(Op::kNeg, {x}))})})});
  }
};

// One spelling of a composite. Activations have the attributes `attrs`; attributes of other composites follow
// from the match.
struct Spelling {
  std::vector<Op> last;  // the operators that the last node may have
  Op composite;
  Attrs attrs;
  Pattern pattern;
  bool may_overflow = false;  // where the composite does not
};

std::vector<Spelling> make_spellings() {
  const Pattern x = value(kX), row = value(kRow);
  const Pattern centred = both(row, node(Op::kSub, {x, mean(x)}));
  const Pattern row_or_x = either({row, x});
  const Pattern power_of_row = either({power_of(square(row)), spread(Op::kVar, row_or_x, kCorrection)});
  const Pattern root_of_row =
      either({spread(Op::kStd, row_or_x, kCorrection), with_number(kIsSum, 1.0, euclidean_norm(row))});
  const Pattern spread_x = either({x, behind_expand(x)});
  const NormPatterns rms(x, power_of(square(spread_x)), with_number(kIsSum, 1.0, euclidean_norm(spread_x)));
  const NormPatterns layer(centred, power_of_row, root_of_row);
  const Pattern biased = node(Op::kAdd, {either({layer.weighted, layer.plain}), constant(kBias)});
  const SoftmaxPatterns softmax;
  const ActivationPatterns activation;
  const std::vector<Op> product{Op::kMul}, quotient{Op::kMul, Op::kDiv};
  return {{product, Op::kGelu, GeluAttrs{false}, activation.gelu_erf},
          {product, Op::kGelu, GeluAttrs{true}, activation.gelu_tanh},
          {quotient, Op::kSilu, NoAttrs{}, activation.silu},
          {{Op::kAdd}, Op::kLayerNorm, NormAttrs{}, biased},
          {quotient, Op::kLayerNorm, NormAttrs{}, layer.weighted},
          {quotient, Op::kLayerNorm, NormAttrs{}, layer.plain},
          {quotient, Op::kRmsNorm, NormAttrs{}, rms.weighted},
          {quotient, Op::kRmsNorm, NormAttrs{}, rms.plain},
          {quotient, Op::kSoftmax, AxisDtypeAttrs{}, softmax.shares},
          {quotient, Op::kSoftmax, AxisDtypeAttrs{}, softmax.unshifted, true},
          {{Op::kSub}, Op::kLogSoftmax, AxisDtypeAttrs{}, softmax.logarithms}};
}

const std::vector<Spelling>& spellings() {
  static const std::vector<Spelling> all = make_spellings();
  return all;
}

// The elements of a weight or bias that has the extents of x along the axes, and 1 elsewhere, in the shape of
// these axes. Null if the constant is of another shape.
ConstantRef parameter(const Graph& graph, ValueId id, const Shape& x, const Dims& axes) {
  const ConstantRef& constant = graph.value(id).constant;
  const Shape& shape = constant->shape;
  if (shape.size() > x.size()) return nullptr;
  const std::size_t absent = x.size() - shape.size();
  Shape trailing;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool is_reduced = std::ranges::find(axes, static_cast<std::int64_t>(i)) != axes.end();
    const std::int64_t extent = i < absent ? 1 : shape[i - absent];
    if (extent != (is_reduced ? x[i] : 1)) return nullptr;
    if (is_reduced) trailing.push_back(extent);
  }
  if (trailing == shape) return constant;
  auto out = std::make_shared<Constant>(*constant);
  out->shape = trailing;
  out->kind = ConstantKind::kFolded;
  return out;
}

// A weight of a norm over some axes, times a factor. Null stands for ones.
ConstantRef times(const ConstantRef& weight, double factor, const Shape& x, const Dims& axes) {
  Shape trailing;
  for (const std::int64_t axis : axes) trailing.push_back(x[static_cast<std::size_t>(axis)]);
  std::vector<double> out(static_cast<std::size_t>(num_elements(trailing)), factor);
  if (weight != nullptr) {
    const Elements elements(*weight);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] *= elements.as_double(i);
  }
  return make_constant(weight ? weight->name : "weight", DType::kF32, trailing, out);
}

// Replaces the nodes of one match, which ends at the node `at`.
class Fusion {
 public:
  Fusion(Rewriter& rewriter, const Node& at) : rewriter_(rewriter), graph_(rewriter.source()), at_(at) {}

  // Replaces the node by a composite if it is the last node of its expression.
  bool run() {
    return std::ranges::any_of(spellings(), [this](const Spelling& spelling) {
      return std::ranges::find(spelling.last, at_.op) != spelling.last.end() && find(spelling.pattern) &&
             replace(spelling);
    });
  }

 private:
  // Finds a match whose result has the shape of x, or a match of a norm whose x is expanded.
  bool find(const Pattern& pattern) {
    std::optional<Match> found = match(graph_, pattern, graph_.result(at_));
    if (!found) return false;
    found_ = *std::move(found);
    const TensorType& x = graph_.type(found_.values[kX]);
    if (x.dtype != DType::kF32) return false;
    if (x.shape != graph_.type(graph_.result(at_)).shape && !find_axes_in_front_of_expand(x.shape))
      return false;
    std::ranges::sort(found_.nodes);
    std::vector<OriginRef> origins;
    for (const NodeId id : found_.nodes) origins.push_back(graph_.node(id).origin);
    origin_ = merge(origins);
    return true;
  }

  // For a norm that reduces an expanded x, as in a cosine_similarity with broadcasts: translates the axes of
  // the norm to axes of x. Returns false if x is expanded along one of them.
  bool find_axes_in_front_of_expand(const Shape& x) {
    const Shape* const reduced = reduced_shape();
    if (reduced == nullptr || x.size() > reduced->size()) return false;
    const auto added = static_cast<std::int64_t>(reduced->size() - x.size());
    for (std::int64_t& axis : *found_.axes) {
      const std::int64_t extent = (*reduced)[static_cast<std::size_t>(axis)];
      axis -= added;
      if (axis < 0 || x[static_cast<std::size_t>(axis)] != extent) return false;
    }
    return true;
  }

  // The shape that the reductions of the match reduce; null if the match has none.
  [[nodiscard]] const Shape* reduced_shape() const {
    for (const NodeId id : found_.nodes) {
      const Node& node = graph_.node(id);
      if (holds<ReduceAttrs>(*node.attrs) || holds<VectorNormAttrs>(*node.attrs))
        return &graph_.type(graph_.operands(node)[0]).shape;
    }
    return nullptr;
  }

  bool replace(const Spelling& spelling) {
    if (holds<NormAttrs>(spelling.attrs)) return replace_by_norm(spelling.composite);
    if (holds<AxisDtypeAttrs>(spelling.attrs)) return replace_by_softmax(spelling);
    static_cast<void>(rewriter_.begin_output(at_));
    const ValueId x = rewriter_.map(found_.values[kX]);
    rewriter_.replace(at_, emit(spelling.composite, spelling.attrs, std::span(&x, 1)));
    return true;
  }

  [[nodiscard]] ValueId emit(Op op, Attrs attrs, std::span<const ValueId> operands) {
    return rewriter_.emit(at_, op, std::move(attrs), operands, origin_);
  }
  [[nodiscard]] ValueId permuted(ValueId x, const Dims& perm) {
    return emit(Op::kPermute, PermuteAttrs{perm}, std::span(&x, 1));
  }

  bool replace_by_softmax(const Spelling& spelling) {
    if (found_.axes->size() != 1) return false;
    const std::int64_t axis = (*found_.axes)[0];
    const ValueId x = found_.values[kX];
    if (spelling.may_overflow) {
      const auto count = static_cast<double>(graph_.type(x).shape[static_cast<std::size_t>(axis)]);
      if (!(magnitude(x) + std::log(count) < 80.0)) return false;  // exp(88) is beyond f32
    }
    static_cast<void>(rewriter_.begin_output(at_));
    const ValueId operand = rewriter_.map(x);
    const AxisDtypeAttrs attrs{axis, std::nullopt};
    rewriter_.replace(at_, emit(spelling.composite, attrs, std::span(&operand, 1)));
    return true;
  }

  // A bound of the magnitude of a value, from its dequantize node; infinity if there is none.
  [[nodiscard]] double magnitude(ValueId id) const {
    const Node* const producer = produced_by(graph_, id, Op::kDequantize);
    if (producer == nullptr || Graph::attrs<DequantizeAttrs>(*producer).axis)
      return std::numeric_limits<double>::infinity();
    const auto& attrs = Graph::attrs<DequantizeAttrs>(*producer);
    const std::optional<ValueRange> stored = integer_limits(graph_.type(graph_.operands(*producer)[0]).dtype);
    if (!stored) return std::numeric_limits<double>::infinity();
    const auto zero = static_cast<double>(attrs.zero_points[0]);
    return attrs.scales[0] *
           std::max(static_cast<double>(stored->high) - zero, zero - static_cast<double>(stored->low));
  }

  // True if an epsilon outside of the root may be squared and moved under the root, as the norm has it: the
  // results differ by eps / root.
  [[nodiscard]] bool is_negligible(double beside) const {
    const double largest = magnitude(found_.values[kX]);
    return beside >= 0.0 && beside <= 1e-4 && (std::isinf(largest) || beside <= std::ldexp(largest, -12));
  }

  // With d in place of the count n under the sum of squares S, y / sqrt(S / d + eps) is
  // sqrt(d / n) * y / sqrt(S / n + eps * d / n).
  bool replace_by_norm(Op op) {
    const auto& numbers = found_.numbers;
    const double beside = numbers[kBeside].value_or(0.0);
    double eps = numbers[kEps].value_or(0.0);
    if (!(eps >= 0.0) || !is_negligible(beside)) return false;
    if (eps == 0.0) eps = beside * beside;
    Dims axes = *found_.axes;
    std::ranges::sort(axes);
    const Shape shape = graph_.type(found_.values[kX]).shape;
    double count = 1.0;
    for (const std::int64_t axis : axes) count *= static_cast<double>(shape[static_cast<std::size_t>(axis)]);
    const double divisor = numbers[kIsSum] ? 1.0 : count - numbers[kCorrection].value_or(0.0);
    if (!(divisor > 0.0)) return false;
    std::vector<ConstantRef> parameters;
    for (const Slot slot : {kWeight, kBias}) {
      const ValueId id = found_.values[slot];
      parameters.push_back(id.valid() ? parameter(graph_, id, shape, axes) : nullptr);
      if (id.valid() && parameters.back() == nullptr) return false;
    }
    if (divisor != count) {
      eps *= divisor / count;
      parameters[0] = times(parameters[0], std::sqrt(divisor / count), shape, axes);
    }
    static_cast<void>(rewriter_.begin_output(at_));
    Dims perm, back = Dims::filled(shape.size(), 0);
    for (std::size_t i = 0; i < shape.size(); ++i)
      if (std::ranges::find(axes, static_cast<std::int64_t>(i)) == axes.end())
        perm.push_back(static_cast<std::int64_t>(i));
    for (const std::int64_t axis : axes) perm.push_back(axis);
    for (std::size_t i = 0; i < shape.size(); ++i)
      back[static_cast<std::size_t>(perm[i])] = static_cast<std::int64_t>(i);
    const bool is_trailing = perm == Dims::iota(shape.size());
    ValueId x = rewriter_.map(found_.values[kX]);
    if (!is_trailing) x = permuted(x, perm);
    std::vector<ValueId> operands{x};
    for (std::size_t i = 0; i < (op == Op::kLayerNorm ? 2U : 1U); ++i)
      operands.push_back(parameters[i] ? rewriter_.constant(at_, parameters[i]) : ValueId());
    ValueId y = emit(op, NormAttrs{static_cast<std::int64_t>(axes.size()), eps}, operands);
    if (!is_trailing) y = permuted(y, back);
    const Shape& result = graph_.type(graph_.result(at_)).shape;
    if (result != shape) y = emit(Op::kExpand, ShapeAttrs{result}, std::span(&y, 1));
    rewriter_.replace(at_, y);
    return true;
  }

  Rewriter& rewriter_;
  const Graph& graph_;
  const Node& at_;
  Match found_;
  OriginRef origin_;
};

}  // namespace

std::optional<Graph> fuse_composites(const Graph& graph) {
  Rewriter rewriter(graph);
  for (const Node& node : graph.nodes())
    if (!Fusion(rewriter, node).run()) rewriter.copy(node);
  return without_dead_code(std::move(rewriter).finish());
}

}  // namespace tosaic::passes
