// infer_rules: the rules of infer(), by family; private to ir/. A rule takes a Call (operator, attributes,
// operand types), checks what the operator requires, and returns the result types. Before the rule, infer()
// has checked the attribute struct, the number of operands, that no required operand is absent, and that the
// extents of every operand are sane (and not 0 for TOSA operators).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tosaic/ir/op_table.h"
#include "tosaic/ir/type.h"

namespace tosaic::rules {

using Types = std::vector<TensorType>;

// A tensor has at most this many elements, so that byte counts and strides fit 63 bits.
inline constexpr std::int64_t kMaxElements = std::int64_t{1} << 56;
// The most results of one node (unbind, split).
inline constexpr std::int64_t kMaxResults = std::int64_t{1} << 16;

class Call {
 public:
  Call(Op op, const Attrs& attrs, std::span<const TensorType* const> operands)
      : op_(op), attrs_(attrs), operands_(operands) {}

  [[nodiscard]] Op op() const { return op_; }
  [[nodiscard]] std::size_t count() const { return operands_.size(); }
  [[nodiscard]] std::span<const TensorType* const> operands() const { return operands_; }
  [[nodiscard]] const TensorType& operand(std::size_t i) const { return *operands_[i]; }
  // Returns null if optional operand i is absent: passed as absent, or beyond the end of the operand list.
  [[nodiscard]] const TensorType* optional(std::size_t i) const {
    return i < operands_.size() ? operands_[i] : nullptr;
  }
  [[nodiscard]] const Attrs& attributes() const { return attrs_; }
  template <class A>
  [[nodiscard]] const A& attrs() const {
    return get<A>(attrs_);
  }

  // These throw InvalidGraph and UnsupportedOp. The message is the operator's name, then `what`.
  [[noreturn]] void fail(const std::string& what, const std::string& expected = "",
                         const std::string& got = "") const;
  [[noreturn]] void unsupported(const std::string& what, const std::string& expected = "",
                                const std::string& got = "") const;

  [[noreturn]] void fail_dtype(std::size_t i, const char* expected) const;

  // "operand 'weight'"
  [[nodiscard]] std::string operand_text(std::size_t i) const;

  // ---- checks of operands ----
  void require_float(std::size_t i) const;
  void require_integer(std::size_t i) const;
  void require_integer_or_bool(std::size_t i) const;
  void require_number(std::size_t i) const;  // anything but bool
  void require_bool(std::size_t i) const { require_dtype(i, DType::kBool); }
  void require_dtype(std::size_t i, DType dtype) const;
  void require_same_dtype(std::size_t i, std::size_t as) const;
  void require_index(std::size_t i) const;  // i32 or i64
  void require_rank(std::size_t i, std::size_t rank) const;
  void require_rank_between(std::size_t i, std::size_t low, std::size_t high) const;
  void require_shape(std::size_t i, const Shape& shape) const;  // an absent operand is accepted
  void require_extent(std::size_t i, std::size_t axis, std::int64_t extent) const;
  void require_nonempty_axis(std::size_t i, std::size_t axis) const;

  // ---- checks of attributes ----
  // An axis in [0, rank).
  [[nodiscard]] std::size_t axis(std::int64_t value, std::size_t rank) const;
  void require_size(const char* name, const Dims& dims, std::size_t size) const;
  void require_at_least(const char* name, std::int64_t value, std::int64_t low) const;
  void require_at_least(const char* name, const Dims& dims, std::int64_t low) const;
  void require_axes(const Dims& axes, std::size_t rank) const;  // sorted or not, unique, in range

  // ---- arithmetic that throws InvalidGraph instead of overflowing ----
  [[nodiscard]] std::int64_t plus(std::int64_t a, std::int64_t b) const;
  [[nodiscard]] std::int64_t minus(std::int64_t a, std::int64_t b) const;
  [[nodiscard]] std::int64_t times(std::int64_t a, std::int64_t b) const;

  // Throws unless all extents are at least 0 and there are at most kMaxElements elements (an empty axis
  // counts as extent 1).
  void require_sane(const std::string& subject, const Shape& shape) const;

