#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "core/base/error.h"

namespace shardrun::test {

/// Floats that other processes can map.
class Arena {
 public:
  /// The default is too much to be enclosed, or to go through slots at once.
  explicit Arena(std::uint64_t bytes = 65'536) : bytes_(bytes), descriptor_(memfd_create("arena", MFD_CLOEXEC)) {
    if (descriptor_ < 0 || ftruncate(descriptor_, static_cast<off_t>(bytes_)) != 0) {
      throw Error(ErrorCode::internal, "no memory for an arena");
    }
    data_ = static_cast<float*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0));
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() {
    munmap(data_, bytes_);
    close(descriptor_);
  }

  [[nodiscard]] float* data() const noexcept { return data_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }

 private:
  std::uint64_t bytes_;
  int descriptor_;
  float* data_ = nullptr;
};

}  // namespace shardrun::test
