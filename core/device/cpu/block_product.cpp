#include "core/device/cpu/block_product.h"

#include "core/device/cpu/vec.h"

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {

extern const BlockRunner block_runner;

namespace {

constexpr std::int64_t block_width = 32;
constexpr float least_scale = 0x1p-126F;

/// Rounds to the nearest integer, ties to even. |value| < 2^22.
float nearest(float value) {
  constexpr float shift = 0x1.8p23F;
  volatile float shifted = value + shift;
  return shifted - shift;
}

void round_block(const float* a, std::int64_t count, std::int8_t* q, float* d) {
  float most = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const float magnitude = __builtin_fabsf(a[i]);
    most = magnitude > most || magnitude != magnitude ? magnitude : most;
  }
  const float scale = most / 127;
  *d = scale < least_scale ? 0 : scale;
  for (std::int64_t i = 0; i < block_width; ++i) {
    const bool counts = i < count && scale >= least_scale && scale <= __FLT_MAX__;
    q[i] = counts ? static_cast<std::int8_t>(nearest(a[i] / scale)) : std::int8_t{0};
  }
}

float of_half(std::uint16_t half) { return load(Halves16{&half}, Part{0, 1})[0]; }

void run_blocks(const BlockProduct& p, Threads& threads, std::byte* scratch) {
  const std::int64_t blocks = (p.k + block_width - 1) / block_width;
  auto* const d = reinterpret_cast<float*>(scratch);
  auto* const q = reinterpret_cast<std::int8_t*>(d + p.m * blocks);
  for (std::int64_t i = 0; i < p.m * blocks; ++i) {
    const std::int64_t first = i % blocks * block_width;
    const std::int64_t count = p.k - first < block_width ? p.k - first : block_width;
    round_block(p.a + i / blocks * p.a_stride + first, count, q + i * block_width, d + i);
  }
  threads.split(p.n, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t j = begin; j < end; ++j) {
      for (std::int64_t i = 0; i < p.m; ++i) {
        float sum = 0;
        for (std::int64_t b = 0; b < blocks; ++b) {
          const std::int64_t first = b * block_width;
          const std::int64_t count = p.k - first < block_width ? p.k - first : block_width;
          std::int32_t exact = 0;
          for (std::int64_t e = 0; e < count; ++e) {
            exact += q[(i * blocks + b) * block_width + e] * p.w[j * p.k + first + e];
          }
          const float scale = d[i * blocks + b] * of_half(p.scales[j * blocks + b]);
          sum = __builtin_fmaf(scale, static_cast<float>(exact), sum);
        }
        p.c[i * p.c_stride + j] = sum;
      }
    }
  });
}

}  // namespace

constinit const BlockRunner block_runner = run_blocks;

}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT
