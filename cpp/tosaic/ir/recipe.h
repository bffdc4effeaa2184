// Recipe: how the bytes of a deferred storage are computed.
//
//   weights of torch --times the scale of a batch norm--> deferred --axes in another order--> deferred
//
// A pass that computes large constants does not have to compute their elements at once: it makes a storage
// with a recipe (Storage::deferred). The bytes are computed when somebody reads them, or together with the
// bytes of all other constants of a graph, in several threads (compute_constants, own_constants.h). A chain
// of recipes writes each element once, to its final place.
//
// The bytes are a list of units of equal size, e.g. the weights of one output channel. Units do not depend on
// each other. A recipe may read the units of its source one by one; then the source is not computed as a
// whole.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "tosaic/ir/storage.h"

namespace tosaic {

class Recipe {
 public:
  explicit Recipe(Storage source) : source_(std::move(source)) {}
  virtual ~Recipe() = default;
  Recipe(const Recipe&) = delete;
  Recipe& operator=(const Recipe&) = delete;

  [[nodiscard]] const Storage& source() const { return source_; }
  [[nodiscard]] virtual std::size_t unit_bytes() const = 0;
  // Writes the units [begin, end) to `to`. Threads may call it at the same time, after prepare().
  virtual void compute(std::size_t begin, std::size_t end, std::byte* to) const = 0;
  // Computes the whole source, unless compute() can read the source in units of unit_bytes().
  virtual void prepare() const;
  // The recipe that computes the source from the finished bytes `result`. Null if the bytes do not determine
  // it.
  [[nodiscard]] virtual std::shared_ptr<const Recipe> inverse(const Storage& result) const;
  // True if the bytes are the bytes of the source, and are only copied so that they have another owner.
  [[nodiscard]] virtual bool is_copy() const { return false; }
  // True if both recipes compute the same bytes from sources that hold the same bytes.
  [[nodiscard]] virtual bool computes_as(const Recipe& other) const { return this == &other; }
  // True if the storage remembers, after its bytes are computed, that this recipe made them.
  [[nodiscard]] virtual bool is_remembered() const { return false; }

 private:
  Storage source_;
};

// A storage with the bytes of `source`, in memory of its own. Until the copy is made, reading it reads the
// source.
[[nodiscard]] Storage deferred_copy(const Storage& source);

// The bytes of `size` rows from row `begin` on, of a storage that has `rows` rows. They are computed with the
// storage if that is deferred.
[[nodiscard]] Storage part_of_rows(const Storage& source, std::size_t rows, std::size_t begin,
                                   std::size_t size);

// Reads the bytes of a storage in units of `unit_bytes`: from memory if the storage is computed, else by its
// recipe. For one thread.
class UnitReader {
 public:
  UnitReader(const Storage& source, std::size_t unit_bytes);
  // True if the units can be read without computing the whole source.
  [[nodiscard]] static bool reads(const Storage& source, std::size_t unit_bytes);
  // The bytes of a unit. They are valid until the next call.
  [[nodiscard]] const std::byte* unit(std::size_t index);

 private:
  const std::byte* memory_ = nullptr;
  std::shared_ptr<const Recipe> recipe_;  // if the source is not in memory
  std::size_t unit_bytes_;
  std::vector<std::byte> buffer_;
};

}  // namespace tosaic
