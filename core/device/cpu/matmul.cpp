#include <algorithm>

#include "core/device/cpu/sgemm.h"
#include "core/device/cpu/views.h"

namespace shardrun::device::cpu {
namespace {

using namespace SHARDRUN_KERNEL_VARIANT;

struct Product {
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;
  Matrix a;
  Matrix b;
  float* c;
};

/// Into how many tiles along the longer side of c a product is cut. It depends on the sizes alone: oneDNN picks its
/// algorithm, and with it the order of summation, by the size of a tile, so a cut by the number of threads
/// would make results depend on it.
std::int64_t tile_count(std::int64_t m, std::int64_t n, std::int64_t k) {
  constexpr double worth_a_tile = 1 << 20;    // floating-point operations: about 15 µs
  constexpr double repacking_limit = 0.0037;  // 1/m + 1/n up to which oneDNN repacks operands, its faster way
  constexpr std::int64_t narrowest = 192;
  constexpr std::int64_t most = 64;
  constexpr double small = 0.2e9;  // floating-point operations: not worth losing the repacking for threads
  const std::int64_t longer = std::max(m, n);
  const std::int64_t shorter = std::min(m, n);
  const double by_work = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) / worth_a_tile;
  const double room = repacking_limit - 1.0 / static_cast<double>(shorter);
  const auto repacked = room > 0 ? static_cast<std::int64_t>(1.0 / room) + 1 : longer;
  std::int64_t width = std::max<std::int64_t>(repacked, 2 * narrowest);
  if (width > longer / 2) {
    const bool repacked_whole = 1.0 / static_cast<double>(m) + 1.0 / static_cast<double>(n) <= repacking_limit;
    if (repacked_whole && by_work * worth_a_tile < small) {
      return 1;
    }
    width = narrowest;
  }
  const auto by_size = std::clamp<std::int64_t>(longer / width, 1, most);
  return by_work < static_cast<double>(by_size) ? std::max<std::int64_t>(1, static_cast<std::int64_t>(by_work))
                                                : by_size;
}

void multiply_tiles(const Product& p, Threads& threads, bool accumulate) {
  constexpr std::int64_t unit = 48;  // a multiple of every micro-kernel's width and height
  const std::int64_t tiles = p.m == 0 || p.n == 0 ? 1 : tile_count(p.m, p.n, p.k);
  const bool by_rows = p.m > p.n;
  const std::int64_t size = by_rows ? p.m : p.n;
  const std::int64_t units = (size + unit - 1) / unit;
  threads.split(tiles, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t tile = first; tile < last; ++tile) {
      const std::int64_t begin = units * tile / tiles * unit;
      const std::int64_t end = std::min(size, units * (tile + 1) / tiles * unit);
      Matrix a = p.a;
      Matrix b = p.b;
      if (by_rows) {
        a.data += a.transposed ? begin : begin * a.stride;
        sgemm(end - begin, p.n, p.k, 1, a, b, p.c + begin * p.n, p.n, accumulate);
      } else {
        b.data += b.transposed ? begin * b.stride : begin;
        sgemm(p.m, end - begin, p.k, 1, a, b, p.c + begin, p.n, accumulate);
      }
    }
  });
}

/// x: [L, K...]   w: [K..., N...], or [N..., K...] when transposed   y: [L, N...]
void matmul(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const auto contracted = static_cast<std::uint32_t>(call.attributes.integer("contract"));
  const bool transposed = call.attributes.integer("transpose") != 0;
  const std::uint32_t lead = x.rank - contracted;
  const std::int64_t m = extent(x, 0, lead);
  const std::int64_t k = extent(x, lead, x.rank);
  const std::int64_t n = extent(call.outputs[0], lead, call.outputs[0].rank);
  const Matrix w{floats(call.inputs[1]), transposed ? k : n, transposed};
  multiply_tiles({m, n, k, {floats(x), k}, w, floats(call.outputs[0])}, call.threads, call.accumulate);
}

/// x: [L, K...]   dy: [L, N...]   dw: [K..., N...] = xᵀ dy, or [N..., K...] = dyᵀ x when transposed
void matmul_gradient_weights(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const TensorView& dy = call.inputs[1];
  const std::uint32_t lead = x.rank - static_cast<std::uint32_t>(call.attributes.integer("contract"));
  const std::int64_t tokens = extent(x, 0, lead);
  const std::int64_t width = extent(x, lead, x.rank);
  const std::int64_t outputs = extent(dy, lead, dy.rank);
  float* dw = floats(call.outputs[0]);
  if (call.attributes.integer("transpose") != 0) {
    multiply_tiles({outputs, width, tokens, {floats(dy), outputs, true}, {floats(x), width}, dw}, call.threads,
                   call.accumulate);
  } else {
    multiply_tiles({width, outputs, tokens, {floats(x), width, true}, {floats(dy), outputs}, dw}, call.threads,
                   call.accumulate);
  }
}

const RegisterKernel register_matmul("cpu", "matmul", {.run = matmul});
const RegisterKernel register_gradient("cpu", "matmul_gradient_weights", {.run = matmul_gradient_weights});

}  // namespace
}  // namespace shardrun::device::cpu
