#include <catch2/catch.hpp>

#include "tosaic/ir/op_table.h"

namespace tosaic {
namespace {

constexpr OpTable<int> kNumbers = {{Op::kAdd, 1}, {Op::kSub, 2}};

constexpr bool is_sum(Op op) { return op == Op::kAdd || op == Op::kSub; }
constexpr bool is_arithmetic(Op op) { return is_sum(op) || op == Op::kMul; }
constexpr bool is_add(Op op) { return op == Op::kAdd; }

TEST_CASE("a table has one entry for each of its operators", "[ir][ops]") {
  CHECK(*kNumbers.find(Op::kAdd) == 1);
  CHECK(*kNumbers.find(Op::kSub) == 2);
  CHECK(kNumbers.find(Op::kMul) == nullptr);
  CHECK(kNumbers.contains(Op::kSub));
  CHECK_FALSE(kNumbers.contains(Op::kMul));
}

TEST_CASE("the compiler finds the operator that a table lacks or has too much", "[ir][ops]") {
  STATIC_REQUIRE(complete<kNumbers.mismatch(is_sum)>);
  constexpr Mismatch lacks = kNumbers.mismatch(is_arithmetic);
  STATIC_REQUIRE(lacks.found);
  STATIC_REQUIRE(lacks.op == Op::kMul);
  constexpr Mismatch has_too_much = kNumbers.mismatch(is_add);
  STATIC_REQUIRE(has_too_much.found);
  STATIC_REQUIRE(has_too_much.op == Op::kSub);
}

TEST_CASE("composites without a kernel run as their expansion", "[ir][ops]") {
  CHECK(info(Op::kHypot).runs_as_expansion());
  CHECK_FALSE(info(Op::kSoftmax).runs_as_expansion());  // it has a kernel
  CHECK_FALSE(info(Op::kCond).runs_as_expansion());     // the executor runs its regions
}

TEST_CASE("operands that do not broadcast or that hold no elements are known by their names", "[ir][ops]") {
  CHECK(info(Op::kTosaTable).is_table(1));
  CHECK_FALSE(info(Op::kTosaTable).is_table(0));
  CHECK(info(Op::kTosaScatter).is_index(1));
  CHECK_FALSE(info(Op::kTosaScatter).is_index(2));
}

}  // namespace
}  // namespace tosaic
