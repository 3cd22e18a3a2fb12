// Products of few rows: every width, depth and type of weights against float64, and the same bits for a row whatever
// else is computed.

#include "core/device/cpu/few_rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "core/device/elements.h"
#include "tests/support/catch.h"
#include "tests/support/tensor.h"

using namespace shardrun;
using device::Threads;
using graph::DType;

namespace {

constexpr std::int64_t gap = 3;  // elements between the end of a row and the next one

struct FewRows {
  FewRows(std::int64_t rows, std::int64_t columns, std::int64_t depth, DType of_a, DType of_b, bool is_transposed)
      : m(rows), n(columns), k(depth), left_type(of_a), type(of_b), transposed(is_transposed) {
    test::Random random(static_cast<std::uint64_t>(n * 1000 + k));
    a = test::zeros(test::type_of({m, k + gap}));
    b = test::zeros(test::type_of({transposed ? n : k, b_stride()}));
    random.fill_normal(a, 0, 1);
    random.fill_normal(b, 0, 1);
    test::round_to_float(a);
    test::round_to_float(b);
    device::round_elements(left_type, a.values);
    device::round_elements(type, b.values);
    a_bytes.resize(a.values.size() * graph::element_bytes(left_type));
    device::write_elements(left_type, a.values, a_bytes);
    b_bytes.reserve(1);  // for products of no terms, too, there is a matrix
    b_bytes.resize(b.values.size() * graph::element_bytes(type));
    device::write_elements(type, b.values, b_bytes);
  }

  [[nodiscard]] std::int64_t b_stride() const { return (transposed ? k : n) + gap; }
  [[nodiscard]] double left(std::int64_t i, std::int64_t p) const {
    return a.values[static_cast<std::size_t>(i * (k + gap) + p)];
  }
  [[nodiscard]] double right(std::int64_t p, std::int64_t j) const {
    return b.values[static_cast<std::size_t>(transposed ? j * b_stride() + p : p * b_stride() + j)];
  }

