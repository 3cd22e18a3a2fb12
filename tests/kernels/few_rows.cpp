// Products of few rows: every width, depth and type of weights against float64, and the same bits for a row whatever
// else is computed.

#include "core/device/cpu/few_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
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
  FewRows(std::int64_t rows, std::int64_t columns, std::int64_t depth, DType dtype, bool is_transposed)
      : m(rows), n(columns), k(depth), type(dtype), transposed(is_transposed) {
    test::Random random(static_cast<std::uint64_t>(n * 1000 + k));
    a = test::zeros(test::type_of({m, k + gap}));
    b = test::zeros(test::type_of({transposed ? n : k, b_stride()}));
    random.fill_normal(a, 0, 1);
    random.fill_normal(b, 0, 1);
    test::round_to_float(a);
    test::round_to_float(b);
    device::round_elements(type, b.values);
    a_bytes.resize(a.values.size() * 4);
    device::write_elements(DType::f32, a.values, a_bytes);
    b_bytes.reserve(1);  // for products of no terms, too, there is a matrix
    b_bytes.resize(b.values.size() * (type == DType::f32 ? 4 : 2));
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
          {in.a_bytes.data() + first * (in.k + gap) * 4, DType::f32, in.k + gap},
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
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    for (const bool transposed : {false, true}) {
      for (const auto& [n, k] : std::initializer_list<std::pair<std::int64_t, std::int64_t>>{
               {1, 1}, {7, 3}, {37, 300}, {64, 8}, {1301, 41}, {50, 0}}) {
        FewRows in(33, n, k, type, transposed);
        for (const device::cpu::FewRowsRunner runner : device::cpu::few_rows_runners()) {
          INFO(graph::to_string(type) << (transposed ? " transposed" : "") << ", n " << n << ", k " << k);
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
