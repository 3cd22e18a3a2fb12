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

/// A call of a model's op: attributes, random operands, and results of the types that its rule gives.
struct OpTrial {
  const plugins::ModelOp* declared = nullptr;
  const graph::Op* op = nullptr;
  graph::Attributes attributes;
  graph::ShardingRule rule;
  std::vector<Tensor> operands;
  std::vector<Tensor> results;  ///< zeros
  std::string what;             ///< "op 'swish' of model 'mine' (/path) {slope=1.5} f32[b 5, d 3]"
};

/// Trials with these attributes, for each number of operands that the op takes and for several sizes: small odd ones,
/// and 1 if the op does not fix a factor's size.
[[nodiscard]] std::vector<OpTrial> trials_of(const plugins::ModelOp& op, const graph::Attributes& attributes);

/// Runs a device's kernel. Throws Failure, which names the op, if the kernel fails, writes past a tensor or its
/// scratch, changes an operand, or leaves an element unwritten.
[[nodiscard]] std::vector<Tensor> run_trial(const OpTrial& trial, const device::Device& device, int threads = 1);

/// Throws Failure if an element's error exceeds a fraction of the tensor's largest element. Two NaN count as equal.
void require_close(const OpTrial& trial, const std::string& what, const std::vector<Tensor>& found,
                   const std::vector<Tensor>& expected, double share);

}  // namespace shardrun::conformance
