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
// a block is a whole array or a whole row. Each thread computes some of the blocks.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>

#include "tosaic/base/error.h"
#include "tosaic/kernels/elementwise_block.h"
#include "tosaic/kernels/families.h"
#include "tosaic/kernels/parallel.h"

namespace tosaic::kernels {
namespace {

using std::int64_t;

constexpr int64_t kShortRow = 64;  // a block ends after a row this long; shorter rows share a block

// ---- what an operator computes ----

// The dtype in which the function is computed: the result's dtype, or the promoted dtype of the operands.
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

template <Function plain, Function with_alpha>
Meaning scaled(const Request& request) {
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

template <Function function>
Meaning slope(const Request& request) {
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

template <Function function>
Meaning with_value(const Request& request) {
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
      is_float(dtype) && (is_nan(attrs.min) || is_nan(attrs.max));  // in torch, all results are then NaN
  return {nan ? Function::kLow : Function::kClamp, ComputeIn::kResult,
          clamp_parameters(attrs.min, attrs.max, dtype), Rounding::kTruncate};
}

// A cast. As in torch, a cast to f8e4m3, which has no infinity, saturates at the largest values of f8e4m3.
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

template <Function propagate, Function numbers>
Meaning by_nan_mode(const Request& request) {
  const bool propagates = attrs_of<TosaNanAttrs>(request).nan_mode == NanMode::kPropagate;
  return {propagates ? propagate : numbers, ComputeIn::kResult, {}, Rounding::kTruncate};
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

template <Function function>
Meaning shift(const Request& request) {
  Meaning meaning{function, ComputeIn::kResult, {}, Rounding::kTruncate};
  meaning.parameters.width = static_cast<int64_t>(8 * byte_size(request.results[0].dtype));
  return meaning;
}

Meaning tosa_arithmetic_right_shift(const Request& request) {
  Meaning meaning = shift<Function::kArithmeticRightShift>(request);
  meaning.parameters.round = attrs_of<TosaShiftAttrs>(request).round;
  return meaning;
}

// A function that computes in the dtype of the result, or in the promoted dtype of the operands.
template <Function function>
Meaning in_result(const Request& /*request*/) {
  return {function, ComputeIn::kResult, {}, Rounding::kTruncate};
}
template <Function function>
Meaning in_operands(const Request& /*request*/) {
  return {function, ComputeIn::kOperands, {}, Rounding::kTruncate};
}

Meaning tosa_cast(const Request& /*request*/) {
  return {Function::kIdentity, ComputeIn::kOperands, {}, Rounding::kHalfToEven};
}

Meaning bitwise_not(const Request& request) {
  return request.results[0].dtype == DType::kBool ? in_operands<Function::kLogicalNot>(request)
                                                  : in_result<Function::kBitwiseNot>(request);
}

Meaning gelu(const Request& request) {
  return attrs_of<GeluAttrs>(request).tanh ? in_result<Function::kGeluTanh>(request)
                                           : in_result<Function::kGelu>(request);
}

constexpr OpTable<Meaning (*)(const Request&)> kMeanings = {
    {Op::kAbs, in_result<Function::kAbs>},
    {Op::kTosaAbs, in_result<Function::kAbs>},
    {Op::kCeil, in_result<Function::kCeil>},
    {Op::kTosaCeil, in_result<Function::kCeil>},
    {Op::kCos, in_result<Function::kCos>},
    {Op::kTosaCos, in_result<Function::kCos>},
    {Op::kErf, in_result<Function::kErf>},
    {Op::kTosaErf, in_result<Function::kErf>},
    {Op::kExp, in_result<Function::kExp>},
    {Op::kTosaExp, in_result<Function::kExp>},
    {Op::kFloor, in_result<Function::kFloor>},
    {Op::kTosaFloor, in_result<Function::kFloor>},
    {Op::kLog, in_result<Function::kLog>},
    {Op::kTosaLog, in_result<Function::kLog>},
    {Op::kNeg, in_result<Function::kNeg>},
    {Op::kReciprocal, in_result<Function::kReciprocal>},
    {Op::kTosaReciprocal, in_result<Function::kReciprocal>},
    {Op::kRound, in_result<Function::kRound>},
    {Op::kRsqrt, in_result<Function::kRsqrt>},
    {Op::kTosaRsqrt, in_result<Function::kRsqrt>},
    {Op::kSqrt, in_result<Function::kSqrt>},
    {Op::kSigmoid, in_result<Function::kSigmoid>},
    {Op::kTosaSigmoid, in_result<Function::kSigmoid>},
    {Op::kSign, in_result<Function::kSign>},
    {Op::kSin, in_result<Function::kSin>},
    {Op::kTosaSin, in_result<Function::kSin>},
    {Op::kTanh, in_result<Function::kTanh>},
    {Op::kTosaTanh, in_result<Function::kTanh>},
    {Op::kTrunc, in_result<Function::kTrunc>},
    {Op::kRelu, in_result<Function::kRelu>},
    {Op::kSilu, in_result<Function::kSilu>},
    {Op::kHardsigmoid, in_result<Function::kHardsigmoid>},
    {Op::kHardswish, in_result<Function::kHardswish>},
    {Op::kTosaBitwiseNot, in_result<Function::kBitwiseNot>},
    {Op::kTosaClz, in_result<Function::kCountLeadingZeros>},
    {Op::kAcos, in_result<Function::kAcos>},
    {Op::kAcosh, in_result<Function::kAcosh>},
    {Op::kAsin, in_result<Function::kAsin>},
    {Op::kAsinh, in_result<Function::kAsinh>},
    {Op::kAtan, in_result<Function::kAtan>},
    {Op::kAtanh, in_result<Function::kAtanh>},
    {Op::kCosh, in_result<Function::kCosh>},
    {Op::kErfc, in_result<Function::kErfc>},
    {Op::kErfinv, in_result<Function::kErfinv>},
    {Op::kExpm1, in_result<Function::kExpm1>},
    {Op::kLog10, in_result<Function::kLog10>},
    {Op::kLog1p, in_result<Function::kLog1p>},
    {Op::kLog2, in_result<Function::kLog2>},
    {Op::kSinh, in_result<Function::kSinh>},
    {Op::kTan, in_result<Function::kTan>},
    {Op::kLogSigmoid, in_result<Function::kLogSigmoid>},
    {Op::kMish, in_result<Function::kMish>},
    {Op::kGcd, in_result<Function::kGcd>},
    {Op::kFmod, in_result<Function::kFmod>},
    {Op::kRemainder, in_result<Function::kRemainder>},
    {Op::kAtan2, in_result<Function::kAtan2>},
    {Op::kPrelu, in_result<Function::kPrelu>},
    {Op::kLerp, in_result<Function::kLerp>},
    {Op::kIsinf, in_operands<Function::kIsInf>},
    {Op::kMul, in_result<Function::kMul>},
    {Op::kPow, in_result<Function::kPow>},
    {Op::kTosaPow, in_result<Function::kPow>},
    {Op::kMaximum, in_result<Function::kMaximum>},
    {Op::kMinimum, in_result<Function::kMinimum>},
    {Op::kBitwiseAnd, in_result<Function::kBitwiseAnd>},
    {Op::kBitwiseOr, in_result<Function::kBitwiseOr>},
    {Op::kBitwiseXor, in_result<Function::kBitwiseXor>},
    {Op::kTosaBitwiseAnd, in_result<Function::kBitwiseAnd>},
    {Op::kTosaBitwiseOr, in_result<Function::kBitwiseOr>},
    {Op::kTosaBitwiseXor, in_result<Function::kBitwiseXor>},
    {Op::kTosaAdd, in_result<Function::kAdd>},
    {Op::kTosaSub, in_result<Function::kSub>},
    {Op::kTosaIntdiv, in_result<Function::kDivTrunc>},
    {Op::kWhere, in_result<Function::kWhere>},
    {Op::kTosaSelect, in_result<Function::kWhere>},
    {Op::kLogicalNot, in_operands<Function::kLogicalNot>},
    {Op::kTosaLogicalNot, in_operands<Function::kLogicalNot>},
    {Op::kEq, in_operands<Function::kEq>},
    {Op::kTosaEqual, in_operands<Function::kEq>},
    {Op::kNe, in_operands<Function::kNe>},
    {Op::kLt, in_operands<Function::kLt>},
    {Op::kLe, in_operands<Function::kLe>},
    {Op::kGt, in_operands<Function::kGt>},
    {Op::kTosaGreater, in_operands<Function::kGt>},
    {Op::kGe, in_operands<Function::kGe>},
    {Op::kTosaGreaterEqual, in_operands<Function::kGe>},
    {Op::kLogicalAnd, in_operands<Function::kLogicalAnd>},
    {Op::kTosaLogicalAnd, in_operands<Function::kLogicalAnd>},
    {Op::kLogicalOr, in_operands<Function::kLogicalOr>},
    {Op::kTosaLogicalOr, in_operands<Function::kLogicalOr>},
    {Op::kLogicalXor, in_operands<Function::kLogicalXor>},
    {Op::kTosaLogicalXor, in_operands<Function::kLogicalXor>},
    {Op::kCast, cast},
    {Op::kTosaCast, tosa_cast},
    {Op::kBitwiseNot, bitwise_not},
    {Op::kGelu, gelu},
    {Op::kLeakyRelu, slope<Function::kLeakyRelu>},
    {Op::kElu, elu},
    {Op::kSoftplus, softplus},
    {Op::kNanToNum, nan_to_num},
    {Op::kSoftshrink, slope<Function::kSoftshrink>},
    {Op::kHardshrink, slope<Function::kHardshrink>},
    {Op::kAddcmul, with_value<Function::kAddcmul>},
    {Op::kAddcdiv, with_value<Function::kAddcdiv>},
    {Op::kLeftShift, shift<Function::kLeftShift>},
    {Op::kRightShift, shift<Function::kRightShift>},
    {Op::kClamp, clamp},
    {Op::kTosaClamp, tosa_clamp},
    {Op::kAdd, scaled<Function::kAdd, Function::kAddScaled>},
    {Op::kSub, scaled<Function::kSub, Function::kSubScaled>},
    {Op::kDiv, divide},
    {Op::kTosaMaximum, by_nan_mode<Function::kMaximum, Function::kMaximumNumbers>},
    {Op::kTosaMinimum, by_nan_mode<Function::kMinimum, Function::kMinimumNumbers>},
    {Op::kTosaMul, tosa_mul},
    {Op::kTosaNegate, tosa_negate},
    {Op::kTosaArithmeticRightShift, tosa_arithmetic_right_shift},
    {Op::kTosaLogicalLeftShift, shift<Function::kLogicalLeftShift>},
    {Op::kTosaLogicalRightShift, shift<Function::kLogicalRightShift>},
};
static_assert(complete<kMeanings.mismatch(has_family<prepare_elementwise>)>);

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
  // Set if the compute dtype does not represent all values of the operand's dtype: each loaded block is then
  // rounded to the compute dtype and converted back to the domain.
  ConvertBlock narrow = nullptr, widen = nullptr;
  int64_t element = 0;     // bytes of an element of the array
  int64_t period = 0;      // kPeriodic: elements until they repeat
  bool is_scalar = false;  // one element serves a whole block
  Dims extents, strides;   // from collapse(); the last stride is 0 or 1
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
    if (source.pattern != Pattern::kPeriodic) return;
    if (source.is_scalar)
      load(array, buffer_.data(), 1);
    else
      fill_periods();
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
        return buffer_.data() + (source_->is_scalar ? 0 : begin % source_->period * size_);
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
    if (source_->is_scalar) {
      if (source_->direct) return from;
      load(from, buffer_.data(), 1);
      return buffer_.data();
    }
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
  bool is_plain = false;           // run_plain() computes it
  ConvertBlock convert = nullptr;  // not null: computes the result alone
  int64_t row = 0;                 // not 0: run_rows() computes rows of this length
  int64_t step = 1;                // blocks begin at multiples of `step`, however many parts there are
  double element_cost = 0;
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

// Computes elements [begin, end) of arrays that the loop reads as they are. An operand may be one element.
void run_plain(const Plan& plan, const Arrays& arrays, int64_t begin, int64_t end) {
  const auto size = static_cast<int64_t>(byte_size(plan.domain));
  std::array<const void*, 3> blocks{};
  for (std::size_t i = 0; i < plan.arity; ++i)
    blocks.at(i) = arrays.operands[i] + ((plan.parameters.scalars >> i & 1U) != 0 ? 0 : begin * size);
  plan.block(plan.parameters, blocks.data(), arrays.results[0] + begin * plan.result_element, end - begin);
}

// Computes elements [begin, end), which are whole rows. One operand has an element for each row, the other
// one all elements.
void run_rows(const Plan& plan, const Arrays& arrays, int64_t begin, int64_t end) {
  const auto size = static_cast<int64_t>(byte_size(plan.domain));
  const auto by_row = static_cast<std::size_t>(plan.parameters.scalars - 1);
  std::array<const void*, 3> blocks{};
  for (; begin < end; begin += plan.row) {
    blocks.at(by_row) = arrays.operands[by_row] + begin / plan.row * size;
    blocks.at(1 - by_row) = arrays.operands[1 - by_row] + begin * size;
    plan.block(plan.parameters, blocks.data(), arrays.results[0] + begin * plan.result_element, plan.row);
  }
}

// Computes elements [begin, end).
void run_elements(const Plan& plan, const Arrays& arrays, int64_t begin, int64_t end) {
  std::array<Reader, 3> readers;
  std::array<const void*, 3> blocks{};
  alignas(64) std::array<std::byte, kBlockElements * 8> output;
  for (std::size_t i = 0; i < plan.arity; ++i)
    readers.at(i).start(plan.sources.at(i), plan.domain, arrays.operands[i]);
  while (begin < end) {
    int64_t count = std::min(plan.block_limit, end - begin);
    for (std::size_t i = 0; i < plan.arity; ++i) count = readers.at(i).limit(begin, count);
    for (std::size_t i = 0; i < plan.arity; ++i) blocks.at(i) = readers.at(i).fetch(begin, count);
    if (plan.divides_integers)
      check_divisors(plan, blocks[1], (plan.parameters.scalars & 2) != 0 ? 1 : count);
    std::byte* result = arrays.results[0] + begin * plan.result_element;
    plan.block(plan.parameters, blocks.data(), plan.store != nullptr ? output.data() : result, count);
    if (plan.store != nullptr) plan.store(output.data(), result, count);
    begin += count;
  }
}

void run_plan(const Plan& plan, const Arrays& arrays) {
  const Loop elements{.count = plan.count, .step = plan.step, .unit_cost = plan.element_cost};
  parallel_for(arrays.team, elements, [&](int64_t begin, int64_t end, Worker) {
    if (plan.is_plain) return run_plain(plan, arrays, begin, end);
    if (plan.convert != nullptr)
      return plan.convert(arrays.operands[0] + begin * plan.sources[0].element,
                          arrays.results[0] + begin * plan.result_element, end - begin);
    plan.row != 0 ? run_rows(plan, arrays, begin, end) : run_elements(plan, arrays, begin, end);
  });
}

// Parts for threads begin at multiples of this number, so that the blocks do not depend on the parts.
int64_t step_of(const Plan& plan, bool buffered) {
  int64_t row = 0;  // the shortest row at whose end a block ends
  for (std::size_t i = 0; i < plan.arity; ++i) {
    const Source& source = plan.sources.at(i);
    if (source.pattern != Pattern::kRows || source.extents.back() < kShortRow) continue;
    row = row == 0 ? source.extents.back() : std::min(row, source.extents.back());
  }
  constexpr int64_t whole_vectors = 64;
  return row != 0 ? row : buffered ? kBlockElements : whole_vectors;
}

// Bit i is set if the result may overwrite operand i: a block of the operand is read before the same block of
// the result is written.
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

// True for functions that have no result for integers with a zero divisor.
bool divides(Function function) {
  return is_discontinuous(function) || function == Function::kFmod || function == Function::kRemainder;
}

// True for a power with a scalar f64 exponent. torch computes it in float64, where the exponent 1.7 is not
// 1.7f.
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

// True if the function takes a few instructions.
bool is_light(Function function) {
  switch (function) {
    case Function::kIdentity:
    case Function::kAbs:
    case Function::kNeg:
    case Function::kRelu:
    case Function::kClamp:
    case Function::kClampNumbers:
    case Function::kLow:
    case Function::kBitwiseNot:
    case Function::kLogicalNot:
      return true;
    default:
      return (function >= Function::kAdd && function <= Function::kMulShift) ||
             (function >= Function::kMaximum && function <= Function::kBitwiseXor) ||
             (function >= Function::kEq && function <= Function::kWhere);
  }
}

// True if all elements of the operand in a block are the same element.
bool is_scalar(const Source& source) {
  return source.pattern == Pattern::kPeriodic
             ? source.period == 1
             : source.pattern == Pattern::kRows && source.strides.back() == 0 &&
                   source.extents.back() >= kShortRow;
}

// The length of the rows that run_rows() may compute if operand `by_row` has an element for each row; 0 if it
// may not. Of shorter rows than these, the readers of blocks are faster.
int64_t row_of(const Plan& plan, std::size_t by_row) {
  constexpr int64_t least = 16;
  if (plan.arity != 2 || plan.store != nullptr || plan.divides_integers) return 0;
  const Source &one = plan.sources.at(by_row), &all = plan.sources.at(1 - by_row);
  const bool is_plain = one.direct && one.pattern == Pattern::kRows && one.extents.size() == 2 &&
                        one.strides[0] == 1 && one.strides[1] == 0 && all.direct &&
                        all.pattern == Pattern::kFlat;
  return is_plain && one.extents[1] >= least ? one.extents[1] : 0;
}

// Lets run_rows() compute the plan, if it may.
void take_rows(Plan& plan) {
  for (std::size_t i = 0; i < 2; ++i) {
    const bool may_be_scalar = plan.parameters.scalars == 0 || plan.parameters.scalars == 1U << i;
    const int64_t row = may_be_scalar ? row_of(plan, i) : 0;
    if (row == 0) continue;
    plan.parameters.scalars = 1U << i;
    plan.row = plan.step = row;
    return;
  }
}

// The conversion that is the whole of a cast, if one suffices: to the domain, or from it.
ConvertBlock conversion_of(const Plan& plan, Function function) {
  const Source& source = plan.sources[0];
  if (function != Function::kIdentity || source.pattern != Pattern::kFlat || source.narrow != nullptr)
    return nullptr;
  if (plan.store == nullptr) return source.load;
  return source.direct ? plan.store : nullptr;
}

// True if run_plain() may compute the plan.
bool is_plain(const Plan& plan) {
  if (plan.store != nullptr || plan.divides_integers) return false;
  for (std::size_t i = 0; i < plan.arity; ++i) {
    const Source& source = plan.sources.at(i);
    const bool is_one = source.is_scalar && source.pattern == Pattern::kPeriodic;
    if (!source.direct || !(is_one || source.pattern == Pattern::kFlat)) return false;
  }
  return true;
}

bool needs_buffer(const Source& source) {
  if (source.is_scalar) return false;
  return !source.direct || source.pattern == Pattern::kPeriodic ||
         (source.pattern == Pattern::kRows &&
          (source.strides.back() == 0 || source.extents.back() < kShortRow));
}

}  // namespace

Kernel prepare_elementwise(const Request& request) {
  const Meaning meaning = (*kMeanings.find(request.op))(request);
  const bool reference = request.options.reference;
  const Isa isa = reference ? Isa::kBaseline : request.options.isa;
  const Operand& result = request.results[0];
  const DType compute =
      meaning.compute_in == ComputeIn::kResult ? result.dtype : result_type(request.operands);
  auto plan = std::make_shared<Plan>();
  plan->op = request.op;
  plan->domain =
      domain_of(compute, (reference && !is_discontinuous(meaning.function)) || has_wide_exponent(request));
  plan->parameters = meaning.parameters;
  ElementwiseLoop loop;
  if (plan->domain == Domain::kF64)
    loop.block = find_reference(meaning.function);
  else
    loop = TOSAIC_SELECT_ISA(isa, kElementwiseKernels).find(meaning.function, plan->domain);
  plan->block = loop.block;
  if (plan->block == nullptr) plan->block = find_function(meaning.function, plan->domain);
  if (plan->block == nullptr || (writes_bool(meaning.function) && result.dtype != DType::kBool))
    fail_unsupported(request);
  plan->count = num_elements(result.shape);
  plan->arity = request.operands.size();
  plan->result_element = static_cast<int64_t>(byte_size(result.dtype));
  const ConvertKernels& convert = convert_kernels(isa);
  if (!writes_bool(meaning.function) && !is_domain(result.dtype, plan->domain))
    plan->store = convert.store(plan->domain, result.dtype, meaning.rounding);
  bool buffered = plan->store != nullptr;
  for (std::size_t i = 0; i < plan->arity; ++i) {
    Operand operand = request.operands[i];
    if (request.op == Op::kPrelu && i == 1) operand.shape = along_channels(operand.shape, result.shape);
    plan->sources.at(i) = make_source(operand, result.shape, compute, plan->domain, convert);
    if (loop.takes_scalars && plan->parameters.scalars == 0 && is_scalar(plan->sources.at(i))) {
      plan->sources.at(i).is_scalar = true;
      plan->parameters.scalars = 1U << i;
    }
    buffered = buffered || needs_buffer(plan->sources.at(i));
  }
  plan->block_limit = buffered ? kBlockElements : plan->count;
  plan->step = step_of(*plan, buffered);
  plan->element_cost = is_light(meaning.function) ? cost::kCopy : cost::kFunction;
  plan->divides_integers = !is_float(plan->domain) && divides(meaning.function);
  if (loop.takes_scalars) take_rows(*plan);
  plan->is_plain = is_plain(*plan);
  plan->convert = conversion_of(*plan, meaning.function);
  Kernel kernel;
  if (plan->is_plain)
    kernel.run = [plan = std::shared_ptr<const Plan>(plan)](const Arrays& arrays) {
      arrays.team == nullptr ? run_plain(*plan, arrays, 0, plan->count) : run_plan(*plan, arrays);
    };
  else
    kernel.run = [plan = std::shared_ptr<const Plan>(plan)](const Arrays& arrays) {
      run_plan(*plan, arrays);
    };
  kernel.in_place = in_place_operands(request);
  kernel.name = kernel_name(request);
  return kernel;
}

}  // namespace tosaic::kernels
