#include "tosaic/ir/same_elements.h"

#include <cstring>

#include "tosaic/ir/recipe.h"

namespace tosaic {
namespace {

constexpr std::size_t kSamples = 16;
constexpr std::size_t kWholeBytes = 65536;  // of storages of which all bytes are hashed

// Mixes a word into a hash.
std::uint64_t mixed(std::uint64_t hash, std::uint64_t word) {
  constexpr std::uint64_t kPrime = 0x100000001b3;
  hash = (hash ^ word) * kPrime;
  return hash ^ hash >> 29;
}

std::uint64_t word_at(const std::byte* memory, std::size_t at) {
  std::uint64_t word = 0;
  std::memcpy(&word, memory + at, sizeof word);
  return word;
}

// The storage itself if its bytes are in memory, else the storage in memory from which they are computed.
Storage in_memory_of(Storage storage) {
  while (storage.in_memory() == nullptr) {
    const std::shared_ptr<const Recipe> recipe = storage.recipe();
    if (recipe == nullptr) break;  // another thread has computed the bytes in the meantime
    storage = recipe->source();
  }
  return storage;
}

}  // namespace

bool same_elements(const Storage& a, const Storage& b) {
  if (a.size() != b.size() || !a.bound() || !b.bound()) return false;
  if (a.identity() == b.identity()) return true;
  if (!a.change_message().empty() || !b.change_message().empty()) return false;
  const std::byte *own = a.in_memory(), *other = b.in_memory();
  if (own != nullptr && other != nullptr) return own == other || std::memcmp(own, other, a.size()) == 0;
  const std::shared_ptr<const Recipe> recipe = a.recipe(), other_recipe = b.recipe();
  return recipe != nullptr && other_recipe != nullptr && recipe->computes_as(*other_recipe) &&
         same_elements(recipe->source(), other_recipe->source());
}

std::uint64_t sample_of(const Storage& storage) {
  std::uint64_t hash = 0xcbf29ce484222325 ^ storage.size();
  const Storage source = in_memory_of(storage);
  if (!source.change_message().empty()) return hash;
  const std::byte* memory = source.in_memory();
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  if (memory == nullptr || source.size() < kWord) return hash;
  const std::size_t last = source.size() - kWord;
  if (source.size() <= kWholeBytes) {
    for (std::size_t at = 0; at < last; at += kWord) hash = mixed(hash, word_at(memory, at));
    return mixed(hash, word_at(memory, last));
  }
  for (std::size_t i = 0; i <= kSamples; ++i) hash = mixed(hash, word_at(memory, last / kSamples * i));
  return hash;
}

}  // namespace tosaic
