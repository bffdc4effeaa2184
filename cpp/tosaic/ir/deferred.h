// Deferred: the state of a storage whose bytes are computed later. See recipe.h.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "tosaic/ir/places.h"
#include "tosaic/ir/recipe.h"
#include "tosaic/ir/storage.h"

namespace tosaic {

class Team;

// All functions may be called by several threads. If two of them compute the bytes at the same time, the
// result of one is dropped: a lock is never held while a recipe runs or an owner is asked, which may need
// Python's lock.
class Deferred {
 public:
  Deferred(std::size_t size, std::shared_ptr<const Recipe> recipe);

  [[nodiscard]] std::size_t size() const { return size_; }
  // The bytes, which are computed unless they are in memory. Throws InvalidGraph if the owner of a source
  // changed it since import.
  [[nodiscard]] std::span<const std::byte> bytes();
  // The bytes in memory, or null. A copy that is not made yet has the memory of its source.
  [[nodiscard]] const std::byte* in_memory() const;
  // An address that is the same for all storages that are, or were, computed from the same memory.
  [[nodiscard]] const void* origin() const { return origin_; }
  // Null after the bytes are computed.
  [[nodiscard]] std::shared_ptr<const Recipe> recipe() const;
  // The recipe by which the bytes were or will be made, if Recipe::is_remembered() is true for it; else null.
  [[nodiscard]] const std::shared_ptr<const Recipe>& remembered() const { return remembered_; }
  // As Storage::change_message() and is_view(), about the memory from which the bytes are computed.
  [[nodiscard]] std::string change_message() const;
  [[nodiscard]] bool is_view() const;

  // Takes the bytes, which `recipe` has computed. If the source of the recipe is deferred and not computed
  // yet, it is computed from these bytes from then on, so it needs no memory of its own or of other owners.
  void finish(Storage bytes, const Recipe& recipe);

 private:
  void derive_from(std::shared_ptr<const Recipe> recipe);

  const std::size_t size_;
  const std::shared_ptr<const Recipe> remembered_;
  const void* const origin_;
  std::atomic<const std::byte*> data_{nullptr};
  mutable std::mutex mutex_;  // guards what follows
  Storage memory_;
  std::shared_ptr<const Recipe> recipe_;
};

// Deferred::origin(), or the address of the bytes.
[[nodiscard]] const void* origin_of(const Storage& storage);

// Computes all storages of the list that are not computed yet, each in its place; in new memory if it has
// none. The threads of `team` share the work; null: this thread alone. Does not ask owners whether they
// changed their memory.
void compute(std::span<const std::shared_ptr<Deferred>> all, Team* team, const Places& places = {});

}  // namespace tosaic
