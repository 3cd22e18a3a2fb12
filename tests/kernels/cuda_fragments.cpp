// The instructions mma.m16n8k16 (bfloat16) and ldmatrix.x4, as the emulator runs them. The tables are the figures of
// the PTX ISA, chapters "Matrix fragments for mma.m16n8k16 with floating point type" and "ldmatrix": which lane of a
// warp holds an element of a matrix. They are written out because a formula might repeat a mistake of the emulator's.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/device/cuda/launch.h"
#include "core/device/cuda/matrix.h"
#include "core/device/threads.h"
#include "tests/support/catch.h"

using namespace shardrun;
using namespace shardrun::device;
using namespace shardrun::device::cuda;

namespace {

/// The lane that holds A[row][column]; rows 8 to 15 are as rows 0 to 7.
constexpr int lane_of_a[8][16] = {{0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 1, 2, 2, 3, 3},
                                  {4, 4, 5, 5, 6, 6, 7, 7, 4, 4, 5, 5, 6, 6, 7, 7},
                                  {8, 8, 9, 9, 10, 10, 11, 11, 8, 8, 9, 9, 10, 10, 11, 11},
                                  {12, 12, 13, 13, 14, 14, 15, 15, 12, 12, 13, 13, 14, 14, 15, 15},
                                  {16, 16, 17, 17, 18, 18, 19, 19, 16, 16, 17, 17, 18, 18, 19, 19},
                                  {20, 20, 21, 21, 22, 22, 23, 23, 20, 20, 21, 21, 22, 22, 23, 23},
                                  {24, 24, 25, 25, 26, 26, 27, 27, 24, 24, 25, 25, 26, 26, 27, 27},
                                  {28, 28, 29, 29, 30, 30, 31, 31, 28, 28, 29, 29, 30, 30, 31, 31}};
/// The number of the element in the lane's fragment: a0 to a7.
constexpr int element_of_a[2][16] = {{0, 1, 0, 1, 0, 1, 0, 1, 4, 5, 4, 5, 4, 5, 4, 5},
                                     {2, 3, 2, 3, 2, 3, 2, 3, 6, 7, 6, 7, 6, 7, 6, 7}};

/// The lane that holds B[row][column]. The first 8 rows also hold for an 8 x 8 matrix that ldmatrix.trans loads.
constexpr int lane_of_b[16][8] = {
    {0, 4, 8, 12, 16, 20, 24, 28},  {0, 4, 8, 12, 16, 20, 24, 28},  {1, 5, 9, 13, 17, 21, 25, 29},
    {1, 5, 9, 13, 17, 21, 25, 29},  {2, 6, 10, 14, 18, 22, 26, 30}, {2, 6, 10, 14, 18, 22, 26, 30},
    {3, 7, 11, 15, 19, 23, 27, 31}, {3, 7, 11, 15, 19, 23, 27, 31}, {0, 4, 8, 12, 16, 20, 24, 28},
    {0, 4, 8, 12, 16, 20, 24, 28},  {1, 5, 9, 13, 17, 21, 25, 29},  {1, 5, 9, 13, 17, 21, 25, 29},
    {2, 6, 10, 14, 18, 22, 26, 30}, {2, 6, 10, 14, 18, 22, 26, 30}, {3, 7, 11, 15, 19, 23, 27, 31},
    {3, 7, 11, 15, 19, 23, 27, 31}};
/// The element, b0 to b3, in which a lane holds each row of B.
constexpr int element_of_b[16] = {0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3};

/// The lane that holds C[row][column]; rows 8 to 15 are as rows 0 to 7. An 8 x 8 matrix of ldmatrix has the same table.
constexpr int lane_of_c[8][8] = {{0, 0, 1, 1, 2, 2, 3, 3},         {4, 4, 5, 5, 6, 6, 7, 7},
                                 {8, 8, 9, 9, 10, 10, 11, 11},     {12, 12, 13, 13, 14, 14, 15, 15},
                                 {16, 16, 17, 17, 18, 18, 19, 19}, {20, 20, 21, 21, 22, 22, 23, 23},
                                 {24, 24, 25, 25, 26, 26, 27, 27}, {28, 28, 29, 29, 30, 30, 31, 31}};
constexpr int element_of_c[2][8] = {{0, 1, 0, 1, 0, 1, 0, 1}, {2, 3, 2, 3, 2, 3, 2, 3}};

template <typename Function>
void launch_warp(std::size_t bytes, const Function& function) {
  static Threads one(1);
  const graph::Attributes attributes;
  const Scalars scalars;
  launch({.attributes = attributes, .inputs = {}, .outputs = {}, .scratch = {}, .scalars = scalars, .threads = one}, 1,
         warp_size, bytes, function);
}

struct MultiplyFragments {
  const FragmentA* a;
  const FragmentB* b;
  FragmentC* c;
  void operator()(Block& block) const { multiply_add(block, a[block.lane()], b[block.lane()], c[block.lane()]); }
};

/// The fragments of all lanes.
struct WarpFragments {
  std::vector<FragmentA> a = std::vector<FragmentA>(warp_size);
  std::vector<FragmentB> b = std::vector<FragmentB>(warp_size);
  std::vector<FragmentC> c = std::vector<FragmentC>(warp_size);

  void set_a(int row, int column, float value) {
    set(a[static_cast<std::size_t>(lane_of_a[row % 8][column])].words, element_of_a[row / 8][column], value);
  }
  void set_b(int row, int column, float value) {
    set(b[static_cast<std::size_t>(lane_of_b[row][column])].words, element_of_b[row], value);
  }
  [[nodiscard]] float& at_c(int row, int column) {
    return c[static_cast<std::size_t>(lane_of_c[row % 8][column])].of[element_of_c[row / 8][column]];
  }
  void multiply() { launch_warp(0, MultiplyFragments{a.data(), b.data(), c.data()}); }

