// Damages the bytes of a file: single bits and bytes, words that are critical as lengths or offsets, words
// from elsewhere in the file, and truncation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <random>
#include <vector>

namespace tosaic::testing {

class Mutator {
 public:
  using Bytes = std::vector<std::byte>;

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

// The number of mutations of a fuzz test: the environment variable TOSAIC_FUZZ_ITERATIONS, else 3,000.
inline std::size_t fuzz_iterations() {
  const char* text = std::getenv("TOSAIC_FUZZ_ITERATIONS");
  return text == nullptr ? 3000 : static_cast<std::size_t>(std::strtoull(text, nullptr, 10));
}

}  // namespace tosaic::testing
