#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/device/device.h"
#include "core/device/queue.h"

namespace shardrun::device {

/// The kind of a device's memory and queues. Transports choose by it how they move data.
enum class MemoryKind : std::uint8_t {
  cuda,  ///< memory of CUDA; its queues are streams
};

/// A device whose memory the host cannot address. A transport can move data in it, in order with the work of queues.
class DeviceApart : public Device {
 public:
  using Device::Device;

  [[nodiscard]] bool is_addressable() const noexcept final { return false; }
  [[nodiscard]] virtual MemoryKind memory_kind() const noexcept = 0;
  /// The number of the unit that this process uses (set by Device::use_unit).
  [[nodiscard]] virtual std::size_t unit() const = 0;
  /// Opens a queue for transfers. They have priority over other queues' kernels, because other ranks wait for them.
  [[nodiscard]] virtual std::unique_ptr<Queue> open_transfer_queue(Threads& threads) const = 0;
};

/// The device as a DeviceApart, or null if the host can address its memory.
[[nodiscard]] inline const DeviceApart* apart(const Device& device) noexcept {
  return dynamic_cast<const DeviceApart*>(&device);
}

}  // namespace shardrun::device
