#include "tosaic/ir/recipe.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "tosaic/base/error.h"
#include "tosaic/base/team.h"
#include "tosaic/exec/moved_constant.h"
#include "tosaic/ir/deferred.h"
#include "tosaic/ir/graph.h"
#include "tosaic/ir/own_constants.h"

namespace tosaic {
namespace {

Storage numbers(std::size_t count) {
  std::vector<std::int32_t> values(count);
  std::iota(values.begin(), values.end(), 1);
  return Storage::of(values);
}

std::vector<std::int32_t> values_of(const Storage& storage) {
  std::vector<std::int32_t> values(storage.size() / sizeof(std::int32_t));
  std::memcpy(values.data(), storage.bytes().data(), storage.size());
  return values;
}

// Doubles each number; a unit has `unit` numbers. Counts the units that it computes.
class Doubled final : public Recipe {
 public:
  Doubled(const Storage& source, std::size_t unit) : Recipe(source), unit_(unit) {}
  [[nodiscard]] std::size_t unit_bytes() const override { return unit_ * sizeof(std::int32_t); }
  void prepare() const override { static_cast<void>(source().bytes()); }
  void compute(std::size_t begin, std::size_t end, std::byte* to) const override {
    computed += end - begin;
    UnitReader units(source(), unit_bytes());
    auto* out = reinterpret_cast<std::int32_t*>(to);
    for (std::size_t i = begin; i < end; ++i) {
      const auto* from = reinterpret_cast<const std::int32_t*>(units.unit(i));
      for (std::size_t k = 0; k < unit_; ++k) *out++ = 2 * from[k];
    }
  }
  mutable std::atomic<std::size_t> computed = 0;

