// Damages files. deserialize() throws InvalidGraph or UnsupportedOp, or returns a graph that survives a round
// trip (written, read and written again, it has the same bytes). The environment variable
// TOSAIC_FUZZ_ITERATIONS sets the number of mutations.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <random>

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

class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  std::size_t below(std::size_t limit) {
    return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random_);
  }

  void mutate(Bytes& file) {
    const std::size_t changes = 1 + below(6);
    for (std::size_t i = 0; i < changes && !file.empty(); ++i) change(file);
  }

 private:
  void change(Bytes& file) {
    const std::size_t at = below(file.size());
    switch (below(6)) {
      case 0:
        file[at] = static_cast<std::byte>(below(256));
        break;
      case 1:
        file[at] ^= static_cast<std::byte>(1u << below(8));
        break;
      case 2: {  // a word that is critical as a length, offset or extent
        constexpr std::uint32_t kWords[] = {0,  1,          2,          3,          5,          8,
                                            64, 0x7fffffff, 0x80000000, 0xffffffff, 0xfffffffc, 0x10000};
        put(file, at & ~std::size_t{3}, kWords[below(std::size(kWords))]);
        break;
      }
      case 3: {  // a word from elsewhere in the file
        const std::size_t from = below(file.size()) & ~std::size_t{3};
        std::uint32_t word = 0;
        if (from + sizeof word <= file.size()) std::memcpy(&word, &file[from], sizeof word);
        put(file, at & ~std::size_t{3}, word);
        break;
      }
      case 4:  // plus or minus 1
        file[at] = static_cast<std::byte>(std::to_integer<unsigned>(file[at]) + (below(2) == 0 ? 1u : 255u));
        break;
      default:
        if (below(8) == 0) file.resize(at);
    }
  }
  static void put(Bytes& file, std::size_t at, std::uint32_t word) {
    if (at + sizeof word <= file.size()) std::memcpy(&file[at], &word, sizeof word);
  }

  std::mt19937 random_;
};

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
  const char* const text = std::getenv("TOSAIC_FUZZ_ITERATIONS");
  const long iterations = text == nullptr ? 10000 : std::atol(text);
  const std::vector<Bytes> files = originals();
  Mutator mutator(kSeed);
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
