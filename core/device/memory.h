#pragma once

#include <cstddef>
#include <cstdint>

namespace shardrun::device {

/// A block of a device's memory, such as a rank's arena.
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  virtual ~Memory() = default;

  /// The device address of the first byte.
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  /// A memfd that other processes can map; -1 if there is none.
  [[nodiscard]] virtual int descriptor() const noexcept { return -1; }
  /// Bytes of the pages touched so far, measured independently of the plan. Host memory throws Error{io} on failure.
  [[nodiscard]] virtual std::uint64_t touched_bytes() const = 0;

 protected:
  void set_range(std::byte* data, std::uint64_t bytes) noexcept {
    data_ = data;
    bytes_ = bytes;
  }

 private:
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace shardrun::device
