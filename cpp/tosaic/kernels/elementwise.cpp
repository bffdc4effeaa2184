// Elementwise kernels: every operator is one Function on blocks of one compute domain.
//
//   operand arrays --sources: convert, broadcast--> blocks of <= 512 elements --function--> block
//   --convert--> result
//
// A Source reads an operand in the order of the result, by one of three patterns:
//
//   flat       the operand has all elements of the result, in the same order
//   periodic   one run of at most 512 elements that repeats: a scalar, or a vector along the last axes
//   rows       every other broadcast, after merging axes
//
// An array that already has the domain's element type is used without conversion. If no array needs a buffer,
// one block is the whole array, or a whole row of it.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>

#include "tosaic/base/error.h"
#include "tosaic/kernels/elementwise_block.h"

namespace tosaic::kernels {
namespace {

using std::int64_t;

constexpr int64_t kShortRow = 64;  // a block ends after a row this long; shorter rows share a block

// ---- what an operator computes ----

// Where the compute dtype comes from: the result's dtype, or the promoted dtype of the operands.
enum class ComputeIn : std::uint8_t { kResult, kOperands };

struct Meaning {
  Function function = Function::kIdentity;
  ComputeIn compute_in = ComputeIn::kResult;
  Parameters parameters;
  Rounding rounding = Rounding::kTruncate;
};

// The limits of an integer dtype; bool counts as [0, 1].
std::pair<int64_t, int64_t> integer_range(DType dtype) {
  if (dtype == DType::kBool) return {0, 1};
  if (dtype == DType::kI4) return {-8, 7};
  const auto bits = static_cast<int>(dtype == DType::kI48 ? 48 : 8 * byte_size(dtype));
  if (dtype == DType::kU8 || dtype == DType::kU16) return {0, (int64_t{1} << bits) - 1};
  const int64_t high = static_cast<int64_t>((std::uint64_t{1} << (bits - 1)) - 1u);
  return {-high - 1, high};
}

int64_t bounded(const Scalar& value, DType dtype) {
  const auto [low, high] = integer_range(dtype);
  return std::clamp(as_int(value), low, high);
}

bool is_nan(const std::optional<Scalar>& value) { return value && std::isnan(as_double(*value)); }

Parameters clamp_parameters(const std::optional<Scalar>& low, const std::optional<Scalar>& high,
                            DType dtype) {
  Parameters p;
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const bool nan = is_nan(low) || is_nan(high);
  p.low = nan ? std::numeric_limits<double>::quiet_NaN() : low ? as_double(*low) : -kInf;
  p.high = high && !nan ? as_double(*high) : kInf;
  if (is_float(dtype)) return p;
  const auto [least, greatest] = integer_range(dtype);
  p.int_low = low ? bounded(*low, dtype) : least;
  p.int_high = high ? bounded(*high, dtype) : greatest;
  return p;
}

Meaning scaled(Function plain, Function with_alpha, const Request& request) {
  const Scalar& alpha = attrs_of<AlphaAttrs>(request).alpha;
  Meaning meaning{plain, ComputeIn::kResult, {}, Rounding::kTruncate};
  if (as_double(alpha) == 1.0) return meaning;
  meaning.function = with_alpha;
  meaning.parameters.alpha = as_double(alpha);
  meaning.parameters.int_alpha = as_int(alpha);
  return meaning;
}

Meaning divide(const Request& request) {
  switch (attrs_of<DivAttrs>(request).rounding) {
    case DivRounding::kNone:
      return {Function::kDiv, ComputeIn::kResult, {}, Rounding::kTruncate};
    case DivRounding::kFloor:
      return {Function::kDivFloor, ComputeIn::kResult, {}, Rounding::kTruncate};
    case DivRounding::kTrunc:
      return {Function::kDivTrunc, ComputeIn::kResult, {}, Rounding::kTruncate};
  }
  fail_attrs(request);
}

Meaning slope(Function function, const Request& request) {
  Meaning meaning{function, ComputeIn::kResult, {}, Rounding::kTruncate};
  meaning.parameters.alpha = attrs_of<SlopeAttrs>(request).alpha;
  return meaning;
}

Meaning elu(const Request& request) {
  const auto& attrs = attrs_of<EluAttrs>(request);
  const bool plain = attrs.scale == 1.0 && attrs.input_scale == 1.0;
  Meaning meaning = {
      plain ? Function::kElu : Function::kEluScaled, ComputeIn::kResult, {}, Rounding::kTruncate};
  meaning.parameters.alpha = attrs.alpha;
  meaning.parameters.low = attrs.scale;
  meaning.parameters.high = attrs.input_scale;
  return meaning;
}

Meaning softplus(const Request& request) {
  Meaning meaning{Function::kSoftplus, ComputeIn::kResult, {}, Rounding::kTruncate};
  meaning.parameters.alpha = attrs_of<SoftplusAttrs>(request).beta;
  meaning.parameters.high = attrs_of<SoftplusAttrs>(request).threshold;
  return meaning;
}

Meaning nan_to_num(const Request& request) {
  const auto& attrs = attrs_of<NanToNumAttrs>(request);
  const DType dtype = request.results[0].dtype;
  if (!is_float(dtype)) return {Function::kIdentity, ComputeIn::kResult, {}, Rounding::kTruncate};
  Meaning meaning{Function::kNanToNum, ComputeIn::kResult, {}, Rounding::kTruncate};
  meaning.parameters.alpha = attrs.nan;
  meaning.parameters.high = attrs.posinf.value_or(largest_finite(dtype));
  meaning.parameters.low = attrs.neginf.value_or(-largest_finite(dtype));
  return meaning;
}

Meaning with_value(Function function, const Request& request) {
  const Scalar& value = attrs_of<ValueAttrs>(request).value;
  Meaning meaning{function, ComputeIn::kResult, {}, Rounding::kTruncate};
  meaning.parameters.alpha = as_double(value);
  meaning.parameters.int_alpha = as_int(value);
  return meaning;
}

Meaning clamp(const Request& request) {
  const auto& attrs = attrs_of<ClampAttrs>(request);
  const DType dtype = request.results[0].dtype;
  const bool nan =
      is_float(dtype) && (is_nan(attrs.min) || is_nan(attrs.max));  // torch: then all results are NaN
  return {nan ? Function::kLow : Function::kClamp, ComputeIn::kResult,
          clamp_parameters(attrs.min, attrs.max, dtype), Rounding::kTruncate};
}

// torch's cast to f8e4m3, which has no infinity, saturates at the largest values of f8e4m3.
Meaning cast(const Request& request) {
  Meaning meaning{Function::kIdentity, ComputeIn::kOperands, {}, Rounding::kTruncate};
  if (request.results[0].dtype != DType::kF8E4M3) return meaning;
  meaning.function = Function::kClamp;
  meaning.parameters = clamp_parameters(-448.0, 448.0, request.operands[0].dtype);
  return meaning;
}

Meaning tosa_clamp(const Request& request) {
  const auto& attrs = attrs_of<TosaClampAttrs>(request);
  const Function function =
      attrs.nan_mode == NanMode::kPropagate ? Function::kClamp : Function::kClampNumbers;
  return {function, ComputeIn::kResult,
          clamp_parameters(attrs.min_val, attrs.max_val, request.results[0].dtype), Rounding::kTruncate};
}

Meaning by_nan_mode(Function propagate, Function numbers, const Request& request) {
  const bool keep = attrs_of<TosaNanAttrs>(request).nan_mode == NanMode::kPropagate;
  return {keep ? propagate : numbers, ComputeIn::kResult, {}, Rounding::kTruncate};
}

Meaning tosa_mul(const Request& request) {
  const int64_t shift = attrs_of<TosaMulAttrs>(request).shift;
  if (shift < 0 || shift > 63)
    throw InvalidGraph({.where = "tosa.mul",
                        .what = "shift out of range",
                        .expected = "0 <= shift <= 63",
                        .got = std::to_string(shift)});
  Meaning meaning{
      shift == 0 ? Function::kMul : Function::kMulShift, ComputeIn::kResult, {}, Rounding::kTruncate};
  meaning.parameters.shift = shift;
  return meaning;
}

Meaning tosa_negate(const Request& request) {
  const DType dtype = request.results[0].dtype;
  if (is_float(dtype)) return {Function::kNeg, ComputeIn::kResult, {}, Rounding::kTruncate};
  const auto& attrs = attrs_of<TosaZeroPointAttrs>(request);
  Meaning meaning{Function::kNegateZeroPoints, ComputeIn::kResult, {}, Rounding::kTruncate};
  meaning.parameters.first_zp = attrs.first_zp;
  meaning.parameters.second_zp = attrs.second_zp;
  std::tie(meaning.parameters.int_low, meaning.parameters.int_high) = integer_range(dtype);
  return meaning;
}

Meaning shift(Function function, const Request& request, bool round = false) {
  Meaning meaning{function, ComputeIn::kResult, {}, Rounding::kTruncate};
  meaning.parameters.round = round;
  meaning.parameters.width = static_cast<int64_t>(8 * byte_size(request.results[0].dtype));
  return meaning;
}

Meaning result_dtype(Function function) { return {function, ComputeIn::kResult, {}, Rounding::kTruncate}; }
Meaning operand_dtype(Function function) { return {function, ComputeIn::kOperands, {}, Rounding::kTruncate}; }

// What an elementwise operator computes; nothing for operators of other families.
std::optional<Meaning> meaning_of(const Request& request) {
#define TOSAIC_SAME(op, function) \
  case Op::op:                    \
    return result_dtype(Function::function);
#define TOSAIC_PREDICATE(op, function) \
  case Op::op:                         \
    return operand_dtype(Function::function);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wswitch-enum"  // operators of other families reach the default branch
  switch (request.op) {
    TOSAIC_SAME(kAbs, kAbs)
    TOSAIC_SAME(kTosaAbs, kAbs)
    TOSAIC_SAME(kCeil, kCeil)
    TOSAIC_SAME(kTosaCeil, kCeil)
    TOSAIC_SAME(kCos, kCos)
    TOSAIC_SAME(kTosaCos, kCos)
    TOSAIC_SAME(kErf, kErf)
    TOSAIC_SAME(kTosaErf, kErf)
    TOSAIC_SAME(kExp, kExp)
    TOSAIC_SAME(kTosaExp, kExp)
    TOSAIC_SAME(kFloor, kFloor)
    TOSAIC_SAME(kTosaFloor, kFloor)
    TOSAIC_SAME(kLog, kLog)
    TOSAIC_SAME(kTosaLog, kLog)
    TOSAIC_SAME(kNeg, kNeg)
    TOSAIC_SAME(kReciprocal, kReciprocal)
    TOSAIC_SAME(kTosaReciprocal, kReciprocal)
    TOSAIC_SAME(kRound, kRound)
    TOSAIC_SAME(kRsqrt, kRsqrt)
    TOSAIC_SAME(kTosaRsqrt, kRsqrt)
    TOSAIC_SAME(kSqrt, kSqrt)
    TOSAIC_SAME(kSigmoid, kSigmoid)
    TOSAIC_SAME(kTosaSigmoid, kSigmoid)
    TOSAIC_SAME(kSign, kSign)
    TOSAIC_SAME(kSin, kSin)
    TOSAIC_SAME(kTosaSin, kSin)
    TOSAIC_SAME(kTanh, kTanh)
    TOSAIC_SAME(kTosaTanh, kTanh)
    TOSAIC_SAME(kTrunc, kTrunc)
    TOSAIC_SAME(kRelu, kRelu)
    TOSAIC_SAME(kSilu, kSilu)
    TOSAIC_SAME(kHardsigmoid, kHardsigmoid)
    TOSAIC_SAME(kHardswish, kHardswish)
    TOSAIC_SAME(kTosaBitwiseNot, kBitwiseNot)
    TOSAIC_SAME(kTosaClz, kCountLeadingZeros)
    TOSAIC_SAME(kAcos, kAcos)
    TOSAIC_SAME(kAcosh, kAcosh)
    TOSAIC_SAME(kAsin, kAsin)
    TOSAIC_SAME(kAsinh, kAsinh)
    TOSAIC_SAME(kAtan, kAtan)
    TOSAIC_SAME(kAtanh, kAtanh)
    TOSAIC_SAME(kCosh, kCosh)
    TOSAIC_SAME(kErfinv, kErfinv)
    TOSAIC_SAME(kExpm1, kExpm1)
    TOSAIC_SAME(kLog10, kLog10)
    TOSAIC_SAME(kLog1p, kLog1p)
    TOSAIC_SAME(kLog2, kLog2)
    TOSAIC_SAME(kSinh, kSinh)
    TOSAIC_SAME(kTan, kTan)
    TOSAIC_SAME(kLogSigmoid, kLogSigmoid)
    TOSAIC_SAME(kMish, kMish)
    TOSAIC_SAME(kFmod, kFmod)
    TOSAIC_SAME(kRemainder, kRemainder)
    TOSAIC_SAME(kAtan2, kAtan2)
    TOSAIC_SAME(kPrelu, kPrelu)
    TOSAIC_SAME(kLerp, kLerp)
    TOSAIC_PREDICATE(kIsinf, kIsInf)
    TOSAIC_SAME(kMul, kMul)
    TOSAIC_SAME(kPow, kPow)
    TOSAIC_SAME(kTosaPow, kPow)
    TOSAIC_SAME(kMaximum, kMaximum)
    TOSAIC_SAME(kMinimum, kMinimum)
    TOSAIC_SAME(kBitwiseAnd, kBitwiseAnd)
    TOSAIC_SAME(kBitwiseOr, kBitwiseOr)
    TOSAIC_SAME(kBitwiseXor, kBitwiseXor)
    TOSAIC_SAME(kTosaBitwiseAnd, kBitwiseAnd)
    TOSAIC_SAME(kTosaBitwiseOr, kBitwiseOr)
    TOSAIC_SAME(kTosaBitwiseXor, kBitwiseXor)
    TOSAIC_SAME(kTosaAdd, kAdd)
    TOSAIC_SAME(kTosaSub, kSub)
    TOSAIC_SAME(kTosaIntdiv, kDivTrunc)
    TOSAIC_SAME(kWhere, kWhere)
    TOSAIC_SAME(kTosaSelect, kWhere)
    TOSAIC_PREDICATE(kLogicalNot, kLogicalNot)
    TOSAIC_PREDICATE(kTosaLogicalNot, kLogicalNot)
    TOSAIC_PREDICATE(kEq, kEq)
    TOSAIC_PREDICATE(kTosaEqual, kEq)
    TOSAIC_PREDICATE(kNe, kNe)
    TOSAIC_PREDICATE(kLt, kLt)
    TOSAIC_PREDICATE(kLe, kLe)
    TOSAIC_PREDICATE(kGt, kGt)
    TOSAIC_PREDICATE(kTosaGreater, kGt)
    TOSAIC_PREDICATE(kGe, kGe)
    TOSAIC_PREDICATE(kTosaGreaterEqual, kGe)
    TOSAIC_PREDICATE(kLogicalAnd, kLogicalAnd)
    TOSAIC_PREDICATE(kTosaLogicalAnd, kLogicalAnd)
    TOSAIC_PREDICATE(kLogicalOr, kLogicalOr)
    TOSAIC_PREDICATE(kTosaLogicalOr, kLogicalOr)
    TOSAIC_PREDICATE(kLogicalXor, kLogicalXor)
    TOSAIC_PREDICATE(kTosaLogicalXor, kLogicalXor)
    case Op::kCast:
      return cast(request);
    case Op::kTosaCast:
      return Meaning{Function::kIdentity, ComputeIn::kOperands, {}, Rounding::kHalfToEven};
    case Op::kBitwiseNot:
      return request.results[0].dtype == DType::kBool ? operand_dtype(Function::kLogicalNot)
                                                      : result_dtype(Function::kBitwiseNot);
    case Op::kGelu:
      return result_dtype(attrs_of<GeluAttrs>(request).tanh ? Function::kGeluTanh : Function::kGelu);
    case Op::kLeakyRelu:
      return slope(Function::kLeakyRelu, request);
    case Op::kElu:
      return elu(request);
    case Op::kSoftplus:
      return softplus(request);
    case Op::kNanToNum:
      return nan_to_num(request);
    case Op::kSoftshrink:
      return slope(Function::kSoftshrink, request);
    case Op::kHardshrink:
      return slope(Function::kHardshrink, request);
    case Op::kAddcmul:
      return with_value(Function::kAddcmul, request);
    case Op::kAddcdiv:
      return with_value(Function::kAddcdiv, request);
    case Op::kLeftShift:
      return shift(Function::kLeftShift, request);
    case Op::kRightShift:
      return shift(Function::kRightShift, request);
    case Op::kClamp:
      return clamp(request);
    case Op::kTosaClamp:
      return tosa_clamp(request);
    case Op::kAdd:
      return scaled(Function::kAdd, Function::kAddScaled, request);
    case Op::kSub:
      return scaled(Function::kSub, Function::kSubScaled, request);
    case Op::kDiv:
      return divide(request);
    case Op::kTosaMaximum:
      return by_nan_mode(Function::kMaximum, Function::kMaximumNumbers, request);
    case Op::kTosaMinimum:
      return by_nan_mode(Function::kMinimum, Function::kMinimumNumbers, request);
    case Op::kTosaMul:
      return tosa_mul(request);
    case Op::kTosaNegate:
      return tosa_negate(request);
    case Op::kTosaArithmeticRightShift:
      return shift(Function::kArithmeticRightShift, request, attrs_of<TosaShiftAttrs>(request).round);
    case Op::kTosaLogicalLeftShift:
      return shift(Function::kLogicalLeftShift, request);
    case Op::kTosaLogicalRightShift:
      return shift(Function::kLogicalRightShift, request);
    default:
      return std::nullopt;
  }
#pragma GCC diagnostic pop
#undef TOSAIC_SAME
#undef TOSAIC_PREDICATE
}

// torch.result_type: an operand of rank 0 changes the dtype only if its category (bool < integer < float) is
// higher than that of the other operands.
DType result_type(std::span<const Operand> operands) {
  std::optional<DType> tensors;
  std::optional<DType> scalars;
  for (const Operand& operand : operands) {
    std::optional<DType>& group = operand.shape.empty() ? scalars : tensors;
    group = group ? promote(*group, operand.dtype) : operand.dtype;
  }
  if (!tensors) return scalars.value();
  if (!scalars || is_float(*tensors)) return *tensors;
  if (*tensors == DType::kBool || is_float(*scalars)) return promote(*tensors, *scalars);
  return *tensors;
}

// ---- sources: operands read in the order of the result ----

enum class Pattern : std::uint8_t { kFlat, kPeriodic, kRows };

struct Source {
  Pattern pattern = Pattern::kFlat;
  bool direct = false;  // the array has the domain's element type: blocks may point into it
  ConvertBlock load = nullptr;
  // Set if the compute dtype does not hold the operand's dtype: a loaded block is then converted to the
  // compute dtype and back to the domain.
  ConvertBlock narrow = nullptr, widen = nullptr;
  int64_t element = 0;    // bytes of an element of the array
  int64_t period = 0;     // kPeriodic
  Dims extents, strides;  // from collapse(); the last stride is 0 or 1
};

// The axes of the result with the operand's strides, which are 0 where the operand is broadcast. Axes of
// extent 1 are dropped. Adjacent axes are merged if one stride steps through both.
void collapse(const Shape& result, const Shape& operand, Dims& extents, Dims& strides) {
  const Dims dense = contiguous_strides(operand);
  const std::size_t lead = result.size() - operand.size();
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (result[i] == 1) continue;
    const int64_t stride = i < lead || operand[i - lead] == 1 ? 0 : dense[i - lead];
    const std::size_t last = extents.size() - 1u;
    if (!extents.empty() && strides[last] == stride * result[i]) {
      extents[last] *= result[i];
      strides[last] = stride;
    } else {
      extents.push_back(result[i]);
      strides.push_back(stride);
    }
  }
}

Source make_source(const Operand& operand, const Shape& result, DType compute, Domain domain,
                   const ConvertKernels& convert) {
  Source source;
  if (!is_float(domain) && promote(operand.dtype, compute) != compute) {
    source.narrow = convert.store(domain, compute, Rounding::kTruncate);
    source.widen = convert.load(compute, domain);
  }
  source.direct = is_domain(operand.dtype, domain) && source.narrow == nullptr;
  source.load = convert.load(operand.dtype, domain);
  source.element = static_cast<int64_t>(byte_size(operand.dtype));
  collapse(result, operand.shape, source.extents, source.strides);
  const Dims& strides = source.strides;
  const int64_t count = num_elements(operand.shape);
  if (count == num_elements(result)) {
    source.pattern = Pattern::kFlat;
  } else if (count <= kBlockElements &&
             std::count_if(strides.begin(), strides.end(), [](int64_t s) { return s != 0; }) <= 1 &&
             (strides.back() == 1 || count == 1)) {
    source.pattern = Pattern::kPeriodic;
    source.period = count;
  } else {
    source.pattern = Pattern::kRows;
  }
  return source;
}

// Reads one operand during a run. The buffer has room for a period and a block, so that every block of a
// periodic operand is a window of the buffer.
class Reader {
 public:
  void start(const Source& source, Domain domain, const std::byte* array) {
    source_ = &source;
    array_ = array;
    size_ = static_cast<int64_t>(byte_size(domain));
    if (source.pattern == Pattern::kPeriodic) fill_periods();
  }

