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

// The broadcast shape of operands [first, count).
[[nodiscard]] Shape broadcast_from(const Call& call, std::size_t first);
// The shape of operand 0 without `axes`, or with extent 1 on them if `keepdim`.
[[nodiscard]] Shape reduced(const Call& call, const Dims& axes, bool keepdim);

// Declares the rules that the column `inference` of ops.def names. Some rows name the same rule.
#define TOSAIC_OP(Name, text, AttrsT, operands, results, traits, int16, inference, ...) \
  [[nodiscard]] Types inference(const Call& call);
#include "tosaic/ir/ops.def"

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
