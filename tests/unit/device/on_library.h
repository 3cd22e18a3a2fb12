#pragma once

#include <algorithm>
#include <vector>

#include "core/device/cuda/emulated/emulator.h"
#include "core/device/cuda/runtime/device.h"
#include "core/device/cuda/runtime/products.h"
#include "core/device/elements.h"
#include "core/device/memory.h"
#include "core/device/queue.h"
#include "core/device/threads.h"
#include "tests/support/catch.h"
#include "tests/support/cuda/fake_cublaslt.h"
#include "tests/support/cuda/fake_cuda.h"
#include "tests/support/variable.h"

namespace shardrun::test {

using namespace shardrun::device;
using graph::DType;
namespace fake = shardrun::test::fake_cuda;

inline const Kernel& kernel_of(std::string_view op) {
  static const std::vector<LibraryKernel> all = cuda::with_scratch_of_products(kernels_of_device("cuda-emulated"));
  return std::ranges::find(all, op, &LibraryKernel::op)->kernel;
}

/// A matrix product y = x w on a fake GPU. x has rows of -1, 0 and 1 in turn, w is 1.
struct OnLibrary {
  explicit OnLibrary(std::int64_t m = 6, std::int64_t k = 128, std::int64_t n = 5, std::int64_t shift = 0)
      : rows(m), inner(k), columns(n) {
    cuda::emulated::set_enqueue(fake::enqueue);
    fake::lend_to_cublaslt();
    fake::set({});
    memory = device.allocate(1 << 24);
    queue = device.open_queue(threads);
    x = view(shift, {m, k});
    w = view(1 << 20, {k, n});
    y = view(1 << 21, {m, n});
    const std::vector<graph::TensorType> inputs = {type_of(x), type_of(w)};
    const std::vector<graph::TensorType> outputs = {type_of(y)};
    scratch = {memory->data() + (1 << 22) + 64, scratch_of(kernel_of("matmul"), {attributes, inputs, outputs}, 1)};
  }
  ~OnLibrary() {
    prepared.reset();
    queue.reset();
    memory.reset();
    CHECK(fake::held() == 0);
  }

  void prepare() { prepared = device.prepare(kernel_of("matmul"), attributes, {x, w}, {y}, scratch, {}); }

  /// Runs it, `times` times in all, and checks the result.
  void check(int times = 1) {
    std::vector<double> of_x;
    for (std::int64_t i = 0; i < rows; ++i) {
      of_x.insert(of_x.end(), static_cast<std::size_t>(inner), static_cast<double>(i % 3 - 1));
    }
    write(x, of_x);
    write(w, std::vector<double>(static_cast<std::size_t>(inner * columns), 1.0));
    for (int time = 0; time < times; ++time) {
      queue->run(*prepared, time > 0, {});
    }
    const std::vector<double> found = read(y);
    for (std::int64_t i = 0; i < rows; ++i) {
      const auto row = found.begin() + i * columns;
      const auto expected = static_cast<double>(times * inner * (i % 3 - 1));
      CHECK(std::all_of(row, row + columns, [&](double value) { return value == expected; }));
    }
  }

  [[nodiscard]] TensorView view(std::int64_t first, const std::vector<std::int64_t>& shape) const {
    TensorView made{.data = memory->data() + first,
                    .dtype = DType::bf16,
                    .rounded = DType::bf16,
                    .rank = static_cast<std::uint32_t>(shape.size())};
    std::ranges::copy(shape, made.shape.begin());
    std::ranges::copy(shape, made.global.begin());
    return made;
  }
  [[nodiscard]] static graph::TensorType type_of(const TensorView& tensor) {
    return {.dtype = tensor.dtype, .shape = {tensor.shape[0], tensor.shape[1]}, .axes = {"", ""}};
  }
  void write(const TensorView& to, const std::vector<double>& values) {
    std::vector<std::byte> bytes(to.bytes());
    write_elements(to.dtype, values, bytes);
    queue->write(bytes, to.data);
    queue->finish();
  }
  [[nodiscard]] std::vector<double> read(const TensorView& from) {
    std::vector<std::byte> bytes(from.bytes());
    queue->read(from.data, bytes);
    queue->finish();
    std::vector<double> values(static_cast<std::size_t>(from.elements()));
    read_elements(from.dtype, bytes, values);
    return values;
  }

  std::int64_t rows;
  std::int64_t inner;
  std::int64_t columns;
  graph::Attributes attributes = {{"contract", std::int64_t{1}}, {"transpose", std::int64_t{0}}};
  cuda::CudaDevice device;
  Threads threads{1};
  std::shared_ptr<const device::Memory> memory;
  std::unique_ptr<Queue> queue;
  TensorView x;
  TensorView w;
  TensorView y;
  std::span<std::byte> scratch;
  std::unique_ptr<const PreparedKernel> prepared;
};

}  // namespace shardrun::test
