#include "core/device/reference/product.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/base/philox.h"
#include "core/device/machine_level.h"
#include "core/device/reference/product_tile.h"
#include "tests/support/catch.h"
#include "tests/support/depth.h"

using namespace shardrun;
using namespace shardrun::device;
using namespace shardrun::device::reference;

namespace {

struct Sizes {
  std::int64_t m;
  std::int64_t k;
  std::int64_t n;
};

/// Numbers of rows and columns below, equal to and above those of a tile; vectors; an empty sum.
const std::vector<Sizes> all_sizes = {{1, 1, 1}, {3, 5, 7},     {1, 70, 5},     {5, 70, 1},
                                      {4, 0, 6}, {64, 33, 256}, {65, 129, 257}, {130, 300, 513}};

std::vector<double> numbers(std::int64_t count, std::uint32_t stream) {
  std::vector<double> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = uniform(philox({static_cast<std::uint32_t>(i), stream, 0, 0}, {7, 11})[0]) - 0.5;
  }
  return values;
}

/// Computes the product by its definition. A matrix is used as it is stored, or transposed.
std::vector<double> by_definition(const Sizes& sizes, const Operand& a, const Operand& b, std::vector<double> c) {
  for (std::int64_t i = 0; i < sizes.m; ++i) {
    for (std::int64_t j = 0; j < sizes.n; ++j) {
      double sum = 0;
      for (std::int64_t l = 0; l < sizes.k; ++l) {
        sum += a.data[a.transposed ? l * sizes.m + i : i * sizes.k + l] *
               b.data[b.transposed ? j * sizes.k + l : l * sizes.n + j];
      }
      c[static_cast<std::size_t>(i * sizes.n + j)] += sum;
    }
  }
  return c;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(a[i] - b[i]));
  }
  return largest;
}

/// Calls check(sizes, a, b, c) for all sizes and transposes.
template <typename Check>
void for_all(const Check& check) {
  for (const Sizes& sizes : all_sizes) {
    const std::vector<double> a = numbers(sizes.m * sizes.k, 1);
    const std::vector<double> b = numbers(sizes.k * sizes.n, 2);
    for (const bool a_transposed : {false, true}) {
      for (const bool b_transposed : {false, true}) {
        INFO(sizes.m << " x " << sizes.k << " x " << sizes.n << ", transposed: " << a_transposed << b_transposed);
        check(sizes, a_transposed ? Operand{a.data(), sizes.k, sizes.m, true} : Operand{a.data(), sizes.m, sizes.k},
              b_transposed ? Operand{b.data(), sizes.n, sizes.k, true} : Operand{b.data(), sizes.k, sizes.n});
      }
    }
  }
}

}  // namespace

TEST_CASE("the reference's product equals its definition, with the same bits on any number of threads", "[device]") {
  for_all([](const Sizes& sizes, const Operand& a, const Operand& b) {
    const std::vector<double> before = numbers(sizes.m * sizes.n, 3);
    for (const bool accumulate : {false, true}) {
      const std::vector<double> start = accumulate ? before : std::vector<double>(before.size());
      std::vector<double> alone = before;
      Threads one(1);
      multiply(one, a, b, alone.data(), accumulate);
      CHECK(largest_difference(alone, by_definition(sizes, a, b, start)) < 1e-13);
      for (const int count : {2, 3, 7}) {
        std::vector<double> shared = before;
        Threads threads(count);
        multiply(threads, a, b, shared.data(), accumulate);
        CHECK(shared == alone);
      }
    }
  });
}

TEST_CASE("a tile is right with every instruction set of the machine, and touches nothing outside", "[device]") {
  for (const int level : {0, 3, 4}) {
    if (level > machine_level() || (level > 0 && test::sanitized && !test::all_tests)) {  // such variants are not built
      continue;
    }
    INFO("instruction set " << level);
    MultiplyTile* const multiply_tile = multiply_tile_of(level);
    for_all([&](const Sizes& sizes, const Operand& a, const Operand& b) {
      const std::vector<double> whole =
          by_definition(sizes, a, b, std::vector<double>(static_cast<std::size_t>(sizes.m * sizes.n)));
      std::vector<double> found(whole.size(), 8.0);
      const Tile tile{
          .row = sizes.m / 3, .column = sizes.n / 4, .rows = (sizes.m + 2) / 3, .columns = (sizes.n + 1) / 2};
      multiply_tile(a, b, tile, found.data(), false);
      for (std::int64_t i = 0; i < sizes.m; ++i) {
        for (std::int64_t j = 0; j < sizes.n; ++j) {
          const bool inside =
              i >= tile.row && i < tile.row + tile.rows && j >= tile.column && j < tile.column + tile.columns;
          const auto at = static_cast<std::size_t>(i * sizes.n + j);
          if (std::abs(found[at] - (inside ? whole[at] : 8.0)) > 1e-13) {
            FAIL_CHECK("element " << i << ", " << j << " is " << found[at]);
          }
        }
      }
    });
  }
}
