#pragma once

#include <unistd.h>

#include <utility>

namespace shardrun::shm_transport {

/// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) noexcept : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) {
      close(number_);
    }
  }

  /// Negative where it owns none.
  [[nodiscard]] int number() const noexcept { return number_; }

 private:
  int number_ = -1;
};

}  // namespace shardrun::shm_transport
