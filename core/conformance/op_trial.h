#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/conformance/evaluate.h"
#include "core/conformance/tensor.h"
#include "core/device/device.h"
#include "core/graph/op.h"
#include "plugins/loader/model_op.h"

namespace shardrun::conformance {

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

/// Trials with these attributes, for each number of operands that the op takes, in two sizes: factors have small odd
/// sizes, or size 1 unless the op fixes their size.
[[nodiscard]] std::vector<OpTrial> trials_of(const plugins::ModelOp& op, const graph::Attributes& attributes);

/// Runs the op's kernel on a device. Throws Failure, naming the op, if the kernel fails, writes outside of a tensor or
/// its scratch, changes an operand, or leaves an element unwritten.
[[nodiscard]] std::vector<Tensor> run_trial(const OpTrial& trial, const device::Device& device, int threads = 1);

/// Throws Failure if an element's error exceeds `share` times the largest element of the tensor. Two NaN are equal.
void require_close(const OpTrial& trial, const std::string& what, const std::vector<Tensor>& found,
                   const std::vector<Tensor>& expected, double share);

}  // namespace shardrun::conformance
