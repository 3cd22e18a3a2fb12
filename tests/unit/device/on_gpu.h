#pragma once

#include <cstdint>
#include <memory>

#include "tests/unit/device/on_fake_gpu.h"

namespace shardrun::test {

/// A fake GPU with two queues. Its memory is used for numbers of 4 bytes.
struct OnGpu : OnFakeGpu {
  explicit OnGpu(const fake_cuda::Settings& settings = {}, std::uint64_t bytes = 1 << 16)
      : OnFakeGpu(nullptr, settings, bytes), other(device.open_queue(threads)) {}

  [[nodiscard]] device::TensorView view(std::int64_t first, std::int64_t count,
                                        graph::DType dtype = graph::DType::f32) const {
    device::TensorView view{.data = memory->data() + first * 4, .dtype = dtype, .rounded = dtype, .rank = 1};
    view.shape[0] = count;
    view.global[0] = count;
    return view;
  }

  std::unique_ptr<device::Queue> other;
};

}  // namespace shardrun::test
