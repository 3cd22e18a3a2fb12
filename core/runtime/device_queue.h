#pragma once

#include <shardrun/transport.h>

#include <cstdint>

#include "core/device/apart.h"
#include "plugins/loader/transport_queue.h"

namespace shardrun::runtime {

/// The numbers by which transports know a device's memory and its queues: SR_MEMORY_... and SR_QUEUE_...
struct DeviceKinds {
  std::uint32_t memory = SR_MEMORY_HOST;
  std::uint32_t queue = SR_QUEUE_HOST;
};

[[nodiscard]] inline DeviceKinds kinds_of(const device::DeviceApart& device) noexcept {
  switch (device.memory_kind()) {
    case device::MemoryKind::cuda: return {SR_MEMORY_CUDA, SR_QUEUE_CUDA};
  }
  return {};
}

/// A device's queue as transports see it. `queue` outlives this object.
class DeviceQueue final : public plugins::TransportQueue {
 public:
  /// For transports of host memory: the host does the work when the queue reaches it.
  explicit DeviceQueue(device::Queue& queue) : TransportQueue(SR_QUEUE_HOST), queue_(queue) {}
  /// For transports of the device's memory, which enqueue work of the device.
  DeviceQueue(device::Queue& queue, const device::DeviceApart& device)
      : TransportQueue(kinds_of(device).queue, queue.native(), static_cast<std::uint32_t>(device.unit())),
        queue_(queue) {}

  void call(void (*run)(void* argument), void* argument) override { queue_.call(run, argument); }
  [[nodiscard]] std::uint64_t add_gate() override { return queue_.add_gate(); }
  void open_gate(std::uint64_t gate) noexcept override { queue_.open_gate(gate); }

 private:
  device::Queue& queue_;
};

}  // namespace shardrun::runtime
