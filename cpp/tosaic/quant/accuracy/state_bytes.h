// state_bytes: states as bytes, and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "tosaic/base/error.h"

namespace tosaic::quant {

class StateWriter {
 public:
  explicit StateWriter(std::uint32_t format) { put(format); }
  template <class T>
  void put(const T& value) {
    put_all(std::span<const T>(&value, 1));
  }
  template <class T>
  void put_all(std::span<const T> values) {
    const std::span<const std::byte> bytes = std::as_bytes(values);
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  [[nodiscard]] std::vector<std::byte> finish() && { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// Throws InvalidGraph for bytes that are not a state of this format.
class StateReader {
 public:
  StateReader(std::span<const std::byte> bytes, std::uint32_t format, const char* name)
      : rest_(bytes), name_(name) {
    require(take<std::uint32_t>() == format);
  }
  template <class T>
  [[nodiscard]] T take() {
    T value;
    take_all(std::span<T>(&value, 1));
    return value;
  }
  template <class T>
  void take_all(std::span<T> values) {
    require(rest_.size() >= values.size_bytes());
    if (!values.empty()) std::memcpy(values.data(), rest_.data(), values.size_bytes());
    rest_ = rest_.subspan(values.size_bytes());
  }
  void require(bool holds) const {
    if (holds) return;
    throw InvalidGraph({.where = "accuracy",
                        .what = std::string("the state of ") + name_ + " is damaged",
                        .expected = "bytes that to_bytes returned"});
  }
  [[nodiscard]] std::size_t left() const { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
  const char* name_;
};

}  // namespace tosaic::quant