 private:
  std::size_t unit_;
};

// The elements of `values` with axis perm[i] as axis i, by definition.
std::vector<std::int32_t> permuted(const std::vector<std::int32_t>& values, const Shape& shape,
                                   const Dims& perm) {
  std::vector<std::int32_t> out;
  std::vector<std::size_t> at(shape.size(), 0);  // an index for each axis of the result
  for (std::size_t n = 0; n < values.size(); ++n) {
    std::size_t from = 0;
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      std::size_t place = 0;
      while (static_cast<std::size_t>(perm[place]) != axis) ++place;
      from = from * static_cast<std::size_t>(shape[axis]) + at[place];
    }
    out.push_back(values[from]);
    for (std::size_t i = shape.size(); i-- > 0;) {
      if (++at[i] < static_cast<std::size_t>(shape[static_cast<std::size_t>(perm[i])])) break;
      at[i] = 0;
    }
  }
  return out;
}

Graph graph_of(const std::vector<Storage>& storages) {
  Graph graph;
  for (std::size_t i = 0; i < storages.size(); ++i) {
    const auto count = static_cast<std::int64_t>(storages[i].size() / sizeof(std::int32_t));
    graph.add_constant(
        constant_over("c" + std::to_string(i), ConstantKind::kParameter, DType::kI32, {count}, storages[i]));
  }
  return graph;
}

// Storage over a vector of somebody else, with a message when `changed` is set.
Storage view_of(const std::shared_ptr<std::vector<std::int32_t>>& values,
                const std::shared_ptr<bool>& changed) {
  return {values, reinterpret_cast<const std::byte*>(values->data()), values->size() * sizeof(std::int32_t),
          [changed] { return *changed ? std::string("its version is another") : std::string(); }};
}

TEST_CASE("a chain of moves of a copy has the copy's elements, also if a part of it was computed first",
          "[ir][recipe]") {
  const Shape shape{48, 64};
  const Storage copy = deferred_copy(numbers(48 * 64));
  const Storage moved = exec::deferred_permute(copy, DType::kI32, shape, {1, 0});
  const Storage again = exec::deferred_permute(copy, DType::kI32, shape, {1, 0});
  const Storage back = exec::deferred_permute(moved, DType::kI32, {64, 48}, {1, 0});
  compute(std::vector{again.deferred_state(), back.deferred_state()}, nullptr);
  CHECK(values_of(again) == permuted(values_of(numbers(48 * 64)), shape, {1, 0}));
  CHECK(values_of(back) == values_of(numbers(48 * 64)));
}

TEST_CASE("a deferred storage is computed at its first use, once", "[recipe]") {
  const auto recipe = std::make_shared<const Doubled>(numbers(12), 3);
  const Storage storage = Storage::deferred(48, recipe);
  const Storage copy = storage;
  CHECK(storage.bound());
  CHECK(storage.size() == 48);
  CHECK(storage.in_memory() == nullptr);
  CHECK(recipe->computed == 0);
  CHECK(values_of(storage)[11] == 24);
  CHECK(copy.bytes().data() == storage.bytes().data());
  CHECK(recipe->computed == 4);
  CHECK(storage.recipe() == nullptr);
  CHECK(storage.identity() == copy.identity());
}

TEST_CASE("permutations of every axis order equal the definition, in one step and in chains", "[recipe]") {
  const Shape shape = {4, 3, 5, 2};
  const std::vector<std::int32_t> source = values_of(numbers(120));
  Team team(3, true);
  Dims perm = {0, 1, 2, 3};
  do {
    for (const bool doubled : {false, true}) {
      std::vector<std::int32_t> expected = permuted(source, shape, perm);
      Storage first = numbers(120);
      if (doubled) {  // a unit of the source is a part of a unit of the result, which is computed from it
        first = Storage::deferred(480, std::make_shared<const Doubled>(first, 10));
        for (std::int32_t& each : expected) each *= 2;
      }
      const Storage moved = exec::deferred_permute(first, DType::kI32, shape, perm);
      Shape moved_shape;
      for (const std::int64_t axis : perm) moved_shape.push_back(shape[static_cast<std::size_t>(axis)]);
      const Storage again = exec::deferred_permute(moved, DType::kI32, moved_shape, perm);
      compute(std::vector{again.deferred_state(), moved.deferred_state()}, &team);
      CHECK(values_of(moved) == expected);
      CHECK(values_of(again) == permuted(expected, moved_shape, perm));
      CHECK(values_of(exec::deferred_permute(first, DType::kI32, shape, perm)) == expected);
    }
  } while (std::next_permutation(perm.begin(), perm.end()));
}

TEST_CASE("what a permutation was computed from is derived from its result", "[recipe]") {
  const auto values = std::make_shared<std::vector<std::int32_t>>(values_of(numbers(600)));
  const auto changed = std::make_shared<bool>(false);
  const std::weak_ptr<std::vector<std::int32_t>> alive = values;
  const Shape shape = {10, 20, 3};
  const std::vector<std::int32_t> source = *values;
  Storage scaled, moved;
  {
    auto owner = values;
    const Storage own = deferred_copy(view_of(owner, changed));
    scaled = Storage::deferred(2400, std::make_shared<const Doubled>(own, 60));
    moved = exec::deferred_permute(scaled, DType::kI32, shape, {0, 2, 1});
  }
  CHECK(scaled.is_view());
  CHECK(moved.is_view());
  compute(std::vector{moved.deferred_state()}, nullptr);
  CHECK_FALSE(moved.is_view());
  CHECK_FALSE(scaled.is_view());
  CHECK(scaled.in_memory() == nullptr);
  *changed = true;
  std::fill(values->begin(), values->end(), -1);
  std::vector<std::int32_t> expected = source;
  for (std::int32_t& each : expected) each *= 2;
  CHECK(values_of(scaled) == expected);
  CHECK(values_of(moved) == permuted(expected, shape, {0, 2, 1}));
}

TEST_CASE("a changed source is an error until the bytes are computed, and none after it", "[recipe]") {
  const auto values = std::make_shared<std::vector<std::int32_t>>(values_of(numbers(8)));
  const auto changed = std::make_shared<bool>(false);
  const Storage early = Storage::deferred(32, std::make_shared<const Doubled>(view_of(values, changed), 2));
  const Storage late = Storage::deferred(32, std::make_shared<const Doubled>(view_of(values, changed), 2));
  static_cast<void>(early.bytes());
  *changed = true;
  CHECK(early.change_message().empty());
  CHECK(values_of(early)[7] == 16);
  CHECK(late.change_message() == "its version is another");
  CHECK_THROWS_WITH(late.bytes(), Catch::Contains("its version is another"));
  const Graph graph = graph_of({late});
  CHECK_THROWS_WITH(graph.values()[0].constant->bytes(),
                    Catch::Contains("'c0'") && Catch::Contains("its version is another"));
}

TEST_CASE("a copy that is made later reads its source until then", "[recipe]") {
  const auto values = std::make_shared<std::vector<std::int32_t>>(values_of(numbers(5)));
  const auto changed = std::make_shared<bool>(false);
  const auto graph = std::make_shared<const Graph>(
      graph_of({view_of(values, changed), view_of(values, changed), numbers(3)}));
  const std::shared_ptr<const Graph> later = own_constants_later(graph);
  const auto storage = [&](std::size_t i) { return later->values()[i].constant->storage; };
  CHECK(storage(0).is_view());
  CHECK(storage(0).bytes().data() == reinterpret_cast<const std::byte*>(values->data()));
  CHECK(storage(0).identity() == storage(1).identity());  // tied weights stay tied
  CHECK(later->values()[2].constant == graph->values()[2].constant);
  compute_constants(*later, {}, nullptr);
  CHECK_FALSE(storage(0).is_view());
  CHECK(storage(0).bytes().data() != reinterpret_cast<const std::byte*>(values->data()));
  (*values)[0] = 99;
  CHECK(values_of(storage(1)) == std::vector<std::int32_t>{1, 2, 3, 4, 5});
  CHECK(own_constants(later) == later);
  CHECK(own_constants_later(later) == later);
}

TEST_CASE("own_constants computes what is deferred over a view", "[recipe]") {
  const auto values = std::make_shared<std::vector<std::int32_t>>(values_of(numbers(8)));
  const auto changed = std::make_shared<bool>(false);
  const auto graph = std::make_shared<const Graph>(
      graph_of({Storage::deferred(32, std::make_shared<const Doubled>(view_of(values, changed), 2)),
                deferred_copy(view_of(values, changed))}));
  const std::shared_ptr<const Graph> own = own_constants(graph);
  (*values)[0] = 99;
  CHECK(values_of(own->values()[0].constant->storage)[0] == 2);
  CHECK(values_of(own->values()[1].constant->storage)[0] == 1);
  CHECK_FALSE(own->values()[1].constant->storage.is_view());
}

TEST_CASE("many constants are computed by several threads, each element once", "[recipe]") {
  std::vector<std::shared_ptr<const Doubled>> recipes;
  std::vector<Storage> storages;
  for (const std::size_t count : {7u, 70u, 100'000u, 1'400'000u, 3u}) {
    recipes.push_back(std::make_shared<const Doubled>(numbers(count), count % 7 == 0 ? 7 : 1));
    storages.push_back(Storage::deferred(count * sizeof(std::int32_t), recipes.back()));
  }
  storages.push_back(storages[2]);
  const Graph graph = graph_of(storages);
  Team team(3);
  compute_constants(graph, {}, &team);
  for (std::size_t i = 0; i < recipes.size(); ++i) {
    CAPTURE(i);
    CHECK(recipes[i]->computed * recipes[i]->unit_bytes() == storages[i].size());
    const std::vector<std::int32_t> found = values_of(storages[i]);
    bool equal = true;
    for (std::size_t k = 0; k < found.size(); ++k)
      equal = equal && found[k] == 2 * static_cast<std::int32_t>(k + 1);
    CHECK(equal);
  }
}

TEST_CASE("constants are computed in their places, the others in new memory", "[recipe]") {
  std::vector<Storage> storages;
  for (const std::size_t count : {5u, 1'400'000u, 9u})
    storages.push_back(
        Storage::deferred(count * sizeof(std::int32_t), std::make_shared<const Doubled>(numbers(count), 1)));
  const auto memory = std::make_shared<std::vector<std::byte>>(storages[0].size() + storages[1].size() + 4);
  const std::weak_ptr<const void> watch = memory;
  Places places;
  places[storages[0].deferred_state().get()] = {memory->data() + 4, memory};
  places[storages[1].deferred_state().get()] = {memory->data() + 4 + storages[0].size(), memory};
  compute_constants(graph_of(storages), {}, nullptr, places);
  CHECK(storages[0].bytes().data() == memory->data() + 4);
  CHECK(storages[1].bytes().data() == memory->data() + 4 + storages[0].size());
  for (const Storage& storage : storages) {
    CHECK_FALSE(storage.is_view());
    const std::vector<std::int32_t> found = values_of(storage);
    CHECK(found.front() == 2);
    CHECK(found.back() == 2 * static_cast<std::int32_t>(found.size()));
  }
  places.clear();
  CHECK(watch.use_count() == 3);  // each constant keeps the memory alive
}

TEST_CASE("threads that read a deferred storage at the same time get the same bytes", "[recipe]") {
  for (int round = 0; round < 50; ++round) {
    const Storage source = numbers(3000);
    const Storage moved = exec::deferred_permute(source, DType::kI32, {30, 100}, {1, 0});
    const Storage back = exec::deferred_permute(moved, DType::kI32, {100, 30}, {1, 0});
    std::vector<const std::byte*> seen(4);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < seen.size(); ++i)
      threads.emplace_back([&, i] {
        if (i % 2 == 0) static_cast<void>(moved.bytes());
        seen[i] = back.bytes().data();
      });
    for (std::thread& each : threads) each.join();
    CHECK(std::all_of(seen.begin(), seen.end(), [&](const std::byte* each) { return each == seen[0]; }));
    CHECK(values_of(back) == values_of(source));
  }
}

}  // namespace
}  // namespace tosaic
