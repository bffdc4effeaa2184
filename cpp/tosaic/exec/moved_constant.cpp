#include "tosaic/exec/moved_constant.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tosaic/ir/recipe.h"
#include "tosaic/kernels/strided_copy.h"

namespace tosaic::exec {
namespace {

// A unit has the elements of one index of axis 0 of the result.
class Permute final : public Recipe {
 public:
  Permute(const Storage& source, std::size_t width, const Shape& shape, const Dims& perm)
      : Recipe(source), width_(width), perm_(perm) {
    std::vector<std::int64_t> strides(shape.size(), 1);
    for (std::size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
    std::int64_t stride = 1;
    extents_.resize(shape.size());
    source_strides_.resize(shape.size());
    target_strides_.resize(shape.size());
    for (std::size_t i = shape.size(); i-- > 0;) {
      const auto axis = static_cast<std::size_t>(perm[i]);
      extents_[i] = shape[axis];
      source_strides_[i] = strides[axis];
      target_strides_[i] = stride;
      stride *= shape[axis];
    }
  }

  [[nodiscard]] std::size_t unit_bytes() const override {
    return static_cast<std::size_t>(target_strides_[0]) * width_;
  }
  void prepare() const override {
    if (perm_[0] == 0) return Recipe::prepare();
    static_cast<void>(source().bytes());
  }
  void compute(std::size_t begin, std::size_t end, std::byte* to) const override {
    const std::byte* from = source().in_memory();
    // Since prepare(), the source constant may have got another recipe, and may not be in memory now.
    if (from == nullptr && perm_[0] != 0) from = source().bytes().data();
    if (from != nullptr) {
      const auto first =
          static_cast<std::int64_t>(begin) * source_strides_[0] * static_cast<std::int64_t>(width_);
      return copy_of(end - begin).run(from + first, to, nullptr);
    }
    UnitReader units(source(), unit_bytes());
    const kernels::StridedCopy copy = copy_of(1);
    for (std::size_t i = begin; i < end; ++i)
      copy.run(units.unit(i), to + (i - begin) * unit_bytes(), nullptr);
  }
  [[nodiscard]] bool computes_as(const Recipe& other) const override {
    const auto* permute = dynamic_cast<const Permute*>(&other);
    return permute != nullptr && width_ == permute->width_ && extents_ == permute->extents_ &&
           source_strides_ == permute->source_strides_;
  }
  [[nodiscard]] std::shared_ptr<const Recipe> inverse(const Storage& result) const override {
    Shape shape;
    Dims perm = perm_;
    for (std::size_t i = 0; i < perm_.size(); ++i) {
      shape.push_back(extents_[i]);
      perm[static_cast<std::size_t>(perm_[i])] = static_cast<std::int64_t>(i);
    }
    return std::make_shared<const Permute>(result, width_, shape, perm);
  }

 private:
  // Copies the result's first `units` positions along axis 0.
  [[nodiscard]] kernels::StridedCopy copy_of(std::size_t units) const {
    std::vector<std::int64_t> extents = extents_;
    extents[0] = static_cast<std::int64_t>(units);
    return {width_, std::move(extents), source_strides_, target_strides_, kernels::Options()};
  }

  std::size_t width_;
  Dims perm_;
  std::vector<std::int64_t> extents_, source_strides_, target_strides_;  // by axis of the result
};

}  // namespace

Storage deferred_permute(const Storage& source, DType dtype, const Shape& shape, const Dims& perm) {
  return Storage::deferred(source.size(),
                           std::make_shared<const Permute>(source, byte_size(dtype), shape, perm));
}

}  // namespace tosaic::exec
