#include "bf16_product.h"

#include <memory>
#include <vector>

#include "core/device/device.h"
#include "core/device/threads.h"

namespace shardrun::bench {
namespace {

using graph::DType;
using graph::TensorType;

TensorType matrix(std::int64_t rows, std::int64_t columns) {
  return {.dtype = DType::bf16, .shape = {rows, columns}, .axes = {"row", "column"}};
}

/// The operands, scratch and threads of a kernel call, made once.
struct Call {
  Call(std::int64_t m, std::int64_t n, std::int64_t k, int thread_count)
      : inputs{matrix(m, k), matrix(k, n)}, outputs{matrix(m, n)}, threads(thread_count) {
    const graph::OpShape shape{attributes, inputs, outputs};
    prepared = kernel.prepare == nullptr ? nullptr : kernel.prepare(shape);
    scratch.resize(kernel.scratch_bytes(shape, thread_count));
    views = {view(inputs[0]), view(inputs[1]), view(outputs[0])};
  }

  device::TensorView view(const TensorType& type) {
    std::vector<std::uint16_t>& values = memory.emplace_back(static_cast<std::size_t>(graph::element_count(type)));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<std::uint16_t>(0x3F80 + i % 7);  // bfloat16 1 and the next six larger numbers
    }
    device::TensorView view{.data = values.data(), .dtype = DType::bf16, .rounded = DType::bf16, .rank = 2};
    view.shape = {type.shape[0], type.shape[1]};
    view.global = view.shape;
    return view;
  }

  void run() {
    const std::span<const device::TensorView> all = views;
    kernel.run({.attributes = attributes,
                .inputs = all.first(2),
                .outputs = all.last(1),
                .scratch = scratch,
                .scalars = scalars,
                .threads = threads,
                .prepared = prepared.get()});
  }

  const device::Kernel& kernel = device::Device::find("cpu").kernel("matmul");
  graph::Attributes attributes = {{"contract", 1}, {"transpose", 0}};
  std::vector<TensorType> inputs;
  std::vector<TensorType> outputs;
  std::vector<std::vector<std::uint16_t>> memory;
  std::vector<device::TensorView> views;
  std::vector<std::byte> scratch;
  std::shared_ptr<void> prepared;
  device::Scalars scalars;
  device::Threads threads;
};

}  // namespace

std::function<void()> bf16_product(std::int64_t m, std::int64_t n, std::int64_t k, int threads) {
  return [call = std::make_shared<Call>(m, n, k, threads)] { call->run(); };
}

}  // namespace shardrun::bench
