// Checks which alignments of a value are tried.
#include "tosaic/exec/compare/alignment.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "exec/chain.h"

namespace tosaic::exec {

TEST_CASE("extents that look permuted may come from a reshape, if the number of axes differs", "[exec]") {
  const std::vector<float> data{1, 2, 3, 4, 5, 6};
  const std::vector<Alignment> tried = alignments({2, 3}, {1, 1, 3, 2});
  REQUIRE(tried.size() == 2);
  CHECK(doubles(aligned(view(data, {2, 3}), {1, 1, 3, 2}, tried[0]).view) ==
        std::vector<double>{1, 4, 2, 5, 3, 6});
  CHECK(tried[1].reshaped);
  CHECK(doubles(aligned(view(data, {2, 3}), {1, 1, 3, 2}, tried[1]).view) ==
        std::vector<double>{1, 2, 3, 4, 5, 6});
  // With as many axes, such a reshape would hide a transpose that is missing.
  CHECK(std::ranges::none_of(alignments({2, 3}, {3, 2}), &Alignment::reshaped));
}

}  // namespace tosaic::exec
