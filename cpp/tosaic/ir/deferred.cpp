#include "tosaic/ir/deferred.h"

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tosaic/base/error.h"
#include "tosaic/base/team.h"
#include "tosaic/ir/unset_storage.h"

namespace tosaic {
namespace {

constexpr std::size_t kPartBytes = std::size_t{256} << 10;  // what a thread computes before it looks for more
constexpr std::size_t kAlignment = 64;
// Storages of at most this size share one piece of memory, since the system provides large pages only for
// large pieces.
constexpr std::size_t kSharedBytes = std::size_t{4} << 20;

struct Memory {
  Storage storage;
  std::byte* begin;
};

// Returns the memory for one storage after another. Its bytes are not set.
class Allocator {
 public:
  // Callers then request the memory of the storages in the order of `all`.
  Allocator(std::span<Deferred* const> all, const Places& places) : places_(places) {
    std::size_t shared_bytes = 0;
    for (const Deferred* each : all)
      if (is_shared(*each)) shared_bytes += rounded(each->size());
    shared_ = unset_storage(shared_bytes);
    first_ = shared_.writable();
  }

  Memory memory_for(const Deferred& target) {
    if (const auto place = places_.find(&target); place != places_.end())
      return {Storage(place->second.owner, place->second.begin, target.size()), place->second.begin};
    if (!is_shared(target)) {
      Storage own = unset_storage(target.size());
      std::byte* const begin = own.writable();
      return {std::move(own), begin};
    }
    const std::size_t at = std::exchange(at_, at_ + rounded(target.size()));
    return {shared_.part(at, target.size()), first_ + at};
  }

 private:
  static std::size_t rounded(std::size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }
  [[nodiscard]] bool is_shared(const Deferred& target) const {
    return target.size() <= kSharedBytes && !places_.contains(&target);
  }

  const Places& places_;
  Storage shared_;
  std::byte* first_ = nullptr;
  std::size_t at_ = 0;
};

}  // namespace

const void* origin_of(const Storage& storage) {
  const std::shared_ptr<Deferred>& state = storage.deferred_state();
  return state != nullptr ? state->origin() : storage.in_memory();
}

Deferred::Deferred(std::size_t size, std::shared_ptr<const Recipe> recipe)
    : size_(size),
      remembered_(recipe->is_remembered() ? recipe : nullptr),
      origin_(origin_of(recipe->source())),
      recipe_(std::move(recipe)) {}

std::shared_ptr<const Recipe> Deferred::recipe() const {
  const std::lock_guard lock(mutex_);
  return recipe_;
}

const std::byte* Deferred::in_memory() const {
  if (const std::byte* data = data_.load(std::memory_order_acquire)) return data;
  const std::shared_ptr<const Recipe> recipe = this->recipe();
  if (recipe == nullptr) return data_.load(std::memory_order_acquire);
  return recipe->is_copy() ? recipe->source().in_memory() : nullptr;
}

std::span<const std::byte> Deferred::bytes() {
  if (const std::byte* data = in_memory()) return {data, size_};
  if (const std::shared_ptr<const Recipe> recipe = this->recipe()) {
    Storage computed = unset_storage(size_);
    recipe->prepare();
    recipe->compute(0, size_ / recipe->unit_bytes(), computed.writable());
    if (const std::string message = recipe->source().change_message(); !message.empty())
      throw InvalidGraph({.where = "storage",
                          .what = "a constant was changed after import: " + message,
                          .hint = "Import the model again"});
    finish(std::move(computed), *recipe);
  }
  return {data_.load(std::memory_order_acquire), size_};
}

std::string Deferred::change_message() const {
  const std::shared_ptr<const Recipe> recipe = this->recipe();
  return recipe == nullptr ? std::string() : recipe->source().change_message();
}

bool Deferred::is_view() const {
  const std::shared_ptr<const Recipe> recipe = this->recipe();
  return recipe != nullptr && recipe->source().is_view();
}

void Deferred::derive_from(std::shared_ptr<const Recipe> recipe) {
  // `recipe` takes the old recipe and dies after the lock is released: it may own a Python object.
  const std::lock_guard lock(mutex_);
  if (recipe_ != nullptr) recipe_.swap(recipe);
}

void Deferred::finish(Storage bytes, const Recipe& recipe) {
  {
    const std::lock_guard lock(mutex_);
    if (recipe_ == nullptr) return;  // another thread was faster
    memory_ = std::move(bytes);
    recipe_ = nullptr;
    data_.store(memory_.bytes().data(), std::memory_order_release);
  }
  // The lock is released here, since the source has a lock of its own.
  const std::shared_ptr<Deferred>& source = recipe.source().deferred_state();
  if (source == nullptr || source->recipe() == nullptr) return;
  if (std::shared_ptr<const Recipe> back = recipe.inverse(memory_)) source->derive_from(std::move(back));
}

void compute(std::span<const std::shared_ptr<Deferred>> all, Team* team, const Places& places) {
  struct Part {
    std::size_t target, begin, end;  // begin and end: units
  };
  std::vector<Deferred*> targets;
  std::vector<std::shared_ptr<const Recipe>> recipes;  // of the targets
  std::vector<Part> parts;
  std::unordered_set<const Deferred*> seen;
  for (const std::shared_ptr<Deferred>& each : all) {
    if (!seen.insert(each.get()).second) continue;
    std::shared_ptr<const Recipe> recipe = each->recipe();
    if (recipe == nullptr) continue;
    recipe->prepare();
    const std::size_t units = each->size() / recipe->unit_bytes();
    const std::size_t step = std::max<std::size_t>(1, kPartBytes / recipe->unit_bytes());
    for (std::size_t begin = 0; begin < units; begin += step)
      parts.push_back({targets.size(), begin, std::min(begin + step, units)});
    targets.push_back(each.get());
    recipes.push_back(std::move(recipe));
  }
  if (targets.empty()) return;
  Allocator allocator(targets, places);
  std::vector<Memory> results;
  for (const Deferred* target : targets) results.push_back(allocator.memory_for(*target));
  for_each_in(team, parts.size(), [&](std::size_t index) {
    const Part& part = parts[index];
    const Recipe& recipe = *recipes[part.target];
    recipe.compute(part.begin, part.end, results[part.target].begin + part.begin * recipe.unit_bytes());
  });
  for (std::size_t i = 0; i < targets.size(); ++i)
    targets[i]->finish(std::move(results[i].storage), *recipes[i]);
}

}  // namespace tosaic
