#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/device/device.h"
#include "plugins/loader/model_op.h"

namespace shardrun::plugins {

/// A kernel of an op that a model brings.
class OpKernel final : public device::AddedKernel {
 public:
  /// The type of real numbers that it reads and writes.
  enum class Reals : std::uint8_t { f32, f64 };

  OpKernel(std::shared_ptr<const ModelOp> op, Reals reals);

  /// Throws Error{plugin}, which names the op, if the kernel fails.
  void run(const device::KernelCall& call) const override;
  [[nodiscard]] std::size_t scratch_bytes(const graph::OpShape& shape) const override;
  /// Allocates the memory for the arguments of a call, so that the call itself allocates nothing.
  [[nodiscard]] std::shared_ptr<void> prepare(const graph::OpShape& shape) const override;

 private:
  std::shared_ptr<const ModelOp> op_;
  Reals reals_;
};

}  // namespace shardrun::plugins
