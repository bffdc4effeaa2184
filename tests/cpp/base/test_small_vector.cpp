#include "tosaic/base/small_vector.h"

#include <catch2/catch.hpp>
#include <utility>
#include <vector>

namespace tosaic {
namespace {

using Numbers = SmallVector<int, 2>;

Numbers counted(int end) {
  Numbers out;
  for (int i = 0; i < end; ++i) out.push_back(i);
  return out;
}

std::vector<int> listed(const Numbers& numbers) { return {numbers.begin(), numbers.end()}; }

TEST_CASE("a small vector has the elements that were added, within its inline capacity and beyond",
          "[base]") {
  for (int size = 0; size < 9; ++size) {
    std::vector<int> expected;
    for (int i = 0; i < size; ++i) expected.push_back(i);
    CHECK(listed(counted(size)) == expected);
  }
  CHECK(listed(Numbers{7, 8, 9}) == std::vector<int>{7, 8, 9});
  CHECK(listed(Numbers(3)) == std::vector<int>{0, 0, 0});
}

TEST_CASE("copies of small vectors are independent, and moved-from ones can be used again", "[base]") {
  for (const int from : {0, 1, 2, 5})
    for (const int to : {0, 2, 3, 7}) {
      INFO(from << " onto " << to);
      const Numbers source = counted(from);
      Numbers copy = counted(to);
      copy = source;
      CHECK(copy == source);
      copy.push_back(-1);
      CHECK(source == counted(from));
      Numbers given = counted(from), taken = counted(to);
      taken = std::move(given);
      CHECK(taken == source);
      given = counted(to);  // NOLINT: may be used again
      CHECK(given == counted(to));
      Numbers& same = taken;
      taken = same;
      CHECK(taken == source);
      CHECK(Numbers(std::move(taken)) == source);
    }
}

}  // namespace
}  // namespace tosaic
