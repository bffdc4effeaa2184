// The kernels of contractions. A request is reduced to a convolution or a product (contraction.h). The
// operands are converted to the type in which sums are computed, and the sums to the dtype of the result.
//
//   operands             sums of the reference   sums of the fast path
//   f32, f16, bf16, f8   double                  float
//   f64                  double                  double
//   i4, i8               int64                   modulo 2^32, in quads of bytes or pairs of int16
//                                                (isa/gemm.h), if is_bytes()
//   i16 and i4, i8       int64                   int32 in a block, by pairs of int16; int64 over all blocks
//   other 4 to 16 bits   int64                   double; exact: products are below 2^34, sums of 2^19 of them
//                                                are below 2^53
//   i32, i64             int64                   int64 (the reference)
#include "tosaic/kernels/gemm/contraction.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tosaic/base/error.h"
#include "tosaic/base/sum_of_magnitudes.h"
#include "tosaic/kernels/block.h"
#include "tosaic/kernels/families.h"
#include "tosaic/kernels/gemm/excess.h"
#include "tosaic/kernels/gemm/form_loops.h"
#include "tosaic/kernels/requantize.h"
#include "tosaic/kernels/wide.h"

namespace tosaic::kernels {
namespace {

// The indices of the operands that are `left`, `right` and `third` of CoreOperands.
struct Roles {
  std::size_t left = 0, right = 1, third = 2;
};

struct Reduced {
  std::variant<Convolution, Product> shape;
  std::array<Index, 2> zero_points{};
  Roles roles = {};
};

// ---- convolutions ----

Spatial trailing(const Dims& dims, std::size_t first, std::size_t rank, Index fill) {
  Spatial result{fill, fill, fill};
  for (std::size_t i = 0; i < rank; ++i) result[3 - rank + i] = dims[first + i];
  return result;
}

Convolution canonical_conv(const Request& request, const ConvAttrs& attrs) {
  const Shape& x = request.operands[0].shape;
  const Shape& w = request.operands[1].shape;
  const Shape& y = request.results[0].shape;
  const std::size_t rank = w.size() - 2;
  const std::size_t first = x.size() - rank;  // the first spatial axis; 1 if there is no batch axis
  Convolution conv;
  conv.batch = first == 2 ? x[0] : 1;
  conv.groups = attrs.groups;
  conv.in_channels = x[first - 1];
  conv.out_channels = y[first - 1];
  conv.in = trailing(x, first, rank, 1);
  conv.out = trailing(y, first, rank, 1);
  conv.taps = trailing(w, 2, rank, 1);
  conv.step = trailing(attrs.stride, 0, rank, 1);
  conv.dilation = trailing(attrs.dilation, 0, rank, 1);
  conv.pad = trailing(attrs.pad_before, 0, rank, 0);
  conv.transposed = attrs.transposed;
  conv.weight_tap = {conv.taps[1] * conv.taps[2], conv.taps[2], 1};
  const Index taps = conv.num_taps();
  conv.weight_in = attrs.transposed ? conv.group_out() * taps : taps;
  conv.weight_out = attrs.transposed ? taps : conv.group_in() * taps;
  conv.weight_group = conv.group_in() * conv.group_out() * taps;
  return conv;
}

// Describes the convolution except for its weights. TOSA's `pad` has (before, after) for each axis.
Convolution channels_last_conv(const Request& request, const Dims& pad, const Dims& stride,
                               const Dims& dilation) {
  const Shape& x = request.operands[0].shape;
  const Shape& y = request.results[0].shape;
  const std::size_t rank = x.size() - 2;
  Convolution conv;
  conv.channels_last = true;
  conv.batch = x[0];
  conv.in_channels = x.back();
  conv.out_channels = y.back();
  conv.in = trailing(x, 1, rank, 1);
  conv.out = trailing(y, 1, rank, 1);
  conv.step = trailing(stride, 0, rank, 1);
  conv.dilation = trailing(dilation, 0, rank, 1);
  for (std::size_t i = 0; i < rank; ++i) conv.pad[3 - rank + i] = pad[2 * i];
  conv.bias_stride = request.operands[2].shape.back() == 1 ? 0 : 1;
  return conv;
}

// Sets the strides for weights of shape [output channels, taps..., input channels].
void set_output_major_weights(Convolution& conv, const Shape& weight) {
  conv.taps = trailing(weight, 1, weight.size() - 2, 1);
  conv.weight_in = 1;
  conv.weight_tap = {conv.taps[1] * conv.taps[2] * conv.in_channels, conv.taps[2] * conv.in_channels,
                     conv.in_channels};
  conv.weight_out = conv.num_taps() * conv.in_channels;
}

Convolution tosa_conv(const Request& request) {
  const auto& attrs = get<TosaConvAttrs>(*request.attrs);
  Convolution conv = channels_last_conv(request, attrs.pad, attrs.stride, attrs.dilation);
  set_output_major_weights(conv, request.operands[1].shape);
  return conv;
}

// TOSA's DEPTHWISE_CONV2D. Its weights have shape [KH, KW, C, M], where M is the channel multiplier.
Convolution tosa_depthwise(const Request& request) {
  const auto& attrs = get<TosaConvAttrs>(*request.attrs);
  const Shape& w = request.operands[1].shape;
  Convolution conv = channels_last_conv(request, attrs.pad, attrs.stride, attrs.dilation);
  conv.groups = conv.in_channels;
  conv.taps = {1, w[0], w[1]};
  conv.weight_group = w[3];
  conv.weight_out = 1;
  conv.weight_tap = {0, w[1] * w[2] * w[3], w[2] * w[3]};
  return conv;
}

// out_pad = (top, bottom, left, right) extends the result, so Convolution::pad is negative.
Convolution tosa_transpose_conv(const Request& request) {
  const auto& attrs = get<TosaTransposeConvAttrs>(*request.attrs);
  Convolution conv =
      channels_last_conv(request, {-attrs.out_pad[0], 0, -attrs.out_pad[2], 0}, attrs.stride, {1, 1});
  set_output_major_weights(conv, request.operands[1].shape);
  conv.transposed = true;
  return conv;
}

// ---- products ----

Index leading(const Shape& shape, std::size_t matrix_rank) {
  Index count = 1;
  for (std::size_t i = 0; i + matrix_rank < shape.size(); ++i) count *= shape[i];
  return count;
}

Product linear(const Request& request) {
  const Shape& x = request.operands[0].shape;
  const Shape& w = request.operands[1].shape;
  Product p;
  p.batches = {{}};
  p.rows = leading(x, 1);
  p.depth = x.back();
  p.cols = w.size() == 1 ? 1 : w[0];
  p.b_depth = 1;
  p.b_col = p.depth;
  return p;
}

// By index of `batch`, to which the operand is broadcast: the offset of its matrix, in elements.
std::vector<Index> matrix_offsets(const Shape& shape, const Shape& batch, Index matrix) {
  const Shape own(shape.size() > 2 ? shape.span().first(shape.size() - 2) : std::span<const Index>());
  const Dims strides = contiguous_strides(own);
  std::vector<Index> offsets(static_cast<std::size_t>(num_elements(batch)));
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    auto rest = static_cast<Index>(i);
    for (std::size_t axis = batch.size(); axis-- > 0; rest /= batch[axis]) {
      const std::size_t lacking = batch.size() - own.size();
      if (axis < lacking || own[axis - lacking] == 1) continue;
      offsets[i] += rest % batch[axis] * strides[axis - lacking] * matrix;
    }
  }
  return offsets;
}

Product matmul(const Shape& left, const Shape& right) {
  const Shape a = left.size() == 1 ? Shape{1, left[0]} : left;
  const Shape b = right.size() == 1 ? Shape{right[0], 1} : right;
  Product p;
  p.rows = a[a.size() - 2];
  p.depth = a.back();
  p.cols = b.back();
  p.b_depth = p.cols;
  p.b_col = 1;
  const Shape batch = broadcast(Shape(a.span().first(a.size() - 2)), Shape(b.span().first(b.size() - 2)));
  const std::vector<Index> a_offsets = matrix_offsets(a, batch, p.rows * p.depth);
  const std::vector<Index> b_offsets = matrix_offsets(b, batch, p.depth * p.cols);
  for (std::size_t i = 0; i < a_offsets.size(); ++i) p.batches.push_back({a_offsets[i], b_offsets[i], 0});
  return p;
}

// Adds operand 0 of addmm and baddbmm, which broadcasts to the result. A row vector with alpha = beta = 1
// becomes a bias.
void add_input(Product& p, const Request& request) {
  const auto& attrs = get<AddmmAttrs>(*request.attrs);
  const Shape& input = request.operands[0].shape;
  const std::size_t rank = input.size();
  p.alpha = attrs.alpha;
  p.beta = attrs.beta;
  p.has_input = true;
  p.input_col = rank >= 1 && input[rank - 1] != 1 ? 1 : 0;
  p.input_row = rank >= 2 && input[rank - 2] != 1 ? input[rank - 1] : 0;
  if (rank >= 3 && input[0] != 1)
    for (std::size_t i = 0; i < p.batches.size(); ++i)
      p.batches[i].input = static_cast<Index>(i) * input[1] * input[2];
  const bool plain = as_double(p.alpha) == 1 && as_double(p.beta) == 1;
  if (plain && rank <= 2 && p.input_row == 0 && p.input_col == 1) {
    p.has_input = false;
    p.has_bias = true;
  }
}

// ---- the kernel ----

template <class T>
constexpr DType kOwnDType = std::is_same_v<T, float>    ? DType::kF32
                            : std::is_same_v<T, double> ? DType::kF64
                            : sizeof(T) == 1            ? DType::kI8
                            : sizeof(T) == 2            ? DType::kI16
                            : sizeof(T) == 4            ? DType::kI32
                                                        : DType::kI64;

// An operand as an array of T: the operand itself, or converted in scratch.
template <class T>
class Side {
 public:
  // If `reads` is true, the core reads the operand in its own dtype or does not read it, so it is not
  // converted. If T is a byte, nothing is converted.
  Side(const Request& request, std::size_t index, Index zero_point, bool reads, ScratchPlan& plan)
      : index_(index), zero_point_(zero_point) {
    present_ = index < request.operands.size() && request.operands[index].present;
    if (!present_) return;
    dtype_ = request.operands[index].dtype;
    count_ = num_elements(request.operands[index].shape);
    widened_ = sizeof(T) > 1 && !reads && (dtype_ != kOwnDType<T> || zero_point != 0);
    if (widened_) at_ = plan.take<T>(count_);
  }

