// Dims: a short list of integers (shape, axes, strides ...) with inline storage. It has at most 8 entries.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace tosaic {

inline constexpr std::size_t kMaxRank = 8;

class Dims {
 public:
  constexpr Dims() = default;
  Dims(std::initializer_list<std::int64_t> values) : Dims(std::span(values.begin(), values.size())) {}
  explicit Dims(std::span<const std::int64_t> values);  // throws InvalidGraph beyond kMaxRank
  static Dims filled(std::size_t count, std::int64_t value);
  static Dims iota(std::size_t count);

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] std::int64_t& operator[](std::size_t i) { return data_[i]; }
  [[nodiscard]] std::int64_t operator[](std::size_t i) const { return data_[i]; }
  [[nodiscard]] std::int64_t back() const { return data_[size_ - 1u]; }
  [[nodiscard]] const std::int64_t* begin() const { return data_.data(); }
  [[nodiscard]] const std::int64_t* end() const { return data_.data() + size_; }
  [[nodiscard]] std::int64_t* begin() { return data_.data(); }
  [[nodiscard]] std::int64_t* end() { return data_.data() + size_; }
  [[nodiscard]] std::span<const std::int64_t> span() const { return {data_.data(), size_}; }
  void push_back(std::int64_t value);  // throws InvalidGraph beyond kMaxRank
  void insert(std::size_t at, std::int64_t value);
  void erase(std::size_t at);
  [[nodiscard]] bool contains(std::int64_t value) const;

  bool operator==(const Dims& other) const;

 private:
  std::array<std::int64_t, kMaxRank> data_{};
  std::uint8_t size_ = 0;
};

using Shape = Dims;

// Product of the extents; 1 for rank 0. Throws InvalidGraph if it does not fit 63 bits.
[[nodiscard]] std::int64_t num_elements(const Shape& shape);
// "[1,3,224,224]"
[[nodiscard]] std::string to_string(const Dims& dims);
// Row-major strides in elements. An empty axis counts as extent 1.
[[nodiscard]] Dims contiguous_strides(const Shape& shape);
// out[i] = dims[perm[i]].
[[nodiscard]] Dims permuted(const Dims& dims, const Dims& perm);
[[nodiscard]] Dims inverse_permutation(const Dims& perm);
[[nodiscard]] bool is_permutation_of_axes(const Dims& perm, std::size_t rank);
[[nodiscard]] bool is_identity_permutation(const Dims& perm);
// Maps an axis in [-rank, rank) to [0, rank). Rank 0 counts as rank 1, as in torch. Throws InvalidGraph if
// the axis is out of range.
[[nodiscard]] std::size_t normalize_axis(std::int64_t axis, std::size_t rank);
// NumPy broadcasting of two shapes. Throws InvalidGraph if they do not broadcast.
[[nodiscard]] Shape broadcast(const Shape& a, const Shape& b);

}  // namespace tosaic