  // How many of the next `count` elements the next block may have: a block ends where a long row ends.
  [[nodiscard]] int64_t limit(int64_t begin, int64_t count) const {
    if (source_->pattern != Pattern::kRows) return count;
    const int64_t row = source_->extents.back();
    return row < kShortRow ? count : std::min(count, row - begin % row);
  }

  [[nodiscard]] const void* fetch(int64_t begin, int64_t count) {
    switch (source_->pattern) {
      case Pattern::kFlat:
        if (source_->direct) return array_ + begin * size_;
        load(array_ + begin * source_->element, buffer_.data(), count);
        return buffer_.data();
      case Pattern::kPeriodic:
        return buffer_.data() + begin % source_->period * size_;
      case Pattern::kRows:
        return fetch_rows(begin, count);
    }
    return nullptr;
  }

 private:
  void load(const std::byte* from, std::byte* to, int64_t count) const {
    source_->load(from, to, count);
    if (source_->narrow == nullptr) return;
    alignas(64) std::array<std::byte, kBlockElements * 8> narrowed;
    source_->narrow(to, narrowed.data(), count);
    source_->widen(narrowed.data(), to, count);
  }

  void fill_periods() {
    const int64_t period = source_->period;
    load(array_, buffer_.data(), period);
    int64_t filled = period;
    while (filled < period + kBlockElements) {
      const int64_t length = std::min(filled, period + kBlockElements - filled);
      std::copy_n(buffer_.data(), length * size_, buffer_.data() + filled * size_);
      filled += length;
    }
  }

