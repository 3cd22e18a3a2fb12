#include "core/device/cpu/reduce.h"

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {
namespace {

/// x: [L, K...]   y: [K...] (+)= Σ x over the leading dimensions
template <typename Pointer>
void sum_leading(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const auto kept = static_cast<std::uint32_t>(call.attributes.integer("keep"));
  const std::int64_t width = extent(x, x.rank - kept, x.rank);
  const auto data = reals<Pointer>(x);
  column_sums<Pointer>(call, extent(x, 0, x.rank - kept), width,
                       [=](std::int64_t r, auto at) { return load(data + r * width, at); });
}

/// Elements per partial sum when a whole tensor is summed. Partial sums are added in order, whichever thread made them.
constexpr std::int64_t block = 4096;

std::int64_t block_count(std::int64_t size) { return (size + block - 1) / block; }

SHARDRUN_INLINE dvec widened(const float* from) {
  halfvec v;
  __builtin_memcpy(&v, from, sizeof(v));
  return __builtin_convertvector(v, dvec);
}
/// Σ x, or Σ x² when squared, over [0, n) in float64.
template <bool squared>
double sum_block(const float* x, std::int64_t n) {
  constexpr std::int64_t half = lanes / 2;
  dvec sums[4] = {};
  std::int64_t i = 0;
  for (; i + 4 * half <= n; i += 4 * half) {
    for (int j = 0; j < 4; ++j) {
      const dvec v = widened(x + i + j * half);
      sums[j] += squared ? v * v : v;
    }
  }
  const dvec lanewise = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  double total = 0;
  for (int j = 0; j < half; ++j) {
    total += lanewise[j];
  }
  for (; i < n; ++i) {
    const double v = x[i];
    total += squared ? v * v : v;
  }
  return total;
}

/// The same for elements that can be bfloat16. REQUIRES: n <= block.
template <bool squared>
double sum_block(Reals x, std::int64_t n) {
  float values[block];
  vectors(0, n, [&](auto at) { store(values, at, load(x, at)); });
  return sum_block<squared>(values, n);
}

template <bool squared, typename Pointer>
double sum_all_blocks(const KernelCall& call) {
  const auto x = reals<Pointer>(call.inputs[0]);
  const std::int64_t size = call.inputs[0].elements();
  const std::int64_t blocks = block_count(size);
  auto* partial = reinterpret_cast<double*>(call.scratch.data());
  call.threads.split(blocks, grain / block, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      partial[b] = sum_block<squared>(x + b * block, b + 1 < blocks ? block : size - b * block);
    }
  });
  double total = 0;
  for (std::int64_t b = 0; b < blocks; ++b) {
    total += partial[b];
  }
  return total;
}

std::size_t partial_sums(const graph::OpShape& shape, int) {
  return static_cast<std::size_t>(block_count(graph::element_count(shape.inputs[0].shape))) * sizeof(double);
}

template <typename Pointer>
void sum_all(const KernelCall& call) {
  const auto y = reals<Pointer>(call.outputs[0]);
  const double total = call.attributes.real("scale") * sum_all_blocks<false, Pointer>(call);
  put(y, 0, static_cast<float>(call.accumulate ? static_cast<double>(get(y, 0)) + total : total));
}

template <typename Pointer>
void square_sum(const KernelCall& call) {
  put(reals<Pointer>(call.outputs[0]), 0, static_cast<float>(sum_all_blocks<true, Pointer>(call)));
}

}  // namespace
}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT

SHARDRUN_KERNELS(reduce, {"sum_leading", {.run = by_type<sum_leading<float*>, sum_leading<Reals>>}},
                 {"sum_all", {by_type<sum_all<float*>, sum_all<Reals>>, partial_sums}},
                 {"square_sum", {by_type<square_sum<float*>, square_sum<Reals>>, partial_sums}})
