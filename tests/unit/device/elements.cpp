#include "core/device/elements.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/support/catch.h"

using namespace shardrun;
using graph::DType;

namespace {

/// Writes a number as an element of `dtype` at an unaligned address, and reads it again.
double kept(DType dtype, double value) {
  alignas(8) std::array<std::byte, 9> bytes = {};
  const std::span<std::byte> element(bytes.data() + 1, graph::element_bytes(dtype));
  device::write_elements(dtype, {&value, 1}, element);
  double read = 0;
  device::read_elements(dtype, element, {&read, 1});
  return read;
}

double rounded(DType dtype, double value) {
  device::round_elements(dtype, {&value, 1});
  return value;
}

}  // namespace

TEST_CASE("each type keeps the numbers that it can represent", "[device]") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::i64, DType::u8}) {
    INFO(graph::to_string(dtype));
    for (const double value : {0.0, 1.0, 100.0, 128.0}) {
      CHECK(kept(dtype, value) == value);
    }
  }
  CHECK(kept(DType::i64, 0x1p40) == 0x1p40);
  CHECK(kept(DType::i32, -0x1p31) == -0x1p31);
  CHECK(kept(DType::u8, 255) == 255);
}

TEST_CASE("a number is rounded once, to the nearest of its type, ties to even", "[device]") {
  CHECK(kept(DType::bf16, 1 + 0x1p-8) == 1);
  CHECK(kept(DType::bf16, 1 + 3 * 0x1p-8) == 1 + 0x1p-6);
  CHECK(kept(DType::f16, 1 + 0x1p-11) == 1);
  CHECK(kept(DType::f16, 2049) == 2048);
  // Rounded to float first, both would be a tie, and so become 1.
  CHECK(kept(DType::bf16, 1 + 0x1p-8 + 0x1p-40) == 1 + 0x1p-7);
  CHECK(kept(DType::f16, 1 + 0x1p-11 + 0x1p-40) == 1 + 0x1p-10);
  CHECK(kept(DType::bf16, -(1 + 0x1p-8 + 0x1p-40)) == -(1 + 0x1p-7));
  // Just below a tie, which float would round up to.
  CHECK(kept(DType::bf16, 1 + 3 * 0x1p-8 - 0x1p-40) == 1 + 0x1p-7);
}

TEST_CASE("numbers too large become infinite, and NaN stays NaN", "[device]") {
  CHECK(kept(DType::bf16, 3.4e38) == std::numeric_limits<double>::infinity());
  CHECK(kept(DType::f16, -65520) == -std::numeric_limits<double>::infinity());
  CHECK(kept(DType::f16, 65519) == 65504);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    CHECK(std::isnan(kept(dtype, std::numeric_limits<double>::quiet_NaN())));
  }
}

TEST_CASE("rounding to a 16-bit type gives what storing it gives; other types keep all digits", "[device]") {
  for (double value = 1e-9; value < 1e9; value *= 1.37) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      CHECK(rounded(dtype, value) == kept(dtype, value));
    }
  }
  CHECK(rounded(DType::f32, 1 + 0x1p-40) == 1 + 0x1p-40);
}

TEST_CASE("NaN and Inf are found in every real type and in no integer", "[device]") {
  const double infinite = std::numeric_limits<double>::infinity();
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    INFO(graph::to_string(dtype));
    for (const double last : {0.0, infinite, -infinite, std::numeric_limits<double>::quiet_NaN()}) {
      const std::vector<double> values = {1, -2, last};
      std::vector<std::byte> bytes(3 * graph::element_bytes(dtype));
      device::write_elements(dtype, values, bytes);
      device::TensorView view{.data = bytes.data(), .dtype = dtype, .rank = 1};
      view.shape[0] = 3;
      CHECK(device::has_non_finite(view) == !std::isfinite(last));
      CHECK(device::read_element(view, 1) == -2);
    }
  }
  std::int32_t bits = std::bit_cast<std::int32_t>(std::numeric_limits<float>::infinity());
  device::TensorView view{.data = &bits, .dtype = DType::i32, .rank = 1};
  view.shape[0] = 1;
  CHECK_FALSE(device::has_non_finite(view));
}
