#pragma once

#include <cstddef>
#include <cstdint>

namespace shardrun::memory {

/// The one block of memory that a rank computes in: a memfd between two inaccessible guard pages. A memfd leaves no
/// name behind, and a container's limit of shared memory does not apply. Zero until it is written.
class Arena {
 public:
  /// Throws Error{io} when the system will not give that much.
  explicit Arena(std::uint64_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// The memfd, which other processes may map.
  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

  /// Bytes of the pages touched so far, as the kernel counts them. This measurement is independent of the plan.
  [[nodiscard]] std::uint64_t touched_bytes() const;

 private:
  int descriptor_ = -1;
  std::byte* reservation_ = nullptr;
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::uint64_t mapped_ = 0;
};

}  // namespace shardrun::memory
