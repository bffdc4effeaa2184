// expand_normalize: expresses normalisation, softmax and attention by elementwise arithmetic and reductions.
//
// No step loses more than its own rounding. The variance is computed from centred values (not as E[x^2] -
// E[x]^2), softmax is shifted by its maximum, and batch norm's affine map is computed from constants in
// double.

#include <cmath>
#include <limits>

#include "tosaic/passes/decompose/expansions.h"
#include "tosaic/passes/match.h"

namespace tosaic::passes {
namespace {

Dims trailing_axes(std::size_t rank, std::int64_t count) {
  Dims axes;
  for (std::size_t i = rank - static_cast<std::size_t>(count); i < rank; ++i)
    axes.push_back(static_cast<std::int64_t>(i));
  return axes;
}

// x * 1/sqrt(mean(x^2) + eps)
ValueId scale_to_unit_rms(Emitter& e, ValueId x, const Dims& axes, double eps) {
  const ValueId power = mean(e, e.mul(x, x), axes, true);
  return e.mul(x, e.unary(Op::kRsqrt, e.add(power, eps)));
}

ValueId normalized(Emitter& e, ValueId x, const Dims& axes, double eps) {
  return scale_to_unit_rms(e, e.sub(x, mean(e, x, axes, true)), axes, eps);
}

// torch's default eps for rms_norm: the epsilon of the dtype that torch computes in (f32 for narrower
// floats).
double default_epsilon(DType dtype) {
  return dtype == DType::kF64 ? std::numeric_limits<double>::epsilon()
                              : static_cast<double>(std::numeric_limits<float>::epsilon());
}

// A per-channel vector in the shape (C, 1, 1 ...), which broadcasts along axis 1.
ValueId along_channels(Emitter& e, ValueId vector, std::size_t rank) {
  Shape shape{num_elements(e.type(vector).shape)};
  for (std::size_t i = 2; i < rank; ++i) shape.push_back(1);
  return e.reshape(vector, shape);
}

bool all_constant(const Emitter& e, std::size_t first) {
  for (std::size_t i = first; i < e.operands().size(); ++i) {
    if (!e.has(i)) continue;
    const Constant* constant = constant_of(e.graph(), e.operand(i));
    if (constant == nullptr || !constant->storage.bound()) return false;
  }
  return true;
}

// How an attention mask applies to the scores. Both values are absent if the mask hides no score.
// `may_hide_rows` is true if the mask may hide all scores of a row: softmax then reads only -inf.
struct Mask {
  ValueId addend;     // floats to add
  ValueId condition;  // bool: false hides the score
  bool may_hide_rows = false;
};

bool hides_a_row(const Constant& mask) {
  const auto row = static_cast<std::size_t>(mask.shape.empty() ? 1 : mask.shape.back());
  const Elements elements(mask);
  for (std::size_t r = 0; r + row <= elements.size() && row != 0; r += row) {
    bool seen = false;
    for (std::size_t i = r; i < r + row && !seen; ++i) {
      const double value = elements.as_double(i);
      seen = mask.dtype == DType::kBool ? value != 0.0 : value != -std::numeric_limits<double>::infinity();
    }
    if (!seen) return true;
  }
  return false;
}

Mask read_mask(Emitter& e, ValueId mask, DType dtype) {
  Mask out;
  if (const Node* expand = produced_by(e.graph(), mask, Op::kExpand)) {  // the addition broadcasts by itself
    const ValueId narrow = e.graph().operands(*expand)[0];
    if (constant_of(e.graph(), narrow) != nullptr && e.type(narrow).rank() != 0) mask = narrow;
  }
  const Constant* constant = constant_of(e.graph(), mask);
  const bool known = constant != nullptr && constant->storage.bound();
  out.may_hide_rows = !known || hides_a_row(*constant);
  if (e.type(mask).dtype != DType::kBool) {
    out.addend = e.cast(mask, dtype);
    return out;
  }
  if (!known) {
    out.condition = mask;
    return out;
  }
  const Elements elements(*constant);
  std::vector<double> values(elements.size());
  bool any_hidden = false;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool shows = elements.as_double(i) != 0.0;
    values[i] = shows ? 0.0 : -std::numeric_limits<double>::infinity();
    any_hidden = any_hidden || !shows;
  }
  if (any_hidden) out.addend = e.constant(dtype, constant->shape, values);
  return out;
}

ValueId causal_addend(Emitter& e, DType dtype, std::int64_t rows, std::int64_t columns) {
  std::vector<double> values;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c)
      values.push_back(c <= r ? 0.0 : -std::numeric_limits<double>::infinity());
  return e.constant(dtype, {rows, columns}, values);
}

// Grouped-query attention: each key/value head serves `times` consecutive query heads.
ValueId repeat_heads(Emitter& e, ValueId x, std::int64_t times) {
  if (times == 1) return x;
  Shape shape = e.type(x).shape;
  const std::size_t head_axis = shape.size() - 3;
  Shape split = shape, wide = shape;
  split.insert(head_axis + 1, 1);
  wide.insert(head_axis + 1, times);
  shape[head_axis] *= times;
  return e.reshape(e.expand(e.reshape(x, split), wide), shape);
}

Dims swap_last_two(std::size_t rank) {
  Dims perm = Dims::iota(rank);
  std::swap(perm[rank - 1], perm[rank - 2]);
  return perm;
}

// Softmax over one axis. With `safe`, rows that hold only -inf become zeros instead of NaN.
ValueId softmax(Emitter& e, ValueId x, std::size_t axis, bool safe) {
  const Dims axes{static_cast<std::int64_t>(axis)};
  const ValueId top = e.reduce(Op::kAmax, x, axes, true);
  const ValueId exps = e.unary(Op::kExp, e.sub(x, top));
  const ValueId total = e.reduce(Op::kSum, exps, axes, true);
  const ValueId y = e.mul(exps, e.unary(Op::kReciprocal, total));
  if (!safe) return y;
  const DType dtype = e.type(x).dtype;
  const ValueId hidden = e.binary(Op::kEq, top, e.number(-std::numeric_limits<double>::infinity(), dtype));
  return e.where(hidden, e.number(0.0, dtype), y);
}

}  // namespace

ValueId expand_batch_norm(Emitter& e) {
  const ValueId x = e.operand(0);
  const double eps = e.attrs<BatchNormAttrs>().eps;
  const std::size_t rank = e.type(x).rank();
  const DType dtype = e.type(e.operand(3)).dtype;
  ValueId scale, shift;
  if (all_constant(e, 1)) {
    const auto channels = static_cast<std::size_t>(num_elements(e.type(e.operand(3)).shape));
    const auto numbers = [&](std::size_t i, double absent) {
      std::vector<double> out(channels, absent);
      if (!e.has(i)) return out;
      const Elements elements(*constant_of(e.graph(), e.operand(i)));
      for (std::size_t c = 0; c < channels; ++c) out[c] = elements.as_double(c);
      return out;
    };
    const std::vector<double> gains = numbers(1, 1.0), biases = numbers(2, 0.0), means = numbers(3, 0.0),
                              vars = numbers(4, 1.0);
    std::vector<double> scales, shifts;
    for (std::size_t c = 0; c < channels; ++c) {
      scales.push_back(gains[c] / std::sqrt(vars[c] + eps));
      shifts.push_back(biases[c] - means[c] * scales.back());
    }
    scale = e.constant(dtype, {static_cast<std::int64_t>(channels)}, scales);
    shift = e.constant(dtype, {static_cast<std::int64_t>(channels)}, shifts);
  } else {
    scale = e.unary(Op::kRsqrt, e.add(e.operand(4), eps));
    if (e.has(1)) scale = e.mul(scale, e.operand(1));
    const ValueId centre = e.mul(e.operand(3), scale);
    shift = e.has(2) ? e.sub(e.operand(2), centre) : e.unary(Op::kNeg, centre);
  }
  const ValueId wide = e.cast(x, dtype);
  const ValueId scaled = e.mul(wide, along_channels(e, scale, rank));
  const ValueId y = e.add(scaled, along_channels(e, shift, rank));
  return e.cast(y, e.result_type().dtype);
}

ValueId expand_layer_norm(Emitter& e) {
  const auto& attrs = e.attrs<NormAttrs>();
  const ValueId x = e.operand(0);
  ValueId y =
      normalized(e, x, trailing_axes(e.type(x).rank(), attrs.normalized_rank), attrs.eps.value_or(1e-5));
  if (e.has(1)) y = e.mul(y, e.operand(1));
  if (e.has(2)) y = e.add(y, e.operand(2));
  return e.cast(y, e.result_type().dtype);
}

