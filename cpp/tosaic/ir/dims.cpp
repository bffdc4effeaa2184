#include "tosaic/ir/dims.h"

#include <algorithm>
#include <numeric>

#include "tosaic/base/error.h"

namespace tosaic {
namespace {

[[noreturn]] void fail_rank(std::size_t rank) {
  throw InvalidGraph({.where = "dims",
                      .what = "a list of extents or axes is too long",
                      .expected = "at most " + std::to_string(kMaxRank),
                      .got = std::to_string(rank)});
}

}  // namespace

Dims::Dims(std::span<const std::int64_t> values) {
  if (values.size() > kMaxRank) fail_rank(values.size());
  std::copy(values.begin(), values.end(), data_.begin());
  size_ = static_cast<std::uint8_t>(values.size());
}

Dims Dims::filled(std::size_t count, std::int64_t value) {
  Dims out;
  for (std::size_t i = 0; i < count; ++i) out.push_back(value);
  return out;
}

Dims Dims::iota(std::size_t count) {
  Dims out = filled(count, 0);
  std::iota(out.begin(), out.end(), 0);
  return out;
}

void Dims::push_back(std::int64_t value) {
  if (size_ == kMaxRank) fail_rank(kMaxRank + 1);
  data_[size_] = value;
  ++size_;
}

void Dims::insert(std::size_t at, std::int64_t value) {
  push_back(value);
  std::rotate(begin() + at, end() - 1, end());
}

void Dims::erase(std::size_t at) {
  std::copy(begin() + at + 1, end(), begin() + at);
  --size_;
  data_[size_] = 0;
}

bool Dims::contains(std::int64_t value) const { return std::find(begin(), end(), value) != end(); }

bool Dims::operator==(const Dims& other) const {
  return size_ == other.size_ && std::equal(begin(), end(), other.begin());
}

std::int64_t num_elements(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape)
    if (__builtin_mul_overflow(count, extent, &count))
      throw InvalidGraph({.where = "dims", .what = "shape " + to_string(shape) + " has too many elements"});
  return count;
}

std::string to_string(const Dims& dims) {
  std::string text = "[";
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (i != 0) text += ",";
    text += std::to_string(dims[i]);
  }
  return text + "]";
}

Dims contiguous_strides(const Shape& shape) {
  Dims strides = Dims::filled(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;)
    strides[i - 1] = strides[i] * std::max<std::int64_t>(shape[i], 1);
  return strides;
}

Dims permuted(const Dims& dims, const Dims& perm) {
  Dims out = dims;
  for (std::size_t i = 0; i < perm.size(); ++i) out[i] = dims[static_cast<std::size_t>(perm[i])];
  return out;
}

Dims inverse_permutation(const Dims& perm) {
  Dims out = perm;
  for (std::size_t i = 0; i < perm.size(); ++i)
    out[static_cast<std::size_t>(perm[i])] = static_cast<std::int64_t>(i);
  return out;
}

bool is_permutation_of_axes(const Dims& perm, std::size_t rank) {
  if (perm.size() != rank) return false;
  std::uint32_t seen = 0;
  for (const std::int64_t axis : perm) {
    if (axis < 0 || axis >= static_cast<std::int64_t>(rank)) return false;
    seen |= 1u << axis;
  }
  return seen == (1u << rank) - 1u;
}

bool is_identity_permutation(const Dims& perm) {
  for (std::size_t i = 0; i < perm.size(); ++i)
    if (perm[i] != static_cast<std::int64_t>(i)) return false;
  return true;
}

std::size_t normalize_axis(std::int64_t axis, std::size_t rank) {
  const auto limit = static_cast<std::int64_t>(std::max<std::size_t>(rank, 1));
  if (axis < -limit || axis >= limit)
    throw InvalidGraph(
        {.where = "infer",
         .what = "axis out of range",
         .expected = "an axis in [" + std::to_string(-limit) + ", " + std::to_string(limit) + ")",
         .got = std::to_string(axis)});
  return static_cast<std::size_t>(axis < 0 ? axis + limit : axis);
}

Shape broadcast(const Shape& a, const Shape& b) {
  const std::size_t rank = std::max(a.size(), b.size());
  Shape out = Dims::filled(rank, 1);
  for (std::size_t i = 0; i < rank; ++i) {
    const std::int64_t ea = i < rank - a.size() ? 1 : a[i - (rank - a.size())];
    const std::int64_t eb = i < rank - b.size() ? 1 : b[i - (rank - b.size())];
    if (ea != eb && ea != 1 && eb != 1)
      throw InvalidGraph({.where = "infer",
                          .what = "shapes do not broadcast",
                          .expected = "extents that are equal or 1",
                          .got = to_string(a) + " and " + to_string(b)});
    out[i] = ea == 1 ? eb : ea;
  }
  return out;
}

}  // namespace tosaic
