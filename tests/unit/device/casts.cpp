// How the cpu's kernels round to bfloat16 and float16, bit for bit.

#include <shardrun/sdk/transport/half.hpp>

#include <cstring>
#include <vector>

#include "core/device/cpu/variant.h"
#include "core/device/threads.h"
#include "tests/support/catch.h"

using namespace shardrun;
using namespace shardrun::device;
using graph::DType;

namespace {

template <typename To, typename From>
std::vector<To> cast(const Kernel& kernel, DType to, DType from, std::vector<From> values) {
  std::vector<To> results(values.size());
  const auto view = [&](auto& elements, DType dtype) {
    TensorView tensor{.data = elements.data(), .dtype = dtype, .rounded = dtype, .rank = 1};
    tensor.shape[0] = tensor.global[0] = static_cast<std::int64_t>(elements.size());
    return tensor;
  };
  const TensorView in = view(values, from);
  const TensorView out = view(results, to);
  const graph::Attributes attributes = {{"dtype", graph::to_string(to)}};
  const Scalars scalars;
  Threads threads(1);
  kernel.run({attributes, std::span(&in, 1), std::span(&out, 1), false, {}, scalars, threads});
  return results;
}

/// Floats with every upper half, and with lower halves on both sides of the limit for rounding up. They include ties,
/// NaN of every payload, Inf and denormals.
std::vector<std::uint32_t> float_bits() {
  std::vector<std::uint32_t> bits;
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const std::uint32_t lower : {0x0000U, 0x0001U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      bits.push_back(upper << 16U | lower);
    }
  }
  bits.push_back(0x3F808000);  // a last one, so that the count is odd
  return bits;
}

}  // namespace

TEST_CASE("float32 is rounded to bfloat16 to nearest even, and NaN stays NaN", "[device]") {
  const std::vector<std::uint32_t> bits = float_bits();
  std::vector<std::uint16_t> expected;
  for (const std::uint32_t each : bits) {
    float value = 0;
    std::memcpy(&value, &each, sizeof(value));
    expected.push_back(sdk::narrow_to_bfloat(value).bits);
  }
  for (const cpu::LevelKernel& variant : cpu::kernels_of("cast")) {
    INFO("instruction set " << variant.level);
    CHECK(cast<std::uint16_t>(variant.kernel, DType::bf16, DType::f32, bits) == expected);
  }
}

TEST_CASE("bfloat16 is widened without a change", "[device]") {
  std::vector<std::uint16_t> all;
  std::vector<std::uint32_t> expected;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    all.push_back(static_cast<std::uint16_t>(bits));
    expected.push_back(bits << 16U);
  }
  for (const cpu::LevelKernel& variant : cpu::kernels_of("cast")) {
    INFO("instruction set " << variant.level);
    CHECK(cast<std::uint32_t>(variant.kernel, DType::f32, DType::bf16, all) == expected);
  }
}

TEST_CASE("float16 is cast too", "[device]") {
  const std::vector<float> values = {0, 1, -2.5, 65504, 1e6, 0x1p-24F, 0x1.002p0F, 0x1.006p0F};
  const std::vector<float> expected = {0, 1, -2.5, 65504, HUGE_VALF, 0x1p-24F, 1, 0x1.008p0F};
  for (const cpu::LevelKernel& variant : cpu::kernels_of("cast")) {
    INFO("instruction set " << variant.level);
    const auto halves = cast<std::uint16_t>(variant.kernel, DType::f16, DType::f32, values);
    CHECK(cast<float>(variant.kernel, DType::f32, DType::f16, halves) == expected);
  }
}