ValueId expand_rms_norm(Emitter& e) {
  const auto& attrs = e.attrs<NormAttrs>();
  const ValueId x = e.operand(0);
  const double eps = attrs.eps.value_or(default_epsilon(e.type(x).dtype));
  ValueId y = scale_to_unit_rms(e, x, trailing_axes(e.type(x).rank(), attrs.normalized_rank), eps);
  if (e.has(1)) y = e.mul(y, e.operand(1));
  return e.cast(y, e.result_type().dtype);
}

ValueId expand_group_norm(Emitter& e) {
  const auto& attrs = e.attrs<GroupNormAttrs>();
  const ValueId x = e.operand(0);
  const Shape shape = e.type(x).shape;
  // Channels and positions remain separate axes, so that the layout plan may place either one innermost.
  const std::int64_t channels = shape[1] / std::max<std::int64_t>(1, attrs.groups);
  const std::int64_t positions = num_elements(shape) / std::max<std::int64_t>(1, shape[0] * shape[1]);
  const Shape grouped{shape[0], attrs.groups, channels, positions};
  const Dims axes = channels == 1 ? Dims{3} : positions == 1 ? Dims{2} : Dims{2, 3};
  ValueId y = e.reshape(normalized(e, e.reshape(x, grouped), axes, attrs.eps), shape);
  if (e.has(1)) y = e.mul(y, along_channels(e, e.operand(1), shape.size()));
  if (e.has(2)) y = e.add(y, along_channels(e, e.operand(2), shape.size()));
  return e.cast(y, e.result_type().dtype);
}

ValueId expand_softmax(Emitter& e) {
  const auto& attrs = e.attrs<AxisDtypeAttrs>();
  const ValueId x = e.cast(e.operand(0), e.result_dtype());
  if (e.type(x).rank() == 0) return e.reshape(softmax(e, e.reshape(x, {1}), 0, false), {});
  return softmax(e, x, static_cast<std::size_t>(attrs.axis), e.node().op == Op::kSafeSoftmax);
}

ValueId expand_log_softmax(Emitter& e) {
  const auto& attrs = e.attrs<AxisDtypeAttrs>();
  const Shape shape = e.result_type().shape;
  const ValueId x = e.reshape(e.cast(e.operand(0), e.result_dtype()), shape.empty() ? Shape{1} : shape);
  const Dims axes{attrs.axis};
  const ValueId shifted = e.sub(x, e.reduce(Op::kAmax, x, axes, true));
  const ValueId total = e.reduce(Op::kSum, e.unary(Op::kExp, shifted), axes, true);
  return e.reshape(e.sub(shifted, e.unary(Op::kLog, total)), shape);
}

ValueId expand_sdpa(Emitter& e) {
  const auto& attrs = e.attrs<SdpaAttrs>();
  const ValueId query = e.operand(0);
  ValueId key = e.operand(1), value = e.operand(2);
  const TensorType type = e.type(query);
  const std::size_t rank = type.rank();
  const DType dtype = Emitter::widened(type.dtype);  // the dtype of the scores
  if (attrs.enable_gqa && rank >= 3) {
    const std::int64_t heads = type.shape[rank - 3];
    key = repeat_heads(e, key, heads / e.type(key).shape[rank - 3]);
    value = repeat_heads(e, value, heads / e.type(value).shape[rank - 3]);
  }
  const double scale = attrs.scale.value_or(1.0 / std::sqrt(static_cast<double>(type.shape.back())));
  const ValueId transposed = e.permute(key, swap_last_two(e.type(key).rank()));
  ValueId scores = e.cast(e.binary(Op::kMatmul, e.mul(query, scale), transposed), dtype);
  bool safe = false;
  if (attrs.is_causal) {
    const Shape& shape = e.type(scores).shape;
    scores = e.add(scores, causal_addend(e, dtype, shape[shape.size() - 2], shape.back()));
  }
  if (e.has(3)) {
    const Mask mask = read_mask(e, e.operand(3), dtype);
    safe = mask.may_hide_rows;
    if (mask.addend.valid()) scores = e.add(scores, mask.addend);
    if (mask.condition.valid())
      scores = e.where(mask.condition, scores, e.number(-std::numeric_limits<double>::infinity(), dtype));
  }
  const auto last = static_cast<std::int64_t>(e.type(scores).rank()) - 1;
  const ValueId shares =
      e.emit(safe ? Op::kSafeSoftmax : Op::kSoftmax, AxisDtypeAttrs{last, std::nullopt}, {scores});
  return e.binary(Op::kMatmul, e.cast(shares, type.dtype), value);
}

}  // namespace tosaic::passes
