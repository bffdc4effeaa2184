#include "tosaic/ir/shared_storages.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <memory>
#include <numeric>
#include <set>
#include <vector>

#include "tosaic/ir/same_elements.h"

namespace tosaic {
namespace {

Storage ramp(std::size_t count, std::int32_t changed_at = -1) {
  std::vector<std::int32_t> values(count);
  std::iota(values.begin(), values.end(), 0);
  if (changed_at >= 0) values[static_cast<std::size_t>(changed_at)] = -1;
  return Storage::of(values);
}

TEST_CASE("equal bytes share the memory of the first storage that has them") {
  SharedStorages storages;
  const Storage first = storages.shared(ramp(4097));
  CHECK(storages.shared(ramp(4097)).identity() == first.identity());
  CHECK(storages.shared(ramp(4097, 5)).identity() != first.identity());
  CHECK(storages.shared(ramp(4096)).identity() != first.identity());
}

TEST_CASE("a constant with the bytes of another keeps its name, dtype and shape") {
  SharedStorages storages;
  const auto constant = [](const char* name, const Shape& shape) {
    return constant_over(name, ConstantKind::kFolded, DType::kI32, shape, ramp(12));
  };
  const ConstantRef a = storages.shared(ConstantRef(constant("a", {12})));
  const ConstantRef b = storages.shared(ConstantRef(constant("b", {3, 4})));
  CHECK(a->storage.identity() == b->storage.identity());
  CHECK(b->name == "b");
  CHECK(b->shape == Shape{3, 4});
}

TEST_CASE("a view is not shared, since its owner may change it") {
  SharedStorages storages;
  const Storage own = storages.shared(ramp(12));
  const auto values = std::make_shared<std::vector<std::int32_t>>(12);
  std::iota(values->begin(), values->end(), 0);
  const auto* const data = reinterpret_cast<const std::byte*>(values->data());
  const Storage view(values, data, 48, [] { return std::string(); });
  CHECK(storages.shared(view).in_memory() == data);
  CHECK(storages.shared(own).identity() == own.identity());
}

// A search among storages with equal samples takes quadratic time.
TEST_CASE("tables that differ in one element have different samples") {
  std::set<std::uint64_t> samples;
  for (std::int32_t at = 0; at < 4097; ++at) samples.insert(sample_of(ramp(4097, at)));
  CHECK(samples.size() == 4097);
}

}  // namespace
}  // namespace tosaic