  void fill(std::byte* to, const std::byte* from, int64_t count) {
    load(from, to, 1);
    if (size_ == 4)
      std::fill_n(reinterpret_cast<std::uint32_t*>(to), count, *reinterpret_cast<const std::uint32_t*>(to));
    else
      std::fill_n(reinterpret_cast<std::uint64_t*>(to), count, *reinterpret_cast<const std::uint64_t*>(to));
  }

  const void* fetch_rows(int64_t begin, int64_t count) {
    const Dims& extents = source_->extents;
    const Dims& strides = source_->strides;
    const std::size_t last = extents.size() - 1;
    Dims at = Dims::filled(extents.size(), 0);
    int64_t offset = 0;
    for (std::size_t i = extents.size(); i-- > 0;) {
      at[i] = begin % extents[i];
      begin /= extents[i];
      offset += at[i] * strides[i];
    }
    if (extents[last] - at[last] >= count) return one_row(offset, count);
    filled_ = 0;
    for (int64_t done = 0; done < count;) {
      const int64_t length = std::min(extents[last] - at[last], count - done);
      std::byte* to = buffer_.data() + done * size_;
      if (strides[last] == 0)
        fill(to, array_ + offset * source_->element, length);
      else
        load(array_ + offset * source_->element, to, length);
      done += length;
      offset -= at[last] * strides[last];
      at[last] = 0;
      for (std::size_t i = last; i-- > 0;) {
        offset += strides[i];
        if (++at[i] < extents[i]) break;
        offset -= extents[i] * strides[i];
        at[i] = 0;
      }
    }
    return buffer_.data();
  }

