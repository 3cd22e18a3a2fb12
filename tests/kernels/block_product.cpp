// Products with weights in blocks of int8. Each element equals the documented formula bit for bit, whatever else is
// computed.

#include "core/device/cpu/block_product.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/device/elements.h"
#include "tests/support/catch.h"
#include "tests/support/tensor.h"

using namespace shardrun;
using device::Threads;
using device::cpu::BlockProduct;

namespace {

constexpr std::int64_t block = 32;

/// A product's memory. Rows of a and c begin further apart than they are long.
struct Matrices {
  Matrices(std::int64_t rows, std::int64_t columns, std::int64_t depth, std::uint64_t seed)
      : m(rows), n(columns), k(depth), blocks((depth + block - 1) / block) {
    test::Random random(seed);
    test::Tensor values = test::zeros(test::type_of({m, k + 3}));
    random.fill_normal(values, 0, 1);
    for (const double value : values.values) {
      a.push_back(static_cast<float>(value));
    }
    for (std::int64_t i = 0; i < n * k; ++i) {
      w.push_back(static_cast<std::int8_t>(random.below(256) - 128));
    }
    values = test::zeros(test::type_of({n, blocks}));
    random.fill_uniform(values, 0.001, 0.02);
    scales.resize(values.values.size());
    device::write_elements(graph::DType::f16, values.values, std::as_writable_bytes(std::span(scales)));
  }

  [[nodiscard]] double scale(std::int64_t column, std::int64_t b) const {
    double value = 0;
    const auto at = static_cast<std::size_t>(column * blocks + b);
    device::read_elements(graph::DType::f16, std::as_bytes(std::span(scales).subspan(at, 1)), std::span(&value, 1));
    return value;
  }
  [[nodiscard]] std::int8_t weight(std::int64_t column, std::int64_t index) const {
    return w[static_cast<std::size_t>(column * k + index)];
  }
  [[nodiscard]] float activation(std::int64_t row, std::int64_t index) const {
    return a[static_cast<std::size_t>(row * (k + 3) + index)];
  }

  std::int64_t m;
  std::int64_t n;
  std::int64_t k;
  std::int64_t blocks;
  std::vector<float> a;
  std::vector<std::int8_t> w;
  std::vector<std::uint16_t> scales;
};

/// The rows [first, last) of the product, on so many threads: [last - first, n].
std::vector<float> multiplied(device::cpu::BlockRunner runner, const Matrices& in, std::int64_t first,
                              std::int64_t last, int threads) {
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> scratch(device::cpu::block_product_scratch(last - first, in.k) / sizeof(Line) + 1);
  const std::int64_t stride = in.n + 5;
  std::vector<float> c(static_cast<std::size_t>((last - first) * stride), -7);
  Threads pool(threads);
  runner({.m = last - first,
          .n = in.n,
          .k = in.k,
          .a = in.a.data() + first * (in.k + 3),
          .a_stride = in.k + 3,
          .w = in.w.data(),
          .scales = in.scales.data(),
          .c = c.data(),
          .c_stride = stride},
         pool, scratch[0].bytes);
  std::vector<float> result;
  for (std::int64_t i = 0; i < last - first; ++i) {
    for (std::int64_t j = 0; j < stride; ++j) {
      const float element = c[static_cast<std::size_t>(i * stride + j)];
      if (j < in.n) {
        result.push_back(element);
      } else {
        REQUIRE(element == -7);
      }
    }
  }
  return result;
}

/// An element as the header's formula says.
float expected_element(const Matrices& in, std::int64_t row, std::int64_t column) {
  float sum = 0;
  for (std::int64_t b = 0; b < in.blocks; ++b) {
    const std::int64_t end = std::min(in.k, (b + 1) * block);
    float most = 0;
    for (std::int64_t i = b * block; i < end; ++i) {
      most = std::max(most, std::abs(in.activation(row, i)));
    }
    const float d = most / 127;
    if (d < std::numeric_limits<float>::min()) {
      continue;
    }
    std::int64_t exact = 0;
    for (std::int64_t i = b * block; i < end; ++i) {
      exact += static_cast<std::int64_t>(std::nearbyint(in.activation(row, i) / d)) * in.weight(column, i);
    }
    sum = std::fma(d * static_cast<float>(in.scale(column, b)), static_cast<float>(exact), sum);
  }
  return sum;
}

}  // namespace

TEST_CASE("products of int8 blocks have the bits of their formula, for all rows, widths and threads", "[kernels]") {
  for (const auto& [n, k] : std::initializer_list<std::pair<std::int64_t, std::int64_t>>{
           {1, 1}, {37, 576}, {16, 64}, {53, 100}, {40, 33}, {7, 1024}, {130, 96}}) {
    const Matrices in(33, n, k, static_cast<std::uint64_t>(n * 1000 + k));
    std::vector<float> expected;
    for (std::int64_t i = 0; i < in.m * n; ++i) {
      expected.push_back(expected_element(in, i / n, i % n));
    }
    for (const device::cpu::BlockRunner runner : device::cpu::block_runners()) {
      for (std::int64_t rows = 1; rows <= in.m; ++rows) {
        const std::int64_t first = in.m - rows;
        const std::vector<float> found = multiplied(runner, in, first, in.m, 1 + static_cast<int>(rows % 3));
        INFO("n " << n << ", k " << k << ", " << rows << " rows");
        REQUIRE(std::memcmp(found.data(), expected.data() + first * n, found.size() * sizeof(float)) == 0);
      }
    }
  }
}

TEST_CASE("a block of zeros or of least numbers adds nothing, and NaN or infinity makes NaN", "[kernels]") {
  Matrices in(4, 20, 96, 3);
  const auto block_of_row = [&](std::int64_t row, std::int64_t b) { return in.a.begin() + row * 99 + b * block; };
  std::fill_n(block_of_row(0, 1), block, 0.0F);
  std::fill_n(block_of_row(1, 0), block, 1e-39F);
  *block_of_row(2, 2) = std::numeric_limits<float>::quiet_NaN();
  block_of_row(3, 1)[31] = -std::numeric_limits<float>::infinity();
  for (const device::cpu::BlockRunner runner : device::cpu::block_runners()) {
    const std::vector<float> found = multiplied(runner, in, 0, 4, 1);
    for (std::int64_t j = 0; j < 20; ++j) {
      CHECK(found[static_cast<std::size_t>(j)] == expected_element(in, 0, j));
      CHECK(found[static_cast<std::size_t>(20 + j)] == expected_element(in, 1, j));
      CHECK(std::isnan(found[static_cast<std::size_t>(40 + j)]));
      CHECK(std::isnan(found[static_cast<std::size_t>(60 + j)]));
    }
  }
}
