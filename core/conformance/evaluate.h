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

/// A device's queue, and memory on the device for the buffers of an execution.
class DeviceRoom {
 public:
  /// `separate`: each buffer gets its own allocation of exactly its size, for tools that watch allocations. Otherwise
  /// one allocation is used for all executions, with guards around each buffer.
  explicit DeviceRoom(const device::Device& device, bool separate = false);
  ~DeviceRoom();

 private:
  friend class RoomOfBuffers;
  const device::Device& device_;
  bool separate_;
  std::shared_ptr<const device::Memory> memory_;
  std::unique_ptr<device::Queue> queue_;
};

/// One execution of an op's kernel. execute() makes its buffers.
struct Execution {
  std::string_view op;
  const graph::Attributes& attributes;
  const std::vector<Tensor>& inputs;
  const std::vector<Tensor>& outputs;  ///< types and places; if `accumulate`, the values of output 0 matter
  device::Scalars scalars = {};
  int threads = 1;
  bool accumulate = false;
  std::vector<std::pair<std::size_t, std::size_t>> in_place = {};  ///< (output, input) pairs that share memory
  const device::Kernel* kernel = nullptr;                          ///< null: the kernel that the device chooses
  unsigned char content = 0xFF;  ///< the initial value of each byte of results and scratch; all bits set is NaN
  DeviceRoom* room = nullptr;    ///< the device's; required if the host cannot address its memory
};

/// Runs the kernel and returns the outputs. Every buffer stands between guard bytes. Throws Error{internal} if the
/// kernel wrote outside of its outputs and scratch, or to an operand that does not share an output's memory.
[[nodiscard]] std::vector<Tensor> execute(const device::Device& device, const Execution& execution);

/// Computes a function node by node, each value in its own memory, and returns all values. `given` has every input and
/// every state that the function reads.
[[nodiscard]] IdVector<graph::ValueId, Tensor> evaluate(const graph::Function& function, const device::Device& device,
                                                        const std::map<graph::ValueId, Tensor>& given,
                                                        const device::Scalars& scalars);

}  // namespace shardrun::conformance