 private:
  /// Two elements a word, the first in the lower half.
  static void set(std::uint32_t* words, int element, float value) {
    words[element / 2] |= static_cast<std::uint32_t>(bfloat_of_float(value)) << (element % 2 == 0 ? 0U : 16U);
  }
};

/// c + the sum of `terms` products with 1, for each element of c.
float sum_of(float c, const std::vector<float>& terms) {
  WarpFragments warp;
  for (int k = 0; k < static_cast<int>(terms.size()); ++k) {
    for (int row = 0; row < 16; ++row) {
      warp.set_a(row, k, 1);
    }
    for (int column = 0; column < 8; ++column) {
      warp.set_b(k, column, terms[static_cast<std::size_t>(k)]);
    }
  }
  for (FragmentC& each : warp.c) {
    each = {{c, c, c, c}};
  }
  warp.multiply();
  for (const FragmentC& each : warp.c) {
    for (const float value : each.of) {
      CHECK(value == warp.c[0].of[0]);
    }
  }
  return warp.c[0].of[0];
}

/// Row r of matrix m is Eight 37 m + 3 r. There are unused Eights between rows, and between matrices.
constexpr int eights = 37 * 3 + 3 * 7 + 1;
constexpr std::uint32_t number_of(std::uint32_t matrix, std::uint32_t row, std::uint32_t column) {
  return 0x4000 + 64 * matrix + 8 * row + column;
}

template <bool transposed>
struct LoadMatrices {
  FourMatrices* found;
  void operator()(Block& block) const {
    const Shared<Eight> data = block.shared<Eight>(eights);
    const auto matrix = static_cast<std::uint32_t>(block.lane() / 8);
    const auto row = static_cast<std::uint32_t>(block.lane() % 8);
    const int at = 37 * (block.lane() / 8) + 3 * (block.lane() % 8);
    for (std::uint32_t word = 0; word < 4; ++word) {
      data[at].words[word] = number_of(matrix, row, 2 * word) | number_of(matrix, row, 2 * word + 1) << 16U;
    }
    block.sync();
    found[block.lane()] = load_matrices<transposed>(block, data, at);
  }
};

template <bool transposed>
std::vector<FourMatrices> loaded() {
  std::vector<FourMatrices> found(warp_size);
  launch_warp(shared_bytes<Eight>(eights), LoadMatrices<transposed>{found.data()});
  return found;
}

/// Element 0 or 1 of the word that a lane has loaded from a matrix.
std::uint32_t element_of(const std::vector<FourMatrices>& found, int lane, int matrix, int element) {
  return found[static_cast<std::size_t>(lane)].words[matrix] >> (element == 0 ? 0U : 16U) & 0xFFFFU;
}

}  // namespace

TEST_CASE("a warp's fragments of a product lie as the PTX ISA says") {
  WarpFragments warp;
  const auto of_a = [](int row, int column) { return static_cast<float>((row * 16 + column) * 7 % 31 - 15); };
  const auto of_b = [](int row, int column) { return static_cast<float>((row * 8 + column) * 11 % 29 - 14); };
  const auto of_c = [](int row, int column) { return static_cast<float>(1000 * row + 10 * column); };
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 16; ++column) {
      warp.set_a(row, column, of_a(row, column));
    }
    for (int column = 0; column < 8; ++column) {
      warp.set_b(row, column, of_b(row, column));
      warp.at_c(row, column) = of_c(row, column);
    }
  }

  warp.multiply();

  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      float expected = of_c(row, column);
      for (int k = 0; k < 16; ++k) {
        expected += of_a(row, k) * of_b(k, column);
      }
      INFO("row " << row << ", column " << column);
      CHECK(warp.at_c(row, column) == expected);
    }
  }
}

TEST_CASE("a warp's product rounds once after 16 terms, toward zero") {
  constexpr float ulp = 0x1p-23F;  // the distance from 1 to the next float
  CHECK(sum_of(1, {0.75F * ulp}) == 1);
  CHECK(sum_of(-1, {-0.75F * ulp}) == -1);
  CHECK(sum_of(1, std::vector<float>(16, 0.25F * ulp)) == 1 + 4 * ulp);
  CHECK(sum_of(1, {0.75F * ulp, 0.75F * ulp}) == 1 + ulp);
  CHECK(sum_of(1, {-0.25F * ulp}) == 1 - 0.5F * ulp);  // below 1, floats are half as far apart
  constexpr float infinity = std::numeric_limits<float>::infinity();
  CHECK(sum_of(std::numeric_limits<float>::max(), {0x1p127F}) == infinity);
  CHECK(sum_of(-infinity, {1}) == -infinity);
}

TEST_CASE("ldmatrix gives each lane the elements that the PTX ISA says") {
  const std::vector<FourMatrices> found = loaded<false>();
  const std::vector<FourMatrices> transposed = loaded<true>();
  for (int matrix = 0; matrix < 4; ++matrix) {
    for (int row = 0; row < 8; ++row) {
      for (int column = 0; column < 8; ++column) {
        const std::uint32_t expected = number_of(static_cast<std::uint32_t>(matrix), static_cast<std::uint32_t>(row),
                                                 static_cast<std::uint32_t>(column));
        INFO("matrix " << matrix << ", row " << row << ", column " << column);
        CHECK(element_of(found, lane_of_c[row][column], matrix, element_of_c[0][column]) == expected);
        CHECK(element_of(transposed, lane_of_b[row][column], matrix, element_of_b[row]) == expected);
      }
    }
  }
}