  std::int64_t m;
  std::int64_t n;
  std::int64_t k;
  DType left_type;
  DType type;
  bool transposed;
  test::Tensor a;
  test::Tensor b;
  std::vector<std::byte> a_bytes;
  std::vector<std::byte> b_bytes;
};

constexpr float before = 0.5F;

/// Rows [first, last) of the product: [last - first, n].
std::vector<float> multiplied(device::cpu::FewRowsRunner runner, FewRows& in, std::int64_t first, std::int64_t last,
                              int threads, bool accumulate) {
  std::vector<float> c(static_cast<std::size_t>((last - first) * (in.n + gap)), before);
  Threads pool(threads);
  runner({last - first,
          in.n,
          in.k,
          device::Operand{in.a_bytes.data(), in.left_type, in.k + gap}.from(first, 0),
          {in.b_bytes.data(), in.type, in.b_stride(), in.transposed},
          {reinterpret_cast<std::byte*>(c.data()), DType::f32, in.n + gap}},
         accumulate, pool);
  std::vector<float> result;
  for (std::int64_t i = 0; i < last - first; ++i) {
    const float* const row = c.data() + i * (in.n + gap);
    result.insert(result.end(), row, row + in.n);
    REQUIRE(std::all_of(row + in.n, row + in.n + gap, [](float element) { return element == before; }));
  }
  return result;
}

template <typename Check>
void for_each_product(const Check& check) {
  for (const auto& [left, type] : {std::pair(DType::f32, DType::f32), std::pair(DType::f32, DType::bf16),
                                   std::pair(DType::f32, DType::f16), std::pair(DType::bf16, DType::bf16)}) {
    for (const bool transposed : {false, true}) {
      for (const auto& [rows, n, k] : {std::array<std::int64_t, 3>{33, 1, 1},
                                       {33, 7, 3},
                                       {33, 37, 300},
                                       {33, 64, 8},
                                       {33, 1301, 41},
                                       {33, 50, 0},
                                       {67, 19, 1057}}) {
        FewRows in(rows, n, k, left, type, transposed);
        for (const device::cpu::FewRowsRunner runner : device::cpu::few_rows_runners(left)) {
          INFO(graph::to_string(left) << " by " << graph::to_string(type) << (transposed ? " transposed" : "")
                                      << ", rows " << rows << ", n " << n << ", k " << k);
          check(in, runner);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("products of few rows equal float64, with every type of weights", "[kernels]") {
  for_each_product([](FewRows& in, device::cpu::FewRowsRunner runner) {
    for (const bool accumulate : {false, true}) {
      const std::vector<float> found = multiplied(runner, in, 0, in.m, 2, accumulate);
      double worst = 0;
      for (std::int64_t i = 0; i < in.m; ++i) {
        for (std::int64_t j = 0; j < in.n; ++j) {
          double exact = accumulate ? before : 0;
          double magnitude = 1;
          for (std::int64_t p = 0; p < in.k; ++p) {
            exact += in.left(i, p) * in.right(p, j);
            magnitude += std::abs(in.left(i, p) * in.right(p, j));
          }
          worst = std::max(worst, std::abs(found[static_cast<std::size_t>(i * in.n + j)] - exact) / magnitude);
        }
      }
      CHECK(worst < 1e-6);
    }
  });
}

TEST_CASE("products with float32 weights have few rows up to 64 if these are transposed, else up to 32", "[kernels]") {
  const auto is_chosen = [](std::int64_t rows, bool transposed) {
    return device::cpu::has_few_rows({rows,
                                      128,
                                      128,
                                      {nullptr, DType::f32, 128},
                                      {nullptr, DType::f32, 128, transposed},
                                      {nullptr, DType::f32, 128}});
  };
  CHECK((is_chosen(64, true) && !is_chosen(65, true)));
  CHECK((is_chosen(32, false) && !is_chosen(33, false)));
}

TEST_CASE("products of bfloat16 matrices in a fixed order have few rows for any number of rows", "[kernels]") {
  const auto is_chosen = [](std::int64_t rows, DType of_a, DType of_b, DType of_c, bool is_turned, bool is_fixed) {
    return device::cpu::has_few_rows(
        {rows, 8, 8, {nullptr, of_a, 8, is_turned}, {nullptr, of_b, 8}, {nullptr, of_c, 8}, is_fixed});
  };
  CHECK(is_chosen(1000, DType::bf16, DType::bf16, DType::f32, false, true));
  CHECK_FALSE(is_chosen(1, DType::bf16, DType::bf16, DType::f32, false, false));
  CHECK_FALSE(is_chosen(1, DType::bf16, DType::bf16, DType::f32, true, true));
  CHECK_FALSE(is_chosen(1, DType::bf16, DType::bf16, DType::bf16, false, true));
  CHECK_FALSE(is_chosen(1, DType::bf16, DType::f32, DType::f32, false, true));
}

TEST_CASE("NaN and infinity in bfloat16 stay in their rows and columns", "[kernels]") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const bool transposed : {false, true}) {
    for (const device::cpu::FewRowsRunner runner : device::cpu::few_rows_runners(DType::bf16)) {
      FewRows in(9, 21, 35, DType::bf16, DType::bf16, transposed);
      const std::vector<float> before_them = multiplied(runner, in, 0, in.m, 1, false);
      in.a.values[static_cast<std::size_t>(3 * (in.k + gap) + 34)] = static_cast<double>(nan);
      in.b.values[static_cast<std::size_t>(transposed ? 20 * in.b_stride() + 34 : 34 * in.b_stride() + 20)] =
          static_cast<double>(infinity);
      device::write_elements(DType::bf16, in.a.values, in.a_bytes);
      device::write_elements(DType::bf16, in.b.values, in.b_bytes);
      const std::vector<float> found = multiplied(runner, in, 0, in.m, 1, false);
      for (std::size_t i = 0; i < found.size(); ++i) {
        CAPTURE(transposed, i / 21, i % 21);
        if (i / 21 == 3) {
          CHECK(std::isnan(found[i]));
        } else if (i % 21 == 20) {
          CHECK(std::isinf(found[i]));
        } else {
          CHECK(found[i] == before_them[i]);
        }
      }
    }
  }
}

TEST_CASE("a row has the same bits alone and among others, and on 1, 2 and 3 threads", "[kernels]") {
  for_each_product([](FewRows& in, device::cpu::FewRowsRunner runner) {
    const std::vector<float> all = multiplied(runner, in, 0, in.m, 1, false);
    for (std::int64_t rows = 1; rows <= in.m; ++rows) {
      const std::int64_t first = (in.m - rows) / 2;
      const std::vector<float> some =
          multiplied(runner, in, first, first + rows, 1 + static_cast<int>(rows % 3), false);
      INFO(rows << " rows");
      REQUIRE(std::memcmp(some.data(), all.data() + first * in.n, some.size() * sizeof(float)) == 0);
    }
  });
}