  const void* one_row(int64_t offset, int64_t count) {
    const std::byte* from = array_ + offset * source_->element;
    if (source_->strides.back() == 0) {
      if (filled_ < count || filled_from_ != from) fill(buffer_.data(), from, count);
      filled_ = filled_from_ == from ? std::max(filled_, count) : count;
      filled_from_ = from;
      return buffer_.data();
    }
    if (source_->direct) return from;
    load(from, buffer_.data(), count);
    return buffer_.data();
  }

  const Source* source_ = nullptr;
  const std::byte* array_ = nullptr;
  int64_t size_ = 0;
  int64_t filled_ = 0;  // elements of the buffer that repeat *filled_from_
  const std::byte* filled_from_ = nullptr;
  alignas(64) std::array<std::byte, 2 * kBlockElements * 8> buffer_;
};

// ---- the kernel ----

struct Plan {
  Op op = Op::kOpaque;
  Domain domain = Domain::kF32;
  ElementwiseBlock block = nullptr;
  Parameters parameters;
  std::array<Source, 3> sources;
  std::size_t arity = 0;
  ConvertBlock store = nullptr;  // null: the loop writes the result itself
  int64_t result_element = 0;
  int64_t count = 0;
  int64_t block_limit = 0;
  bool divides_integers = false;
};

template <class T>
bool has_zero(const void* values, int64_t count) {
  const auto* first = static_cast<const T*>(values);
  return std::find(first, first + count, T{0}) != first + count;
}

void check_divisors(const Plan& plan, const void* divisors, int64_t count) {
  const bool zero = plan.domain == Domain::kI32 ? has_zero<std::int32_t>(divisors, count)
                                                : has_zero<int64_t>(divisors, count);
  if (zero)
    throw InvalidGraph({.where = std::string(info(plan.op).name),
                        .what = "integer division by zero",
                        .expected = "divisors other than 0",
                        .got = "0"});
}

void run_plan(const Plan& plan, const Arrays& arrays) {
  std::array<Reader, 3> readers;
  std::array<const void*, 3> blocks{};
  alignas(64) std::array<std::byte, kBlockElements * 8> output;
  if (plan.count == 0) return;
  for (std::size_t i = 0; i < plan.arity; ++i)
    readers.at(i).start(plan.sources.at(i), plan.domain, arrays.operands[i]);
  for (int64_t begin = 0; begin < plan.count;) {
    int64_t count = std::min(plan.block_limit, plan.count - begin);
    for (std::size_t i = 0; i < plan.arity; ++i) count = readers.at(i).limit(begin, count);
    for (std::size_t i = 0; i < plan.arity; ++i) blocks.at(i) = readers.at(i).fetch(begin, count);
    if (plan.divides_integers) check_divisors(plan, blocks[1], count);
    std::byte* result = arrays.results[0] + begin * plan.result_element;
    plan.block(plan.parameters, blocks.data(), plan.store != nullptr ? output.data() : result, count);
    if (plan.store != nullptr) plan.store(output.data(), result, count);
    begin += count;
  }
}

// A mask of the operands that the result may overwrite: a block of the operand is read before the same block
// of the result is written.
std::uint32_t in_place_operands(const Request& request) {
  std::uint32_t mask = 0;
  for (std::size_t i = 0; i < request.operands.size(); ++i)
    if (request.operands[i].shape == request.results[0].shape &&
        byte_size(request.operands[i].dtype) == byte_size(request.results[0].dtype))
      mask |= 1u << i;
  return mask;
}

// A small error of the quotient can change the result of these functions by 1. The reference computes them in
// the same domain as the fast path, so that both round the quotient to the same value.
bool is_discontinuous(Function function) {
  return function == Function::kDivFloor || function == Function::kDivTrunc;
}

// Functions that have no result for integers with a zero divisor.
bool divides(Function function) {
  return is_discontinuous(function) || function == Function::kFmod || function == Function::kRemainder;
}

// torch computes a power with a scalar f64 exponent in float64, where the exponent 1.7 is not 1.7f.
bool has_wide_exponent(const Request& request) {
  return request.op == Op::kPow && request.operands[1].dtype == DType::kF64 &&
         request.operands[1].shape.empty();
}

// The shape in which the slopes of prelu broadcast: one slope, or one for each position of axis 1.
Shape along_channels(const Shape& slopes, const Shape& result) {
  const int64_t count = num_elements(slopes);
  Shape shape = Shape::filled(result.size(), 1);
  if (count != 1) shape[1] = count;
  return shape;
}

bool needs_buffer(const Source& source) {
  return !source.direct || source.pattern == Pattern::kPeriodic ||
         (source.pattern == Pattern::kRows &&
          (source.strides.back() == 0 || source.extents.back() < kShortRow));
}

}  // namespace

