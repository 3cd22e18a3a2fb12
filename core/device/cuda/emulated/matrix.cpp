#include "core/device/cuda/matrix.h"

#include <cmath>
#include <cstring>

#include "core/device/cuda/emulated/emulator.h"

namespace shardrun::device::cuda::emulated {
namespace {

/// The first or second bfloat16 of a word.
double half_of(std::uint32_t word, int number) {
  return float_of_bfloat(static_cast<std::uint16_t>(word >> static_cast<unsigned>(16 * number)));
}

/// A lane's fragments of the two operands of a product.
struct Fragments {
  FragmentA a;
  FragmentB b;
};

template <typename T>
T of_lane(const Strand& strand, int lane) {
  T value;
  std::memcpy(&value, given_by(strand, lane), sizeof(T));
  return value;
}

/// Rounds toward zero, but a sum beyond the largest float becomes infinite.
float round_toward_zero(double value) {
  const auto nearest = static_cast<float>(value);
  const bool is_too_large = std::isfinite(nearest) && std::abs(double{nearest}) > std::abs(value);
  return is_too_large ? float_of_bits(bits_of_float(nearest) - 1) : nearest;
}

}  // namespace

// Like tensor cores, adds 16 products to c and rounds once, toward zero. A double holds the product of two bfloat16
// numbers exactly, and sums of products, too, unless they span more than 53 bits.
void multiply_add(Strand& strand, const FragmentA& a, const FragmentB& b, FragmentC& c, Where where) {
  const Fragments own = {a, b};
  give(strand, &own, sizeof(own), where);
  const int lane = place_of(strand).thread % warp_size;
  const int row = lane / 4;
  const int column = lane % 4 * 2;
  double sums[4] = {c.of[0], c.of[1], c.of[2], c.of[3]};
  for (int half = 0; half < 2; ++half) {  // halves of k
    for (int t = 0; t < 4; ++t) {
      const FragmentA of_row = of_lane<Fragments>(strand, 4 * row + t).a;
      for (int n = 0; n < 2; ++n) {
        const FragmentB of_column = of_lane<Fragments>(strand, 4 * (column + n) + t).b;
        for (int k = 0; k < 2; ++k) {
          const double factor = half_of(of_column.words[half], k);
          sums[n] += half_of(of_row.words[2 * half], k) * factor;
          sums[2 + n] += half_of(of_row.words[2 * half + 1], k) * factor;
        }
      }
    }
  }
  for (int i = 0; i < 4; ++i) {
    c.of[i] = round_toward_zero(sums[i]);
  }
}

FourMatrices load_matrices(Strand& strand, const Eight& row, bool transposed, Where where) {
  give(strand, &row, sizeof(row), where);
  const int lane = place_of(strand).thread % warp_size;
  FourMatrices found;
  for (int m = 0; m < 4; ++m) {
    auto& word = found.words[m];
    if (!transposed) {
      word = of_lane<Eight>(strand, 8 * m + lane / 4).words[lane % 4];
      continue;
    }
    word = 0;
    for (int i = 0; i < 2; ++i) {
      const Eight other = of_lane<Eight>(strand, 8 * m + lane % 4 * 2 + i);
      const int element = lane / 4;
      const std::uint32_t bits = other.words[element / 2] >> static_cast<unsigned>(element % 2 * 16) & 0xFFFFU;
      word |= bits << static_cast<unsigned>(16 * i);
    }
  }
  return found;
}

}  // namespace shardrun::device::cuda::emulated
