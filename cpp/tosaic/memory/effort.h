// effort: how long a search may take, in units of work, and perhaps in time.
//
// A unit is about a nanosecond. A limit in units has the same result on every machine; a deadline does not.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>

namespace tosaic::memory {

class Effort {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Effort(std::size_t units, std::optional<Clock::time_point> deadline = {})
      : left_(units), deadline_(deadline) {}

  // Subtracts work that was done. Returns false if nothing is left.
  bool spend(std::size_t units) {
    left_ -= units < left_ ? units : left_;
    unchecked_ += units;
    if (deadline_ && unchecked_ >= kUnitsPerLook) {
      unchecked_ = 0;
      if (Clock::now() >= *deadline_) left_ = 0;
    }
    return left_ != 0;
  }

  [[nodiscard]] std::size_t left() const { return left_; }

  // An effort of at most this many units for a part of the search. settle() subtracts what the part spent.
  [[nodiscard]] Effort share(std::size_t units) const {
    return Effort(units < left_ ? units : left_, deadline_);
  }
  void settle(const Effort& part, std::size_t reserved) {
    const std::size_t given = reserved < left_ ? reserved : left_;
    spend(given - part.left_);
    if (deadline_ && Clock::now() >= *deadline_) left_ = 0;
  }

 private:
  static constexpr std::size_t kUnitsPerLook = 100'000;

  std::size_t left_;
  std::optional<Clock::time_point> deadline_;
  std::size_t unchecked_ = 0;
};

}  // namespace tosaic::memory
