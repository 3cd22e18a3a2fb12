#pragma once

#include <cstddef>
#include <cstdint>

#include "core/device/memory.h"

namespace shardrun::device {

/// Memory of the host, zero at first: a memfd between two inaccessible guard pages. A memfd leaves no file name behind,
/// and a container's limit of shared memory does not apply to it.
class HostMemory final : public Memory {
 public:
  /// Throws Error{io} if the system does not grant so much memory.
  explicit HostMemory(std::uint64_t bytes);
  ~HostMemory() override;

  [[nodiscard]] int descriptor() const noexcept override { return descriptor_; }
  [[nodiscard]] std::uint64_t touched_bytes() const override;

 private:
  int descriptor_ = -1;
  std::byte* reservation_ = nullptr;
  std::uint64_t mapped_ = 0;
};

}  // namespace shardrun::device
