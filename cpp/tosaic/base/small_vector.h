// SmallVector: a vector that stores up to N elements in the object itself. With more elements, all of them
// are on the heap. The elements must be of a trivially copyable type.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>
#include <utility>

namespace tosaic {

template <class T, std::uint32_t N>
class SmallVector {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T> && N > 0);

 public:
  SmallVector() {}
  explicit SmallVector(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) push_back(T());
  }
  SmallVector(std::initializer_list<T> values) {
    for (const T& value : values) push_back(value);
  }
  SmallVector(const SmallVector& other) { assign(other); }
  SmallVector(SmallVector&& other) noexcept { take(other); }
  SmallVector& operator=(const SmallVector& other) {
    if (this != &other) {
      size_ = 0;
      assign(other);
    }
    return *this;
  }
  SmallVector& operator=(SmallVector&& other) noexcept {
    if (this != &other) {
      release();
      take(other);
    }
    return *this;
  }
  ~SmallVector() { release(); }

  void push_back(T value) {
    if (size_ == capacity_) grow(2 * capacity_);
    data()[size_++] = value;
  }

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] T& operator[](std::size_t i) { return data()[i]; }
  [[nodiscard]] const T& operator[](std::size_t i) const { return data()[i]; }
  [[nodiscard]] const T& front() const { return data()[0]; }
  [[nodiscard]] const T& back() const { return data()[size_ - 1]; }
  [[nodiscard]] T* begin() { return data(); }
  [[nodiscard]] T* end() { return data() + size_; }
  [[nodiscard]] const T* begin() const { return data(); }
  [[nodiscard]] const T* end() const { return data() + size_; }

  bool operator==(const SmallVector& other) const {
    return size_ == other.size_ && std::equal(begin(), end(), other.begin());
  }

 private:
  [[nodiscard]] bool is_small() const { return capacity_ == N; }
  [[nodiscard]] T* data() { return is_small() ? inline_ : heap_; }
  [[nodiscard]] const T* data() const { return is_small() ? inline_ : heap_; }

  void assign(const SmallVector& other) {
    if (other.size_ > capacity_) grow(other.size_);
    std::copy(other.begin(), other.end(), data());
    size_ = other.size_;
  }
  void take(SmallVector& other) {
    size_ = std::exchange(other.size_, 0);
    capacity_ = std::exchange(other.capacity_, N);
    if (is_small())
      std::copy(other.inline_, other.inline_ + size_, inline_);
    else
      heap_ = other.heap_;
  }
  void grow(std::uint32_t capacity) {
    T* const wider = new T[capacity];
    std::copy(begin(), end(), wider);
    release();
    heap_ = wider;
    capacity_ = capacity;
  }
  void release() {
    if (!is_small()) delete[] heap_;
    capacity_ = N;
  }

  std::uint32_t size_ = 0, capacity_ = N;  // capacity_ > N: the elements are in heap_
  union {
    T inline_[N];
    T* heap_;
  };
};

}  // namespace tosaic
