// OpTable: one entry for each operator of a family, e.g. its kernel, built at compile time.
//
//   constexpr OpTable<Rule> kRules = {{Op::kReshape, reshape}, {Op::kPermute, permute}};
//   static_assert(complete<kRules.mismatch(is_legalized_by<legalize_movement>)>);
//
// A row of ops.def names the family of the operator. The table of the family has an entry for each of its
// operators. The static_assert compares both: if an operator of the family has no entry, or an entry is of
// another family, the compiler refuses the table and its message contains the operator.
#pragma once

#include <array>
#include <initializer_list>
#include <type_traits>
#include <utility>

#include "tosaic/ir/op.h"

namespace tosaic {

// An operator for which table and family disagree: it is in the table but not in the family, or the reverse.
struct Mismatch {
  bool found = false;
  Op op = {};
};

template <class T>
class OpTable {
 public:
  consteval OpTable(std::initializer_list<std::pair<Op, T>> entries) {
    for (const auto& [op, entry] : entries) {
      if (present_[index(op)]) an_operator_has_two_entries();
      present_[index(op)] = true;
      entries_[index(op)] = entry;
    }
  }

  // The entry of `op`, or null.
  [[nodiscard]] constexpr const T* find(Op op) const {
    return present_[index(op)] ? &entries_[index(op)] : nullptr;
  }
  [[nodiscard]] constexpr bool contains(Op op) const { return present_[index(op)]; }

  // The first operator for which `contains` and `is_of_family` differ.
  template <class Predicate>
  [[nodiscard]] consteval Mismatch mismatch(Predicate is_of_family) const {
    for (std::size_t i = 0; i < kOpCount; ++i)
      if (present_[i] != is_of_family(static_cast<Op>(i))) return {true, static_cast<Op>(i)};
    return {};
  }

 private:
  static constexpr std::size_t index(Op op) { return static_cast<std::size_t>(op); }
  static void an_operator_has_two_entries();  // not constexpr: a call stops the compilation

  std::array<T, kOpCount> entries_{};
  std::array<bool, kOpCount> present_{};
};

// True if a and b are the same function. With its sanitizers, GCC refuses a == b in a constant expression.
template <auto a, auto b>
inline constexpr bool is_same_function =
    std::is_same_v<std::integral_constant<decltype(a), a>, std::integral_constant<decltype(b), b>>;

// Returns true. If there is a mismatch, the call does not compile, and the compiler's message shows the
// mismatch.
template <Mismatch mismatch>
constexpr bool is_complete() {
  static_assert(!mismatch.found,
                "the operator is in the table, or in the family in ops.def, but not in both");
  return true;
}
template <Mismatch mismatch>
inline constexpr bool complete = is_complete<mismatch>();

}  // namespace tosaic