Kernel prepare_elementwise(const Request& request) {
  const std::optional<Meaning> meaning = meaning_of(request);
  if (!meaning) return {};
  const bool reference = request.options.reference;
  const Isa isa = reference ? Isa::kBaseline : request.options.isa;
  const Operand& result = request.results[0];
  const DType compute =
      meaning->compute_in == ComputeIn::kResult ? result.dtype : result_type(request.operands);
  auto plan = std::make_shared<Plan>();
  plan->op = request.op;
  plan->domain =
      domain_of(compute, (reference && !is_discontinuous(meaning->function)) || has_wide_exponent(request));
  plan->parameters = meaning->parameters;
  plan->block = plan->domain == Domain::kF64
                    ? find_reference(meaning->function)
                    : TOSAIC_SELECT_ISA(isa, kElementwiseKernels).find(meaning->function, plan->domain);
  if (plan->block == nullptr) plan->block = find_function(meaning->function, plan->domain);
  if (plan->block == nullptr || (writes_bool(meaning->function) && result.dtype != DType::kBool))
    fail_unsupported(request);
  plan->count = num_elements(result.shape);
  plan->arity = request.operands.size();
  plan->result_element = static_cast<int64_t>(byte_size(result.dtype));
  const ConvertKernels& convert = convert_kernels(isa);
  if (!writes_bool(meaning->function) && !is_domain(result.dtype, plan->domain))
    plan->store = convert.store(plan->domain, result.dtype, meaning->rounding);
  bool buffered = plan->store != nullptr;
  for (std::size_t i = 0; i < plan->arity; ++i) {
    Operand operand = request.operands[i];
    if (request.op == Op::kPrelu && i == 1) operand.shape = along_channels(operand.shape, result.shape);
    plan->sources.at(i) = make_source(operand, result.shape, compute, plan->domain, convert);
    buffered = buffered || needs_buffer(plan->sources.at(i));
  }
  plan->block_limit = buffered ? kBlockElements : plan->count;
  plan->divides_integers = !is_float(plan->domain) && divides(meaning->function);
  Kernel kernel;
  kernel.run = [plan = std::shared_ptr<const Plan>(plan)](const Arrays& arrays) { run_plan(*plan, arrays); };
  kernel.in_place = in_place_operands(request);
  kernel.name = kernel_name(request);
  return kernel;
}

}  // namespace tosaic::kernels
