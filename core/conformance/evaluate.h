#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/conformance/tensor.h"
#include "core/device/device.h"
#include "core/graph/graph.h"
#include "core/graph/op.h"
#include "plugins/loader/model_op.h"

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
  const std::vector<Tensor>& outputs;  ///< types and positions of results; with `accumulate`, also their first values
  device::Scalars scalars = {};
  int threads = 1;
  bool accumulate = false;
  std::vector<std::pair<std::size_t, std::size_t>> in_place = {};  ///< (output, input) pairs that share a buffer
  const device::Kernel* kernel = nullptr;                          ///< null: the kernel that the device prefers
  unsigned char content = 0xFF;  ///< the initial value of each byte of results and scratch; 0xFF makes real numbers NaN
  DeviceRoom* room = nullptr;    ///< memory on the device; required if the host cannot address the device's memory
};

/// Runs the kernel and returns the outputs. Each buffer is between guard bytes. Throws Error{internal} if the kernel
/// wrote outside of its outputs and scratch, or to an operand that does not share its buffer with an output.
[[nodiscard]] std::vector<Tensor> execute(const device::Device& device, const Execution& execution);

/// Executes a function node by node, with separate memory for each value, and returns all values. `given`: every input,
/// and every state that the function reads.
[[nodiscard]] IdVector<graph::ValueId, Tensor> evaluate(const graph::Function& function, const device::Device& device,
                                                        const std::map<graph::ValueId, Tensor>& given,
                                                        const device::Scalars& scalars);

/// A use of a model's op: attributes, random operands, and results with the types that its rule gives.
struct OpTrial {
  const plugins::ModelOp* declared = nullptr;
  const graph::Op* op = nullptr;
  graph::Attributes attributes;
  graph::ShardingRule rule;
  std::vector<Tensor> operands;
  std::vector<Tensor> results;  ///< filled with zeros
  std::string what;             ///< for messages: "op 'swish' of model 'mine' (/path) {slope=1.5} f32[b 5, d 3]"
};

/// Two trials with these attributes for each number of operands that the op takes. Factors whose size the op does not
/// fix have sizes from 3 to 7 in the first trial, and 1 in the second.
[[nodiscard]] std::vector<OpTrial> trials_of(const plugins::ModelOp& op, const graph::Attributes& attributes);

/// Runs the op's kernel on a device. Throws Failure, naming the op, if the kernel fails, writes outside of a tensor or
/// its scratch, changes an operand, or leaves an element unwritten.
[[nodiscard]] std::vector<Tensor> run_trial(const OpTrial& trial, const device::Device& device, int threads = 1);

/// Throws Failure if an error exceeds `share` times the largest finite element expected of the tensor. NaNs are equal.
void require_close(const OpTrial& trial, const std::string& what, const std::vector<Tensor>& found,
                   const std::vector<Tensor>& expected, double share);

}  // namespace shardrun::conformance
