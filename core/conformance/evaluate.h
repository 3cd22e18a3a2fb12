#pragma once

#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "core/conformance/tensor.h"
#include "core/device/device.h"
#include "core/graph/graph.h"

namespace shardrun::conformance {

/// A queue of a device, and device memory for the buffers of an execution.
class DeviceRoom {
 public:
  /// `separate`: each buffer has an allocation of exactly its size, for tools that check allocations. Otherwise all
  /// executions use one allocation, with guards around each buffer.
  explicit DeviceRoom(const device::Device& device, bool separate = false);
  ~DeviceRoom();

 private:
  friend class RoomOfBuffers;
  const device::Device& device_;
  bool separate_;
  std::shared_ptr<const device::Memory> memory_;
  std::unique_ptr<device::Queue> queue_;
};

/// An execution of an op's kernel. execute() makes the buffers.
struct Execution {
  std::string_view op;
  const graph::Attributes& attributes;
  const std::vector<Tensor>& inputs;
  const std::vector<Tensor>& outputs;  ///< types and positions of results; for `accumulate`, also output 0's values
  device::Scalars scalars = {};
  int threads = 1;
  bool accumulate = false;
  std::vector<std::pair<std::size_t, std::size_t>> in_place = {};  ///< (output, input) pairs that share a buffer
  const device::Kernel* kernel = nullptr;                          ///< null: the kernel that the device prefers
  unsigned char content = 0xFF;  ///< the initial value of each byte of results and scratch; 0xFF makes real numbers NaN
  DeviceRoom* room = nullptr;    ///< memory on the device; required if the host cannot address the device's memory
};

/// Runs the kernel and returns the outputs. Each buffer is between guard bytes. Throws Error{internal} if the kernel
/// wrote outside of its outputs and scratch, or to an operand that shares no output's buffer.
[[nodiscard]] std::vector<Tensor> execute(const device::Device& device, const Execution& execution);

/// Executes a function node by node, with separate memory for each value, and returns all values. `given`: every input,
/// and every state that the function reads.
[[nodiscard]] IdVector<graph::ValueId, Tensor> evaluate(const graph::Function& function, const device::Device& device,
                                                        const std::map<graph::ValueId, Tensor>& given,
                                                        const device::Scalars& scalars);

}  // namespace shardrun::conformance
