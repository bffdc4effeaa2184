#include "tosaic/base/interval.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

namespace tosaic {
namespace {

using Integers = Interval<std::int64_t>;
using Floats = Interval<double>;

constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr double kInf = std::numeric_limits<double>::infinity();

TEST_CASE("the bounds of integer intervals are exact", "[base]") {
  for (std::int64_t a = -4; a <= 4; ++a)
    for (std::int64_t b = a; b <= 4; ++b)
      for (std::int64_t c = -4; c <= 4; ++c)
        for (std::int64_t d = c; d <= 4; ++d) {
          const Integers x{a, b}, y{c, d};
          Integers sums{kMost, kLeast}, products = sums, quotients = sums, sizes = sums;
          for (std::int64_t i = a; i <= b; ++i) {
            sizes = united(sizes, Integers::only(std::abs(i)));
            for (std::int64_t k = c; k <= d; ++k) {
              sums = united(sums, Integers::only(i + k));
              products = united(products, Integers::only(i * k));
              if (k == 0) continue;
              const auto floored =
                  static_cast<std::int64_t>(std::floor(static_cast<double>(i) / static_cast<double>(k)));
              quotients = united(quotients, {std::min(i / k, floored), i / k});
            }
          }
          CHECK(sum(x, y) == sums);
          CHECK(product(x, y) == products);
          CHECK(magnitude(x) == sizes);
          CHECK(negated(negated(x)) == x);
          if (y.contains(0))
            CHECK((y == Integers::only(0) || quotient(x, y).contains(quotients)));
          else
            CHECK(quotient(x, y) == quotients);
        }
}

TEST_CASE("bounds of integers beyond 64 bits saturate", "[base]") {
  const Integers all = Integers::all();
  CHECK(all == Integers{kLeast, kMost});
  CHECK(sum(all, Integers{-1, 1}) == all);
  CHECK(product(all, Integers::only(-2)) == all);
  CHECK(negated(all) == Integers{-kMost, kMost});
  CHECK(magnitude(all) == Integers{0, kMost});
  CHECK(quotient(all, Integers::only(-1)) == Integers{-kMost, kMost});
  CHECK(sum(Integers::only(kMost), Integers::only(1)) == Integers::only(kMost));
  CHECK(product(Integers::only(kLeast), Integers::only(2)) == Integers::only(kLeast));
}

TEST_CASE("float intervals may be infinite", "[base]") {
  const Floats all = Floats::all();
  CHECK(all == Floats{-kInf, kInf});
  CHECK(product(all, Floats::only(0)) == Floats::only(0));
  CHECK(product(Floats{1, kInf}, Floats{-2, 3}) == all);
  CHECK(sum(Floats{0, kInf}, Floats{-1, 1}) == Floats{-1, kInf});
  CHECK(std::isnan(sum(Floats{0, kInf}, Floats::only(-kInf)).high));
  CHECK(magnitude(Floats{-3, 2}) == Floats{0, 3});
  CHECK(larger_of(all, Floats::only(1)) == Floats{1, kInf});
  CHECK(smaller_of(all, Floats::only(1)) == Floats{-kInf, 1});
}

TEST_CASE("an interval contains its bounds and the intervals between them", "[base]") {
  const Integers range{-2, 3};
  CHECK((range.contains(-2) && range.contains(3) && !range.contains(4)));
  CHECK((range.contains(Integers{-2, 3}) && !range.contains(Integers{-3, 0})));
}

}  // namespace
}  // namespace tosaic
