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

/// A queue of a device, and memory for the buffers of an execution.
class DeviceRoom {
 public:
  /// `separate`: each buffer has an allocation of its own of exactly its bytes, for tools that watch allocations.
  /// Otherwise one allocation is used again and again, with guards around each buffer.
  explicit DeviceRoom(const device::Device& device, bool separate = false);
  ~DeviceRoom();

 private:
  friend class RoomOfBuffers;
  const device::Device& device_;
  bool separate_;
  std::shared_ptr<const device::Memory> memory_;
  std::unique_ptr<device::Queue> queue_;
};

/// One execution of one op's kernel, whose buffers are made for it.
struct Execution {
  std::string_view op;
  const graph::Attributes& attributes;
  const std::vector<Tensor>& inputs;
  const std::vector<Tensor>& outputs;  ///< types and places; the values of output 0 matter when accumulating
  device::Scalars scalars = {};
  int threads = 1;
  bool accumulate = false;
  std::vector<std::pair<std::size_t, std::size_t>> in_place = {};  ///< (output, input) pairs that share memory
  const device::Kernel* kernel = nullptr;                          ///< instead of the one that the device would choose
  unsigned char content = 0xFF;  ///< of each byte of results and scratch before; all bits set is NaN
  DeviceRoom* room = nullptr;    ///< of the device; REQUIRED where the host cannot address its memory
};

/// Runs it and returns the outputs. Every buffer stands between guard bytes, results and scratch begin as `content`.
/// Throws Error{internal} when the kernel wrote outside its outputs and scratch, or into an operand that it was not
/// given.
[[nodiscard]] std::vector<Tensor> execute(const device::Device& device, const Execution& execution);

/// Computes a function node by node, each value in memory of its own, and returns all its values. `given` has every
/// input and every state that is read.
[[nodiscard]] IdVector<graph::ValueId, Tensor> evaluate(const graph::Function& function, const device::Device& device,
                                                        const std::map<graph::ValueId, Tensor>& given,
                                                        const device::Scalars& scalars);

}  // namespace shardrun::conformance
