#include "tosaic/ir/recipe.h"

#include <algorithm>
#include <span>

namespace tosaic {
namespace {

class Copy final : public Recipe {
 public:
  using Recipe::Recipe;
  [[nodiscard]] std::size_t unit_bytes() const override { return 1; }
  void compute(std::size_t begin, std::size_t end, std::byte* to) const override {
    const std::span<const std::byte> from = source().bytes();
    std::copy(from.begin() + static_cast<std::ptrdiff_t>(begin),
              from.begin() + static_cast<std::ptrdiff_t>(end), to);
  }
  void prepare() const override { static_cast<void>(source().bytes()); }
  [[nodiscard]] bool is_copy() const override { return true; }
};

// Rows of the source from row `begin` on. A unit is a row.
class Rows final : public Recipe {
 public:
  Rows(const Storage& source, std::size_t row_bytes, std::size_t begin)
      : Recipe(source), row_bytes_(row_bytes), begin_(begin) {}
  [[nodiscard]] std::size_t unit_bytes() const override { return row_bytes_; }
  void compute(std::size_t begin, std::size_t end, std::byte* to) const override {
    UnitReader rows(source(), row_bytes_);
    for (std::size_t i = begin; i < end; ++i, to += row_bytes_)
      std::copy_n(rows.unit(begin_ + i), row_bytes_, to);
  }

 private:
  std::size_t row_bytes_, begin_;
};

}  // namespace

void Recipe::prepare() const {
  if (!UnitReader::reads(source_, unit_bytes())) static_cast<void>(source_.bytes());
}

std::shared_ptr<const Recipe> Recipe::inverse(const Storage& /*result*/) const { return nullptr; }

Storage deferred_copy(const Storage& source) {
  return Storage::deferred(source.size(), std::make_shared<const Copy>(source));
}

Storage part_of_rows(const Storage& source, std::size_t rows, std::size_t begin, std::size_t size) {
  const std::size_t row_bytes = source.size() / rows;
  if (source.deferred_state() == nullptr) return source.part(begin * row_bytes, size * row_bytes);
  return Storage::deferred(size * row_bytes, std::make_shared<const Rows>(source, row_bytes, begin));
}

UnitReader::UnitReader(const Storage& source, std::size_t unit_bytes)
    : memory_(source.in_memory()), unit_bytes_(unit_bytes) {
  if (memory_ != nullptr) return;
  recipe_ = source.recipe();
  if (recipe_ == nullptr) {  // another thread has computed the bytes in the meantime
    memory_ = source.in_memory();
    return;
  }
  if (!reads(source, unit_bytes)) {  // the source has another recipe since prepare()
    memory_ = source.bytes().data();
    return;
  }
  buffer_.resize(unit_bytes);
}

bool UnitReader::reads(const Storage& source, std::size_t unit_bytes) {
  if (source.in_memory() != nullptr) return true;
  const std::shared_ptr<const Recipe> recipe = source.recipe();
  return recipe == nullptr || unit_bytes % recipe->unit_bytes() == 0;
}

const std::byte* UnitReader::unit(std::size_t index) {
  if (memory_ != nullptr) return memory_ + index * unit_bytes_;
  const std::size_t count = unit_bytes_ / recipe_->unit_bytes();
  recipe_->compute(index * count, (index + 1) * count, buffer_.data());
  return buffer_.data();
}

}  // namespace tosaic
