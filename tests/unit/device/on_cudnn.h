#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/device/cuda/runtime/library_op.h"
#include "tests/support/cuda/fake_cudnn.h"
#include "tests/unit/device/on_fake_gpu.h"

namespace shardrun::test {

/// An op on a fake GPU that has the fake of cuDNN. `Op` has its name, its attributes and its types.
template <class Op>
struct OnFakeCudnn : OnFakeGpu {
  /// `own`: our kernel of the op.
  OnFakeCudnn(Op of, const device::Kernel& own, const fake_cuda::Settings& settings = {})
      : OnFakeGpu(fake_cuda::lend_to_cudnn, settings), op(std::move(of)), kernel(own) {}

  /// Prepares the op through the device, which chooses between cuDNN and our kernel.
  void prepare() { prepared = device.prepare(kernel, op.attributes, inputs, outputs, scratch, {}); }
  [[nodiscard]] device::cuda::OpToPrepare to_prepare() const {
    return {.kernel = kernel,
            .attributes = op.attributes,
            .inputs = inputs,
            .outputs = outputs,
            .scratch = scratch,
            .makes = {}};
  }

  /// Element i of each operand is value(i), rounded to its type.
  template <class Value>
  void write_inputs(const Value& value) const {
    for (const device::TensorView& each : inputs) {
      std::vector<double> values;
      for (std::int64_t i = 0; i < each.elements(); ++i) {
        values.push_back(value(i));
      }
      write(each, values);
    }
  }

  /// Checks that the op prepared by `prepare` touches all of its scratch when it first runs, and none before.
  template <class Prepare>
  void check_touches_scratch(const Prepare& prepare) {
    const std::uint64_t before = memory->touched_bytes();
    prepare();
    CHECK(memory->touched_bytes() == before);

    queue->run(*prepared, false, {});
    queue->finish();

    CHECK(memory->touched_bytes() - before >= scratch.size() / 4096 * 4096);
  }

  Op op;
  const device::Kernel& kernel;
  std::vector<device::TensorView> inputs;
  std::vector<device::TensorView> outputs;
};

}  // namespace shardrun::test
