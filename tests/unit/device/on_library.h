#pragma once

#include <algorithm>
#include <vector>

#include "core/device/cuda/runtime/library_ops.h"
#include "core/device/library.h"
#include "tests/support/catch.h"
#include "tests/support/cuda/fake_cublaslt.h"
#include "tests/support/variable.h"
#include "tests/unit/device/on_fake_gpu.h"

namespace shardrun::test {

using namespace shardrun::device;
using graph::DType;
namespace fake = shardrun::test::fake_cuda;

inline const Kernel& kernel_of(std::string_view op) {
  static const std::vector<LibraryKernel> all = kernels_of_device("cuda-emulated");
  return std::ranges::find(all, op, &LibraryKernel::op)->kernel;
}

/// A matrix product y = x w on a fake GPU. x has rows of -1, 0 and 1 in turn, w is 1.
struct OnLibrary : OnFakeGpu {
  explicit OnLibrary(std::int64_t m = 6, std::int64_t k = 128, std::int64_t n = 5, std::int64_t shift = 0)
      : OnFakeGpu(fake::lend_to_cublaslt), rows(m), inner(k), columns(n) {
    x = view(shift, {m, k});
    w = view(1 << 20, {k, n});
    y = view(1 << 21, {m, n});
    const std::vector<graph::TensorType> inputs = {type_of(x), type_of(w)};
    const std::vector<graph::TensorType> outputs = {type_of(y)};
    scratch = {memory->data() + (1 << 22) + 64,
               device.scratch_bytes(kernel_of("matmul"), {attributes, inputs, outputs}, 1)};
  }
  void prepare() { prepared = device.prepare(kernel_of("matmul"), attributes, {x, w}, {y}, scratch, {}); }

  /// Runs the product `times` times in all, and checks the result.
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
    return OnFakeGpu::view(first, {.dtype = DType::bf16, .shape = shape, .axes = {}});
  }
  [[nodiscard]] static graph::TensorType type_of(const TensorView& tensor) {
    return {.dtype = tensor.dtype, .shape = {tensor.shape[0], tensor.shape[1]}, .axes = {"", ""}};
  }

  std::int64_t rows;
  std::int64_t inner;
  std::int64_t columns;
  graph::Attributes attributes = {{"contract", std::int64_t{1}}, {"transpose", std::int64_t{0}}};
  TensorView x;
  TensorView w;
  TensorView y;
};

}  // namespace shardrun::test
