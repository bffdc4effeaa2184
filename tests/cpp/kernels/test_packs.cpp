#include "tosaic/kernels/packs.h"

#include <catch2/catch.hpp>

namespace tosaic::kernels {
namespace {

TEST_CASE("weights are packed once per key") {
  Packs packs;
  int made = 0;
  const auto make = [&made] {
    ++made;
    return LargeArray<float>{1, 2, 3};
  };
  const auto first = packs.share<float>("a", make), second = packs.share<float>("a", make);
  CHECK(first == second);
  CHECK(made == 1);
  CHECK(packs.share<float>("b", make) != first);
  CHECK(made == 2);
}

}  // namespace
}  // namespace tosaic::kernels