  const T* array(const Arrays& arrays) const {
    if (!present_) return nullptr;
    const std::byte* from = arrays.operands[index_];
    if (!widened_) return reinterpret_cast<const T*>(from);
    T* wide = piece<T>(arrays.scratch, at_);
    if constexpr (sizeof(T) > 1) widen_in_parallel(arrays.team, dtype_, from, count_, zero_point_, wide);
    return wide;
  }

  // Like array(), for `count` elements at `from` that have the dtype of the operand. Uses only the calling
  // thread.
  const T* part(const std::byte* from, Index count, std::byte* scratch) const {
    if (!widened_) return reinterpret_cast<const T*>(from);
    T* wide = piece<T>(scratch, at_);
    if constexpr (sizeof(T) > 1) widen(dtype_, from, count, zero_point_, wide);
    return wide;
  }

  [[nodiscard]] Index count() const { return count_; }

 private:
  std::size_t index_ = 0;
  Index count_ = 0, zero_point_ = 0;
  bool present_ = false, widened_ = false;
  DType dtype_ = DType::kF32;
  std::size_t at_ = 0;  // its offset in scratch
};

// A kernel that runs a core on operands of any dtype. Operands that are not arrays of T are converted in
// scratch.
template <class T>
Kernel around(const Request& request, const Roles& roles, const std::array<Index, 2>& zero_points,
              Core<T> core, bool has_epilogue = false) {
  ScratchPlan plan;
  const Side<Source<T>> left(request, roles.left, zero_points[0], !kReadsInPlace<T>, plan);
  const Side<Factor<T>> right(request, roles.right, zero_points[1], core.owns_right, plan);
  const Side<Sum<T>> third(request, roles.third, 0, false, plan);
  const DType dtype = request.results[0].dtype;
  const Index count = num_elements(request.results[0].shape);
  const bool narrowed = !has_epilogue && dtype != kOwnDType<Sum<T>>;
  const std::size_t result_at = plan.take<Sum<T>>(narrowed ? count : 0);
  const std::size_t core_at = plan.take<std::byte>(static_cast<Index>(core.scratch_bytes));

  Kernel kernel;
  kernel.scratch_bytes = plan.bytes();
  kernel.name = core.name;
  kernel.factors = kOwnDType<Factor<T>>;
  if (!request.options.reference) kernel.name.append(".").append(to_string(request.options.isa));
  if (core.multiply_rows) {
    const Index depth = request.operands[roles.left].shape.back(), cols = request.results[0].shape.back();
    kernel.rows.emplace();
    kernel.rows->pack = [=, pack = std::move(core.pack)](const std::byte* matrix, std::byte* scratch) {
      pack(right.part(matrix, right.count(), scratch), scratch + core_at);
    };
    kernel.rows->multiply = [=, multiply = std::move(core.multiply_rows)](
                                const std::byte* from, Index rows, std::byte* result, std::byte* scratch) {
      std::byte* to = narrowed ? scratch + result_at : result;
      multiply(left.part(from, rows * depth, scratch), rows, to, scratch + core_at);
      if (narrowed) narrow(reinterpret_cast<const Sum<T>*>(to), rows * cols, dtype, result);
    };
  }
  kernel.run = [=, run = std::move(core.run)](const Arrays& arrays) {
    std::byte* to = narrowed ? arrays.scratch + result_at : arrays.results[0];
    run({left.array(arrays), right.array(arrays), third.array(arrays)}, to,
        {arrays.scratch + core_at, arrays.team});
    if (narrowed)
      narrow_in_parallel(arrays.team, reinterpret_cast<const Sum<T>*>(to), count, dtype, arrays.results[0]);
  };
  return kernel;
}

template <class T>
Kernel reference_kernel(const Request& request, const Roles& roles, const Reduced& reduced) {
  const auto* conv = std::get_if<Convolution>(&reduced.shape);
  return around<T>(request, roles, reduced.zero_points,
                   conv != nullptr ? reference_convolution<T>(*conv)
                                   : reference_product<T>(std::get<Product>(reduced.shape)));
}

// The key in Packs: everything that the packed right operand depends on. All kernels of a Packs have one Isa.
std::string pack_key(const Request& request, const Operand& left, const Operand& right, DType packed) {
  return std::to_string(reinterpret_cast<std::uintptr_t>(right.constant)) + " " +
         std::string(info(request.op).name) + to_string(*request.attrs) + std::string(to_string(left.dtype)) +
         to_string(left.shape) + std::string(to_string(right.dtype)) + to_string(right.shape) +
         std::string(to_string(packed));
}

// The bounds of a clamp that is fused with the contraction.
struct Bounds {
  float low = 0, high = 0;
};

// The constant bias or addend, if there is one, and of this dtype.
const std::byte* constant_third(const Request& request, const Roles& roles, DType dtype) {
  if (roles.third >= request.operands.size() || request.operands[roles.third].dtype != dtype) return nullptr;
  return request.operands[roles.third].constant;
}

// True if the options allow a row of forms.def that has this form and the kind `lines`.
template <class T>
bool may_read_lines(const Options& options) {
  bool may = false;
#define TOSAIC_LINES_steps(form, row)
#define TOSAIC_LINES_dense(form, row)
#define TOSAIC_LINES_any(form, row)
#define TOSAIC_LINES_lines(form, row) may = may || (std::is_same_v<T, form> && may_use(options, row));
#define TOSAIC_FORM(kind, form, set, rule, saves, measured) \
  TOSAIC_LINES_##kind(form, row_##kind##_##form##_##set)
#include "tosaic/kernels/gemm/forms.def"
  return may;
}

template <class T>
Kernel fast_kernel(const Request& request, const Roles& roles, const Reduced& reduced, const Loops<T>& loops,
                   Epilogue<T> epilogue = {}, const std::optional<Bounds>& clamp = std::nullopt) {
  const bool has_epilogue(epilogue);
  FastInputs<T> inputs{.loops = loops,
                       .reads_lines = may_read_lines<T>(request.options),
                       .transpose = &TOSAIC_SELECT_ISA(request.options.isa, kTransposeKernels),
                       .threads = request.options.threads,
                       .epilogue = std::move(epilogue),
                       .by_rows = request.by_rows};
  if (clamp) {
    inputs.clamp = true;
    inputs.low = static_cast<Sum<T>>(clamp->low);
    inputs.high = static_cast<Sum<T>>(clamp->high);
  }
  if constexpr (!kReadsInPlace<T>) inputs.left_zero_point = static_cast<Factor<T>>(reduced.zero_points[0]);
  if constexpr (kHasQuads<T>) inputs.right_zero_point = static_cast<Factor<T>>(reduced.zero_points[1]);
  const Operand& right = request.operands[roles.right];
  std::vector<Factor<T>> widened;
  if (right.constant != nullptr) {
    inputs.right = reinterpret_cast<const Factor<T>*>(right.constant);
    if constexpr (!kHasQuads<T>) {
      const Index zero_point = reduced.zero_points[1];
      if (right.dtype != kOwnDType<Factor<T>> || zero_point != 0) {
        widened.resize(static_cast<std::size_t>(num_elements(right.shape)));
        widen(right.dtype, right.constant, num_elements(right.shape), zero_point, widened.data());
        inputs.right = widened.data();
      }
    }
    inputs.packs = request.options.packs;
    if (inputs.packs != nullptr)
      inputs.key = pack_key(request, request.operands[roles.left], right, kOwnDType<Factor<T>>) +
                   (kIsCapped<T> ? " capped" : "");
  }
  inputs.third = reinterpret_cast<const Sum<T>*>(constant_third(request, roles, kOwnDType<Sum<T>>));
  const auto* conv = std::get_if<Convolution>(&reduced.shape);
  return around<T>(request, roles, reduced.zero_points,
                   conv != nullptr ? fast_convolution<T>(*conv, inputs)
                                   : fast_product<T>(std::get<Product>(reduced.shape), inputs),
                   has_epilogue);
}

// A contraction for which a row of forms.def is chosen.
struct Contraction {
  const Request& request;
  const Roles& roles;
  const Reduced& reduced;
  [[nodiscard]] const Convolution* conv() const { return std::get_if<Convolution>(&reduced.shape); }
  [[nodiscard]] bool has_input() const {
    return conv() == nullptr && std::get<Product>(reduced.shape).has_input;
  }
  [[nodiscard]] bool is_depthwise() const { return conv() != nullptr && kernels::is_depthwise(*conv()); }
  [[nodiscard]] const Operand& left() const { return request.operands[roles.left]; }
  [[nodiscard]] const Operand& right() const { return request.operands[roles.right]; }
};

// ---- the rules of forms.def ----

bool is_any(const Contraction& /*c*/) { return true; }

bool is_f32(const Contraction& c) {
  return is_float(c.left().dtype) && c.left().dtype != DType::kF64 && c.right().dtype != DType::kF64;
}

bool has_bytes(const Operand& operand) { return operand.dtype == DType::kI4 || operand.dtype == DType::kI8; }

// True for elements and zero points of 8 bits, an integer result of at most 32 bits, and no addend.
bool is_bytes(const Contraction& c) {
  const DType result = c.request.results[0].dtype;
  for (const Index zero_point : c.reduced.zero_points)
    if (zero_point < -128 || zero_point > 127) return false;
  return is_integer(result) && byte_size(result) <= 4 && has_bytes(c.left()) && has_bytes(c.right()) &&
         !c.has_input();
}

[[maybe_unused]] bool is_bytes_of_zero_point_0(const Contraction& c) {
  return is_bytes(c) && c.reduced.zero_points[1] == 0;
}

// True for elements of 16 and 8 bits without zero points, and no addend.
bool is_words_by_bytes(const Contraction& c) {
  return c.left().dtype == DType::kI16 && has_bytes(c.right()) &&
         c.reduced.zero_points == std::array<Index, 2>{} && is_integer(c.request.results[0].dtype) &&
         !c.has_input() && (!c.is_depthwise() || c.conv()->num_taps() <= kMostWideDepth);
}

// True if sums of products are exact in double: both operands are integers of at most 16 bits.
bool exact_in_double(DType left, DType right) {
  const auto narrow_integer = [](DType dtype) { return is_integer(dtype) && byte_size(dtype) <= 2; };
  return narrow_integer(left) && narrow_integer(right);
}

// The axis of the result that has the channels of the core. Returns the rank if no axis has them, as in a
// product of vectors.
std::size_t channel_axis(const Request& request, const Reduced& reduced) {
  const Shape& shape = request.results[0].shape;
  const auto* conv = std::get_if<Convolution>(&reduced.shape);
  if (conv != nullptr && !conv->channels_last) return shape.size() + 1 - request.operands[1].shape.size();
  const Index channels = conv != nullptr ? conv->out_channels : std::get<Product>(reduced.shape).cols;
  return !shape.empty() && shape.back() == channels ? shape.size() - 1 : shape.size();
}

// Extents of the products, by one matrix each, to which a contraction is reduced if it is not depthwise.
struct Extents {
  Index rows = 0, depth = 0, cols = 0;
};

Extents extents_of(const Convolution& conv) {
  return {conv.batch * conv.out_pixels(), conv.group_in() * conv.num_taps(), conv.group_out()};
}
Extents extents_of(const Product& p) {
  return {p.rows * static_cast<Index>(p.batches.size()) / num_matrices(p), p.depth, p.cols};
}

Extents extents_of(const Contraction& c) {
  return std::visit([](const auto& shape) { return extents_of(shape); }, c.reduced.shape);
}

// True for a product of so few rows that reading the constant weights takes longer than multiplying.
[[maybe_unused]] bool reads_bytes_once(const Contraction& c) {
  constexpr Index kFewRows = 2;
  return is_bytes(c) && c.right().constant != nullptr && extents_of(c).rows <= kFewRows;
}

// Offsets of the weights. Each sum reads one column of weights.
struct Places {
  std::vector<Index>
      columns;  // of the first weight of each column: of all groups, or of all matrices of a product
  std::vector<Index> depths;  // of the weights of a column, from its first one
};

Places places_of(const Convolution& conv) {
  Places out;
  for (Index d = 0; d < conv.taps[0]; ++d)
    for (Index h = 0; h < conv.taps[1]; ++h)
      for (Index w = 0; w < conv.taps[2]; ++w)
        for (Index i = 0; i < conv.group_in(); ++i)
          out.depths.push_back(d * conv.weight_tap[0] + h * conv.weight_tap[1] + w * conv.weight_tap[2] +
                               i * conv.weight_in);
  for (Index group = 0; group < conv.groups; ++group)
    for (Index o = 0; o < conv.group_out(); ++o)
      out.columns.push_back(group * conv.weight_group + o * conv.weight_out);
  return out;
}
Places places_of(const Product& p) {
  Places out;
  for (Index k = 0; k < p.depth; ++k) out.depths.push_back(k * p.b_depth);
  for (Index matrix = 0; matrix < num_matrices(p); ++matrix)
    for (Index j = 0; j < p.cols; ++j) out.columns.push_back(matrix * p.depth * p.cols + j * p.b_col);
  return out;
}
Places places_of(const Reduced& reduced) {
  return std::visit([](const auto& shape) { return places_of(shape); }, reduced.shape);
}

// The fraction of the pairs of constant weights that capping changes (excess.h). It is computed once for all
// kernels that share packed weights.
[[maybe_unused]] double excess_share(const Request& request, const Roles& roles, const Reduced& reduced) {
  const Operand& right = request.operands[roles.right];
  const auto find = [&] {
    const Places places = places_of(reduced);
    return LargeArray<double>(1, share_with_excess(reinterpret_cast<const std::int8_t*>(right.constant),
                                                   places.depths, places.columns));
  };
  Packs* const packs = request.options.packs;
  if (packs == nullptr) return find()[0];
  return (*packs->share<double>(
      pack_key(request, request.operands[roles.left], right, DType::kI8) + " excess", find))[0];
}

#if defined(TOSAIC_HAVE_AVX512)
// True if CappedQuads save more time than multiplying the excess of the weights takes. The constants are
// measured times per element of the result. Their unit is the time of one instruction of the loop over depth.
// CappedQuads save less on AMD's processors, whose units that multiply integers also add them.
bool has_small_excess(const Contraction& c) {
  constexpr Index kManyRows = 4;
  constexpr double kTransposed = 0.3, kTerm = 0.5, kStart = 0.8;
  static const double saved = __builtin_cpu_is("amd") != 0 ? 0.015 : 0.04;
  if (!is_bytes(c) || c.right().constant == nullptr || (c.conv() != nullptr && c.conv()->transposed))
    return false;
  const Extents extents = extents_of(c);
  if (extents.rows < kManyRows || extents.depth == 0 || extents.cols == 0) return false;
  const double share = excess_share(c.request, c.roles, c.reduced);
  const auto depth = static_cast<double>(extents.depth);
  const double terms = share * depth / 2;
  const double excess =
      share == 0 ? 0 : kStart + kTerm * terms + kTransposed * depth / static_cast<double>(extents.cols);
  return saved * depth > excess;
}
#endif

// Returns what `make` returns for the form and the loops of the first row of forms.def that fits.
template <class Make>
Kernel in_form(const Contraction& c, Make&& make) {
  const bool is_dense = !c.is_depthwise(), has_steps = !is_dense && steps_fit(*c.conv());
#define TOSAIC_FITS_steps has_steps
#define TOSAIC_FITS_dense is_dense
#define TOSAIC_FITS_any true
#define TOSAIC_FITS_lines false
#define TOSAIC_FORM(kind, form, set, rule, saves, measured)               \
  if (const std::size_t row = row_##kind##_##form##_##set;                \
      TOSAIC_FITS_##kind && may_use(c.request.options, row) && rule(c)) { \
    Kernel kernel = make(form{}, TOSAIC_LOOPS_##kind(form, set));         \
    kernel.form_row = row;                                                \
    return kernel;                                                        \
  }
#include "tosaic/kernels/gemm/forms.def"
  throw InternalError({.where = "kernels", .what = "no form computes a contraction"});
}

// The type of the sums in the interface of a requantizer.
template <class T>
using Value = std::conditional_t<std::is_same_v<Sum<T>, std::uint32_t>, std::int32_t, Sum<T>>;

// True if RESCALE has a result for every possible sum: weights and biases are constant, and keep all sums in
// the range of the tables. Depthwise and transposed convolutions: false.
bool all_sums_have_results(const Request& request, const Roles& roles, const Reduced& reduced,
                           const RescaleTables<std::int32_t>& tables) {
  const auto* conv = std::get_if<Convolution>(&reduced.shape);
  if (conv != nullptr && (is_depthwise(*conv) || conv->transposed)) return false;
  const bool has_bias = conv != nullptr ? conv->has_bias : std::get<Product>(reduced.shape).has_bias;
  const Index bias_stride = conv != nullptr ? conv->bias_stride : 1;
  const Index channels = conv != nullptr ? conv->out_channels : std::get<Product>(reduced.shape).cols;
  const auto* bias = reinterpret_cast<const std::int32_t*>(constant_third(request, roles, DType::kI32));
  const auto* weights = reinterpret_cast<const std::int8_t*>(request.operands[roles.right].constant);
  if (weights == nullptr || (has_bias && bias == nullptr)) return false;
  const auto& [left_zero, right_zero] = reduced.zero_points;
  const Index most_left = std::max(127 - left_zero, 128 + left_zero);
  const Places places = places_of(reduced);
  std::vector<std::int8_t> of_column(places.depths.size());
  for (std::size_t column = 0; column < places.columns.size(); ++column) {
    const std::int8_t* const first = weights + places.columns[column];
    std::transform(places.depths.begin(), places.depths.end(), of_column.begin(),
                   [&](Index depth) { return first[depth]; });
    const Index channel = static_cast<Index>(column) % channels, entry = tables.uniform ? 0 : channel;
    const Index most = sum_of_magnitudes(of_column, right_zero) * most_left +
                       (has_bias ? std::abs(Index{bias[channel * bias_stride]}) : 0);
    if (most > tables.high[entry] || -most < tables.low[entry]) return false;
  }
  return true;
}

// A kernel that computes the contraction and its followers in one pass. Its `run` is empty if the followers
// do not allow that.
template <class T>
Kernel requantizing_kernel(const Request& request, const Roles& roles, const Reduced& reduced,
                           const Loops<T>& loops) {
  Requantizer<Value<T>> requantizer = prepare_requantizer<Value<T>>(
      request.followers, request.results[0].shape, channel_axis(request, reduced), request.options.isa);
  if (!requantizer.run) return {};
  Epilogue<T> epilogue{.run = {},
                       .bytes = requantizer.bytes,
                       .scratch_bytes = requantizer.scratch_bytes,
                       .tables = requantizer.tables,
                       .word_tables = requantizer.word_tables};
  if constexpr (kRescales<T>)
    if (requantizer.wide_tables && all_sums_have_results(request, roles, reduced, *requantizer.wide_tables))
      epilogue.tables = requantizer.wide_tables;
  epilogue.run = [run = std::move(requantizer.run)](const Sum<T>* sums, Index count, Index channel,
                                                    std::byte* to, std::byte* scratch) {
    run(reinterpret_cast<const Value<T>*>(sums), count, channel, to, scratch);
  };
  return fast_kernel<T>(request, roles, reduced, loops, std::move(epilogue));
}

// The bounds of a relu or clamp that keeps NaN. Returns nothing for other operators, and for bounds that are
// NaN.
std::optional<Bounds> clamp_of(const Follower& follower) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  double low = -kInf, high = kInf;
  if (follower.op == Op::kRelu) {
    low = 0;
  } else if (follower.op == Op::kClamp) {
    const auto& attrs = get<ClampAttrs>(*follower.attrs);
    if (attrs.min) low = as_double(*attrs.min);
    if (attrs.max) high = as_double(*attrs.max);
  } else if (follower.op == Op::kTosaClamp) {
    const auto& attrs = get<TosaClampAttrs>(*follower.attrs);
    if (attrs.nan_mode != NanMode::kPropagate) return std::nullopt;
    low = as_double(attrs.min_val);
    high = as_double(attrs.max_val);
  } else {
    return std::nullopt;
  }
  if (std::isnan(low) || std::isnan(high)) return std::nullopt;
  return Bounds{static_cast<float>(low), static_cast<float>(high)};
}

// A kernel that computes the contraction of f32 and a clamp in one pass. Its `run` is empty if the follower
// does not allow that.
Kernel clamping_kernel(const Request& request, const Roles& roles, const Reduced& reduced,
                       const Loops<F32>& loops) {
  const auto* product = std::get_if<Product>(&reduced.shape);
  if (request.followers.size() != 1 || (product != nullptr && product->has_input)) return {};
  for (const std::size_t operand : {roles.left, roles.right})
    if (request.operands[operand].dtype != DType::kF32) return {};
  const std::optional<Bounds> bounds = clamp_of(request.followers[0]);
  return bounds ? fast_kernel<F32>(request, roles, reduced, loops, {}, bounds) : Kernel{};
}

Kernel fused_kernel(const Request& request, const Roles& roles, const Reduced& reduced) {
  const DType sums = request.results[0].dtype;
  return in_form({request, roles, reduced}, [&]<class T>(T, const Loops<T>& loops) {
    if constexpr (std::is_same_v<T, F32>)
      return sums == DType::kF32 ? clamping_kernel(request, roles, reduced, loops) : Kernel{};
    else if constexpr (kReadsInPlace<T>)
      return Kernel{};
    else
      return sums == (kRescales<T> ? DType::kI32 : DType::kI48)
                 ? requantizing_kernel<T>(request, roles, reduced, loops)
                 : Kernel{};
  });
}

Kernel kernel_of(const Request& request, const Roles& roles, const Reduced& reduced) {
  if (!request.followers.empty()) return fused_kernel(request, roles, reduced);
  const DType left = request.operands[roles.left].dtype;
  const DType right = request.operands[roles.right].dtype;
  if (is_float(left) != is_float(right) || left == DType::kBool || right == DType::kBool)
    throw UnsupportedOp({.where = "kernels",
                         .what = "no kernel for '" + std::string(info(request.op).name) + "' on " +
                                 std::string(to_string(left)) + " and " + std::string(to_string(right))});
  if (is_float(left) && request.options.reference) return reference_kernel<double>(request, roles, reduced);
  if (!is_float(left) && (request.options.reference || !exact_in_double(left, right)))
    return reference_kernel<std::int64_t>(request, roles, reduced);
  return in_form({request, roles, reduced}, [&]<class T>(T, const Loops<T>& loops) {
    return fast_kernel<T>(request, roles, reduced, loops);
  });
}

// ---- the reduction of each operator ----

Reduced of_conv(const Request& request, Convolution conv, std::array<Index, 2> zero_points) {
  conv.has_bias = request.operands.size() > 2 && request.operands[2].present;
  return {conv, zero_points, {}};
}

Reduced of_product(const Request& request, const Roles& roles, Product p, std::array<Index, 2> zero_points) {
  p.a_row = p.depth;
  p.a_size = num_elements(request.operands[roles.left].shape);
  p.b_size = num_elements(request.operands[roles.right].shape);
  return {std::move(p), zero_points, roles};
}

Reduced reduce_conv(const Request& request) {
  return of_conv(request, canonical_conv(request, get<ConvAttrs>(*request.attrs)), {});
}

Reduced reduce_integer_conv(const Request& request) {
  const auto& attrs = get<IntegerConvAttrs>(*request.attrs);
  return of_conv(request, canonical_conv(request, attrs.conv), {attrs.input_zp, attrs.weight_zp});
}

// A convolution of TOSA, whose attributes are TosaConvAttrs or TosaTransposeConvAttrs.
template <class A, Convolution (*convolution)(const Request&)>
Reduced reduce_tosa_conv(const Request& request) {
  const auto& attrs = get<A>(*request.attrs);
  return of_conv(request, convolution(request), {attrs.input_zp, attrs.weight_zp});
}

Reduced reduce_linear(const Request& request) {
  Product p = linear(request);
  p.has_bias = request.operands.size() > 2 && request.operands[2].present;
  return of_product(request, {}, std::move(p), {});
}

Reduced reduce_matmul(const Request& request) {
  return of_product(request, {}, matmul(request.operands[0].shape, request.operands[1].shape), {});
}

Reduced reduce_tosa_matmul(const Request& request) {
  const auto& attrs = get<TosaMatmulAttrs>(*request.attrs);
  return of_product(request, {}, matmul(request.operands[0].shape, request.operands[1].shape),
                    {attrs.first_zp, attrs.second_zp});
}

Reduced reduce_addmm(const Request& request) {
  Product p = matmul(request.operands[1].shape, request.operands[2].shape);
  add_input(p, request);
  return of_product(request, {.left = 1, .right = 2, .third = 0}, std::move(p), {});
}

constexpr OpTable<Reduced (*)(const Request&)> kReductions = {
    {Op::kConv, reduce_conv},
    {Op::kIntegerConv, reduce_integer_conv},
    {Op::kTosaConv2d, reduce_tosa_conv<TosaConvAttrs, tosa_conv>},
    {Op::kTosaConv3d, reduce_tosa_conv<TosaConvAttrs, tosa_conv>},
    {Op::kTosaDepthwiseConv2d, reduce_tosa_conv<TosaConvAttrs, tosa_depthwise>},
    {Op::kTosaTransposeConv2d, reduce_tosa_conv<TosaTransposeConvAttrs, tosa_transpose_conv>},
    {Op::kLinear, reduce_linear},
    {Op::kMatmul, reduce_matmul},
    {Op::kTosaMatmul, reduce_tosa_matmul},
    {Op::kAddmm, reduce_addmm},
    {Op::kBaddbmm, reduce_addmm},
};
static_assert(complete<kReductions.mismatch(has_family<prepare_contraction>)>);

Reduced reduce(const Request& request) { return (*kReductions.find(request.op))(request); }

std::uint64_t products(const Convolution& conv) {
  const Index pixels =
      conv.transposed ? conv.in_channels * conv.in_pixels() : conv.out_channels * conv.out_pixels();
  const Index each = conv.transposed ? conv.group_out() : conv.group_in();
  return static_cast<std::uint64_t>(conv.batch * pixels * each * conv.num_taps());
}

std::uint64_t products(const Product& p) {
  return p.batches.size() * static_cast<std::uint64_t>(p.rows * p.cols * p.depth);
}

}  // namespace

Kernel prepare_contraction(const Request& request) {
  const Reduced reduced = reduce(request);
  return kernel_of(request, reduced.roles, reduced);
}

std::uint64_t contraction_multiply_adds(const Request& request) {
  return std::visit([](const auto& shape) { return products(shape); }, reduce(request).shape);
}

}  // namespace tosaic::kernels
