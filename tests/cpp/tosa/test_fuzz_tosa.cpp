// Damages files. deserialize() throws InvalidGraph or UnsupportedOp, or returns a graph that survives a round
// trip (written, read and written again, it has the same bytes). The environment variable
// TOSAIC_FUZZ_ITERATIONS sets the number of mutations.
#include <algorithm>
#include <catch2/catch.hpp>

#include "mutator.h"
#include "tosa/every_op.h"
#include "tosaic/base/error.h"
#include "tosaic/tosa/deserialize.h"
#include "tosaic/tosa/serialize.h"

namespace tosaic {
namespace {

using Bytes = std::vector<std::byte>;

constexpr unsigned kSeed = 20240117;

std::vector<Bytes> originals() {
  std::vector<Bytes> files;
  const auto add = [&files](const Graph& graph, std::size_t inline_limit) {
    tosa::SerializeOptions options;
    options.inline_limit = inline_limit;
    const Storage file = tosa::serialize(graph, options);
    files.emplace_back(file.bytes().begin(), file.bytes().end());
  };
  for (const testing::TosaCase& c : testing::every_tosa_op()) add(c.graph, 1 << 20);
  for (const std::size_t limit : {std::size_t{0}, std::size_t{1} << 20})
    add(testing::small_tosa_network(), limit);
  return files;
}

// True if the file was accepted. Throws other errors than those that a damaged file may cause.
bool read_and_write(const Bytes& file) {
  try {
    const Storage once = tosa::serialize(tosa::deserialize(std::span(file)));
    const Storage twice = tosa::serialize(tosa::deserialize(once));
    if (!std::ranges::equal(once.bytes(), twice.bytes())) FAIL("the bytes are no fixpoint");
    return true;
  } catch (const InvalidGraph&) {
  } catch (const UnsupportedOp&) {
  }
  return false;
}

}  // namespace

TEST_CASE("a damaged tosa file is read or refused", "[tosa][fuzz]") {
  const auto iterations = static_cast<long>(testing::fuzz_iterations());
  const std::vector<Bytes> files = originals();
  testing::Mutator mutator(kSeed);
  long accepted = 0;
  for (long i = 0; i < iterations; ++i) {
    const std::size_t original = mutator.below(files.size());
    Bytes file = files[original];
    mutator.mutate(file);
    INFO("seed " << kSeed << ", mutation " << i << " of file " << original);
    try {
      if (read_and_write(file)) ++accepted;
    } catch (const std::exception& error) {
      FAIL(error.what());
    }
  }
  if (iterations >= 1000) {
    CHECK(accepted > iterations / 100);
    CHECK(accepted < iterations);
  }
}

}  // namespace tosaic