 private:
  Op op_;
  const Attrs& attrs_;
  std::span<const TensorType* const> operands_;
};

// The types of a single result.
[[nodiscard]] Types single_result(DType dtype, const Shape& shape);

// ---- contraction ----
// The broadcast shape of operands [first, count).
[[nodiscard]] Shape broadcast_from(const Call& call, std::size_t first);
// The shape of operand 0 without `axes`, or with extent 1 on them if `keepdim`.
[[nodiscard]] Shape reduced(const Call& call, const Dims& axes, bool keepdim);

[[nodiscard]] Types infer_conv(const Call& call);
[[nodiscard]] Types infer_integer_conv(const Call& call);
[[nodiscard]] Types infer_linear(const Call& call);
[[nodiscard]] Types infer_matmul(const Call& call);
[[nodiscard]] Types infer_addmm(const Call& call);
[[nodiscard]] Types infer_baddbmm(const Call& call);
[[nodiscard]] Types infer_sdpa(const Call& call);
[[nodiscard]] Types infer_embedding(const Call& call);
[[nodiscard]] Types infer_einsum(const Call& call);

// ---- elementwise ----
[[nodiscard]] Types infer_same_number_dtype(const Call& call);  // abs, ceil, neg, relu ...: not bool
[[nodiscard]] Types infer_same_dtype(const Call& call);         // sign, nan_to_num: also bool
[[nodiscard]] Types infer_float_function(const Call& call);     // integers and bool become f32
[[nodiscard]] Types infer_activation(const Call& call);         // floats only
[[nodiscard]] Types infer_clamp(const Call& call);
[[nodiscard]] Types infer_logical_not(const Call& call);
[[nodiscard]] Types infer_bitwise_not(const Call& call);
[[nodiscard]] Types infer_cast(const Call& call);
[[nodiscard]] Types infer_add_sub(const Call& call);
[[nodiscard]] Types infer_promoting(const Call& call);  // mul, maximum, minimum
[[nodiscard]] Types infer_div(const Call& call);
[[nodiscard]] Types infer_pow(const Call& call);
[[nodiscard]] Types infer_compare(const Call& call);
[[nodiscard]] Types infer_logical(const Call& call);
[[nodiscard]] Types infer_bitwise(const Call& call);
[[nodiscard]] Types infer_gcd(const Call& call);
[[nodiscard]] Types infer_where(const Call& call);

// ---- functions, glu, quantizers ----
[[nodiscard]] Types infer_remainder(const Call& call);  // remainder, fmod
[[nodiscard]] Types infer_binary_float_function(const Call& call);
[[nodiscard]] Types infer_shift(const Call& call);
[[nodiscard]] Types infer_lerp(const Call& call);
[[nodiscard]] Types infer_addc(const Call& call);  // addcmul, addcdiv
[[nodiscard]] Types infer_prelu(const Call& call);
[[nodiscard]] Types infer_glu(const Call& call);
[[nodiscard]] Types infer_logsumexp(const Call& call);
[[nodiscard]] Types infer_vector_norm(const Call& call);
[[nodiscard]] Types infer_quantize(const Call& call);
[[nodiscard]] Types infer_dequantize(const Call& call);

// ---- reduction, normalisation ----
[[nodiscard]] Types infer_sum_prod(const Call& call);  // sum, prod
[[nodiscard]] Types infer_mean(const Call& call);
[[nodiscard]] Types infer_extremum(const Call& call);  // amax, amin
[[nodiscard]] Types infer_any_all(const Call& call);
[[nodiscard]] Types infer_var(const Call& call);
[[nodiscard]] Types infer_arg(const Call& call);
[[nodiscard]] Types infer_positions(const Call& call);  // argsort, cumargmax, cumargmin
[[nodiscard]] Types infer_cumsum(const Call& call);
[[nodiscard]] Types infer_diff(const Call& call);
[[nodiscard]] Types infer_batch_norm(const Call& call);
[[nodiscard]] Types infer_trailing_norm(const Call& call);  // layer_norm, rms_norm
[[nodiscard]] Types infer_group_norm(const Call& call);
[[nodiscard]] Types infer_softmax(const Call& call);

// ---- windows ----
[[nodiscard]] Types infer_pool(const Call& call);
[[nodiscard]] Types infer_adaptive_pool(const Call& call);
[[nodiscard]] Types infer_resize(const Call& call);
[[nodiscard]] Types infer_grid_sample(const Call& call);
[[nodiscard]] Types infer_integer_grid_sample(const Call& call);
[[nodiscard]] Types infer_affine_grid(const Call& call);

// ---- movement and creation ----
[[nodiscard]] Types infer_reshape(const Call& call);
[[nodiscard]] Types infer_clone(const Call& call);
[[nodiscard]] Types infer_permute(const Call& call);
[[nodiscard]] Types infer_expand(const Call& call);
[[nodiscard]] Types infer_repeat(const Call& call);
[[nodiscard]] Types infer_cat(const Call& call);
[[nodiscard]] Types infer_stack(const Call& call);
[[nodiscard]] Types infer_split(const Call& call);
[[nodiscard]] Types infer_unbind(const Call& call);
[[nodiscard]] Types infer_select(const Call& call);
[[nodiscard]] Types infer_slice(const Call& call);
[[nodiscard]] Types infer_flip(const Call& call);
[[nodiscard]] Types infer_pad(const Call& call);
[[nodiscard]] Types infer_triangle(const Call& call);
[[nodiscard]] Types infer_gather(const Call& call);
[[nodiscard]] Types infer_index_select(const Call& call);
[[nodiscard]] Types infer_index(const Call& call);
[[nodiscard]] Types infer_scatter(const Call& call);
[[nodiscard]] Types infer_scatter_reduce(const Call& call);
[[nodiscard]] Types infer_index_put(const Call& call);
[[nodiscard]] Types infer_slice_scatter(const Call& call);
[[nodiscard]] Types infer_arange(const Call& call);
[[nodiscard]] Types infer_full(const Call& call);

// ---- recurrent, Fourier transforms ----
[[nodiscard]] Types infer_recurrent(const Call& call);
[[nodiscard]] Types infer_fft2(const Call& call);
[[nodiscard]] Types infer_rfft2(const Call& call);

// ---- TOSA ----
[[nodiscard]] Types infer_tosa(const Call& call);  // the family of infer_tosa.cpp
[[nodiscard]] Types infer_tosa_fft2d(const Call& call);
[[nodiscard]] Types infer_tosa_rfft2d(const Call& call);
[[nodiscard]] Types infer_tosa_table(const Call& call);
[[nodiscard]] Types infer_tosa_rescale(const Call& call);
[[nodiscard]] Types infer_rescale(const Call& call);
[[nodiscard]] Types infer_tosa_variable(const Call& call);
[[nodiscard]] Types infer_tosa_variable_write(const Call& call);
[[nodiscard]] Types infer_tosa_variable_read(const Call& call);

// Throws InternalError: the node stores the types of its results, and has_inference() is false.
[[nodiscard]] Types stored_types(const Call& call);

// The column `inference` of ops.def, by operator.
using Rule = Types (*)(const Call&);
inline constexpr std::array<Rule, kOpCount> kInference = {
#define TOSAIC_OP(Name, text, AttrsT, operands, results, traits, int16, inference, ...) inference,
#include "tosaic/ir/ops.def"
};
[[nodiscard]] constexpr Rule inference_of(Op op) { return kInference[static_cast<std::size_t>(op)]; }

// True if the row of the operator names `family`. This is a predicate for OpTable::mismatch().
template <Rule family>
[[nodiscard]] constexpr bool is_inferred_by(Op op) {
  constexpr bool kIs[] = {
#define TOSAIC_OP(Name, text, AttrsT, operands, results, traits, int16, inference, ...) \
  is_same_function<inference, family>,
#include "tosaic/ir/ops.def"
  };
  return kIs[static_cast<std::size_t>(op)];
}

}  // namespace tosaic::rules
