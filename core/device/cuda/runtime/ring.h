#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace shardrun::device::cuda {

/// A queue of values in their order. It allocates only when it is larger than ever before.
template <typename T>
class Ring {
 public:
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  /// The i-th from the front.
  [[nodiscard]] const T& operator[](std::size_t i) const noexcept { return slots_[(first_ + i) % slots_.size()]; }
  [[nodiscard]] const T& front() const noexcept { return (*this)[0]; }
  [[nodiscard]] const T& back() const noexcept { return (*this)[count_ - 1]; }

  void push_back(const T& value) {
    if (count_ == slots_.size()) {
      std::rotate(slots_.begin(), slots_.begin() + static_cast<std::ptrdiff_t>(first_), slots_.end());
      first_ = 0;
      slots_.resize(std::max<std::size_t>(64, 2 * count_));
    }
    slots_[(first_ + count_++) % slots_.size()] = value;
  }
  void pop_front() noexcept {
    first_ = (first_ + 1) % slots_.size();
    --count_;
  }
  void pop_back() noexcept { --count_; }

 private:
  std::vector<T> slots_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

}  // namespace shardrun::device::cuda
