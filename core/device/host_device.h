#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/device/device.h"
#include "core/device/queue.h"

namespace shardrun::device {

/// The processor as a device. Its queue does all work at once, on the calling thread. The program has two such devices:
/// `cpu` with fast kernels, and `reference` with readable ones in float64.
class HostDevice final : public Device {
 public:
  /// Kernels are registered under the device's name.
  explicit HostDevice(const std::string& name, std::optional<graph::DType> reals = std::nullopt)
      : Device(name, name, reals) {}

  [[nodiscard]] DeviceFacts facts() const override;
  [[nodiscard]] bool is_addressable() const noexcept override { return true; }
  [[nodiscard]] std::shared_ptr<const Memory> allocate(std::uint64_t bytes) const override;
  [[nodiscard]] std::unique_ptr<Queue> open_queue(Threads& threads) const override;
};

/// Describes a device on the processor whose kernels support these types.
[[nodiscard]] DeviceFacts facts_of_host(std::vector<graph::DType> computes);

/// Runs a prepared kernel at once. All its arguments are in host memory.
void run_on_host(const PreparedKernel& kernel, bool accumulate, const Scalars& scalars, Threads& threads);
/// Does a copy at once, between boxes in host memory.
void copy_on_host(const StridedCopy& copy);
/// Fills a tensor in host memory at once: see Queue::fill().
void fill_on_host(const TensorView& tensor, double value, Threads& threads);

}  // namespace shardrun::device
