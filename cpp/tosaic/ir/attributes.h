// attributes: the attribute structs of operators. They are plain data, compared by value, one struct per
// family.
//
// Each struct lists its fields once, in `fields`. Printing, parsing, diffing and the Python bindings walk
// that list. A field is a bool, int64, double, DType, Dims, vector<int64>, vector<double>, string, Scalar,
// Groups, one of the enums below, or an optional<T> of one of these except bool. An absent optional<Groups>
// is not printed. Axes and pads of canonical operators
// refer to logical (torch) axes; axes are normalised to [0, rank).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "tosaic/ir/dims.h"
#include "tosaic/ir/dtype.h"
#include "tosaic/ir/scale_grid.h"

namespace tosaic {

// A Python number: bool, integer or float.
using Scalar = std::variant<bool, std::int64_t, double>;
[[nodiscard]] double as_double(const Scalar& value);
[[nodiscard]] std::int64_t as_int(const Scalar& value);  // a float: truncated, saturated; NaN: 0

enum class ResizeMode : std::uint8_t { kNearest, kBilinear, kBicubic };
enum class GridPadding : std::uint8_t { kZeros, kBorder, kReflection };
enum class Cell : std::uint8_t { kLstm, kGru, kRnnTanh, kRnnRelu };
enum class PadMode : std::uint8_t { kConstant, kReflect, kReplicate, kCircular };
enum class DivRounding : std::uint8_t { kNone, kFloor, kTrunc };
enum class ScatterReduction : std::uint8_t { kProd, kAmax, kAmin };
enum class NanMode : std::uint8_t { kPropagate, kIgnore };
enum class RoundingMode : std::uint8_t { kSingleRound, kInexactRound, kDoubleRound };
// The dim orders in which a foreign operator reads its operands and writes its results.
enum class ForeignLayout : std::uint8_t {
  kRowMajor,
  kAny,           // any order, the same one for all tensors: the operator is elementwise
  kChannelsLast,  // channels last for each tensor of rank 3 to 5, row-major for the others
};

// The text names of an enum, in the order of its enumerators.
template <class E>
inline constexpr std::array<const char*, 0> kEnumNames{};
template <>
inline constexpr std::array kEnumNames<ResizeMode> = {"nearest", "bilinear", "bicubic"};
template <>
inline constexpr std::array kEnumNames<GridPadding> = {"zeros", "border", "reflection"};
template <>
inline constexpr std::array kEnumNames<Cell> = {"lstm", "gru", "rnn_tanh", "rnn_relu"};
template <>
inline constexpr std::array kEnumNames<PadMode> = {"constant", "reflect", "replicate", "circular"};
template <>
inline constexpr std::array kEnumNames<DivRounding> = {"none", "floor", "trunc"};
template <>
inline constexpr std::array kEnumNames<ScatterReduction> = {"prod", "amax", "amin"};
template <>
inline constexpr std::array kEnumNames<NanMode> = {"propagate", "ignore"};
template <>
inline constexpr std::array kEnumNames<RoundingMode> = {"single_round", "inexact_round", "double_round"};
template <>
inline constexpr std::array kEnumNames<ForeignLayout> = {"row_major", "any", "channels_last"};

// `fields` calls visit(name, member) for each member of `self` (const or not). Structs compare by value.
#define TOSAIC_FIELDS(Struct, ...)                                                  \
  template <class Self, class Visit>                                                \
  static void fields([[maybe_unused]] Self& self, [[maybe_unused]] Visit&& visit) { \
    __VA_ARGS__                                                                     \
  }                                                                                 \
  bool operator==(const Struct&) const = default;
#define TOSAIC_FIELD(member) visit(#member, self.member);

struct NoAttrs {
  TOSAIC_FIELDS(NoAttrs)
};

// ---- canonical operators ----

// Convolution of spatial rank 1 to 3. The weight is (O, I/groups, k...), or (I, O/groups, k...) if
// `transposed`. pad_* have one entry per spatial axis. With `transposed` the pads crop the result, and
// output_padding extends it.
struct ConvAttrs {
  Dims stride, pad_before, pad_after, dilation, output_padding;
  std::int64_t groups = 1;
  bool transposed = false;
  TOSAIC_FIELDS(ConvAttrs,
                TOSAIC_FIELD(stride) TOSAIC_FIELD(pad_before) TOSAIC_FIELD(pad_after) TOSAIC_FIELD(dilation)
                    TOSAIC_FIELD(output_padding) TOSAIC_FIELD(groups) TOSAIC_FIELD(transposed))
};

// Convolution of (input - input_zp) with (weight - weight_zp).
struct IntegerConvAttrs {
  ConvAttrs conv;
  std::int64_t input_zp = 0, weight_zp = 0;
  TOSAIC_FIELDS(IntegerConvAttrs, ConvAttrs::fields(self.conv, visit);
                TOSAIC_FIELD(input_zp) TOSAIC_FIELD(weight_zp))
};

// Pooling over the trailing spatial axes. ceil_mode, count_include_pad and divisor_override mean what they
// mean in torch.
struct PoolAttrs {
  Dims kernel, stride, padding, dilation;
  bool ceil_mode = false;
  bool count_include_pad = true;
  std::optional<std::int64_t> divisor_override;
  TOSAIC_FIELDS(PoolAttrs,
                TOSAIC_FIELD(kernel) TOSAIC_FIELD(stride) TOSAIC_FIELD(padding) TOSAIC_FIELD(dilation)
                    TOSAIC_FIELD(ceil_mode) TOSAIC_FIELD(count_include_pad) TOSAIC_FIELD(divisor_override))
};

// For reshape and expand, the shape of the result. For adaptive pools, its spatial extents. For repeat and
// tosa.tile, the number of repetitions per axis.
struct ShapeAttrs {
  Shape shape;
  TOSAIC_FIELDS(ShapeAttrs, TOSAIC_FIELD(shape))
};

// The attributes of torch's upsample_nearest, upsample_(bi|tri)linear and upsample_bicubic. `scales` are the
// factors (out / in) that the torch call has, one per spatial axis; the list is empty if the call lacks one
// for some axis.
struct ResizeAttrs {
  ResizeMode mode = ResizeMode::kNearest;
  Dims size;
  bool align_corners = false;
  std::vector<double> scales;
  TOSAIC_FIELDS(ResizeAttrs,
                TOSAIC_FIELD(mode) TOSAIC_FIELD(size) TOSAIC_FIELD(align_corners) TOSAIC_FIELD(scales))
};

// The attributes of reductions. Axes are listed explicitly and sorted. `dtype` is torch's optional dtype
// argument: the reduction computes in this dtype and returns it.
struct ReduceAttrs {
  Dims axes;
  bool keepdim = false;
  std::optional<DType> dtype;
  TOSAIC_FIELDS(ReduceAttrs, TOSAIC_FIELD(axes) TOSAIC_FIELD(keepdim) TOSAIC_FIELD(dtype))
};

struct VarAttrs {
  Dims axes;
  bool keepdim = false;
  double correction = 1;
  TOSAIC_FIELDS(VarAttrs, TOSAIC_FIELD(axes) TOSAIC_FIELD(keepdim) TOSAIC_FIELD(correction))
};

// argmax, argmin. Without an axis, the reduction is over the flattened tensor.
struct ArgAttrs {
  std::optional<std::int64_t> axis;
  bool keepdim = false;
  TOSAIC_FIELDS(ArgAttrs, TOSAIC_FIELD(axis) TOSAIC_FIELD(keepdim))
};

struct AxisAttrs {
  std::int64_t axis = 0;
  TOSAIC_FIELDS(AxisAttrs, TOSAIC_FIELD(axis))
};

struct SortAttrs {
  std::int64_t axis = 0;
  bool descending = false;
  std::optional<std::int64_t> count = {};  // return only this many positions, the first ones; none: all
  TOSAIC_FIELDS(SortAttrs, TOSAIC_FIELD(axis) TOSAIC_FIELD(descending) TOSAIC_FIELD(count))
};

// softmax, log_softmax, cumsum: an axis and torch's optional dtype, to which the operand is cast first.
struct AxisDtypeAttrs {
  std::int64_t axis = 0;
  std::optional<DType> dtype;
  TOSAIC_FIELDS(AxisDtypeAttrs, TOSAIC_FIELD(axis) TOSAIC_FIELD(dtype))
};

struct BatchNormAttrs {
  double eps = 1e-5;
  TOSAIC_FIELDS(BatchNormAttrs, TOSAIC_FIELD(eps))
};

// The attributes of layer_norm and rms_norm over the trailing `normalized_rank` axes. Without eps, layer_norm
// uses 1e-5, and rms_norm uses the machine epsilon of f32 (of f64 for f64 operands).
struct NormAttrs {
  std::int64_t normalized_rank = 1;
  std::optional<double> eps;
  TOSAIC_FIELDS(NormAttrs, TOSAIC_FIELD(normalized_rank) TOSAIC_FIELD(eps))
};

struct GroupNormAttrs {
  std::int64_t groups = 1;
  double eps = 1e-5;
  TOSAIC_FIELDS(GroupNormAttrs, TOSAIC_FIELD(groups) TOSAIC_FIELD(eps))
};

// Axis j of the result is axis perm[j] of the operand.
struct PermuteAttrs {
  Dims perm;
  TOSAIC_FIELDS(PermuteAttrs, TOSAIC_FIELD(perm))
};

// slice: 0 <= start <= end <= extent (negative and excessive positions are already resolved); step >= 1.
struct SliceAttrs {
  std::int64_t axis = 0, start = 0, end = 0, step = 1;
  TOSAIC_FIELDS(SliceAttrs, TOSAIC_FIELD(axis) TOSAIC_FIELD(start) TOSAIC_FIELD(end) TOSAIC_FIELD(step))
};

// `index` is in [0, extent).
struct SelectAttrs {
  std::int64_t axis = 0, index = 0;
  TOSAIC_FIELDS(SelectAttrs, TOSAIC_FIELD(axis) TOSAIC_FIELD(index))
};

// One result per size. The sizes add up to the extent of the axis.
struct SplitAttrs {
  std::int64_t axis = 0;
  std::vector<std::int64_t> sizes;
  TOSAIC_FIELDS(SplitAttrs, TOSAIC_FIELD(axis) TOSAIC_FIELD(sizes))
};

struct AxesAttrs {
  Dims axes;
  TOSAIC_FIELDS(AxesAttrs, TOSAIC_FIELD(axes))
};

// `before` and `after` have one entry per axis of the operand. Negative entries crop; only mode constant has
// them.
struct PadAttrs {
  Dims before, after;
  PadMode mode = PadMode::kConstant;
  Scalar value = 0.0;
  TOSAIC_FIELDS(PadAttrs, TOSAIC_FIELD(before) TOSAIC_FIELD(after) TOSAIC_FIELD(mode) TOSAIC_FIELD(value))
};

struct CastAttrs {
  DType dtype = DType::kF32;
  TOSAIC_FIELDS(CastAttrs, TOSAIC_FIELD(dtype))
};

// The result has the operand's elements. `order` is the requested dim order, if there is one (clone with
// memory_format, or the edge dialect).
struct CloneAttrs {
  std::optional<Dims> order;
  TOSAIC_FIELDS(CloneAttrs, TOSAIC_FIELD(order))
};

// add: a + alpha * b, sub: a - alpha * b.
struct AlphaAttrs {
  Scalar alpha = std::int64_t{1};
  TOSAIC_FIELDS(AlphaAttrs, TOSAIC_FIELD(alpha))
};

// addmm, baddbmm: beta * input + alpha * (mat1 @ mat2).
struct AddmmAttrs {
  Scalar beta = std::int64_t{1}, alpha = std::int64_t{1};
  TOSAIC_FIELDS(AddmmAttrs, TOSAIC_FIELD(beta) TOSAIC_FIELD(alpha))
};

struct DivAttrs {
  DivRounding rounding = DivRounding::kNone;
  TOSAIC_FIELDS(DivAttrs, TOSAIC_FIELD(rounding))
};

struct ClampAttrs {
  std::optional<Scalar> min, max;
  TOSAIC_FIELDS(ClampAttrs, TOSAIC_FIELD(min) TOSAIC_FIELD(max))
};

struct GeluAttrs {
  bool tanh = false;
  TOSAIC_FIELDS(GeluAttrs, TOSAIC_FIELD(tanh))
};

// leaky_relu (slope), softshrink and hardshrink (lambda).
struct SlopeAttrs {
  double alpha = 1;
  TOSAIC_FIELDS(SlopeAttrs, TOSAIC_FIELD(alpha))
};

// Scaled dot product attention. If `scale` is absent, it is 1 / sqrt(extent of the last axis of the query).
struct SdpaAttrs {
  std::optional<double> scale;
  bool is_causal = false;
  bool enable_gqa = false;
  TOSAIC_FIELDS(SdpaAttrs, TOSAIC_FIELD(scale) TOSAIC_FIELD(is_causal) TOSAIC_FIELD(enable_gqa))
};

// tril, triu.
struct DiagonalAttrs {
  std::int64_t diagonal = 0;
  TOSAIC_FIELDS(DiagonalAttrs, TOSAIC_FIELD(diagonal))
};

struct ArangeAttrs {
  Scalar start = std::int64_t{0}, end = std::int64_t{0}, step = std::int64_t{1};
  DType dtype = DType::kI64;
  TOSAIC_FIELDS(ArangeAttrs, TOSAIC_FIELD(start) TOSAIC_FIELD(end) TOSAIC_FIELD(step) TOSAIC_FIELD(dtype))
};

struct FullAttrs {
  Shape shape;
  Scalar value = 0.0;
  DType dtype = DType::kF32;
  TOSAIC_FIELDS(FullAttrs, TOSAIC_FIELD(shape) TOSAIC_FIELD(value) TOSAIC_FIELD(dtype))
};

// torch.diff: the n-th difference along an axis.
struct DiffAttrs {
  std::int64_t n = 1, axis = 0;
  TOSAIC_FIELDS(DiffAttrs, TOSAIC_FIELD(n) TOSAIC_FIELD(axis))
};

// elu, celu, selu: x > 0 ? scale * x : scale * alpha * expm1(input_scale * x).
struct EluAttrs {
  double alpha = 1;
  double scale = 1;
  double input_scale = 1;
  TOSAIC_FIELDS(EluAttrs, TOSAIC_FIELD(alpha) TOSAIC_FIELD(scale) TOSAIC_FIELD(input_scale))
};

// softplus: log1p(exp(beta * x)) / beta, or x where beta * x > threshold.
struct SoftplusAttrs {
  double beta = 1;
  double threshold = 20;
  TOSAIC_FIELDS(SoftplusAttrs, TOSAIC_FIELD(beta) TOSAIC_FIELD(threshold))
};

// logit: with eps, the operand is first clamped to [eps, 1 - eps].
struct EpsAttrs {
  std::optional<double> eps;
  TOSAIC_FIELDS(EpsAttrs, TOSAIC_FIELD(eps))
};

// nan_to_num. If posinf is absent, infinity becomes the largest finite value of the dtype. If neginf is
// absent, minus infinity becomes the lowest finite value.
struct NanToNumAttrs {
  double nan = 0;
  std::optional<double> posinf;
  std::optional<double> neginf;
  TOSAIC_FIELDS(NanToNumAttrs, TOSAIC_FIELD(nan) TOSAIC_FIELD(posinf) TOSAIC_FIELD(neginf))
};

// addcmul: input + value * (tensor1 * tensor2). addcdiv: input + value * (tensor1 / tensor2).
struct ValueAttrs {
  Scalar value = std::int64_t{1};
  TOSAIC_FIELDS(ValueAttrs, TOSAIC_FIELD(value))
};

// linalg_vector_norm. Axes are listed explicitly and sorted. The operand is first cast to `dtype`.
struct VectorNormAttrs {
  double ord = 2;
  Dims axes;
  bool keepdim = false;
  std::optional<DType> dtype;
  TOSAIC_FIELDS(VectorNormAttrs,
                TOSAIC_FIELD(ord) TOSAIC_FIELD(axes) TOSAIC_FIELD(keepdim) TOSAIC_FIELD(dtype))
};

// An equation of torch.einsum without spaces and with an explicit result: "bhqd,bhkd->bhqk",
// "...ij,jk->...ik".
struct EinsumAttrs {
  std::string equation;
  TOSAIC_FIELDS(EinsumAttrs, TOSAIC_FIELD(equation))
};

struct GridSampleAttrs {
  ResizeMode mode = ResizeMode::kBilinear;
  GridPadding padding = GridPadding::kZeros;
  bool align_corners = false;
  TOSAIC_FIELDS(GridSampleAttrs, TOSAIC_FIELD(mode) TOSAIC_FIELD(padding) TOSAIC_FIELD(align_corners))
};

// A grid sampler over integers, at stage integer: see ir/integer_sampler.h. The lists have the entries of x
// and y.
struct IntegerGridSampleAttrs {
  GridSampleAttrs sample;
  std::int64_t input_zp = 0, input_low = 0;
  std::int64_t grid_zp = 0, grid_low = 0, grid_high = 0;
  std::vector<std::int64_t> multiplier, shift, fraction;
  TOSAIC_FIELDS(IntegerGridSampleAttrs, GridSampleAttrs::fields(self.sample, visit);
                TOSAIC_FIELD(input_zp) TOSAIC_FIELD(input_low) TOSAIC_FIELD(grid_zp) TOSAIC_FIELD(grid_low)
                    TOSAIC_FIELD(grid_high) TOSAIC_FIELD(multiplier) TOSAIC_FIELD(shift)
                        TOSAIC_FIELD(fraction))
};

// affine_grid_generator: `size` is the shape of the image, (N, C, H, W) or (N, C, D, H, W).
struct AffineGridAttrs {
  Dims size;
  bool align_corners = false;
  TOSAIC_FIELDS(AffineGridAttrs, TOSAIC_FIELD(size) TOSAIC_FIELD(align_corners))
};

struct IndexPutAttrs {
  bool accumulate = false;
  TOSAIC_FIELDS(IndexPutAttrs, TOSAIC_FIELD(accumulate))
};

struct ScatterReduceAttrs {
  std::int64_t axis = 0;
  ScatterReduction reduction = ScatterReduction::kProd;
  bool include_self = true;
  TOSAIC_FIELDS(ScatterReduceAttrs, TOSAIC_FIELD(axis) TOSAIC_FIELD(reduction) TOSAIC_FIELD(include_self))
};

// As in TOSA, neither the forward nor the inverse transform is normalised.
struct FftAttrs {
  bool inverse = false;
  TOSAIC_FIELDS(FftAttrs, TOSAIC_FIELD(inverse))
};

// The attributes of torch.nn.LSTM, GRU and RNN. The weights of each layer and direction are in torch's order:
// w_ih, w_hh; with `bias` also b_ih, b_hh; with `projection` (lstm only) also w_hr. The input is (steps,
// batch, features), (batch, steps, features) with batch_first, or (steps, features) without a batch.
struct RecurrentAttrs {
  Cell cell = Cell::kLstm;
  std::int64_t layers = 1;
  bool bias = true;
  bool bidirectional = false;
  bool batch_first = false;
  bool projection = false;
  TOSAIC_FIELDS(RecurrentAttrs,
                TOSAIC_FIELD(cell) TOSAIC_FIELD(layers) TOSAIC_FIELD(bias) TOSAIC_FIELD(bidirectional)
                    TOSAIC_FIELD(batch_first) TOSAIC_FIELD(projection))
};

// clamp(round_half_even(x * float32(1 / scale)) + zero_point, qmin, qmax) in `dtype`. There is one scale and
// zero point, or with `axis` one for each index on this axis. With `groups` too, there is one for each index
// on `axis` and each group (see scale_grid.h).
struct QuantizeAttrs {
  DType dtype = DType::kI8;
  std::optional<std::int64_t> axis;
  std::int64_t qmin = -128;
  std::int64_t qmax = 127;
  std::vector<double> scales;
  std::vector<std::int64_t> zero_points;
  std::optional<Groups> groups = {};
  TOSAIC_FIELDS(QuantizeAttrs, TOSAIC_FIELD(dtype) TOSAIC_FIELD(axis) TOSAIC_FIELD(qmin) TOSAIC_FIELD(qmax)
                                   TOSAIC_FIELD(scales) TOSAIC_FIELD(zero_points) TOSAIC_FIELD(groups))
};

// (float32(q) - zero_point) * float32(scale) in `dtype`. Scales and zero points are as in QuantizeAttrs.
struct DequantizeAttrs {
  DType dtype = DType::kF32;
  std::optional<std::int64_t> axis;
  std::int64_t qmin = -128;
  std::int64_t qmax = 127;
  std::vector<double> scales;
  std::vector<std::int64_t> zero_points;
  std::optional<Groups> groups = {};
  TOSAIC_FIELDS(DequantizeAttrs, TOSAIC_FIELD(dtype) TOSAIC_FIELD(axis) TOSAIC_FIELD(qmin) TOSAIC_FIELD(qmax)
                                     TOSAIC_FIELD(scales) TOSAIC_FIELD(zero_points) TOSAIC_FIELD(groups))
};

// A foreign operator, which tosaic cannot compute: its name, its arguments, and the description that the user
// wrote. `domain` and `name` are empty if there is no description; such a node cannot be lowered.
//
// `arguments` is a JSON object, or empty. In Python's form, {"$": i} is operand i, and other arguments of the
// call are JSON:
//
//   {"args":[{"$":0},1.5],"kwargs":{"mode":"soft"}}
//
// A file with arguments in another form cannot be run with the descriptions of Python (with_operators). The
// arguments of a described operator must not have the keys "qparams" and "dim_orders": lower-to-integer adds
// the former, and legalize-tosa adds the latter.
struct OpaqueAttrs {
  std::string target, arguments;
  std::string domain = {}, name = {};  // domain and name of the tosa.custom that it becomes
  ForeignLayout layout = ForeignLayout::kRowMajor;
  bool integers = false;  // between quantized values, the operator computes with their integers
  TOSAIC_FIELDS(OpaqueAttrs, TOSAIC_FIELD(target) TOSAIC_FIELD(arguments) TOSAIC_FIELD(domain)
                                 TOSAIC_FIELD(name) TOSAIC_FIELD(layout) TOSAIC_FIELD(integers))
};

// ---- TOSA operators ----
//
// Fields have the specification's names. Zero points and shapes, which are operands in TOSA, are attributes
// here until serialization.

// The attributes of conv2d and depthwise_conv2d (4 entries in `pad`, 2 each in `stride` and `dilation`) and
// of conv3d (6 in `pad`, 3 each in the others).
struct TosaConvAttrs {
  Dims pad, stride, dilation;
  std::int64_t input_zp = 0, weight_zp = 0;
  DType acc_type = DType::kF32;
  bool local_bound = false;
  TOSAIC_FIELDS(TosaConvAttrs,
                TOSAIC_FIELD(pad) TOSAIC_FIELD(stride) TOSAIC_FIELD(dilation) TOSAIC_FIELD(input_zp)
                    TOSAIC_FIELD(weight_zp) TOSAIC_FIELD(acc_type) TOSAIC_FIELD(local_bound))
};

struct TosaTransposeConvAttrs {
  Dims out_pad, stride;
  std::int64_t input_zp = 0, weight_zp = 0;
  DType acc_type = DType::kF32;
  bool local_bound = false;
  TOSAIC_FIELDS(TosaTransposeConvAttrs,
                TOSAIC_FIELD(out_pad) TOSAIC_FIELD(stride) TOSAIC_FIELD(input_zp) TOSAIC_FIELD(weight_zp)
                    TOSAIC_FIELD(acc_type) TOSAIC_FIELD(local_bound))
};

struct TosaAvgPoolAttrs {
  Dims kernel, stride, pad;
  std::int64_t input_zp = 0, output_zp = 0;
  DType acc_type = DType::kF32;
  TOSAIC_FIELDS(TosaAvgPoolAttrs, TOSAIC_FIELD(kernel) TOSAIC_FIELD(stride) TOSAIC_FIELD(pad)
                                      TOSAIC_FIELD(input_zp) TOSAIC_FIELD(output_zp) TOSAIC_FIELD(acc_type))
};

struct TosaMaxPoolAttrs {
  Dims kernel, stride, pad;
  NanMode nan_mode = NanMode::kPropagate;
  TOSAIC_FIELDS(TosaMaxPoolAttrs,
                TOSAIC_FIELD(kernel) TOSAIC_FIELD(stride) TOSAIC_FIELD(pad) TOSAIC_FIELD(nan_mode))
};

// matmul: the zero points of A and B, and the dtype of the result. Without `dtype` the result has the
// accumulator dtype of the operands; with f32 it is f32 for f16 operands.
struct TosaMatmulAttrs {
  std::int64_t first_zp = 0, second_zp = 0;
  std::optional<DType> dtype;
  TOSAIC_FIELDS(TosaMatmulAttrs, TOSAIC_FIELD(first_zp) TOSAIC_FIELD(second_zp) TOSAIC_FIELD(dtype))
};

// negate: the zero points of the input and the output.
struct TosaZeroPointAttrs {
  std::int64_t first_zp = 0, second_zp = 0;
  TOSAIC_FIELDS(TosaZeroPointAttrs, TOSAIC_FIELD(first_zp) TOSAIC_FIELD(second_zp))
};

struct TosaClampAttrs {
  Scalar min_val = 0.0, max_val = 0.0;
  NanMode nan_mode = NanMode::kPropagate;
  TOSAIC_FIELDS(TosaClampAttrs, TOSAIC_FIELD(min_val) TOSAIC_FIELD(max_val) TOSAIC_FIELD(nan_mode))
};

// argmax, reduce_max, reduce_min.
struct TosaAxisNanAttrs {
  std::int64_t axis = 0;
  NanMode nan_mode = NanMode::kPropagate;
  TOSAIC_FIELDS(TosaAxisNanAttrs, TOSAIC_FIELD(axis) TOSAIC_FIELD(nan_mode))
};

// maximum, minimum.
struct TosaNanAttrs {
  NanMode nan_mode = NanMode::kPropagate;
  TOSAIC_FIELDS(TosaNanAttrs, TOSAIC_FIELD(nan_mode))
};

struct TosaMulAttrs {
  std::int64_t shift = 0;
  TOSAIC_FIELDS(TosaMulAttrs, TOSAIC_FIELD(shift))
};

struct TosaShiftAttrs {
  bool round = false;
  TOSAIC_FIELDS(TosaShiftAttrs, TOSAIC_FIELD(round))
};

struct TosaPadAttrs {
  Dims before, after;
  Scalar value = 0.0;
  TOSAIC_FIELDS(TosaPadAttrs, TOSAIC_FIELD(before) TOSAIC_FIELD(after) TOSAIC_FIELD(value))
};

struct TosaSliceAttrs {
  Dims start, size;
  TOSAIC_FIELDS(TosaSliceAttrs, TOSAIC_FIELD(start) TOSAIC_FIELD(size))
};

// resize: scale = (y_n, y_d, x_n, x_d), offset = (y, x), border = (y, x).
struct TosaResizeAttrs {
  ResizeMode mode = ResizeMode::kNearest;
  Dims scale, offset, border;
  TOSAIC_FIELDS(TosaResizeAttrs,
                TOSAIC_FIELD(mode) TOSAIC_FIELD(scale) TOSAIC_FIELD(offset) TOSAIC_FIELD(border))
};

struct TosaFftAttrs {
  bool inverse = false;
  bool local_bound = false;
  TOSAIC_FIELDS(TosaFftAttrs, TOSAIC_FIELD(inverse) TOSAIC_FIELD(local_bound))
};

struct TosaRfftAttrs {
  bool local_bound = false;
  TOSAIC_FIELDS(TosaRfftAttrs, TOSAIC_FIELD(local_bound))
};

// `dtype` is the dtype of the result. There is one multiplier and shift, or with per_channel one for each
// index on the last axis.
struct TosaRescaleAttrs {
  std::int64_t input_zp = 0;
  std::int64_t output_zp = 0;
  DType dtype = DType::kI8;
  bool scale32 = true;
  RoundingMode rounding_mode = RoundingMode::kSingleRound;
  bool per_channel = false;
  bool input_unsigned = false;
  bool output_unsigned = false;
  std::vector<std::int64_t> multiplier;
  std::vector<std::int64_t> shift;
  TOSAIC_FIELDS(TosaRescaleAttrs,
                TOSAIC_FIELD(input_zp) TOSAIC_FIELD(output_zp) TOSAIC_FIELD(dtype) TOSAIC_FIELD(scale32)
                    TOSAIC_FIELD(rounding_mode) TOSAIC_FIELD(per_channel) TOSAIC_FIELD(input_unsigned)
                        TOSAIC_FIELD(output_unsigned) TOSAIC_FIELD(multiplier) TOSAIC_FIELD(shift))
};

// The attributes of `rescale`, at stage integer, where the channels may be on any axis. `axis` is set exactly
// if `per_channel` is.
struct RescaleAttrs {
  TosaRescaleAttrs rescale;
  std::optional<std::int64_t> axis;
  TOSAIC_FIELDS(RescaleAttrs, TosaRescaleAttrs::fields(self.rescale, visit); TOSAIC_FIELD(axis))
};

struct TosaCustomAttrs {
  std::string operator_name;
  std::string domain_name;
  std::string implementation_attrs;
  TOSAIC_FIELDS(TosaCustomAttrs,
                TOSAIC_FIELD(operator_name) TOSAIC_FIELD(domain_name) TOSAIC_FIELD(implementation_attrs))
};

// Declares a variable of the program. Reads and writes refer to it by name.
struct TosaVariableAttrs {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  TOSAIC_FIELDS(TosaVariableAttrs, TOSAIC_FIELD(name) TOSAIC_FIELD(dtype) TOSAIC_FIELD(shape))
};

// variable_read, variable_write: `name` is the variable, whose declared type is repeated here.
struct TosaVariableAccessAttrs {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  TOSAIC_FIELDS(TosaVariableAccessAttrs, TOSAIC_FIELD(name) TOSAIC_FIELD(dtype) TOSAIC_FIELD(shape))
};

#undef TOSAIC_FIELD
#undef TOSAIC_FIELDS

// Every attribute struct except NoAttrs.
// clang-format off
#define TOSAIC_ATTRIBUTE_STRUCTS(X)                                                               \
  X(ConvAttrs) X(PoolAttrs) X(ShapeAttrs) X(ResizeAttrs) X(ReduceAttrs) X(VarAttrs) X(ArgAttrs)   \
  X(AxisAttrs) X(AxisDtypeAttrs) X(BatchNormAttrs) X(NormAttrs) X(GroupNormAttrs) X(PermuteAttrs) \
  X(SliceAttrs) X(SelectAttrs) X(SplitAttrs) X(AxesAttrs) X(PadAttrs) X(CastAttrs) X(CloneAttrs)  \
  X(AlphaAttrs) X(AddmmAttrs) X(DivAttrs) X(ClampAttrs) X(GeluAttrs) X(SlopeAttrs) X(SdpaAttrs)   \
  X(DiagonalAttrs) X(ArangeAttrs) X(FullAttrs) X(DiffAttrs) X(OpaqueAttrs) X(TosaConvAttrs)       \
  X(TosaTransposeConvAttrs) X(TosaAvgPoolAttrs) X(TosaMaxPoolAttrs) X(TosaZeroPointAttrs)         \
  X(TosaClampAttrs) X(TosaAxisNanAttrs) X(TosaNanAttrs) X(TosaMulAttrs) X(TosaShiftAttrs)         \
  X(TosaPadAttrs) X(TosaSliceAttrs) X(TosaResizeAttrs) X(EluAttrs) X(SoftplusAttrs) X(EpsAttrs)   \
  X(NanToNumAttrs) X(ValueAttrs) X(VectorNormAttrs) X(EinsumAttrs) X(GridSampleAttrs)             \
  X(AffineGridAttrs) X(IndexPutAttrs) X(FftAttrs) X(RecurrentAttrs) X(QuantizeAttrs)              \
  X(DequantizeAttrs) X(TosaFftAttrs) X(TosaRfftAttrs) X(TosaRescaleAttrs) X(TosaCustomAttrs)      \
  X(TosaVariableAttrs) X(TosaVariableAccessAttrs) X(TosaMatmulAttrs) X(IntegerConvAttrs) X(RescaleAttrs) \
  X(IntegerGridSampleAttrs) X(SortAttrs) X(ScatterReduceAttrs)
// clang-format on

// All attribute structs, NoAttrs first. The index of a struct is its position here.
template <class... Structs>
struct AttributeStructs {};
#define TOSAIC_NEXT_STRUCT(A) , A
using AllAttributeStructs = AttributeStructs<NoAttrs TOSAIC_ATTRIBUTE_STRUCTS(TOSAIC_NEXT_STRUCT)>;
#undef TOSAIC_NEXT_STRUCT

template <class A, class List>
inline constexpr std::size_t kIndexIn = 0;
template <class A, class... Structs>
inline constexpr std::size_t kIndexIn<A, AttributeStructs<Structs...>> = [] {
  std::size_t index = 0;
  static_cast<void>(((std::is_same_v<A, Structs> || (++index, false)) || ...));
  return index;
}();
template <class List>
struct StructsOf;
template <class... Structs>
struct StructsOf<AttributeStructs<Structs...>> {
  static constexpr std::size_t kCount = sizeof...(Structs);
  static constexpr std::size_t kLargest = std::max({sizeof(Structs)...});
};

template <class A>
inline constexpr std::size_t kAttrsIndex = kIndexIn<A, AllAttributeStructs>;
template <class A>
concept AttributeStruct = kAttrsIndex<A> < StructsOf<AllAttributeStructs>::kCount;

// The attributes of one node: one of the structs, by value. `get`, `get_if`, `holds` and `visit` below read
// it. A std::variant of 70 structs would do the same, but the compiler would generate 18,000 functions for
// it.
class Attrs {
 public:
  Attrs() noexcept;  // NoAttrs
  template <AttributeStruct A>
  Attrs(A fields) noexcept;  // implicit: the struct of an operator is its attributes
  Attrs(const Attrs& other);
  Attrs(Attrs&& other) noexcept;
  Attrs& operator=(const Attrs& other);
  Attrs& operator=(Attrs&& other) noexcept;
  ~Attrs();

