#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/device/cuda/emulated/emulator.h"
#include "core/device/cuda/runtime/device.h"
#include "core/device/elements.h"
#include "core/device/memory.h"
#include "core/device/queue.h"
#include "core/device/threads.h"
#include "tests/support/catch.h"
#include "tests/support/cuda/fake_cuda.h"

namespace shardrun::test {

/// A fake GPU with memory, a queue, and one prepared op.
struct OnFakeGpu {
  /// `lend`: gives the GPU's streams and memory to the fake of a library; null: to none.
  explicit OnFakeGpu(void (*lend)(), const fake_cuda::Settings& settings = {}, std::uint64_t bytes = 1 << 24) {
    device::cuda::emulated::set_enqueue(fake_cuda::enqueue);
    if (lend != nullptr) {
      lend();
    }
    fake_cuda::set(settings);
    memory = device.allocate(bytes);
    queue = device.open_queue(threads);
  }
  OnFakeGpu(const OnFakeGpu&) = delete;
  OnFakeGpu& operator=(const OnFakeGpu&) = delete;
  ~OnFakeGpu() {
    prepared.reset();
    queue.reset();
    memory.reset();
    CHECK(fake_cuda::held() == 0);
    fake_cuda::set({});
  }

  /// A tensor whose first byte is the memory's byte `first`.
  [[nodiscard]] device::TensorView view(std::int64_t first, const graph::TensorType& type) const {
    device::TensorView made{.data = memory->data() + first,
                            .dtype = type.dtype,
                            .rounded = type.dtype,
                            .rank = static_cast<std::uint32_t>(type.shape.size())};
    std::ranges::copy(type.shape, made.shape.begin());
    std::ranges::copy(type.shape, made.global.begin());
    return made;
  }
  void write(const device::TensorView& to, const std::vector<double>& values) const {
    std::vector<std::byte> bytes(to.bytes());
    device::write_elements(to.dtype, values, bytes);
    queue->write(bytes, to.data);
    queue->finish();
  }
  [[nodiscard]] std::vector<double> read(const device::TensorView& from) const {
    std::vector<std::byte> bytes(from.bytes());
    queue->read(from.data, bytes);
    queue->finish();
    std::vector<double> values(static_cast<std::size_t>(from.elements()));
    device::read_elements(from.dtype, bytes, values);
    return values;
  }

  device::cuda::CudaDevice device;
  device::Threads threads{1};
  std::shared_ptr<const device::Memory> memory;
  std::unique_ptr<device::Queue> queue;
  std::span<std::byte> scratch;
  std::unique_ptr<const device::PreparedKernel> prepared;
};

}  // namespace shardrun::test