  [[nodiscard]] std::size_t index() const { return index_; }
  // The fields, which must be of struct A.
  template <AttributeStruct A>
  [[nodiscard]] A& as() {
    return *std::launder(reinterpret_cast<A*>(fields_));
  }
  template <AttributeStruct A>
  [[nodiscard]] const A& as() const {
    return *std::launder(reinterpret_cast<const A*>(fields_));
  }

  friend bool operator==(const Attrs& a, const Attrs& b);

 private:
  alignas(std::max_align_t) std::byte fields_[StructsOf<AllAttributeStructs>::kLargest];
  std::uint8_t index_;
};

template <AttributeStruct A>
[[nodiscard]] bool holds(const Attrs& attrs) {
  return attrs.index() == kAttrsIndex<A>;
}

template <AttributeStruct A>
[[nodiscard]] const A* get_if(const Attrs* attrs) {
  return attrs != nullptr && holds<A>(*attrs) ? &attrs->as<A>() : nullptr;
}
template <AttributeStruct A>
[[nodiscard]] A* get_if(Attrs* attrs) {
  return attrs != nullptr && holds<A>(*attrs) ? &attrs->as<A>() : nullptr;
}

// The name of the struct of this index: "ClampAttrs".
[[nodiscard]] std::string_view struct_name(std::size_t index);

[[noreturn]] void throw_other_attributes(std::size_t expected, std::size_t found);

// Throws InternalError if the attributes are of another struct.
template <AttributeStruct A>
[[nodiscard]] const A& get(const Attrs& attrs) {
  if (!holds<A>(attrs)) throw_other_attributes(kAttrsIndex<A>, attrs.index());
  return attrs.as<A>();
}
template <AttributeStruct A>
[[nodiscard]] A& get(Attrs& attrs) {
  if (!holds<A>(attrs)) throw_other_attributes(kAttrsIndex<A>, attrs.index());
  return attrs.as<A>();
}

// visitor(fields), where `fields` is a reference to the struct that is held.
template <class Visitor, class AnyAttrs>
  requires std::is_same_v<std::remove_const_t<AnyAttrs>, Attrs>
decltype(auto) visit(Visitor&& visitor, AnyAttrs& attrs) {
  switch (attrs.index()) {
#define TOSAIC_VISIT_CASE(A) \
  case kAttrsIndex<A>:       \
    return visitor(attrs.template as<A>());
    TOSAIC_ATTRIBUTE_STRUCTS(TOSAIC_VISIT_CASE)
#undef TOSAIC_VISIT_CASE
    default:
      return visitor(attrs.template as<NoAttrs>());
  }
}

// Attributes are immutable once on a node, so nodes and graph copies share them.
using AttrsRef = std::shared_ptr<const Attrs>;
[[nodiscard]] AttrsRef share(Attrs attrs);

// "{stride=[2,2], groups=1}". Every field is printed. Floats have the shortest form that reads back to the
// same value, or are `inf`, `-inf` or `nan`.
[[nodiscard]] std::string to_string(const Attrs& attrs);

}  // namespace tosaic
